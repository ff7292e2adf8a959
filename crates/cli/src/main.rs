//! The `selvedge` command: arguments, terminal, and the assembly of everything else.

mod args;
mod ask;
mod assembly;
mod check;
mod doctor;
mod exec;
mod journal;
mod keyring;
mod log;
mod mcp;
mod mcp_args;
mod mcp_install;
mod memory;
mod models;
mod out;
mod problem;
mod providers;
mod recall;
mod remember;
mod run;
mod runs;
mod servers;
mod sessions;
mod setting;
mod setup;
mod show;
mod tools;
mod trust;
mod typed;
mod units;
mod web;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::problem::Problem;

/// What the process tells its caller: 0 done, 1 the script failed, 2 it never started.
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
    let cli = Cli::parse();
    if let Some(Err(error)) = cli.log.as_deref().map(log::begin) {
        Problem::from_error(&error).print();
        return Exit::NotStarted.into();
    }
    let outcome = match cli.command {
        Command::Exec(args) => exec::exec(args),
        Command::Sessions(command) => sessions::sessions(command),
        Command::Run(args) => run::run(args),
        Command::Runs(command) => runs::runs(command),
        Command::Check(args) => check::check(args),
        Command::Tools(args) => tools::tools(args),
        Command::Mcp(command) => mcp::mcp(command),
        Command::Models(command) => models::models(command),
        Command::Memory(command) => memory::memory(command),
        Command::Doctor(args) => doctor::doctor(args),
    };
    match outcome {
        Ok(exit) => exit.into(),
        Err(error) => {
            Problem::from_error(&error).print();
            Exit::NotStarted.into()
        }
    }
}
