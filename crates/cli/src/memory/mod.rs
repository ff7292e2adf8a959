//! `selvedge memory`: what was said and done, remembered.

pub(crate) mod args;
mod forget;
mod import;
mod keep;
mod learn;
mod search;
mod show;
mod turn;

use anyhow::Result;
use selvedge_memory::{Gradient, Memory, MemoryError};

use crate::Exit;
use crate::problem::Problem;
use args::MemoryCommand;

pub(crate) fn memory(command: MemoryCommand) -> Result<Exit> {
    let home = selvedge_config::home()
        .ok_or_else(|| Problem::new("there is no home folder").hint("set SELVEDGE_HOME"))?;
    let config = crate::setup::user_configuration(Some(&home))?;
    let memory = crate::remember::open(&home, &config)?;
    let done = match command {
        MemoryCommand::Import(args) => import::import(&memory, &args),
        MemoryCommand::Search(args) => search::search(&memory, &args),
        MemoryCommand::Show(args) => show::show(&memory, &args, gradient(&config)),
        MemoryCommand::Turn(args) => turn::turn(&memory, &args),
        MemoryCommand::Distill(args) => learn::distill(&memory, &args, &config),
        MemoryCommand::Lessons(args) => learn::lessons(&memory, &args),
        MemoryCommand::Review(args) => learn::review(&memory, &args),
        MemoryCommand::Stats(args) => keep::stats(&memory, &args),
        MemoryCommand::Forget(args) => forget::forget(&memory, &args, &home, &config),
        MemoryCommand::Export(args) => keep::export(&memory, &args),
    };
    done.map_err(|error| match error.downcast_ref::<MemoryError>() {
        Some(wrong) => problem(wrong).into(),
        None => error,
    })
}

fn gradient(config: &selvedge_config::Config) -> Gradient {
    Gradient {
        budget: config.memory.budget,
        bands: config.memory.bands,
    }
}

/// A memory's error, with what to do.
pub(crate) fn problem(error: &MemoryError) -> Problem {
    let hint = match error {
        MemoryError::NoSession(_) => "`selvedge memory stats` lists the sessions there are",
        MemoryError::NoTurn { .. } => "`selvedge memory stats` tells how many turns a session has",
        MemoryError::Unreadable { .. } => {
            "what came before that line is imported; mend it and import again"
        }
        MemoryError::NoLesson(_) => "`selvedge memory lessons` lists them",
        MemoryError::Batch(_) => {
            "distill again later; `memory.batch = \"never\"` asks the model at once"
        }
        MemoryError::Busy(_) => "wait for it, or stop it",
        MemoryError::Journal(selvedge_journal::JournalError::Sealed) => {
            "the key is in the system's keyring; another one was there when the memory was sealed"
        }
        MemoryError::StillRead => "end the other process and forget it again",
        _ => "check $SELVEDGE_HOME",
    };
    Problem::new(error.to_string()).hint(hint)
}

/// The session that is meant: the one named, or the only one there is.
fn session(memory: &Memory, named: Option<&str>) -> Result<String> {
    if let Some(name) = named {
        return Ok(name.to_owned());
    }
    let mut all = memory.sessions()?;
    match all.len() {
        1 => Ok(all.remove(0)),
        0 => Err(Problem::new("nothing is remembered yet")
            .hint("`selvedge memory import FILE` begins")
            .into()),
        many => Err(Problem::new(format!("there are {many} sessions"))
            .hint("name one with --session")
            .into()),
    }
}
