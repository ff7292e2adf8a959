//! The command line, as `--help` shows it.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use schemars::JsonSchema;
use selvedge_protocol::{ApprovalPolicy, Mode, SandboxPolicy};
use serde::de::DeserializeOwned;

use crate::memory::args::MemoryCommand;
use crate::runs::args::RunsCommand;
use crate::sessions_args::SessionsCommand;
use crate::units;

/// Runs small TypeScript programs that call tools, inside a sandbox with two walls.
#[derive(Debug, Parser)]
#[command(name = "selvedge", version, propagate_version = true)]
#[command(after_help = "Without a command: a chat with an agent in this terminal.")]
pub(crate) struct Cli {
    /// Write what happens to this file, as lines of JSON: spans and counters
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) chat: ChatArgs,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// What a chat is begun with.
#[derive(Debug, Args, Default)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) turn: TurnArgs,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ContinueArgs {
    /// The session: its id, the beginning of it, or its name [default: the last one of this folder]
    pub(crate) session: Option<String>,

    /// The last session of this folder
    #[arg(long, conflicts_with = "session")]
    pub(crate) last: bool,

    #[command(flatten)]
    pub(crate) chat: ChatArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Continue an earlier session in a chat
    #[command(alias = "resume")]
    Continue(ContinueArgs),
    /// Give an agent one task, without questions
    Exec(ExecArgs),
    /// Run a script and print what it returns
    Run(RunArgs),
    /// Check a script or a command without running it
    Check(CheckArgs),
    /// List what scripts can call
    Tools(ToolsArgs),
    /// Look at what ran before
    #[command(subcommand)]
    Runs(RunsCommand),
    /// Offer scripts to other agents, and look after MCP servers
    #[command(subcommand)]
    Mcp(crate::mcp_args::McpCommand),
    /// Look at conversations with agents
    #[command(subcommand)]
    Sessions(SessionsCommand),
    /// See which models there are, and whether they answer
    #[command(subcommand)]
    Models(ModelsCommand),
    /// Remember conversations, and find what was said
    #[command(subcommand)]
    Memory(MemoryCommand),
    /// Describe the configuration file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check that Selvedge works on this machine
    Doctor(DoctorArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The script: a file, or `-` for standard input
    #[arg(required_unless_present = "code", conflicts_with = "code")]
    pub(crate) file: Option<PathBuf>,

    /// The script itself
    #[arg(short = 'e', long = "eval", value_name = "CODE")]
    pub(crate) code: Option<String>,

    /// Print one `script_tool_call_output` as JSON instead of the value
    #[arg(long)]
    pub(crate) json: bool,

    /// Print what the script changed in the folder as a unified diff, on standard error after the result
    #[arg(long)]
    pub(crate) diff: bool,

    /// Check the script and print the report; short for `--mode dry-run`
    #[arg(long, conflicts_with = "mode")]
    pub(crate) dry_run: bool,

    /// Show no line per tool call
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Words for the script, which it finds in `context.args`
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) args: Vec<String>,

    /// Resume from RUN, reusing the results of completed calls
    #[arg(long, value_name = "RUN")]
    pub(crate) resume: Option<String>,

    /// Suspend the run where a person must be asked; `selvedge runs answer` continues it
    #[arg(long, conflicts_with = "ephemeral")]
    pub(crate) suspend: bool,

    /// The session whose `store` and `load` the script shares
    #[arg(long, value_name = "ID", conflicts_with = "ephemeral")]
    pub(crate) session: Option<String>,

    /// Seed of Math.random, to repeat a run
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The task; `-` or nothing reads it from standard input
    #[arg(value_name = "PROMPT", num_args = 0..)]
    pub(crate) words: Vec<String>,

    /// Continue this session; without a prompt, finish the turn that was interrupted
    #[arg(long = "continue", value_name = "ID", conflicts_with = "last")]
    pub(crate) session: Option<String>,

    /// Continue the last session of this folder
    #[arg(long)]
    pub(crate) last: bool,

    /// Print every event as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// The last answer must be JSON that fits this schema
    #[arg(long, value_name = "FILE")]
    pub(crate) output_schema: Option<PathBuf>,

    /// Write the last answer to this file, too
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output_last_message: Option<PathBuf>,

    /// Show no line per tool call
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Check scripts instead of running them, and tell the model the report; short for `--mode dry-run`
    #[arg(long, conflicts_with = "mode")]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) turn: TurnArgs,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

/// How far a turn may go.
#[derive(Debug, Args, Default)]
#[command(next_help_heading = "Limits of a turn")]
pub(crate) struct TurnArgs {
    /// Requests to the model [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_rounds: Option<u32>,

