//! `selvedge runs list` and `show`: prints runs with secrets redacted.

use std::time::Duration;

use anyhow::Result;
use selvedge_journal::{Call, Filter, Journal, Redactor, Run, RunState};
use selvedge_protocol::{ResumeAs, since_epoch};
use selvedge_tools::snake_case;
use serde_json::json;

use crate::Exit;
use crate::out::{harmless, line};
use crate::runs::args::{RunsListArgs, RunsShowArgs};
use crate::runs::redactor;

pub(crate) fn list(journal: &Journal, args: &RunsListArgs) -> Result<Exit> {
    let now = since_epoch();
    let since = args.since.map(|since| now.saturating_sub(since));
    let filter = Filter {
        since_ms: since.map(|since| since.as_millis() as i64),
        tool: args.tool.as_deref().map(known_as),
        limit: Some(args.limit),
    };
    let runs = journal.runs(&filter)?;
    if args.json {
        return crate::out::json(&runs);
    }
    for run in &runs {
        let took = run.ended_ms.map(|ended| (ended - run.started_ms).max(0));
        let took = took.map(|took| format!("{took} ms")).unwrap_or_default();
        let calls = count_of_calls(run.calls);
        let ago = ago(now, run.started_ms);
        line(&harmless(&format!(
            "{}  {:<9}  {ago:>8}  {took:>9}  {calls:>9}  {}",
            run.id,
            state(run.state),
            run.directory
        )))?;
    }
    if runs.is_empty() {
        tell!("note: the journal has no runs");
    }
    Ok(Exit::Done)
}

pub(crate) fn show(journal: &Journal, args: &RunsShowArgs) -> Result<Exit> {
    let run = journal.run(&args.run)?;
    let redactor = redactor()?;
    if args.json {
        return crate::out::json(&as_json(&run, &redactor));
    }
    let summary = &run.summary;
    line(&format!(
        "{}  {}, started {} ago in {}",
        summary.id,
        state(summary.state),
        ago(since_epoch(), summary.started_ms),
        summary.directory
    ))?;
    if let Some(earlier) = &summary.resumes {
        line(&format!("resumes {earlier}"))?;
    }
    if let Some(later) = journal.resumed_by(&summary.id)? {
        line(&format!("resumed by {later}"))?;
    }
    if let Some(error) = run.output.as_ref().and_then(|output| output.error.as_ref()) {
        line(&harmless(
            &redactor.text(&format!("{}: {}", error.code, error.message)),
        ))?;
    }
    let bars = Bars::of(&run);
    for call in &run.calls {
        let about = call
            .args
            .as_ref()
            .map(|args| redactor.value(args).to_string());
        let about: String = about.unwrap_or_default().chars().take(60).collect();
        let reused = if call.reused { ", reused" } else { "" };
        let text = format!(
            "{:<8} {} {:<14} {}{reused}  {about}",
            call.id,
            bars.bar(call),
            call.tool,
            call.state.as_str()
        );
        line(harmless(&text).trim_end())?;
        if let Some(error) = &call.error {
            let text = format!("           {}: {}", error.code, error.message);
            line(&harmless(&redactor.text(&text)))?;
        }
    }
    for question in &run.questions {
        // Without redaction: a person must see exactly what they approve.
        line(&harmless(&crate::ask::question(question)))?;
    }
    for advice in advice(&run) {
        line(&advice)?;
    }
    Ok(Exit::Done)
}

/// Returns the name of a tool in the journal: snake case, except for tools of MCP servers.
fn known_as(tool: &str) -> String {
    if tool.contains('.') {
        tool.to_owned()
    } else {
        snake_case(tool)
    }
}

/// Returns what the user can do next with a run.
fn advice(run: &Run) -> Vec<String> {
    let id = &run.summary.id;
    let can_resume = match run.summary.state {
        RunState::Suspended => {
            return vec![format!(
                "waiting for approval: run `selvedge runs answer {id} --approve`, or `--deny`"
            )];
        }
        RunState::Running => return Vec::new(),
        RunState::Completed => false,
        RunState::Failed | RunState::Died => true,
    };
    let with = |resume_as: ResumeAs| {
        let calls = run.calls.iter();
        calls.filter(move |call| call.resume_as == resume_as)
    };
    let undecided = with(ResumeAs::Undecided).map(|call| {
        format!(
            "the outcome of {} ({}) is unknown: check what it changed before you resume",
            call.id, call.tool
        )
    });
    let mut advice: Vec<String> = undecided.collect();
    if can_resume && (!advice.is_empty() || with(ResumeAs::Answer).next().is_some()) {
        advice.push(format!(
            "run `selvedge run FILE --resume {id}` to reuse the results of its completed calls"
        ));
    }
    advice
}

fn as_json(run: &Run, redactor: &Redactor) -> serde_json::Value {
    let calls = run.calls.iter().map(|call| redactor.value(&json!(call)));
    let calls: Vec<_> = calls.collect();
    let error = run.output.as_ref().and_then(|output| output.error.as_ref());
    json!({
        "run": run.summary,
        "source": redactor.text(&run.source),
        "error": error.map(|error| redactor.value(&json!(error))),
        "calls": calls,
        "questions": run.questions,
        "advice": advice(run),
    })
}

/// Draws a bar per call that shows when it ran.
struct Bars {
    start: i64,
    per_column: f64,
}

/// Width of a bar, in columns.
const WIDTH: usize = 24;

impl Bars {
    fn of(run: &Run) -> Self {
        let end = |call: &Call| call.started_ms + call.duration_ms.unwrap_or(0.0) as i64;
        let starts = run.calls.iter().map(|call| call.started_ms);
        let start = starts.min().unwrap_or(0);
        let last = run.calls.iter().map(end).max().unwrap_or(start);
        Self {
            start,
            per_column: ((last - start).max(1) as f64) / WIDTH as f64,
        }
    }

    fn bar(&self, call: &Call) -> String {
        let column = |ms: f64| ((ms / self.per_column) as usize).min(WIDTH - 1);
        let from = column((call.started_ms - self.start) as f64);
        let to = column((call.started_ms - self.start) as f64 + call.duration_ms.unwrap_or(0.0));
        let cell = |column| {
            if (from..=to).contains(&column) {
                '█'
            } else {
                '·'
            }
        };
        (0..WIDTH).map(cell).collect()
    }
}

fn state(state: RunState) -> &'static str {
    match state {
        RunState::Running => "running",
        RunState::Completed => "completed",
        RunState::Failed => "failed",
        RunState::Suspended => "suspended",
        RunState::Died => "died",
    }
}

pub(crate) fn count_of_calls(calls: u32) -> String {
    format!("{calls} call{}", if calls == 1 { "" } else { "s" })
}

/// Returns the time since `then_ms`, rounded down to one unit.
pub(crate) fn ago(now: Duration, then_ms: i64) -> String {
    let seconds = (now.as_millis() as i64 - then_ms).max(0) / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
