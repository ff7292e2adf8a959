//! `selvedge memory`: imports, searches, shows and forgets stored conversations.

pub(crate) mod args;
mod brief_and_explain;
mod distill;
mod forget;
mod import;
mod layer;
mod lessons;
mod maintenance;
mod project;
mod search;
mod show;
mod stats_and_export;
mod turn;
mod usage;

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use selvedge_config::Config;
use selvedge_memory::{GradientOptions, Memory, MemoryError};

use crate::CliStatus;
use crate::args::WorkspaceArgs;
use crate::problem::Problem;
use crate::trust::TrustQuestion;
use args::MemoryCommand;
pub(crate) use distill::ago;
pub(crate) use forget::delete_session;
pub(crate) use maintenance::MAX_CHART_WEEKS;

pub(crate) fn run_command(command: MemoryCommand) -> Result<CliStatus> {
    let home = selvedge_config::home()
        .ok_or_else(|| Problem::new("cannot find the home folder").hint("set SELVEDGE_HOME"))?;
    let config = match &command {
        // What memory adds to the turns of this folder depends on its project.
        MemoryCommand::Brief(_) | MemoryCommand::Explain(_) => configuration_of_this_folder()?,
        _ => crate::setup::load_user_configuration(Some(&home))?,
    };
    let memory = Arc::new(crate::memory_setup::open_memory_in(&home, &config)?);
    let result = match command {
        MemoryCommand::Import(args) => import::import(&memory, &args),
        MemoryCommand::Search(args) => search::search(&memory, &args),
        MemoryCommand::Show(args) => show::show(&memory, &args, configured_gradient(&config)),
        MemoryCommand::Turn(args) => turn::turn(&memory, &args),
        MemoryCommand::Distill(args) => adopt_sessions(&memory, &home, &config)
            .and_then(|()| distill::distill(&memory, &args, &home, &config)),
        MemoryCommand::Lessons(args) => lessons::lessons(&memory, &args),
        MemoryCommand::Review(args) => lessons::review(&memory, &args),
        MemoryCommand::Layer(command) => {
            adopt_sessions(&memory, &home, &config).and_then(|()| layer::layer(&memory, &command))
        }
        MemoryCommand::Brief(args) => adopt_sessions(&memory, &home, &config)
            .and_then(|()| brief_and_explain::brief(&memory, &args, &config)),
        MemoryCommand::Explain(args) => adopt_sessions(&memory, &home, &config)
            .and_then(|()| brief_and_explain::explain(&memory, &args, &config)),
        MemoryCommand::Project(command) => adopt_sessions(&memory, &home, &config)
            .and_then(|()| project::project(&memory, &command)),
        MemoryCommand::Topics(args) => adopt_sessions(&memory, &home, &config)
            .and_then(|()| maintenance::topics(&memory, &args)),
        MemoryCommand::Replan(args) => {
            maintenance::replan(&memory, &args, configured_gradient(&config))
        }
        MemoryCommand::Reindex(args) => maintenance::reindex(&memory, &args),
        MemoryCommand::Stats(args) => stats_and_export::stats(&memory, &args),
        MemoryCommand::Forget(args) => forget::forget(&memory, &args, &home, &config),
        MemoryCommand::Export(args) => stats_and_export::export(&memory, &args),
    };
    result.map_err(|error| match error.downcast_ref::<MemoryError>() {
        Some(memory_error) => memory_problem(memory_error).into(),
        None => error,
    })
}

/// Returns the configuration of the turns in this folder. The project's is part of it if the folder
/// is trusted, which is not asked.
fn configuration_of_this_folder() -> Result<Config> {
    let workspace = WorkspaceArgs {
        trust_question: TrustQuestion::Never,
        ..WorkspaceArgs::default()
    };
    Ok(crate::setup::load_configuration(&workspace)?.config)
}

/// Assigns sessions from before there were projects to the projects of their folders.
fn adopt_sessions(memory: &Memory, home: &Path, config: &Config) -> Result<()> {
    let journal = crate::journal::open_journal(home, &config.journal)?;
    Ok(crate::memory_setup::adopt_sessions(memory, &journal)?)
}

