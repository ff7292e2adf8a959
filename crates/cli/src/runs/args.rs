//! The command line of `selvedge runs`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::units;

#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// List runs, newest first
    List(RunsListArgs),
    /// Show a run: its calls, their outcomes, and the next steps
    Show(RunsShowArgs),
    /// Answer the approval request of a suspended run, and continue the run
    #[command(alias = "resume")]
    Answer(RunsAnswerArgs),
    /// Cancel a suspended run, or a run of any process
    Cancel(RunsCancelArgs),
    /// Replay a recorded run offline, with the recorded results of its calls
    Replay(RunsReplayArgs),
    /// Write a recorded run to a file for `replay`, with secrets redacted
    Export(RunsExportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunsAnswerArgs {
    /// Id of the run, or a prefix of the id
    pub(crate) run: String,

    /// Approve the requested calls
    #[arg(long, conflicts_with = "deny")]
    pub(crate) approve: bool,

    /// Deny the requested calls
    #[arg(long)]
    pub(crate) deny: bool,

    /// Reason for the script, with --deny
    #[arg(long, value_name = "REASON", requires = "deny")]
    pub(crate) because: Option<String>,

    /// Print one `script_tool_call_output` as JSON instead of the return value
    #[arg(long)]
    pub(crate) json: bool,

    /// Do not print a line per tool call
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunsCancelArgs {
    /// Id of the run, or a prefix of the id
    pub(crate) run: String,
}

#[derive(Debug, Args)]
pub(crate) struct RunsReplayArgs {
    /// Id of the run, a prefix of the id, or a file that `export` wrote
    pub(crate) run: String,

    /// Print each call with its arguments and result on standard error
    #[arg(long)]
    pub(crate) step: bool,

    /// Replay as if CALL had failed, such as tool_3
    #[arg(long, value_name = "CALL")]
    pub(crate) fail: Option<String>,

    /// Print one `script_tool_call_output` as JSON instead of the return value
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunsExportArgs {
    /// Id of the run, or a prefix of the id
    pub(crate) run: String,

    /// File to write [default: standard output]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RunsListArgs {
    /// List only runs that started within TIME, such as 90m, 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(crate) since: Option<Duration>,

    /// List only runs that called TOOL
    #[arg(long, value_name = "TOOL")]
    pub(crate) tool: Option<String>,

    /// Maximum number of runs
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: u32,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunsShowArgs {
    /// Id of the run, or a prefix of the id
    pub(crate) run: String,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
