//! `selvedge runs`: what ran before, and going on with it.

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
        Some(wrong) => problem(wrong).into(),
        None => error,
    })
}

pub(crate) fn open() -> Result<Arc<Journal>> {
    crate::journal::open(&home()?, &config()?.journal)
}

/// To look at, also where nothing may be written.
pub(crate) fn open_to_read() -> Result<Arc<Journal>> {
    crate::journal::open_to_read(&home()?, &config()?.journal)
}

fn home() -> Result<PathBuf> {
    Ok(selvedge_config::home()
        .ok_or_else(|| Problem::new("there is no home folder").hint("set SELVEDGE_HOME"))?)
}

/// Takes out what the user's configuration calls secret: runs are of many folders, and no folder decides what is
/// shown of others.
pub(crate) fn redactor() -> Result<Redactor> {
    Ok(Redactor::new(config()?.journal.secret_names))
}

fn config() -> Result<Config> {
    crate::setup::user_configuration(selvedge_config::home().as_deref())
}

/// A journal's error, with what to do.
pub(crate) fn problem(error: &JournalError) -> Problem {
    let hint = match error {
        JournalError::NoRun(_) | JournalError::Ambiguous(_) => {
            "`selvedge runs list` shows the runs there are"
        }
        JournalError::NewerSchema { .. } => "use the newer version, or another SELVEDGE_HOME",
        JournalError::UnknownSchema => {
            "rename journal.sqlite in Selvedge's folder, or set SELVEDGE_HOME to another folder"
        }
        JournalError::ReadOnly { .. } => {
            "copy the folder to where you may write, and set SELVEDGE_HOME to the copy"
        }
        _ => "check $SELVEDGE_HOME, or run with --ephemeral",
    };
    Problem::new(error.to_string()).hint(hint)
}
