//! `selvedge runs list` and `show`: prints runs with secrets redacted.

use std::time::Duration;

use anyhow::Result;
use selvedge_journal::{
    GatedCallDecision, Journal, JournalError, Redactor, RunFilter, RunSummary, StoredApproval,
    StoredCall, StoredRun, StoredRunState,
};
use selvedge_protocol::{ResumeAs, since_epoch};
use selvedge_tools::{snake_case, summarise_args};
use serde_json::json;

use crate::CliStatus;
use crate::call_outcome::CallOutcomeLabel;
use crate::list_table::{ListCell, cut_list, first_code_line, print_list};
use crate::output::{print_coloured, print_line, print_text};
use crate::runs::args::{RunsListArgs, RunsShowArgs};
use crate::runs::{resume_advice, user_redactor};
use crate::units::format_milliseconds;

pub(crate) fn list_runs(journal: &Journal, args: &RunsListArgs) -> Result<CliStatus> {
    let now = since_epoch();
    let since = args.since.map(|since| now.saturating_sub(since));
    let filter = RunFilter {
        since_ms: since.map(|since| since.as_millis() as i64),
        tool: args.tool.as_deref().map(journal_tool_name),
        // One more tells whether the list is cut.
        limit: Some(args.limit.saturating_add(1)),
        ..RunFilter::default()
    };
    let mut runs = journal.runs(&filter)?;
    let is_cut = cut_list(&mut runs, args.limit);
    if args.json {
        return crate::output::print_json(&runs);
    }
    let redactor = user_redactor()?;
    let row = |run: &RunSummary| {
        let took = run.ended_ms.map(|ended| (ended - run.started_ms).max(0));
        let took = took.map(|took| format_milliseconds(took as f64));
        let took = took.unwrap_or_default();
        let outline = journal.run_outline(&run.id);
        let source = outline.map_or_else(|_| String::new(), |outline| outline.source);
        let source = redactor.redact_text(&source).into_owned();
        vec![
            run.id.as_str().into(),
            ListCell::coloured(state_name(run.state), state_colour(run.state)),
            format!("{} ago", format_age(now, run.started_ms)).into(),
            took.into(),
            format_calls(run.calls).into(),
            first_code_line(&source).into(),
            run.directory.as_str().into(),
        ]
    };
    let headings = [
        "RUN", "STATE", "STARTED", "TIME", "CALLS", "SCRIPT", "FOLDER",
    ];
    print_list(&headings, runs.iter().map(row).collect())?;
    if is_cut {
        let newest = match runs.len() {
            1 => "run".to_owned(),
            count => format!("{count} runs"),
        };
        eprint_line!("note: only the newest {newest}; pass --limit N");
    }
    if runs.is_empty() {
        let is_filtered = args.tool.is_some() || args.since.is_some();
        eprint_line!(
            "note: {}",
            match is_filtered {
                true => "no runs match",
                false => "the journal has no runs",
            }
        );
    }
    Ok(CliStatus::Success)
}

pub(crate) fn show_run(journal: &Journal, args: &RunsShowArgs) -> Result<CliStatus> {
    let run = journal.run(&args.run)?;
    let redactor = user_redactor()?;
    if args.json {
        return crate::output::print_json(&run_json(journal, &run, &redactor)?);
    }
    let summary = &run.summary;
    let age = format_age(since_epoch(), summary.started_ms);
    print_coloured(&[
        (&summary.id, "1"),
        ("  ", ""),
        (state_name(summary.state), state_colour(summary.state)),
        (&format!(", started {age} ago in {}", summary.directory), ""),
    ])?;
    if let Some(earlier) = &summary.resumes {
        print_line(&format!("resumes {earlier}"))?;
    }
    if let Some(later) = journal.resumed_by(&summary.id)? {
        print_line(&format!("resumed by {later}"))?;
    }
    if let Some(error) = run.output.as_ref().and_then(|output| output.error.as_ref()) {
        let message = redactor.redact_text(&error.message);
        print_coloured(&[(&error.code.to_string(), "31"), (": ", ""), (&message, "")])?;
    }
    let bars = CallTimeline::from_run(&run);
    let approvals = journal.approvals_of(&summary.id)?;
    for call in &run.calls {
        let about =
            args_of(call, &approvals).map(|args| summarise_args(&redactor.redact_value(args), &[]));
        let about = about.unwrap_or_default();
        let label = CallOutcomeLabel::of_stored(call);
        let words = match label.words.as_str() {
            "" => call.state.as_str(),
            words => words,
        };
        let colour = label.tone.colour_code();
        print_coloured(&[
            (&format!("{:<8} {} ", call.id, bars.bar(call)), ""),
            (label.mark, colour),
            (&format!(" {:<14} ", call.tool), ""),
            (words, colour),
            (&format!("  {about}"), ""),
        ])?;
        if let Some(error) = &call.error {
            let code = error.code.to_string();
            let message = redactor.redact_text(&error.message);
            print_coloured(&[
                ("           ", ""),
                (&code, "31"),
                (": ", ""),
                (&message, ""),
            ])?;
        }
    }
    for question in &run.open_approvals {
        // Without redaction: a person must see exactly what they approve.
        print_text(&crate::ask::format_question(question))?;
    }
    for advice in next_steps(&run) {
        print_line(&advice)?;
    }
    Ok(CliStatus::Success)
}

/// Returns the name of a tool in the journal: snake case, except for tools of MCP servers.
fn journal_tool_name(tool: &str) -> String {
    if tool.contains('.') {
        tool.to_owned()
    } else {
        snake_case(tool)
    }
}