    /// Tokens, in and out
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<u64>,

    /// Money, where the model's prices are configured
    #[arg(long, value_name = "AMOUNT", value_parser = units::money)]
    pub(crate) max_cost: Option<f64>,

    /// Wall time, such as 90s or 10m
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(crate) max_time: Option<Duration>,
}

/// How far a script may go.
#[derive(Debug, Args, Default)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Wall time, such as 500ms, 30s or 5m [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(crate) timeout: Option<Duration>,

    /// Heap, such as 96MB [default: 96MB]
    #[arg(long, value_name = "SIZE", value_parser = units::megabytes)]
    pub(crate) memory: Option<u64>,

    /// Tool calls in all [default: 32]
    #[arg(long, value_name = "N")]
    pub(crate) max_calls: Option<u32>,

    /// Tool calls at once [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_concurrent: Option<u32>,

    /// Whether scripts run [default: enabled]
    #[arg(long, value_parser = choice::<Mode>(), value_name = "MODE")]
    pub(crate) mode: Option<Mode>,
}

/// Where, and under which rules.
#[derive(Debug, Args, Default)]
#[command(next_help_heading = "Place and policy")]
pub(crate) struct PlaceArgs {
    /// Work in this folder instead of the current one
    #[arg(short = 'C', long = "cd", value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,

    /// When a call needs approval [default: on-request]
    #[arg(long, value_parser = choice::<ApprovalPolicy>(), value_name = "POLICY")]
    pub(crate) approval: Option<ApprovalPolicy>,

    /// What may be changed [default: workspace-write]
    #[arg(long, value_parser = choice::<SandboxPolicy>(), value_name = "POLICY")]
    pub(crate) sandbox: Option<SandboxPolicy>,

    /// Offer only the tools of this pack [default: all]
    #[arg(long, value_name = "PACK")]
    pub(crate) pack: Option<String>,

    /// Write nothing down
    #[arg(long)]
    pub(crate) ephemeral: bool,

    /// Follow this folder's own .selvedge/ and .mcp.json from now on
    #[arg(long)]
    pub(crate) trust: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The script: a file, or `-` for standard input
    #[arg(required_unless_present = "command")]
    pub(crate) file: Option<PathBuf>,

    /// Judge a command instead of a script: whether it needs a question before it runs
    #[arg(long, requires = "argv", conflicts_with = "file")]
    pub(crate) command: bool,

    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// With --command: the program and its arguments
    #[arg(last = true, requires = "command")]
    pub(crate) argv: Vec<String>,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// List providers and their models
    List(ModelsListArgs),
    /// Send one tiny request, and tell what it showed
    Test(ModelsTestArgs),
    /// Keep a provider's key in the system's keyring; it is read from standard input
    Login(ModelsLoginArgs),
    /// Forget a provider's key
    Logout(ModelsLoginArgs),
}

/// Who is asked.
#[derive(Debug, Args, Default)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// The model [default: the configuration's, else the provider's]
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,

    /// The provider [default: the configuration's, else the first that can be used]
    #[arg(long, value_name = "PROVIDER")]
    pub(crate) provider: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Only this provider
    #[arg(long, value_name = "PROVIDER")]
    pub(crate) provider: Option<String>,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsTestArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsLoginArgs {
    /// The provider
    pub(crate) provider: String,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ToolsArgs {
    /// Print TypeScript declarations
    #[arg(long, conflicts_with = "json")]
    pub(crate) ts: bool,

    /// Print JSON Schemas
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the JSON Schema of the configuration file, for editors
    Schema,
    /// Print the paths of the configuration files
    Path(ConfigPathArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ConfigPathArgs {
    /// The folder whose project file is meant, instead of the current one
    #[arg(short = 'C', long = "cd", value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
}

/// Parses the values of an enumeration that is also a configuration key; its documentation is the help.
fn choice<T>() -> impl TypedValueParser<Value = T>
where
    T: JsonSchema + DeserializeOwned + Clone + Send + Sync + 'static,
{
    let schema = schemars::schema_for!(T).to_value();
    let values = schema["oneOf"].as_array().into_iter().flatten();
    let values = values.filter_map(|value| {
        let help = value["description"]
            .as_str()?
            .trim_end_matches('.')
            .to_owned();
        Some(PossibleValue::new(value["const"].as_str()?.to_owned()).help(help))
    });
    PossibleValuesParser::new(values)
        .try_map(|name| serde_json::from_value::<T>(serde_json::Value::String(name)))
}
