//! Reads from the journal what a run recorded for the run that resumes it.
//!
//! Runs that resume one another form a chain. The calls of the whole chain count, oldest first; a
//! call that repeats a recorded one takes its place. What the calls mean is decided in
//! [`selvedge_tools::PriorCalls`].

use std::collections::BTreeSet;
use std::sync::Arc;

use selvedge_journal::{Call, Journal, JournalError, Run, RunState};
use selvedge_protocol::{ResumeAs, SPAWN};
use selvedge_script::Resume;
use selvedge_tools::{PriorCall, PriorCalls, PriorOutcome};
use serde_json::Value;

/// The run that a `resume` of some run continues: the newest of its chain.
#[derive(Debug)]
pub enum ResumeTarget {
    /// It is over and can be resumed.
    Ready(Resume),
    /// It is still running.
    Running(String),
    /// It waits for an answer.
    Suspended(String),
}

/// Finds what to resume if `id` is named. A run of another folder does not exist for the caller,
/// and the id has to be complete, so that runs cannot be found by guessing.
pub fn resume_target(
    journal: &Journal,
    id: &str,
    directory: &str,
) -> Result<ResumeTarget, JournalError> {
    let mut run = journal.run(id)?;
    if run.summary.id != id || run.summary.directory != directory {
        return Err(JournalError::NoRun(id.to_owned()));
    }
    if let Some(newest) = later_runs(journal, id)?.pop() {
        run = journal.run(&newest)?;
    }
    Ok(match run.summary.state {
        RunState::Running => ResumeTarget::Running(run.summary.id),
        RunState::Suspended => ResumeTarget::Suspended(run.summary.id),
        RunState::Completed | RunState::Failed | RunState::Died => {
            ResumeTarget::Ready(resume_from(journal, &run)?)
        }
    })
}

/// What a run and the runs it resumed recorded for the next one.
pub fn resume_from(journal: &Journal, run: &Run) -> Result<Resume, JournalError> {
    let mut chain = Chain::default();
    for run in earlier_runs(journal, run)? {
        chain.add(journal, run)?;
    }
    let id = run.summary.id.clone();
    Ok(Resume {
        calls: Arc::new(PriorCalls::new(id.clone(), chain.calls, chain.repeated)),
        run: id,
        seed: run.seed.parse().ok(),
        is_recovery: false,
    })
}

/// The runs that resumed this one, each from the one before it.
pub(crate) fn later_runs(journal: &Journal, id: &str) -> Result<Vec<String>, JournalError> {
    let mut chain: Vec<String> = Vec::new();
    while let Some(next) = journal.resumed_by(chain.last().map_or(id, String::as_str))? {
        // A file edited by hand may contain a cycle.
        if next == id || chain.contains(&next) {
            break;
        }
        chain.push(next);
    }
    Ok(chain)
}

/// This run and those it resumed, oldest first, as far back as the journal reaches.
fn earlier_runs(journal: &Journal, run: &Run) -> Result<Vec<Run>, JournalError> {
    let mut chain = vec![run.clone()];
    while let Some(earlier) = chain.last().and_then(|run| run.summary.resumes.clone()) {
        if chain.iter().any(|run| run.summary.id == earlier) {
            break;
        }
        match journal.run(&earlier) {
            Ok(run) => chain.push(run),
            Err(JournalError::NoRun(_)) => break,
            Err(error) => return Err(error),
        }
    }
    chain.reverse();
    Ok(chain)
}

/// The recorded calls of a chain of runs that a script can reuse or has to decide.
#[derive(Default)]
struct Chain {
    calls: Vec<PriorCall>,
    /// Calls that a later run of the chain repeated.
    repeated: BTreeSet<String>,
}

impl Chain {
    fn add(&mut self, journal: &Journal, mut run: Run) -> Result<(), JournalError> {
        run.calls.sort_by_key(|call| call.began_ns);
        for call in run.calls {
            let origin = call.origin.as_deref();
            let at = self
                .calls
                .iter()
                .position(|prior| Some(prior.id.as_str()) == origin);
            if call.reused && at.is_some() {
                continue;
            }
            let outcome = outcome(journal, &call)?;
            let mut prior = outcome.map(|outcome| prior_call(&run.summary.id, call, outcome));
            let Some(at) = at else {
                self.calls.extend(prior);
                continue;
            };
            let repeated = self.calls.remove(at);
            // A completed call that was repeated on purpose had a key of its own.
            if let Some(prior) = prior
                .as_mut()
                .filter(|_| repeated.outcome == PriorOutcome::Unknown)
            {
                prior.idempotency_key = repeated.idempotency_key;
            }
            self.repeated.insert(repeated.id);
            self.calls.splice(at..at, prior);
        }
        Ok(())
    }
}

fn prior_call(run: &str, call: Call, outcome: PriorOutcome) -> PriorCall {
    // A task is a run of its own with one call.
    let (id, idempotency_key) = match call.tool == SPAWN {
        true => (call.id.clone(), format!("{}.tool_1", call.id)),
        false => {
            let first_attempt = call.id.trim_end_matches(".again");
            (
                format!("{run}/{}", call.id),
                format!("{run}.{first_attempt}"),
            )
        }
    };
    PriorCall {
        id,
        tool: call.tool,
        args: call.args.unwrap_or_default(),
        digest: call.digest,
        outcome,
        idempotency_key,
    }
}

/// What is known of a recorded call; `None` if an identical call simply runs.
fn outcome(journal: &Journal, call: &Call) -> Result<Option<PriorOutcome>, JournalError> {
    let value = || PriorOutcome::Succeeded(call.value.clone().unwrap_or(Value::Null));
    match call.resume_as {
        ResumeAs::Rerun => Ok(None),
        ResumeAs::Undecided => Ok(Some(PriorOutcome::Unknown)),
        ResumeAs::Answer if call.tool == SPAWN => spawn_outcome(journal, call, value()),
        ResumeAs::Answer => Ok(Some(value())),
    }
}

/// That a task was started says nothing: what counts is what its own run recorded.
fn spawn_outcome(
    journal: &Journal,
    spawn: &Call,
    started: PriorOutcome,
) -> Result<Option<PriorOutcome>, JournalError> {
    if spawn.read_only {
        return Ok(None);
    }
    let task = match journal.run(&spawn.id) {
        Ok(task) => task,
        // It was recorded before it began, and its process ended in between; or it is forgotten.
        Err(JournalError::NoRun(_)) => return Ok(Some(PriorOutcome::Unknown)),
        Err(error) => return Err(error),
    };
    if matches!(task.summary.state, RunState::Running | RunState::Suspended) {
        return Ok(Some(started));
    }
    // The last attempt counts.
    Ok(match task.calls.last().map(|call| call.resume_as) {
        Some(ResumeAs::Answer) => Some(started),
        Some(ResumeAs::Undecided) => Some(PriorOutcome::Unknown),
        Some(ResumeAs::Rerun) | None => None,
    })
}

/// What a task of this folder returned; `None` if there is none, or it failed.
pub fn task_outcome(journal: &Journal, id: &str, directory: &str) -> Option<PriorOutcome> {
    let task = journal.run(id).ok()?;
    if task.summary.id != id || task.summary.directory != directory {
        return None;
    }
    let call = task.calls.last()?;
    match call.resume_as {
        ResumeAs::Undecided => Some(PriorOutcome::Unknown),
        ResumeAs::Answer | ResumeAs::Rerun => call.value.clone().map(PriorOutcome::Succeeded),
    }
}
