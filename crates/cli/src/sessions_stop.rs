//! `selvedge sessions stop` and `revert`: stops a running turn, and undoes its changes of files.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use selvedge_agent::{ChildSessions, request_stop, wait_until_stopped};
use selvedge_journal::Journal;
use selvedge_protocol::{TurnChangeStore, TurnFileChanges};
use selvedge_toolbox::{FileReplacementError, RevertError, revert_changes};
use serde_json::json;

use crate::CliStatus;
use crate::output::{print_json, print_line};
use crate::problem::Problem;
use crate::run::runtime;
use crate::sessions::session_problem;
use crate::sessions_args::{SessionsRevertArgs, SessionsStopArgs};
use crate::sessions_send::store_problem;
use crate::sessions_worktree::{refuse_running_turn, session_rules};

/// Time limit for turns to stop. Their processes check twice a second, and then stop the calls.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Who decided to revert a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RevertDecider {
    /// A person at a terminal.
    Person,
    /// A client of the agent server, which must not restore protected files.
    Token,
}

pub(crate) fn stop(journal: &Arc<Journal>, args: &SessionsStopArgs) -> Result<CliStatus> {
    let session = journal.session(&args.session);
    let session = session.map_err(|error| session_problem(&error))?.id;
    let children = match args.children {
        true => ChildSessions::Stop,
        false => ChildSessions::KeepRunning,
    };
    let work = async {
        let asked = request_stop(journal, &session, children).await?;
        let left = wait_until_stopped(journal, &asked, STOP_TIMEOUT).await?;
        Ok((asked, left))
    };
    let (asked, left) = runtime()?
        .block_on(work)
        .map_err(|error| store_problem(&error))?;
    if asked.is_empty() {
        return Err(
            Problem::new(format!("no turn of session {session} is running"))
                .hint("run `selvedge sessions list` to list the sessions")
                .into(),
        );
    }
    let stopped = asked.iter().filter(|id| !left.contains(id));
    for id in stopped {
        print_line(&format!("stopped {id}"))?;
    }
    if left.is_empty() {
        return Ok(CliStatus::Success);
    }
    let seconds = STOP_TIMEOUT.as_secs();
    Problem::new(format!(
        "{} has not stopped within {seconds} s",
        left.join(", ")
    ))
    .hint("stop its process, or the command that it started")
    .print();
    Ok(CliStatus::Failed)
}

pub(crate) fn revert(journal: &Arc<Journal>, args: &SessionsRevertArgs) -> Result<CliStatus> {
    let session = journal.session(&args.session);
    let session = session.map_err(|error| session_problem(&error))?.id;
    refuse_running_turn(journal, &session)?;
    let (turn, paths) = revert_turn(journal, &session, args.turn, RevertDecider::Person)?;
    if args.json {
        return print_json(&json!({"turn": turn, "reverted": paths}));
    }
    for path in &paths {
        print_line(path)?;
    }
    if paths.is_empty() {
        eprint_line!("note: turn {turn} was reverted before");
    }
    Ok(CliStatus::Success)
}

/// Restores the files that a turn changed; without a number, of the last turn that changed files.
/// Returns the number of the turn, and the restored files. The caller has claimed the session.
/// Blocks.
pub(crate) fn revert_turn(
    journal: &Arc<Journal>,
    session: &str,
    turn: Option<u32>,
    decider: RevertDecider,
) -> Result<(u32, Vec<String>)> {
    let Some((turn, changes)) = recorded_changes(journal, session, turn)? else {
        let which = match turn {
            Some(turn) => format!("turn {turn} of session {session}"),
            None => format!("session {session}"),
        };
        return Err(
            Problem::new(format!("no changed files are recorded for {which}"))
                .hint(format!("run `selvedge sessions show {session}`"))
                .into(),
        );
    };
    let protection = match decider {
        RevertDecider::Person => None,
        RevertDecider::Token => {
            let session = journal.session(session);
            let session = session.map_err(|error| session_problem(&error))?;
            Some(session_rules(&session)?.paths)
        }
    };
    let reverted = revert_changes(&changes, protection.as_ref()).map_err(|error| {
        let problem = Problem::new(format!("cannot revert turn {turn}: {error}"));
        match error {
            RevertError::Files(FileReplacementError::Changed(_)) => problem
                .hint("undo the later changes to these files first, or restore the files by hand"),
            _ => problem.hint("restore the files by hand"),
        }
    })?;
    let paths = reverted.iter().map(|path| path.display().to_string());
    Ok((turn, paths.collect()))
}

/// Returns the recorded file changes of a turn; without a number, of the last turn that changed
/// files. Blocks.
pub(crate) fn recorded_changes(
    journal: &Arc<Journal>,
    session: &str,
    turn: Option<u32>,
) -> Result<Option<(u32, TurnFileChanges)>> {
    let recorded = runtime()?.block_on(journal.recorded_changes(session, turn));
    Ok(recorded.map_err(|error| store_problem(&error))?)
}
