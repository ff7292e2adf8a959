//! `selvedge memory distill`: learns from new turns, now or where it is due, and shows the
//! schedule.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use selvedge_config::Config;
use selvedge_memory::{
    DistillReport, DistillRetryReport, DistillState, LessonStatus, Memory, MemoryError,
};
use selvedge_protocol::now_ms;
use selvedge_text::count_noun;
use serde_json::json;

use super::args::MemoryDistillArgs;
use super::import::progress_bar;
use super::usage::MemoryUsage;
use crate::CliStatus;
use crate::args::WorkspaceArgs;
use crate::distill_schedule::{finish_session, is_enabled, project_configuration};
use crate::memory_setup::{has_same_encoder, open_memory_in, small_model};
use crate::output::{print_json, print_json_text, print_line};
use crate::problem::Problem;
use crate::setup::load_configuration;
use crate::trust::TrustQuestion;

/// First interval between two checks of a provider's batch. It doubles up to [`MAX_POLL_INTERVAL`].
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Longest interval between two checks. Most batches take an hour.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(60);

pub(super) fn distill(
    memory: &Arc<Memory>,
    args: &MemoryDistillArgs,
    home: &Path,
    config: &Config,
) -> Result<CliStatus> {
    if let Some(session) = &args.finish
        && let Err(error) = finish_command(home, session, args.finish_provider.as_deref())
    {
        let error = Problem::from_error(&error);
        eprint_line!("warning: the levels of {session} are not written: {error}");
    }
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
        false => {
            let may_retry = state.open_requests > 0 || state.unanswered_requests > 0;
            state.new_turns > 0 || (args.retry && may_retry)
        }
    });
    let runtime = crate::run::runtime()?;
    let mut done = Distilled::default();
    for state in &states {
        let distilled = distill_project(memory, state, args, (home, config), &mut done);
        let distilled = runtime.block_on(distilled);
        match distilled {
            // Another process distills this project.
            Err(error) if is_locked(&error) && args.session.is_none() => {}
            Err(error) if states.len() == 1 => return Err(error),
            Err(error) => {
                done.failed += 1;
                let error = match error.downcast_ref::<MemoryError>() {
                    Some(error) => super::memory_problem(error),
                    None => Problem::from_error(&error),
                };
                eprint_line!("warning: {} is not distilled: {error}", unit_name(state));
            }
            Ok(()) => {}
        }
    }
    report(memory, args, &states, &done)
}

/// Finishes the session of a command that ran in this folder, with the model and the encoder of its
/// turns.
fn finish_command(home: &Path, session: &str, provider: Option<&str>) -> Result<()> {
    let config = super::configuration_of_this_folder()?;
    let memory = Arc::new(open_memory_in(home, &config)?);
    finish_session(&memory, session, provider, &config)
}

/// What was done for all projects of a command.
#[derive(Default)]
struct Distilled {
    total: DistillReport,
    retried: DistillRetryReport,
    /// Projects that failed.
    failed: usize,
}

fn is_locked(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<MemoryError>(),
        Some(MemoryError::DistillLocked(_))
    )
}

/// Distills a project with the model and the encoder that its configuration names.
async fn distill_project(
    memory: &Arc<Memory>,
    state: &DistillState,
    args: &MemoryDistillArgs,
    (home, user): (&Path, &Config),
    done: &mut Distilled,
) -> Result<()> {
    let of_folder = |folder: &Path| {
        let workspace = WorkspaceArgs {
            directory: Some(folder.to_owned()),
            trust_question: TrustQuestion::Never,
            ..WorkspaceArgs::default()
        };
        Ok(load_configuration(&workspace)?.config)
    };
    let mut config = project_configuration(state, user, of_folder)?;
    if args.due && !is_enabled(&config) {
        return Ok(());
    }
    config.journal.clone_from(&user.journal);
    let memory = &match has_same_encoder(&config, user) {
        true => memory.clone(),
        false => Arc::new(open_memory_in(home, &config)?),
    };
    let small = match small_model(&config, None).await {
        Ok(small) => small,
        Err(error) => {
            memory.postpone_distilling(&state.session)?;
            return Err(error);
        }
    };
    if args.retry {
        let Some(small) = &small else {
            let problem = Problem::new("memory.model is not set, so no request can be sent again");
            let hint = "run `selvedge config set memory.model PROVIDER/MODEL`";
            return Err(problem.hint(hint).into());
        };
        let retried = memory
            .retry_distilling(&state.session, small.as_ref())
            .await?;
        done.retried.answered += retried.answered;
        done.retried.learned += retried.learned;
        done.retried.unanswered += retried.unanswered;
    }
    let (mut bar_shown, mut interval) = (None, MIN_POLL_INTERVAL);
    loop {
        let distilled = memory.distill(&state.session, small.as_deref()).await?;
        let bar = bar_shown.get_or_insert_with(|| {
            let turns = u64::from(distilled.distilled_turns + distilled.remaining_turns);
            let template = "{msg} {wide_bar} {pos}/{len} {eta}";
            progress_bar(Some(turns), template, unit_name(state))
        });
        bar.inc(u64::from(distilled.distilled_turns));
        if distilled.submitted_turns > 0 && args.wait {
            tokio::time::sleep(interval).await;
            interval = (interval * 2).min(MAX_POLL_INTERVAL);
            continue;
        }
        done.total.submitted_turns += distilled.submitted_turns;
        done.total.distilled_turns += distilled.distilled_turns;
        done.total.learned += distilled.learned;
        done.total.dropped += distilled.dropped;
        if distilled.remaining_turns == 0 {
            bar.finish_and_clear();
            return Ok(());
        }
    }
}

