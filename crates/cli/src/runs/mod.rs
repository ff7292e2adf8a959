//! `selvedge runs`: lists, shows, answers, cancels, replays and exports runs.

mod answer;
pub(crate) mod args;
mod cancel;
mod list_and_show;
mod replay;

pub(crate) use list_and_show::{format_age, format_calls, run_json};
pub(crate) use replay::replay_for_server;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use selvedge_config::Config;
use selvedge_journal::{Journal, JournalError, PostgresUrl, Redactor, StoredRun, StoredRunState};
use selvedge_protocol::ResumeAs;

use self::args::RunsCommand;
use crate::CliStatus;
use crate::problem::Problem;
use crate::run::shell_word_of;

pub(crate) fn runs(command: RunsCommand) -> Result<CliStatus> {
    let done = match command {
        RunsCommand::List(args) => {
            list_and_show::list_runs(&*open_user_journal_read_only()?, &args)
        }
        RunsCommand::Show(args) => list_and_show::show_run(&*open_user_journal_read_only()?, &args),
        RunsCommand::Answer(args) => answer::answer(&args),
        RunsCommand::Cancel(args) => cancel::cancel(&*open_user_journal()?, &args),
        RunsCommand::Replay(args) => replay::replay(args),
        RunsCommand::Export(args) => replay::export(&*open_user_journal_read_only()?, &args),
    };
    done.map_err(|error| match error.downcast_ref::<JournalError>() {
        Some(journal_error) => journal_error_problem(journal_error).into(),
        None => error,
    })
}

/// Opens the journal to read and write.
pub(crate) fn open_user_journal() -> Result<Arc<Journal>> {
    crate::journal::open_journal(&home_folder()?, &user_config()?.journal)
}

/// Opens the journal to read, also if its folder is read-only.
pub(crate) fn open_user_journal_read_only() -> Result<Arc<Journal>> {
    crate::journal::open_journal_read_only(&home_folder()?, &user_config()?.journal)
}

fn home_folder() -> Result<PathBuf> {
    Ok(selvedge_config::home()
        .ok_or_else(|| Problem::new("cannot find the home folder").hint("set SELVEDGE_HOME"))?)
}

/// Returns the redactor with the secret names of the user's configuration. A project's own
/// configuration has no effect, because runs belong to many folders.
pub(crate) fn user_redactor() -> Result<Redactor> {
    Ok(Redactor::new(user_config()?.journal.secret_names))
}

fn user_config() -> Result<Config> {
    crate::setup::load_user_configuration(selvedge_config::home().as_deref())
}

/// Describes an error of the journal, with a hint.
pub(crate) fn journal_error_problem(error: &JournalError) -> Problem {
    let start_new = |path: &Path| match path.to_str().is_some_and(PostgresUrl::is_postgres) {
        true => {
            "use an empty database, or add `?options=-csearch_path%3Dselvedge` to its address for \
             a schema of its own"
                .to_owned()
        }
        false => {
            let path = path.display();
            format!("run `mv {path} {path}.old`, or set SELVEDGE_HOME to another folder")
        }
    };
    let hint = match error {
        JournalError::UnknownSchema { path } | JournalError::DamagedFile { path, .. } => {
            return Problem::new(error.to_string()).hint(start_new(path));
        }
        JournalError::RunNotFound(_) | JournalError::AmbiguousId(_) => {
            "run `selvedge runs list` to list the runs"
        }
        JournalError::NewerSchema { .. } => {
            "install a newer version of Selvedge, or use another store: set SELVEDGE_HOME to \
             another folder, or the key `store` to another database"
        }
        JournalError::OlderProcesses { .. } => {
            "stop these processes and try again; a process that was killed counts for 10 s more"
        }
        JournalError::ReadOnly { path, .. } => {
            return Problem::new(error.to_string()).hint(copy_home_hint(path, HomeContent::All));
        }
        JournalError::WrongKey => {
            "restore the key that encrypted the journal in the system keyring"
        }
        JournalError::UnfinishedCopy { .. } => {
            "run `selvedge store migrate --from sqlite --to configured` again, or with the source \
             that was copied"
        }
        JournalError::StoreCopy(_) => {
            "run `selvedge store migrate --help`, and pass an empty store with --to"
        }
        error if error.is_disk_full() => "free disk space",
        error if error.is_address_wrong() => {
            "correct the address, user, password and certificates in the key `store` of \
             config.toml, or in the variable SELVEDGE_STORE"
        }
        error if error.is_unavailable() => {
            "check that the database of the key `store` runs and can be reached from this machine"
        }
        JournalError::File { path, .. } => {
            let folder = match path.is_dir() {
                true => path.as_path(),
                false => path.parent().unwrap_or(path),
            };
            let hint = copy_home_hint(folder, HomeContent::Settings);
            return Problem::new(error.to_string()).hint(hint);
        }
        _ => "run `selvedge doctor`",
    };
    Problem::new(error.to_string()).hint(hint)
}

/// What of a folder that cannot be written is needed in another place.
enum HomeContent {
    /// The configuration and the saved rules.
    Settings,
    /// Everything, because the journal is to be read.
    All,
}

/// Returns the hint to use a copy of `home`, which cannot be written.
fn copy_home_hint(home: &Path, content: HomeContent) -> String {
    let copy = std::env::temp_dir().join("selvedge-home");
    let words = (shell_word_of(home), shell_word_of(&copy));
    let (Some(old), Some(new)) = words else {
        return "set SELVEDGE_HOME to a writable folder".to_owned();
    };
    let has_settings = home.join("config.toml").exists() || home.join("rules.toml").exists();
    match content {
        HomeContent::All => {
            format!("run `cp -r {old} {new} && chmod -R u+w {new} && export SELVEDGE_HOME={new}`")
        }
        HomeContent::Settings if has_settings => {
            format!("run `mkdir -p {new} && cp {old}/*.toml {new} && export SELVEDGE_HOME={new}`")
        }
        HomeContent::Settings => format!("run `export SELVEDGE_HOME={new}`"),
    }
}

/// Returns the advice to resume a run: the run of a script that failed or died, unless all its
/// calls would run again.
pub(crate) fn resume_advice(run: &StoredRun) -> Option<String> {
    let id = &run.summary.id;
    let has_failed = matches!(
        run.summary.state,
        StoredRunState::Failed | StoredRunState::Died
    );
    if !has_failed || !run.summary.is_script() {
        return None;
    }
    match run.resume_as() {
        ResumeAs::Rerun => None,
        ResumeAs::Reuse => Some(format!(
            "run `selvedge run FILE --resume {id}` to reuse its completed changes"
        )),
        ResumeAs::Undecided => Some(format!(
            "run `selvedge run FILE --resume {id}` with a script that decides the calls of unknown \
             outcome"
        )),
    }
}
