//! Reads the recorded calls of a run from the journal, for the run that resumes it.
//!
//! Runs that resume each other form a chain. The calls of the whole chain count, oldest first. A
//! call that repeats a recorded call replaces it. [`selvedge_tools::PriorCalls`] decides how each
//! call is reused.

use std::collections::BTreeSet;
use std::sync::Arc;

use selvedge_journal::{Journal, JournalError, StoredCall, StoredRun, StoredRunState};
use selvedge_protocol::{ResumeAs, SPAWN_TOOL};
use selvedge_script::Resume;
use selvedge_tools::{PriorCall, PriorCalls, PriorOutcome};
use serde_json::Value;

/// The run that is resumed: the newest run of the chain of the requested run.
#[derive(Debug)]
pub enum ResumeTarget {
    /// The run has ended and can be resumed.
    Ready(Resume),
    /// The run with this id is still running.
    Running(String),
    /// The run with this id is suspended: it waits for an approval.
    Suspended(String),
}

/// Finds the run to resume if the run `id` is requested. Fails with [`JournalError::RunNotFound`]
/// if the run belongs to another folder, or if `id` is only a prefix, so that ids cannot be
/// guessed.
pub fn find_resume_target(
    journal: &Journal,
    id: &str,
    directory: &str,
) -> Result<ResumeTarget, JournalError> {
    let mut run = journal.run(id)?;
    if run.summary.id != id || run.summary.directory != directory {
        return Err(JournalError::RunNotFound(id.to_owned()));
    }
    if let Some(newest) = later_runs(journal, id)?.pop() {
        run = journal.run(&newest)?;
    }
    Ok(match run.summary.state {
        StoredRunState::Running => ResumeTarget::Running(run.summary.id),
        StoredRunState::Suspended => ResumeTarget::Suspended(run.summary.id),
        StoredRunState::Completed | StoredRunState::Failed | StoredRunState::Died => {
            ResumeTarget::Ready(load_resume_calls(journal, &run)?)
        }
    })
}

/// Returns the recorded calls of a run and of the runs it resumed, for the next run of the chain.
pub fn load_resume_calls(journal: &Journal, run: &StoredRun) -> Result<Resume, JournalError> {
    let mut chain = ResumeChain::default();
    for run in earlier_runs(journal, run)? {
        chain.add_run(journal, run)?;
    }
    let id = run.summary.id.clone();
    Ok(Resume {
        prior_calls: Arc::new(PriorCalls::new(id.clone(), chain.calls, chain.repeated)),
        run_id: id,
        seed: run.seed.parse().ok(),
        is_recovery: false,
    })
}

/// Returns the runs after this one in its chain, each of which resumed the one before it.
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

/// Returns this run and those before it in its chain, oldest first, as far as the journal has them.
fn earlier_runs(journal: &Journal, run: &StoredRun) -> Result<Vec<StoredRun>, JournalError> {
    let mut chain = vec![run.clone()];
    while let Some(earlier) = chain.last().and_then(|run| run.summary.resumes.clone()) {
        if chain.iter().any(|run| run.summary.id == earlier) {
            break;
        }
        match journal.run(&earlier) {
            Ok(run) => chain.push(run),
            Err(JournalError::RunNotFound(_)) => break,
            Err(error) => return Err(error),
        }
    }
    chain.reverse();
    Ok(chain)
}

/// Collects the recorded calls of a chain of runs that a script can reuse or has to decide about.
#[derive(Default)]
struct ResumeChain {
    calls: Vec<PriorCall>,
    /// Calls that a later run of the chain repeated.
    repeated: BTreeSet<String>,
}

