//! The `selvedge` command: parses arguments and dispatches to one module per command.
// `println!` and `eprintln!` panic when the reader of the stream is gone. The module
// `output` replaces them.
#![deny(clippy::print_stderr, clippy::print_stdout)]

// Declared first, because the other modules use its macro `eprint_line!`.
#[macro_use]
mod output;

mod agent_setup;
mod args;
mod ask;
mod ask_form;
mod chat;
mod check;
mod config;
mod doctor;
mod exec;
mod form_state;
mod journal;
mod keyring;
mod log;
mod mcp;
mod mcp_args;
mod mcp_install;
mod mcp_token;
mod memory;
mod memory_setup;
mod model_discovery;
mod models;
#[cfg(feature = "otlp")]
mod otlp;
mod private_file;
mod problem;
mod progress;
mod providers;
mod recall;
mod run;
mod run_access;
mod runs;
mod sampling;
mod saved_config;
mod servers;
mod sessions;
mod sessions_args;
mod setup;
mod terminal_input;
mod text_excerpt;
mod tools;
mod trust;
mod units;
mod web;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::args::{CliCommand, SelvedgeCli};
use crate::problem::Problem;

/// Exit status of the process: 0 for success, 1 if the work failed, 2 if it never started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CliStatus {
    Success,
    Failed,
    NotStarted,
}

impl From<CliStatus> for ExitCode {
    fn from(exit: CliStatus) -> Self {
        match exit {
            CliStatus::Success => Self::from(0),
            CliStatus::Failed => Self::from(1),
            CliStatus::NotStarted => Self::from(2),
        }
    }
}

fn main() -> ExitCode {
    #[cfg(unix)]
    handle_file_size_signal();
    let matches = SelvedgeCli::command().get_matches();
    let cli = match SelvedgeCli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let _tracing_guard = match log::start_tracing(cli.log.as_deref()) {
        Ok(watched) => watched,
        Err(error) => {
            Problem::from_error(&error).print();
            return CliStatus::NotStarted.into();
        }
    };
    let Some(command) = cli.command else {
        return exit_code(chat::chat(cli.chat));
    };
    if let Some(flag) = misplaced_chat_flag(&matches) {
        let name = matches.subcommand_name().unwrap_or_default();
        let problem = Problem::new(format!(
            "--{flag} has no effect before the command `{name}`"
        ));
        problem
            .hint(format!(
                "pass it after the command: selvedge {name} --{flag} …"
            ))
            .print();
        return CliStatus::NotStarted.into();
    }
    exit_code(match command {
        CliCommand::Continue(args) => chat::continue_session(args),
        CliCommand::Exec(args) => exec::exec(args),
        CliCommand::Sessions(command) => sessions::sessions(command),
        CliCommand::Run(args) => run::run(args),
        CliCommand::Runs(command) => runs::runs(command),
        CliCommand::Check(args) => check::check(args),
        CliCommand::Tools(args) => tools::tools(args),
        CliCommand::Mcp(command) => mcp::mcp(command),
        CliCommand::Models(command) => models::models(command),
        CliCommand::Memory(command) => memory::run_command(command),
        CliCommand::Config(command) => config::config(command),
        CliCommand::Doctor(args) => doctor::doctor(args),
    })
}

/// Makes a write beyond the file size limit (`ulimit -f`) fail with an error, instead of ending the
/// process. The signal gets a handler and is not ignored, because child processes would inherit an
/// ignored signal.
#[cfg(unix)]
fn handle_file_size_signal() {
    // Without the handler, everything except such a write works.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Default::default());
}

/// Returns a chat flag that was passed before a command, where it has no effect.
fn misplaced_chat_flag(matches: &clap::ArgMatches) -> Option<String> {
    let given = |id: &clap::Id| {
        matches.value_source(id.as_str()) == Some(clap::parser::ValueSource::CommandLine)
    };
    let own = SelvedgeCli::command();
    let mut flags = own
        .get_arguments()
        .filter(|flag| flag.get_id() != "log" && given(flag.get_id()));
    flags.find_map(|flag| flag.get_long().map(str::to_owned))
}

fn exit_code(outcome: anyhow::Result<CliStatus>) -> ExitCode {
    match outcome {
        Ok(exit) => exit.into(),
        Err(error) => {
            Problem::from_error(&error).print();
            CliStatus::NotStarted.into()
        }
    }
}
