//! `selvedge runs cancel`: cancels a suspended run, or stops a run of any process.

use std::time::{Duration, Instant};

use anyhow::Result;
use selvedge_agent::cancelled_output;
use selvedge_journal::{Journal, StoredRun, StoredRunState};
use selvedge_protocol::ErrorCode;

use crate::CliStatus;
use crate::problem::Problem;
use crate::runs::answer::{claim_run, require_suspended};
use crate::runs::args::RunsCancelArgs;
use crate::runs::resume_advice;

/// Time limit for a run to stop. Its process checks twice a second, and then stops the calls.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the state of the run is read.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn cancel(journal: &Journal, args: &RunsCancelArgs) -> Result<CliStatus> {
    let run = journal.run(&args.run)?;
    if run.summary.state == StoredRunState::Running {
        if !["scr_", "tsk_", "agt_"]
            .iter()
            .any(|kind| run.summary.id.starts_with(kind))
        {
            return Err(Problem::new(format!(
                "{} is neither a script, a task nor an agent",
                run.summary.id
            ))
            .hint("stop the `selvedge` process that works on its session")
            .into());
        }
        return stop_running(journal, &run.summary.id);
    }
    require_suspended(&run)?;
    cancel_suspended(journal, &run)
}

/// Ends a suspended run without restoring it.
fn cancel_suspended(journal: &Journal, run: &StoredRun) -> Result<CliStatus> {
    let id = &run.summary.id;
    claim_run(journal, id)?;
    journal.cancel_suspended_run(&cancelled_output(run))?;
    report_cancelled(journal, id)
}

/// Asks the process of a run to stop it, waits, and reports the outcome.
fn stop_running(journal: &Journal, id: &str) -> Result<CliStatus> {
    journal.request_cancel(id)?;
    let run = wait_for_end(journal, id)?;
    if run.summary.state == StoredRunState::Running {
        let seconds = CANCEL_TIMEOUT.as_secs();
        Problem::new(format!("{id} has not stopped within {seconds} s"))
            .hint("stop its process, or the command that it started")
            .print();
        return Ok(CliStatus::Failed);
    }
    journal.withdraw_cancel_request(id)?;
    let error = run.output.as_ref().and_then(|output| output.error.as_ref());
    let error = error.map(|error| error.code);
    match run.summary.state {
        // The run was suspended before its process saw the request.
        StoredRunState::Suspended => cancel_suspended(journal, &run),
        _ if error == Some(ErrorCode::ScriptCancelledError) => report_cancelled(journal, id),
        _ if error == Some(ErrorCode::ToolAbortedError) => {
            eprint_line!("note: cancelled {id}; run `selvedge runs show {id}` to see its calls");
            Ok(CliStatus::Success)
        }
        StoredRunState::Died => {
            eprint_line!(
                "note: the process of {id} has died; run `selvedge runs show {id}` to see its calls"
            );
            Ok(CliStatus::Success)
        }
        _ => Err(
            Problem::new(format!("{id} ended before it could be stopped"))
                .hint(format!("run `selvedge runs show {id}` to see its calls"))
                .into(),
        ),
    }
}

fn wait_for_end(journal: &Journal, id: &str) -> Result<StoredRun> {
    let began = Instant::now();
    loop {
        let run = journal.run(id)?;
        if run.summary.state != StoredRunState::Running || began.elapsed() > CANCEL_TIMEOUT {
            return Ok(run);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn report_cancelled(journal: &Journal, id: &str) -> Result<CliStatus> {
    eprint_line!("note: cancelled {id}");
    if let Some(advice) = resume_advice(&journal.run(id)?) {
        eprint_line!("hint: {advice}");
    }
    Ok(CliStatus::Success)
}