impl ResumeChain {
    fn add_run(&mut self, journal: &Journal, mut run: StoredRun) -> Result<(), JournalError> {
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
            let outcome = prior_outcome(journal, &call)?;
            let mut prior = outcome.map(|outcome| prior_call(&run.summary.id, call, outcome));
            let Some(at) = at else {
                self.calls.extend(prior);
                continue;
            };
            let repeated = self.calls.remove(at);
            // A completed call that the script repeated deliberately got its own key.
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

fn prior_call(run: &str, call: StoredCall, outcome: PriorOutcome) -> PriorCall {
    // A task is a separate run with one call.
    let (id, idempotency_key) = match call.tool == SPAWN_TOOL {
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

/// Returns the recorded outcome of a call, or `None` if an identical call has to run.
fn prior_outcome(
    journal: &Journal,
    call: &StoredCall,
) -> Result<Option<PriorOutcome>, JournalError> {
    let value = || PriorOutcome::Succeeded(call.value.clone().unwrap_or(Value::Null));
    match call.resume_as {
        ResumeAs::Rerun => Ok(None),
        ResumeAs::Undecided => Ok(Some(PriorOutcome::Unknown)),
        ResumeAs::Answer if call.tool == SPAWN_TOOL => spawn_outcome(journal, call, value()),
        ResumeAs::Answer => Ok(Some(value())),
    }
}

/// Returns the recorded outcome of a call that started a task. The run of the task decides: that
/// the task was started is not sufficient.
fn spawn_outcome(
    journal: &Journal,
    spawn: &StoredCall,
    started: PriorOutcome,
) -> Result<Option<PriorOutcome>, JournalError> {
    let task = match journal.run(&spawn.id) {
        Ok(task) => task,
        Err(JournalError::RunNotFound(_)) if spawn.read_only => return Ok(None),
        // The process ended before the task started, or the run was deleted.
        Err(JournalError::RunNotFound(_)) => return Ok(Some(PriorOutcome::Unknown)),
        Err(error) => return Err(error),
    };
    if matches!(
        task.summary.state,
        StoredRunState::Running | StoredRunState::Suspended
    ) {
        return Ok(Some(started));
    }
    // The last attempt decides.
    Ok(match task.calls.last().map(|call| call.resume_as) {
        Some(ResumeAs::Answer) => Some(started),
        Some(ResumeAs::Undecided) => Some(PriorOutcome::Unknown),
        Some(ResumeAs::Rerun) | None => None,
    })
}

/// Returns the recorded outcome of a task of this folder, or `None` if there is no such task or it
/// failed.
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use selvedge_protocol::{ScriptToolCallOutput, ToolSpec};
    use selvedge_script::{Harness, RunOptions};
    use selvedge_tools::{
        CallContext, CallFuture, Orchestrator, Registry, TaskSet, Tool, spec_of, tool, typed_call,
    };

    use super::*;

    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct NoArgs {}

    /// A tool that only reads and costs money. Counts its calls.
    struct PaidSearch(Arc<AtomicU32>);

    impl Tool for PaidSearch {
        fn spec(&self) -> ToolSpec {
            spec_of::<NoArgs, u32>("search", "Searches.").as_read_only()
        }

        fn costs_money(&self) -> bool {
            true
        }

        fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
            let count = || Ok(self.0.fetch_add(1, Ordering::SeqCst));
            typed_call(args, move |_: NoArgs| async move { count() }, |_| None)
        }
    }

    #[tokio::test]
    async fn a_task_that_only_reads_is_reused_if_it_cost_money() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let [paid, free] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        let (tasks, mut registry) = (TaskSet::default(), Registry::new());
        registry.register(PaidSearch(paid.clone())).unwrap();
        let looks = free.clone();
        let look = tool("look", "Looks.", move |_: NoArgs| {
            std::future::ready(Ok(looks.fetch_add(1, Ordering::SeqCst)))
        });
        registry.register(look.read_only()).unwrap();
        tasks.register(&mut registry).unwrap();
        let orchestrator = Orchestrator::new(registry).with_ledger(journal.clone());
        let harness = Harness::new(orchestrator).unwrap().with_tasks(&tasks);
        let script =
            b"await tools.spawn.exec('look').done; const task = tools.spawn.exec('search');
            await task.done; throw task.id";
        let message = |output: ScriptToolCallOutput| output.error.unwrap().message;
        let first = harness.run_with(script, RunOptions::default()).await;
        let target = find_resume_target(&journal, &first.id, "").unwrap();
        let ResumeTarget::Ready(resume) = target else {
            panic!("{target:?}");
        };
        let options = RunOptions {
            resume: Some(resume),
            ..RunOptions::default()
        };
        let second = harness.run_with(script, options).await;
        assert_eq!(message(first), message(second));
        let counts = [paid, free].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(counts, [1, 2]);
    }
}
