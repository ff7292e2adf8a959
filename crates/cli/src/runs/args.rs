//! The command line of `selvedge runs`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::units;

#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// List runs, newest first
    List(RunsListArgs),
    /// Show a run: its calls, what became of each, and what to do next
    Show(RunsShowArgs),
    /// Answer the question of a suspended run, and continue it
    #[command(alias = "resume")]
    Answer(RunsAnswerArgs),
    /// End a run that waits for an answer, without one, or stop one that runs, in whatever process
    Cancel(RunsCancelArgs),
    /// Play a recorded run again, offline, with what its calls returned then
    Replay(RunsReplayArgs),
    /// Write a recorded run to a file that `replay` plays anywhere, without its secrets
    Export(RunsExportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunsAnswerArgs {
    /// The run, or the beginning of its id
    pub(crate) run: String,

    /// Say yes to what it asks
    #[arg(long, conflicts_with = "deny")]
    pub(crate) approve: bool,

    /// Say no
    #[arg(long)]
    pub(crate) deny: bool,

    /// With --deny: why, for the script
    #[arg(long, value_name = "WORDS", requires = "deny")]
    pub(crate) because: Option<String>,

    /// Print one `script_tool_call_output` as JSON instead of the value
    #[arg(long)]
    pub(crate) json: bool,

    /// Show no line per tool call
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunsCancelArgs {
    /// The run, or the beginning of its id
    pub(crate) run: String,
}

#[derive(Debug, Args)]
pub(crate) struct RunsReplayArgs {
    /// The run, the beginning of its id, or a file that `export` wrote
    pub(crate) run: String,

    /// Print each call with its arguments and its result, on standard error
    #[arg(long)]
    pub(crate) step: bool,

    /// What if this call had failed? Such as tool_3
    #[arg(long, value_name = "CALL")]
    pub(crate) fail: Option<String>,

    /// Print one `script_tool_call_output` as JSON instead of the value
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunsExportArgs {
    /// The run, or the beginning of its id
    pub(crate) run: String,

    /// Where to; standard output where none is named
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RunsListArgs {
    /// Only those begun within this time, such as 90m, 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(crate) since: Option<Duration>,

    /// Only those that called this tool
    #[arg(long, value_name = "TOOL")]
    pub(crate) tool: Option<String>,

    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: u32,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunsShowArgs {
    /// The run, or the beginning of its id
    pub(crate) run: String,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
