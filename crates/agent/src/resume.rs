//! The input of a script that resumes a run: the recorded calls of the run's chain.
//!
//! Runs that resume each other form a chain. The calls of the whole chain count, oldest first. A
//! call that repeats a recorded call replaces it. [`selvedge_tools::PriorCalls`] decides what each
//! recorded call means for the calls of the script.

use std::collections::BTreeSet;
use std::sync::Arc;

use selvedge_journal::{Journal, JournalError, StoredCall, StoredRun, StoredRunState};
use selvedge_protocol::{CallError, ErrorCode, ResumeAs, SPAWN_TOOL, first_attempt_id};
use selvedge_script::ResumeInput;
use selvedge_tools::{PriorCall, PriorCalls, PriorUse, RecordedTask};

/// Why a run cannot be resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// The run with this id is not the run of a script.
    #[error("{0} is not the run of a script: only runs `scr_…` can be resumed")]
    NotScript(String),
    /// The run is still running.
    #[error("{0} is still running")]
    Running(ChainEnd),
    /// The run is suspended: it waits for an approval.
    #[error("{0} is suspended")]
    Suspended(ChainEnd),
    /// The run does not exist or cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// The newest run of a chain, with the run that was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainEnd {
    /// Id of the newest run of the chain.
    pub newest: String,
    /// Id of the run that was named: the newest or an older one.
    pub named: String,
}

impl std::fmt::Display for ChainEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.newest == self.named {
            true => f.write_str(&self.newest),
            false => write!(
                f,
                "{}, the newest run that resumed {},",
                self.newest, self.named
            ),
        }
    }
}

/// Returns the input for a script that resumes the run `id`, or the newest run of its chain. Fails
/// with [`JournalError::RunNotFound`] if the run belongs to another folder, or if `id` is only a
/// prefix, so that ids cannot be guessed.
pub fn resume_input(
    journal: &Journal,
    id: &str,
    directory: &str,
) -> Result<ResumeInput, ResumeError> {
    let mut run = journal.run(id)?;
    if run.summary.id != id || run.summary.directory != directory {
        return Err(JournalError::RunNotFound(id.to_owned()).into());
    }
    if !run.summary.is_script() {
        return Err(ResumeError::NotScript(run.summary.id));
    }
    if let Some(newest) = runs_after(journal, id)?.pop() {
        run = journal.run(&newest)?;
    }
    let chain_end = || ChainEnd {
        newest: run.summary.id.clone(),
        named: id.to_owned(),
    };
    match run.summary.state {
        StoredRunState::Running => Err(ResumeError::Running(chain_end())),
        StoredRunState::Suspended => Err(ResumeError::Suspended(chain_end())),
        StoredRunState::Completed | StoredRunState::Failed | StoredRunState::Died => {
            Ok(resume_input_of_run(journal, run)?)
        }
    }
}

/// Returns the input for a script that resumes this run: its seed and the recorded calls of its
/// chain.
pub fn resume_input_of_run(journal: &Journal, run: StoredRun) -> Result<ResumeInput, JournalError> {
    let (run_id, seed) = (run.summary.id.clone(), run.seed.parse().ok());
    let mut recorded = ChainCalls::default();
    for run in chain_up_to(journal, run)? {
        recorded.add_run(run);
    }
    let prior_calls = PriorCalls::new(run_id.clone(), recorded.calls, recorded.repeated);
    Ok(ResumeInput {
        prior_calls: Arc::new(prior_calls),
        run_id,
        seed,
    })
}

/// Returns the ids of the runs after this one in its chain, each of which resumed the one before
/// it.
pub(crate) fn runs_after(journal: &Journal, id: &str) -> Result<Vec<String>, JournalError> {
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

/// Returns the runs before this one in its chain, oldest first, and this run.
fn chain_up_to(journal: &Journal, run: StoredRun) -> Result<Vec<StoredRun>, JournalError> {
    let mut chain = vec![run];
    while let Some(earlier) = chain.last().and_then(|run| run.summary.resumes.clone()) {
        // A file edited by hand may contain a cycle.
        if chain.iter().any(|run| run.summary.id == earlier) {
            break;
        }
        chain.push(journal.run(&earlier)?);
    }
    chain.reverse();
    Ok(chain)
}

/// The recorded calls of a chain of runs that are reused or undecided.
#[derive(Default)]
struct ChainCalls {
    calls: Vec<PriorCall>,
    /// Calls that a later run of the chain repeated.
    repeated: BTreeSet<String>,
}

impl ChainCalls {
    /// Adds the calls of the next run.
    fn add_run(&mut self, run: StoredRun) {
        let mut calls = last_attempts(run.calls);
        calls.sort_by_key(|call| call.started_ns);
        // Of a reused call the original counts.
        for call in calls.into_iter().filter(|call| !call.reused) {
            let repeated = call.prior_call.as_deref();
            let repeated = repeated.and_then(|id| self.calls.iter().position(|c| c.id == id));
            let mut prior = prior_call(&run.summary.id, call);
            let Some(at) = repeated else {
                self.calls.extend(prior);
                continue;
            };
            let repeated = self.calls.remove(at);
            // The repetition of a completed call has its own key.
            if let (Some(prior), PriorUse::Undecided) = (&mut prior, repeated.use_as) {
                prior.idempotency_key = repeated.idempotency_key;
            }
            self.repeated.insert(repeated.id);
            self.calls.splice(at..at, prior);
        }
    }
}

/// Returns the last attempt at each call of a script, with the start of the first attempt. A retry
/// must follow the first attempt in the list.
fn last_attempts(calls: Vec<StoredCall>) -> Vec<StoredCall> {
    let mut last: Vec<StoredCall> = Vec::new();
    for mut call in calls {
        let first = last.pop_if(|before| before.id == first_attempt_id(&call.id));
        call.started_ns = first.map_or(call.started_ns, |first| first.started_ns);
        last.push(call);
    }
    last
}

/// Returns a recorded call, or `None` if identical calls run.
fn prior_call(run: &str, call: StoredCall) -> Option<PriorCall> {
    // A task is a separate run with one call.
    let idempotency_key = match call.tool == SPAWN_TOOL {
        true => format!("{}.tool_1", call.id),
        false => format!("{run}.{}", first_attempt_id(&call.id)),
    };
    Some(PriorCall {
        id: call.resume_id(run),
        tool: call.tool,
        args: call.args.unwrap_or_default(),
        digest: call.digest,
        use_as: match call.resume_as {
            ResumeAs::Rerun => return None,
            ResumeAs::Reuse => PriorUse::Reuse(call.value.unwrap_or_default()),
            ResumeAs::Undecided => PriorUse::Undecided,
        },
        idempotency_key,
    })
}

/// Returns a task of this folder as the journal recorded it, or `None` if there is no such task.
pub fn recorded_task(journal: &Journal, id: &str, directory: &str) -> Option<RecordedTask> {
    let mut task = journal.run(id).ok()?;
    if task.summary.id != id || task.summary.directory != directory || !id.starts_with("tsk_") {
        return None;
    }
    if task.summary.state == StoredRunState::Running {
        return Some(RecordedTask::Running);
    }
    let call = task.calls.pop()?;
    let result = match (call.value, call.error) {
        (Some(value), _) => Ok(value),
        (None, Some(error)) if call.resume_as != ResumeAs::Undecided => Err(error),
        (None, _) => Err(CallError {
            code: ErrorCode::OutcomeUnknownError,
            message: format!("the outcome of task {id} is unknown"),
        }),
    };
    let warnings = task.output.map(|output| output.warnings);
    Some(RecordedTask::Ended {
        result,
        warnings: warnings.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests;
