//! The `selvedge` command: parses arguments and dispatches to one module per command.
// `println!` and `eprintln!` panic when the reader of the stream is gone. The module
// `output` replaces them.
#![deny(clippy::print_stderr, clippy::print_stdout)]

// Declared first, because the other modules use its macro `eprint_line!`.
#[macro_use]
mod output;

mod agent_models;
mod agent_setup;
mod approval_question;
mod args;
mod argument_text;
mod ask;
mod ask_form;
mod call_outcome;
mod channels;
mod channels_args;
mod chat;
mod check;
mod config;
mod config_edit;
mod credential_file;
mod diagnostics;
mod distill_schedule;
mod doctor;
mod documents;
mod exec;
mod exec_display;
mod form_state;
mod init;
mod instructions;
mod journal;
mod json_comments;
mod keyring;
mod list_table;
mod log;
mod mcp;
mod mcp_args;
mod mcp_install;
mod mcp_servers;
mod mcp_token;
mod memory;
mod memory_setup;
mod model_discovery;
mod model_login;
mod models;
#[cfg(feature = "otlp")]
mod otlp;
mod private_file;
mod problem;
mod program_arguments;
mod programs;
mod progress;
mod prompt_images;
mod prompt_input;
mod provider_login;
mod providers;
mod recall;
mod recall_summary;
mod rule_store;
mod run;
mod run_access;
mod runs;
mod sampling;
mod saved_config;
mod secret_environment;
mod serve;
mod serve_args;
mod serve_documents;
mod serve_errors;
mod serve_failed_turn;
mod serve_health;
mod serve_host;
mod serve_items;
mod serve_kept_sessions;
mod serve_leases;
mod serve_mcp_status;
mod serve_memory_views;
mod serve_recovery;
mod serve_resume;
mod serve_runs;
mod serve_stop;
mod serve_tokens;
mod served_runner;
mod servers;
mod session_configuration;
mod session_runner;
mod sessions;
mod sessions_args;
mod sessions_send;
mod sessions_stop;
mod sessions_worktree;
mod setup;
mod shell_files;
mod stop_signals;
mod store;
mod stored_keys;
mod terminal_input;
mod text_excerpt;
mod tool_names;
mod tool_packs;
mod tools;
mod trust;
mod turn_gate;
mod units;
mod web;
mod workspace_folders;
mod workspace_parts;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::args::{CliCommand, SelvedgeCli};
use crate::problem::Problem;

/// Exit status of the process: 0 for success, 1 if the work failed, 2 if it never started, 3 if a
/// run was suspended. After a second signal the process exits with 130.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CliStatus {
    Success,
    Failed,
    NotStarted,
    Suspended,
}

impl From<CliStatus> for ExitCode {
    fn from(exit: CliStatus) -> Self {
        match exit {
            CliStatus::Success => Self::from(0),
            CliStatus::Failed => Self::from(1),
            CliStatus::NotStarted => Self::from(2),
            CliStatus::Suspended => Self::from(3),
        }
    }
}

/// Prints the error of a command line, or the text of `--help` and `--version`. Returns the exit
/// code. The words of a command line may be the names of files, so they go through `output`.
fn print_usage_error(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if error.use_stderr() {
        output::eprint_text(&text);
    } else {
        // If the reader is gone, the text is not needed.
        let _ = output::print_text(text.trim_end());
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn main() -> ExitCode {
    #[cfg(unix)]
    handle_file_size_signal();
    let parsed = SelvedgeCli::command()
        .try_get_matches()
        .and_then(|matches| Ok((SelvedgeCli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return print_usage_error(&error),
    };
    let _tracing_guard = match log::start_tracing(cli.log.as_deref()) {
        Ok(guard) => guard,
        Err(error) => {
            Problem::from_error(&error).print();
            return CliStatus::NotStarted.into();
        }
    };
    let Some(command) = cli.command else {
        return exit_code(start_without_command(cli));
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
        CliCommand::Channels(command) => channels::channels(command),
        CliCommand::Run(args) => run::run(args),
        CliCommand::Runs(command) => runs::runs(command),
        CliCommand::Check(args) => check::check(args),
        CliCommand::Tools(args) => tools::tools(args),
        CliCommand::Mcp(command) => mcp::mcp(command),
        CliCommand::Serve(args) => serve::serve(args),
        CliCommand::Models(command) => models::models(command),
        CliCommand::Memory(command) => memory::run_command(command),
        CliCommand::Store(command) => store::store(command),
        CliCommand::Config(command) => config::config(command),
        CliCommand::Doctor(args) => doctor::doctor(args),
        CliCommand::Init(args) => init::init(&args),
        CliCommand::Completions(args) => shell_files::completions(&args),
        CliCommand::Man(args) => shell_files::man(&args),
    })
}

/// Starts a chat, or with `-p` runs one task.
fn start_without_command(cli: SelvedgeCli) -> anyhow::Result<CliStatus> {
    let SelvedgeCli {
        chat,
        prompt,
        print,
        continue_last,
        ..
    } = cli;
    if print {
        let args = args::ExecArgs {
            prompt: prompt.into_iter().collect(),
            last: continue_last,
            turn: chat.turn,
            model: chat.model,
            limits: chat.limits,
            workspace: chat.workspace,
            ..args::ExecArgs::default()
        };
        return exec::exec(args);
    }
    if let Some(problem) = prompt.as_deref().and_then(mistyped_command) {
        return Err(problem.into());
    }
    chat::chat(chat, continue_last, prompt)
}

/// Returns an error if a prompt of one word is probably a command with a mistake.
fn mistyped_command(prompt: &str) -> Option<Problem> {
    if prompt.contains(char::is_whitespace) {
        return None;
    }
    let command = SelvedgeCli::command();
    let names: Vec<&str> = command
        .get_subcommands()
        .map(|one| one.get_name())
        .collect();
    let similar = selvedge_tools::similar_names(prompt, names)
        .into_iter()
        .next()?;
    let problem = Problem::new(format!("there is no command `{prompt}`"));
    Some(problem.hint(format!("run `selvedge {similar}`")))
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
    let root_command = SelvedgeCli::command();
    let mut flags = root_command
        .get_arguments()
        .filter(|flag| flag.get_id() != "log" && given(flag.get_id()));
    flags.find_map(|flag| flag.get_long().map(str::to_owned))
}

fn exit_code(outcome: anyhow::Result<CliStatus>) -> ExitCode {
    let status = outcome.unwrap_or_else(|error| {
        Problem::from_error(&error).print();
        CliStatus::NotStarted
    });
    provider_login::wait_for_refreshes();
    status.into()
}
