//! `selvedge runs cancel`: ends a run that waits for an answer, or stops one that runs, in whatever process that is.

use std::time::{Duration, Instant};

use anyhow::Result;
use selvedge_journal::{Journal, Run, RunState};
use selvedge_protocol::ErrorCode;

use crate::Exit;
use crate::problem::Problem;
use crate::runs::answer::{check, take_over};
use crate::runs::args::RunsCancelArgs;

/// How long a run may take to stop: its process looks twice a second, and its calls have a moment to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is seen whether it has.
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
                    .hint("it ends with its session: stop the `selvedge` that works on it")
                    .into(),
            );
        }
        return stop(journal, &run.summary.id);
    }
    check(&run)?;
    give_up(journal, &run.summary.id)
}

/// Ends a run that waits: nothing more of it is done.
fn give_up(journal: &Journal, id: &str) -> Result<Exit> {
    take_over(journal, id)?;
    journal.give_up(id)?;
    Ok(cancelled(id))
}

/// Has a run stopped by the process that runs it, and says what came of it.
fn stop(journal: &Journal, id: &str) -> Result<Exit> {
    journal.ask_to_stop(id)?;
    let run = until_it_stops(journal, id)?;
    if run.summary.state == RunState::Running {
        Problem::new(format!("{id} has not stopped within {} seconds", PATIENCE.as_secs()))
            .hint("it stops when its process next looks, which may be held up, or gone with a command of it still at work")
            .print();
        return Ok(Exit::Failed);
    }
    journal.need_not_stop(id)?;
    let error = run.output.as_ref().and_then(|output| output.error.as_ref());
    let error = error.map(|error| error.code);
    match run.summary.state {
        // It came to a question before it heard of it.
        RunState::Suspended => give_up(journal, id),
        _ if error == Some(ErrorCode::ScriptCancelledError) => Ok(cancelled(id)),
        _ if error == Some(ErrorCode::ToolAbortedError) => {
            tell!("note: {id} is cancelled; `selvedge runs show {id}` shows how far it came");
            Ok(Exit::Done)
        }
        RunState::Died => {
            tell!(
                "note: the process of {id} is gone; `selvedge runs show {id}` shows how far it came"
            );
            Ok(Exit::Done)
        }
        _ => Err(
            Problem::new(format!("{id} ended by itself before it could be stopped"))
                .hint(format!("`selvedge runs show {id}` shows what it did"))
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
    tell!(
        "note: {id} is cancelled; `selvedge run FILE --resume {id}` reuses the results of its completed calls"
    );
    Exit::Done
}
