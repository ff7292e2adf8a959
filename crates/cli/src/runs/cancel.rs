//! `selvedge runs cancel`: cancels a suspended run, or stops a run of any process.

use std::time::{Duration, Instant};

use anyhow::Result;
use selvedge_journal::{Journal, Run, RunState};
use selvedge_protocol::ErrorCode;

use crate::Exit;
use crate::problem::Problem;
use crate::runs::answer::{check, take_over};
use crate::runs::args::RunsCancelArgs;

/// Time limit for a run to stop. Its process checks twice a second, and then stops the calls.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval at which the state of the run is read.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn cancel(journal: &Journal, args: &RunsCancelArgs) -> Result<Exit> {
    let run = journal.run(&args.run)?;
    if run.summary.state == RunState::Running {
        if !["scr_", "tsk_"]
            .iter()
            .any(|kind| run.summary.id.starts_with(kind))
        {
            return Err(
                Problem::new(format!("{} is neither a script nor a task", run.summary.id))
                    .hint("stop the `selvedge` process that works on its session")
                    .into(),
            );
        }
        return stop(journal, &run.summary.id);
    }
    check(&run)?;
    give_up(journal, &run.summary.id)
}

/// Ends a suspended run without resuming it.
fn give_up(journal: &Journal, id: &str) -> Result<Exit> {
    take_over(journal, id)?;
    journal.give_up(id)?;
    Ok(cancelled(id))
}

/// Asks the process of a run to stop it, waits, and reports the outcome.
fn stop(journal: &Journal, id: &str) -> Result<Exit> {
    journal.ask_to_stop(id)?;
    let run = until_it_stops(journal, id)?;
    if run.summary.state == RunState::Running {
        let seconds = PATIENCE.as_secs();
        Problem::new(format!("{id} has not stopped within {seconds} s"))
            .hint("stop its process, or the command that it started")
            .print();
        return Ok(Exit::Failed);
    }
    journal.need_not_stop(id)?;
    let error = run.output.as_ref().and_then(|output| output.error.as_ref());
    let error = error.map(|error| error.code);
    match run.summary.state {
        // The run was suspended before its process saw the request.
        RunState::Suspended => give_up(journal, id),
        _ if error == Some(ErrorCode::ScriptCancelledError) => Ok(cancelled(id)),
        _ if error == Some(ErrorCode::ToolAbortedError) => {
            tell!("note: cancelled {id}; run `selvedge runs show {id}` to see its calls");
            Ok(Exit::Done)
        }
        RunState::Died => {
            tell!(
                "note: the process of {id} has died; run `selvedge runs show {id}` to see its calls"
            );
            Ok(Exit::Done)
        }
        _ => Err(
            Problem::new(format!("{id} ended before it could be stopped"))
                .hint(format!("run `selvedge runs show {id}` to see its calls"))
                .into(),
        ),
    }
}

fn until_it_stops(journal: &Journal, id: &str) -> Result<Run> {
    let began = Instant::now();
    loop {
        let run = journal.run(id)?;
        if run.summary.state != RunState::Running || began.elapsed() > PATIENCE {
            return Ok(run);
        }
        std::thread::sleep(LOOK);
    }
}

fn cancelled(id: &str) -> Exit {
    tell!("note: cancelled {id}");
    tell!(
        "hint: run `selvedge run FILE --resume {id}` to reuse the results of its completed calls"
    );
    Exit::Done
}