/// Deletes a session from the journal and from memory. Asks before, unless `yes` is set.
pub(crate) fn delete_session_with_question(session: String, yes: bool) -> Result<CliStatus> {
    run_command(MemoryCommand::Forget(args::MemoryForgetArgs {
        session: Some(session),
        turn: None,
        lesson: None,
        yes,
        json: false,
    }))
}

/// Returns the id of the project of this folder; `None` if memory knows none.
fn project_of_this_folder(memory: &Memory) -> Result<Option<String>> {
    let here = std::env::current_dir()?;
    let here = here.canonicalize().unwrap_or(here);
    Ok(memory.find_project(&crate::memory_setup::project_place(&here).root)?)
}

fn configured_gradient(config: &Config) -> GradientOptions {
    GradientOptions {
        budget: config.memory.history_tokens,
        band_shares: config.memory.level_shares,
    }
}

/// Converts an error of the memory, with a hint.
pub(crate) fn memory_problem(error: &MemoryError) -> Problem {
    let hint = match error {
        MemoryError::SessionNotFound(_) => "run `selvedge memory stats` to list the sessions",
        MemoryError::TurnNotFound { .. } => {
            "run `selvedge memory stats` to see how many turns each session has"
        }
        MemoryError::InvalidLine { .. } => {
            "fix the line and import the file again; the lines before it are already imported"
        }
        MemoryError::LessonNotFound(_) => "run `selvedge memory lessons` to list the lessons",
        MemoryError::LayerNotFound(_) => "run `selvedge memory layer list` to list the layers",
        MemoryError::LayerExists(_) => {
            "pass --title TITLE, or change the layer with `selvedge memory layer edit`"
        }
        MemoryError::LayerSize { .. } => {
            "shorten the text, or split it into several layers; a shorter one belongs in AGENTS.md"
        }
        MemoryError::InvalidLesson(_) => "pass another title, text or topic",
        MemoryError::GapAccepted(_) => {
            "write about it with `selvedge memory layer add FILE`, then decline the gap"
        }
        MemoryError::ProjectNotFound(_) => {
            "run `selvedge memory project list` to list the projects"
        }
        MemoryError::ProjectExists(_) => {
            "run `selvedge memory project merge OLD NEW` to join the memory of both folders"
        }
        MemoryError::LessonWithoutProject(_) => {
            "run `selvedge memory lessons --json` to see the sources of the lesson"
        }
        MemoryError::ModelUnavailable(_) => {
            "run it again later, or `selvedge config set memory.model --unset` to learn by rules"
        }
        MemoryError::ProviderBatch(_) => {
            "run `selvedge memory distill` again later, or set `memory.batch = \"never\"`"
        }
        MemoryError::DistillLocked(_) => "wait for the other process, or stop it",
        MemoryError::Journal(selvedge_journal::JournalError::WrongKey) => {
            "restore the key that was in the system keyring when the memory was encrypted"
        }
        MemoryError::Journal(error) => return crate::runs::journal_error_problem(error),
        error if error.is_disk_full() => "free disk space",
        MemoryError::LogInUse => "stop the other process and run the command again",
        _ => "run `selvedge doctor`",
    };
    Problem::new(error.to_string()).hint(hint)
}

/// Returns the named session, or the only session if none is named.
fn resolve_session(memory: &Memory, named: Option<&str>) -> Result<String> {
    if let Some(name) = named {
        return Ok(name.to_owned());
    }
    let mut all = memory.session_names()?;
    match all.len() {
        1 => Ok(all.remove(0)),
        0 => Err(Problem::new("the memory is empty")
            .hint("import a conversation with `selvedge memory import FILE`")
            .into()),
        count => Err(
            Problem::new(format!("the memory has {count} sessions; name one"))
                .hint("pass --session SESSION; `selvedge memory stats` lists the sessions")
                .into(),
        ),
    }
}
