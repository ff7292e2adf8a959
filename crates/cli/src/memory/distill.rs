//! `selvedge memory distill`: learns from new turns, now or where it is due, and shows the
//! schedule.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use selvedge_config::Config;
use selvedge_memory::{DistillReport, DistillState, LessonStatus, Memory, MemoryError};
use selvedge_protocol::{Usage, now_ms};
use selvedge_text::count_noun;
use serde_json::json;

use super::args::MemoryDistillArgs;
use super::import::progress_bar;
use crate::CliStatus;
use crate::chat::format_usage;
use crate::memory_setup::small_model;
use crate::output::{print_json, print_json_text, print_line};

/// First interval between two checks of a provider's batch. It doubles up to [`MAX_POLL_INTERVAL`].
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Longest interval between two checks. Most batches take an hour.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(60);

pub(super) fn distill(
    memory: &Arc<Memory>,
    args: &MemoryDistillArgs,
    config: &Config,
) -> Result<CliStatus> {
    let mut states = memory.distill_states()?;
    if let Some(session) = &args.session {
        let state = memory.distill_state(session)?;
        states = match state {
            Some(state) => vec![state],
            None => return Err(MemoryError::SessionNotFound(session.clone()).into()),
        };
    }
    if args.status {
        return show_status(memory, &states, args);
    }
    states.retain(|state| match args.due {
        true => state.is_due(),
        false => state.new_turns > 0,
    });
    let runtime = crate::run::runtime()?;
    let small = runtime.block_on(small_model(config, None))?;
    let mut total = DistillReport::default();
    for state in &states {
        let (mut bar_shown, mut interval) = (None, MIN_POLL_INTERVAL);
        loop {
            let distilled = runtime.block_on(memory.distill(&state.session, small.as_deref()));
            let distilled = match distilled {
                // Another process distills this project.
                Err(MemoryError::DistillLocked(_)) if args.session.is_none() => break,
                distilled => distilled?,
            };
            let bar = bar_shown.get_or_insert_with(|| {
                let turns = u64::from(distilled.distilled_turns + distilled.remaining_turns);
                let template = "{msg} {wide_bar} {pos}/{len} {eta}";
                progress_bar(Some(turns), template, unit_name(state))
            });
            bar.inc(u64::from(distilled.distilled_turns));
            if distilled.submitted_turns > 0 && args.wait {
                std::thread::sleep(interval);
                interval = (interval * 2).min(MAX_POLL_INTERVAL);
                continue;
            }
            total.submitted_turns += distilled.submitted_turns;
            total.distilled_turns += distilled.distilled_turns;
            total.learned += distilled.learned;
            total.dropped += distilled.dropped;
            if distilled.remaining_turns == 0 {
                bar.finish_and_clear();
                break;
            }
        }
    }
    report(memory, args, &states, total)
}

/// Prints what was learned, and what the requests of these runs used.
fn report(
    memory: &Memory,
    args: &MemoryDistillArgs,
    states: &[DistillState],
    total: DistillReport,
) -> Result<CliStatus> {
    let names: BTreeSet<&str> = states.iter().map(|state| state.session.as_str()).collect();
    let after = memory.distill_states()?.into_iter();
    let mut usage = RunUsage::default();
    for state in after.filter(|state| names.contains(state.session.as_str())) {
        usage.add(&state);
    }
    let DistillReport {
        distilled_turns: turns,
        learned,
        dropped,
        submitted_turns: handed_over,
        ..
    } = total;
    if args.json {
        let mut report = json!({
            "turns": turns, "learned": learned, "dropped": dropped, "handed_over": handed_over,
        });
        if usage.is_known() {
            report["requests"] = usage.requests.into();
            report["input_tokens"] = usage.tokens.input_tokens.into();
            report["output_tokens"] = usage.tokens.output_tokens.into();
            report["cost"] = usage.cost.into();
        }
        print_json_text(&report.to_string())?;
        return Ok(CliStatus::Success);
    }
    let (read, learned) = (count_noun(turns, "turn"), count_noun(learned, "lesson"));
    eprint_line!("read {read}, learned {learned}, dropped {dropped}");
    if usage.is_known() {
        eprint_line!("used {}", usage.line());
    }
    if handed_over > 0 {
        let submitted = count_noun(handed_over, "turn");
        eprint_line!("note: submitted {submitted} in a provider's batch");
        eprint_line!("hint: run `selvedge memory distill` again later, or pass --wait");
    }
    let proposals = memory.lessons(Some(LessonStatus::Proposed))?.len();
    if proposals > 0 {
        let proposals = count_noun(proposals, "proposal");
        eprint_line!("note: {proposals} to review: `selvedge memory review`");
    }
    Ok(CliStatus::Success)
}