/// Prints what was learned, and what the requests of these passes used.
fn report(
    memory: &Memory,
    args: &MemoryDistillArgs,
    states: &[DistillState],
    done: &Distilled,
) -> Result<CliStatus> {
    let status = match done.failed {
        0 => CliStatus::Success,
        _ => CliStatus::Failed,
    };
    let names: BTreeSet<&str> = states.iter().map(|state| state.session.as_str()).collect();
    let after = memory.distill_states()?.into_iter();
    let mut usage = MemoryUsage::default();
    for state in after.filter(|state| names.contains(state.session.as_str())) {
        usage.add_pass(&state);
    }
    let DistillReport {
        distilled_turns: turns,
        learned,
        dropped,
        submitted_turns: submitted,
        ..
    } = done.total;
    let (retried, learned) = (&done.retried, learned + done.retried.learned);
    if args.json {
        let mut report = json!({
            "turns": turns, "learned": learned, "dropped": dropped, "submitted_turns": submitted,
        });
        if args.retry {
            report["retried"] = retried.answered.into();
            report["unanswered"] = retried.unanswered.into();
        }
        if usage.is_known() {
            report["requests"] = usage.requests.into();
            report["input_tokens"] = usage.tokens.input_tokens.into();
            report["output_tokens"] = usage.tokens.output_tokens.into();
            report["cost"] = usage.cost.into();
        }
        print_json_text(&report.to_string())?;
        return Ok(status);
    }
    let (read, learned) = (count_noun(turns, "turn"), count_noun(learned, "lesson"));
    eprint_line!("read {read}, learned {learned}, dropped {dropped}");
    if args.retry {
        let answered = count_noun(retried.answered, "request");
        let unanswered = retried.unanswered;
        eprint_line!("sent {answered} again, {unanswered} still without an answer");
    }
    if usage.is_known() {
        eprint_line!("used {}", usage.line());
    }
    if submitted > 0 {
        let submitted = count_noun(submitted, "turn");
        eprint_line!("note: submitted {submitted} in a provider's batch");
        eprint_line!("hint: run `selvedge memory distill` again later, or pass --wait");
    }
    let proposals = memory.lessons(Some(LessonStatus::Proposed))?.len();
    if proposals > 0 {
        let proposals = count_noun(proposals, "proposal");
        eprint_line!("note: {proposals} to review: `selvedge memory review`");
    }
    Ok(status)
}

/// Prints the last pass of each project, and when the next one is due.
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
        print_line(&format!("  {}", next_pass(state)))?;
        if state.unanswered_requests > 0 {
            print_line(&format!("  {}", unanswered(state)))?;
        }
        match &state.last_pass {
            None => print_line("  no pass yet")?,
            Some(pass) => {
                let mut usage = MemoryUsage::default();
                usage.add_pass(state);
                let ended = match pass.ended_ms {
                    Some(ended_ms) => format!("{} ago", ago(ended_ms)),
                    None => format!("began {} ago, not finished", ago(pass.started_ms)),
                };
                let (turns, learned) = (
                    count_noun(pass.turns, "turn"),
                    count_noun(pass.learned, "lesson"),
                );
                print_line(&format!(
                    "  last pass: {ended}; read {turns}, learned {learned}"
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

/// Returns which requests have no answer, and how they are sent again.
fn unanswered(state: &DistillState) -> String {
    let requests = count_noun(state.unanswered_requests, "request");
    let turns = count_noun(state.unanswered_turns, "turn");
    format!(
        "{requests} without an answer: {turns} read without a model; \
         `selvedge memory distill --now --retry` asks again"
    )
}

/// Returns when the next pass of a project begins.
fn next_pass(state: &DistillState) -> String {
    let turns = count_noun(state.new_turns, "new turn");
    let waiting = match state.open_requests {
        0 => String::new(),
        open => format!(", {} under way", count_noun(open, "request")),
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

/// Returns how long ago a time is, in hours and minutes.
pub(crate) fn ago(then_ms: i64) -> String {
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
