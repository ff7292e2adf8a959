//! `selvedge runs`: lists, shows, answers, cancels, replays and exports runs.

mod answer;
pub(crate) mod args;
mod cancel;
mod look;
mod replay;

pub(crate) use look::{ago, count_of_calls};

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use selvedge_config::Config;
use selvedge_journal::{Journal, JournalError, Redactor};

use self::args::RunsCommand;
use crate::Exit;
use crate::problem::Problem;

pub(crate) fn runs(command: RunsCommand) -> Result<Exit> {
    let done = match command {
        RunsCommand::List(args) => look::list(&*open_to_read()?, &args),
        RunsCommand::Show(args) => look::show(&*open_to_read()?, &args),
        RunsCommand::Answer(args) => answer::answer(&args),
        RunsCommand::Cancel(args) => cancel::cancel(&*open()?, &args),
        RunsCommand::Replay(args) => replay::replay(args),
        RunsCommand::Export(args) => replay::export(&*open_to_read()?, &args),
    };
    done.map_err(|error| match error.downcast_ref::<JournalError>() {
        Some(journal_error) => problem(journal_error).into(),
        None => error,
    })
}

/// Opens the journal to read and write.
pub(crate) fn open() -> Result<Arc<Journal>> {
    crate::journal::open(&home()?, &config()?.journal)
}

/// Opens the journal to read, also if its folder is read-only.
pub(crate) fn open_to_read() -> Result<Arc<Journal>> {
    crate::journal::open_to_read(&home()?, &config()?.journal)
}

fn home() -> Result<PathBuf> {
    Ok(selvedge_config::home()
        .ok_or_else(|| Problem::new("cannot find the home folder").hint("set SELVEDGE_HOME"))?)
}

/// Returns the redactor with the secret names of the user's configuration. A project's own
/// configuration has no effect, because runs belong to many folders.
pub(crate) fn redactor() -> Result<Redactor> {
    Ok(Redactor::new(config()?.journal.secret_names))
}

fn config() -> Result<Config> {
    crate::setup::user_configuration(selvedge_config::home().as_deref())
}

/// Describes an error of the journal, with a hint.
pub(crate) fn problem(error: &JournalError) -> Problem {
    let hint = match error {
        JournalError::NoRun(_) | JournalError::Ambiguous(_) => {
            "run `selvedge runs list` to list the runs"
        }
        JournalError::NewerSchema { .. } => "update Selvedge",
        JournalError::UnknownSchema => "rename journal.sqlite in the folder $SELVEDGE_HOME",
        JournalError::ReadOnly { .. } => {
            "copy the folder to a writable place, and set SELVEDGE_HOME to the copy"
        }
        JournalError::Sealed => "restore the key that encrypted the journal in the system keyring",
        error if error.is_disk_full() => "free disk space",
        JournalError::File { .. } => "set SELVEDGE_HOME to a writable folder",
        _ => "check the folder $SELVEDGE_HOME",
    };
    Problem::new(error.to_string()).hint(hint)
}