/// What the requests of runs used.
#[derive(Default)]
struct RunUsage {
    requests: u32,
    tokens: Usage,
    cost: Option<f64>,
}

impl RunUsage {
    fn add(&mut self, state: &DistillState) {
        let Some(run) = &state.last_run else {
            return;
        };
        self.requests += run.requests;
        self.tokens.input_tokens += run.input_tokens;
        self.tokens.output_tokens += run.output_tokens;
        if let Some(cost) = run.cost {
            self.cost = Some(self.cost.unwrap_or_default() + cost);
        }
    }

    /// Returns whether there were requests whose tokens are known. Those of batches are not.
    fn is_known(&self) -> bool {
        self.tokens.input_tokens > 0
    }

    /// Such as `2 requests · 12.3k in, 678 out · $0.0120`.
    fn line(&self) -> String {
        let requests = count_noun(self.requests, "request");
        let cost = self.cost.map(|cost| format!(" · ${cost:.4}"));
        let cost = cost.unwrap_or_default();
        format!("{requests} · {}{cost}", format_usage(&self.tokens))
    }
}

/// Prints the last run of each project, and when the next one is due.
fn show_status(
    memory: &Memory,
    states: &[DistillState],
    args: &MemoryDistillArgs,
) -> Result<CliStatus> {
    if args.json {
        return print_json(&states);
    }
    let projects = memory.projects()?;
    for state in states {
        let project = projects
            .iter()
            .find(|it| Some(&it.id) == state.project.as_ref());
        let name = match project.and_then(|project| project.roots.first()) {
            Some(root) => root.as_str(),
            None => unit_name(state),
        };
        print_line(name)?;
        print_line(&format!("  {}", next_run(state)))?;
        match &state.last_run {
            None => print_line("  no run yet")?,
            Some(run) => {
                let mut usage = RunUsage::default();
                usage.add(state);
                let ended = match run.ended_ms {
                    Some(ended_ms) => format!("{} ago", ago(ended_ms)),
                    None => format!("began {} ago, not finished", ago(run.started_ms)),
                };
                let (turns, learned) = (
                    count_noun(run.turns, "turn"),
                    count_noun(run.learned, "lesson"),
                );
                print_line(&format!(
                    "  last run: {ended}; read {turns}, learned {learned}"
                ))?;
                if usage.is_known() {
                    print_line(&format!("  used {}", usage.line()))?;
                }
            }
        }
    }
    if states.is_empty() {
        eprint_line!("note: the memory is empty");
    }
    Ok(CliStatus::Success)
}

/// Returns when the next run of a project begins.
fn next_run(state: &DistillState) -> String {
    let turns = count_noun(state.new_turns, "new turn");
    let waiting = match state.open_requests {
        0 => String::new(),
        open => format!(", {} without an answer", count_noun(open, "request")),
    };
    let when = match state.due_ms {
        None => "nothing to do".to_owned(),
        Some(_) if state.running => "running now".to_owned(),
        Some(_) if state.is_due() => "due now".to_owned(),
        Some(due_ms) => format!("due in {}", duration(due_ms - now_ms())),
    };
    format!("{turns}{waiting}, {when}")
}

fn unit_name(state: &DistillState) -> &str {
    state.project.as_deref().unwrap_or(&state.session)
}

fn ago(then_ms: i64) -> String {
    duration(now_ms() - then_ms)
}

/// Formats a time in hours and minutes.
fn duration(ms: i64) -> String {
    let minutes = ms.max(0) / 60_000;
    match minutes / 60 {
        0 => format!("{minutes} min"),
        hours if hours < 48 => format!("{hours} h {} min", minutes % 60),
        hours => format!("{} days", hours / 24),
    }
}