/// Returns what the user can do next with a run.
fn next_steps(run: &StoredRun) -> Vec<String> {
    let id = &run.summary.id;
    match run.summary.state {
        StoredRunState::Suspended => {
            return vec![format!(
                "waiting for approval: run `selvedge runs answer {id} --approve`, or `--deny`"
            )];
        }
        StoredRunState::Running => return Vec::new(),
        StoredRunState::Completed | StoredRunState::Failed | StoredRunState::Died => {}
    }
    let undecided = run.calls.iter();
    let undecided = undecided.filter(|call| call.resume_as == ResumeAs::Undecided);
    let undecided = undecided.map(|call| {
        let (call, tool) = (call.resume_id(id), &call.tool);
        format!("the outcome of {call} ({tool}) is unknown: check what it changed")
    });
    undecided.chain(resume_advice(run)).collect()
}

/// Returns a run with its calls as JSON, with secrets redacted.
pub(crate) fn run_json(
    journal: &Journal,
    run: &StoredRun,
    redactor: &Redactor,
) -> Result<serde_json::Value, JournalError> {
    let approvals = journal.approvals_of(&run.summary.id)?;
    let calls = run.calls.iter().map(|call| {
        let mut shown = json!(call);
        if let Some(args) = args_of(call, &approvals) {
            shown["args"] = args.clone();
        }
        let mut shown = redactor.redact_value(&shown);
        shown["waits"] = redactor.redact_value(&waits_of(&approvals, call).into());
        shown
    });
    let calls: Vec<_> = calls.collect();
    let error = run.output.as_ref().and_then(|output| output.error.as_ref());
    Ok(json!({
        "run": run.summary,
        "source": redactor.redact_text(&run.source),
        "error": error.map(|error| redactor.redact_value(&json!(error))),
        "output": run.output.as_ref().map(|output| redactor.redact_value(&json!(output))),
        "calls": calls,
        "questions": run.open_approvals,
        "advice": next_steps(run),
    }))
}

/// Returns when a call waited before it started: for approval, with the decision, and for a free
/// slot. An open wait has no end.
fn waits_of(approvals: &[StoredApproval], call: &StoredCall) -> Vec<serde_json::Value> {
    let approvals = decisions_about(approvals, call).map(|(approval, gated)| {
        json!({
            "kind": "approval",
            "from_ms": approval.asked_ms,
            "to_ms": approval.answered_ms,
            "answer": gated.answer,
            "decided_by": approval.decided_by,
        })
    });
    let queued = call.queued_ms.map(|queued| {
        let from = call.started_ms - queued as i64;
        json!({"kind": "queue", "from_ms": from, "to_ms": call.started_ms})
    });
    approvals.chain(queued).collect()
}

/// Returns the approval requests about a call, each with the decision about the call.
fn decisions_about<'a>(
    approvals: &'a [StoredApproval],
    call: &'a StoredCall,
) -> impl Iterator<Item = (&'a StoredApproval, &'a GatedCallDecision)> {
    approvals.iter().filter_map(|approval| {
        let mut calls = approval.calls.iter();
        Some((approval, calls.find(|gated| gated.id == call.id)?))
    })
}

/// Returns the arguments of a call. The journal has those of a call that was not allowed only in
/// the approval request.
fn args_of<'a>(
    call: &'a StoredCall,
    approvals: &'a [StoredApproval],
) -> Option<&'a serde_json::Value> {
    let in_request = || decisions_about(approvals, call).next();
    let args = call.args.as_ref();
    args.or_else(|| in_request().map(|(_, gated)| &gated.args))
}

/// Draws a bar per call that shows when it ran.
struct CallTimeline {
    start: i64,
    ms_per_column: f64,
}

/// Width of a bar, in columns.
const TIMELINE_COLUMNS: usize = 24;

impl CallTimeline {
    fn from_run(run: &StoredRun) -> Self {
        let end = |call: &StoredCall| call.started_ms + call.duration_ms.unwrap_or(0.0) as i64;
        let starts = run.calls.iter().map(|call| call.started_ms);
        let start = starts.min().unwrap_or(0);
        let last = run.calls.iter().map(end).max().unwrap_or(start);
        Self {
            start,
            ms_per_column: ((last - start).max(1) as f64) / TIMELINE_COLUMNS as f64,
        }
    }

    fn bar(&self, call: &StoredCall) -> String {
        let column = |ms: f64| ((ms / self.ms_per_column) as usize).min(TIMELINE_COLUMNS - 1);
        let from = column((call.started_ms - self.start) as f64);
        let to = column((call.started_ms - self.start) as f64 + call.duration_ms.unwrap_or(0.0));
        let cell = |column| {
            if (from..=to).contains(&column) {
                '█'
            } else {
                '·'
            }
        };
        (0..TIMELINE_COLUMNS).map(cell).collect()
    }
}

fn state_colour(state: StoredRunState) -> &'static str {
    match state {
        StoredRunState::Running => "36",
        StoredRunState::Completed => "32",
        StoredRunState::Failed | StoredRunState::Died => "31",
        StoredRunState::Suspended => "33",
    }
}

fn state_name(state: StoredRunState) -> &'static str {
    match state {
        StoredRunState::Running => "running",
        StoredRunState::Completed => "completed",
        StoredRunState::Failed => "failed",
        StoredRunState::Suspended => "suspended",
        StoredRunState::Died => "died",
    }
}

pub(crate) fn format_calls(calls: u32) -> String {
    selvedge_text::count_noun(calls, "call")
}

/// Returns the time since `then_ms`, rounded down to one unit.
pub(crate) fn format_age(now: Duration, then_ms: i64) -> String {
    let seconds = (now.as_millis() as i64 - then_ms).max(0) / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
