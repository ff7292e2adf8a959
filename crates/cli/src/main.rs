//! The `selvedge` command: parses arguments and dispatches to one module per command.
// `println!` and `eprintln!` panic when the reader of the stream is gone. `out` replaces them.
#![deny(clippy::print_stderr, clippy::print_stdout)]

// Declared first, because the other modules use its macro `tell!`.
#[macro_use]
mod out;

mod args;
mod ask;
mod ask_form;
mod assembly;
mod chat;
mod check;
mod config;
mod doctor;
mod ends;
mod exec;
mod filling;
mod journal;
mod keyring;
mod log;
mod mcp;
mod mcp_args;
mod mcp_install;
mod memory;
mod models;
#[cfg(feature = "otlp")]
mod otlp;
mod private;
mod problem;
mod providers;
mod recall;
mod remember;
mod run;
mod runs;
mod servers;
mod sessions;
mod sessions_args;
mod setting;
mod setup;
mod show;
mod tools;
mod trust;
mod turns_model;
mod typed;
mod units;
mod web;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::args::{Cli, Command};
use crate::problem::Problem;

/// Exit status of the process: 0 for success, 1 if the work failed, 2 if it never started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    Done,
    Failed,
    NotStarted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => Self::from(0),
            Exit::Failed => Self::from(1),
            Exit::NotStarted => Self::from(2),
        }
    }
}

fn main() -> ExitCode {
    #[cfg(unix)]
    outlive_files_that_are_full();
    let matches = Cli::command().get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let _watched = match log::begin(cli.log.as_deref()) {
        Ok(watched) => watched,
        Err(error) => {
            Problem::from_error(&error).print();
            return Exit::NotStarted.into();
        }
    };
    let Some(command) = cli.command else {
        return ended(chat::chat(cli.chat));
    };
    if let Some(flag) = flag_of_the_chat(&matches) {
        let name = matches.subcommand_name().unwrap_or_default();
        let problem = Problem::new(format!(
            "--{flag} has no effect before the command `{name}`"
        ));
        problem
            .hint(format!(
                "pass it after the command: selvedge {name} --{flag} …"
            ))
            .print();
        return Exit::NotStarted.into();
    }
    ended(match command {
        Command::Continue(args) => chat::continue_session(args),
        Command::Exec(args) => exec::exec(args),
        Command::Sessions(command) => sessions::sessions(command),
        Command::Run(args) => run::run(args),
        Command::Runs(command) => runs::runs(command),
        Command::Check(args) => check::check(args),
        Command::Tools(args) => tools::tools(args),
        Command::Mcp(command) => mcp::mcp(command),
        Command::Models(command) => models::models(command),
        Command::Memory(command) => memory::memory(command),
        Command::Config(command) => config::config(command),
        Command::Doctor(args) => doctor::doctor(args),
    })
}

/// Makes a write beyond the file size limit (`ulimit -f`) fail with an error, instead of ending the
/// process. The signal gets a handler and is not ignored, because child processes would inherit an
/// ignored signal.
#[cfg(unix)]
fn outlive_files_that_are_full() {
    // Without the handler, everything except such a write works.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Default::default());
}

/// Returns a chat flag that was passed before a command, where it has no effect.
fn flag_of_the_chat(matches: &clap::ArgMatches) -> Option<String> {
    let given = |id: &clap::Id| {
        matches.value_source(id.as_str()) == Some(clap::parser::ValueSource::CommandLine)
    };
    let own = Cli::command();
    let mut flags = own
        .get_arguments()
        .filter(|flag| flag.get_id() != "log" && given(flag.get_id()));
    flags.find_map(|flag| flag.get_long().map(str::to_owned))
}

fn ended(outcome: anyhow::Result<Exit>) -> ExitCode {
    match outcome {
        Ok(exit) => exit.into(),
        Err(error) => {
            Problem::from_error(&error).print();
            Exit::NotStarted.into()
        }
    }
}
