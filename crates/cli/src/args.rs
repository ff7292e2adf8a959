//! The command line: commands, flags and the text of `--help`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use schemars::JsonSchema;
use selvedge_protocol::{ApprovalPolicy, SandboxPolicy, ScriptMode};
use serde::de::DeserializeOwned;

use crate::channels_args::ChannelsCommand;
use crate::memory::args::MemoryCommand;
use crate::runs::args::RunsCommand;
use crate::sessions_args::SessionsCommand;
use crate::trust::TrustQuestion;
use crate::units;

/// Run small TypeScript programs that call tools, in a sandbox.
#[derive(Debug, Parser)]
#[command(
    name = "selvedge",
    version,
    propagate_version = true,
    args_override_self = true
)]
#[command(after_help = "Without a command, selvedge starts a chat with an agent in this terminal.")]
pub(crate) struct SelvedgeCli {
    /// Write spans and counters to FILE, as lines of JSON
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,

    /// First message of the chat
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Option<String>,

    /// Run one task, print the answer and exit; same as `selvedge exec`
    #[arg(short = 'p', long)]
    pub(crate) print: bool,

    /// Continue the last session of this folder
    #[arg(short = 'c', long = "continue")]
    pub(crate) continue_last: bool,

    #[command(flatten)]
    pub(crate) chat: ChatCommandArgs,

    #[command(subcommand)]
    pub(crate) command: Option<CliCommand>,
}

/// Flags that a chat accepts.
#[derive(Debug, Args, Default)]
pub(crate) struct ChatCommandArgs {
    #[command(flatten)]
    pub(crate) turn: TurnLimitArgs,

    #[command(flatten)]
    pub(crate) model: ModelChoiceArgs,

    #[command(flatten)]
    pub(crate) limits: ScriptLimitArgs,

    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ContinueArgs {
    /// Id of the session, a prefix of the id, or its name [default: the last session of this
    /// folder]
    pub(crate) session: Option<String>,

    /// Continue the last session of this folder
    #[arg(long, conflicts_with = "session")]
    pub(crate) last: bool,

    #[command(flatten)]
    pub(crate) chat: ChatCommandArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Continue an earlier session in a chat
    #[command(alias = "resume")]
    Continue(ContinueArgs),
    /// Run an agent on one task; never asks for approval
    Exec(ExecArgs),
    /// Run a script and print its return value
    Run(RunArgs),
    /// Check a script or a command without running it
    Check(CheckArgs),
    /// List the tools that scripts can call
    Tools(ToolsArgs),
    /// List, inspect, answer, cancel and replay runs
    #[command(subcommand)]
    Runs(RunsCommand),
    /// Serve scripts to other agents, and manage MCP servers
    #[command(subcommand)]
    Mcp(crate::mcp_args::McpCommand),
    /// List, inspect, fork and export sessions
    #[command(subcommand)]
    Sessions(SessionsCommand),
    /// Post, read and list messages between people and sessions
    #[command(subcommand)]
    Channels(ChannelsCommand),
    /// Serve sessions, documents and channels over HTTP
    Serve(crate::serve_args::ServeArgs),
    /// List models, test them, and store keys
    #[command(subcommand)]
    Models(ModelsCommand),
    /// Import, search and manage the memory of conversations
    #[command(subcommand)]
    Memory(MemoryCommand),
    /// Copy and check what is stored
    #[command(subcommand)]
    Store(crate::store::StoreCommand),
    /// Print and change the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check that Selvedge works on this machine
    Doctor(DoctorArgs),
    /// Write an AGENTS.md that tells agents how to build and test this project
    Init(ProjectInitArgs),
    /// Print the completions of the command line for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write one page per command
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ProjectInitArgs {
    /// Write to this folder instead of the current one
    #[arg(short = 'C', long = "cd", value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Shell that reads the completions
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write the pages of all commands to this folder
    #[arg(value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Script file, or `-` for standard input
    #[arg(required_unless_present = "code", conflicts_with = "code")]
    pub(crate) file: Option<PathBuf>,

    /// Run CODE instead of a file
    #[arg(short = 'e', long = "eval", value_name = "CODE")]
    pub(crate) code: Option<String>,

    /// Print one `script_tool_call_output` as JSON instead of the return value
    #[arg(long)]
    pub(crate) json: bool,

    /// Print the changes in the folder as a unified diff, on standard error after the result
    #[arg(long)]
    pub(crate) diff: bool,

    /// Check the script and print the report without running it; same as `--mode dry-run`
    #[arg(long, conflicts_with = "mode")]
    pub(crate) dry_run: bool,

    /// Do not print a line per tool call
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Arguments for the script, which it reads from `context.args`
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) args: Vec<String>,

    /// Resume from RUN: completed changes are reused, reads run again
    #[arg(long, value_name = "RUN")]
    pub(crate) resume: Option<String>,

    /// Suspend the run when it needs approval; `selvedge runs answer` continues it
    #[arg(long, conflicts_with = "ephemeral")]
    pub(crate) suspend: bool,

    /// Share `store` and `load` with the other scripts of session ID
    #[arg(long, value_name = "ID", conflicts_with = "ephemeral")]
    pub(crate) session: Option<String>,

    /// Seed of `Math.random`, for repeatable runs
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,

    #[command(flatten)]
    pub(crate) limits: ScriptLimitArgs,

    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
}

#[derive(Debug, Args, Default)]
pub(crate) struct ExecArgs {
    /// Task for the agent; `-`, or no prompt in a new session, reads standard input. Piped input is
    /// added to a prompt
    #[arg(value_name = "PROMPT", num_args = 0..)]
    pub(crate) prompt: Vec<String>,

    /// Send the image FILE with the prompt: PNG, JPEG, GIF or WebP; can be repeated
    #[arg(short, long, value_name = "FILE")]
    pub(crate) image: Vec<PathBuf>,

    /// Continue session ID; without a prompt, finish its interrupted turn
    #[arg(long = "continue", value_name = "ID", conflicts_with = "last")]
    pub(crate) session: Option<String>,

    /// Continue the last session of this folder
    #[arg(long)]
    pub(crate) last: bool,

    /// Print every event as a line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Require the final answer to be JSON that matches the JSON Schema in FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) output_schema: Option<PathBuf>,

    /// Also write the final answer to FILE
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output_last_message: Option<PathBuf>,

    /// Do not print a line per tool call
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Check scripts and send the model the report instead of running them; same as
    /// `--mode dry-run`
    #[arg(long, conflicts_with = "mode")]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) turn: TurnLimitArgs,

    #[command(flatten)]
    pub(crate) model: ModelChoiceArgs,

    #[command(flatten)]
    pub(crate) limits: ScriptLimitArgs,

    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
}

/// Limits of one turn.
#[derive(Debug, Args, Default)]
#[command(next_help_heading = "Turn limits")]
pub(crate) struct TurnLimitArgs {
    /// Maximum number of requests to the model, those of sub-agents included [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_rounds: Option<u32>,

    /// Maximum number of input and output tokens
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<u64>,

    /// Maximum cost; needs the prices of the model, built in or configured
    #[arg(long, value_name = "AMOUNT", value_parser = units::money)]
    pub(crate) max_cost: Option<f64>,

    /// Maximum wall time, such as 90s or 10m
    #[arg(long, value_name = "TIME", value_parser = units::time_limit)]
    pub(crate) max_time: Option<Duration>,
}

/// Limits of one script.
#[derive(Debug, Clone, Args, Default)]
#[command(next_help_heading = "Script limits")]
pub(crate) struct ScriptLimitArgs {
    /// Maximum time without its calls, such as 500ms, 30s or 5m [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = units::time_limit)]
    pub(crate) timeout: Option<Duration>,

    /// Maximum heap size, such as 192MB or 1GB [default: 96MB]
    #[arg(long, value_name = "SIZE", value_parser = units::megabytes)]
    pub(crate) memory: Option<u64>,

    /// Maximum number of calls that leave the process: commands, web, MCP, agents [default: 32]
    #[arg(long, value_name = "N")]
    pub(crate) max_calls: Option<u32>,

    /// Maximum number of other calls: files, sessions, channels, memory [default: 1000]
    #[arg(long, value_name = "N")]
    pub(crate) max_file_calls: Option<u32>,

    /// Maximum number of concurrent tool calls [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_concurrent: Option<u32>,

    /// Run scripts, only check them, or reject them [default: enabled]
    #[arg(long, value_parser = enum_parser::<ScriptMode>(), value_name = "MODE")]
    pub(crate) mode: Option<ScriptMode>,
}

/// The workspace, and what is allowed in it.
#[derive(Debug, Args, Default)]
#[command(next_help_heading = "Workspace and permissions")]
pub(crate) struct WorkspaceArgs {
    /// Work in this folder instead of the current one
    #[arg(short = 'C', long = "cd", value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,

    /// When to ask for approval of a call [default: on-request]
    #[arg(long, value_parser = enum_parser::<ApprovalPolicy>(), value_name = "POLICY")]
    pub(crate) approval: Option<ApprovalPolicy>,

    /// What tools and commands may change [default: workspace-write]
    #[arg(long, value_parser = enum_parser::<SandboxPolicy>(), value_name = "POLICY")]
    pub(crate) sandbox: Option<SandboxPolicy>,

    /// Offer only the tools of PACK [default: all]
    #[arg(long, value_name = "PACK")]
    pub(crate) pack: Option<String>,

    /// Do not write to the journal
    #[arg(long)]
    pub(crate) ephemeral: bool,

    /// Trust this folder: use its .selvedge/ and .mcp.json from now on
    #[arg(long)]
    pub(crate) trust: bool,

    #[arg(skip)]
    pub(crate) trust_question: TrustQuestion,

    /// The user's file as it was read before; `None` reads it.
    #[arg(skip)]
    pub(crate) user_file: Option<selvedge_config::UserFile>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Script file, or `-` for standard input
    #[arg(required_unless_present = "command")]
    pub(crate) file: Option<PathBuf>,

    /// Print the class of a command, which decides whether it needs approval, instead of checking a
    /// script
    #[arg(long, requires = "argv", conflicts_with = "file")]
    pub(crate) command: bool,

    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Program and arguments of the command, with --command
    #[arg(last = true, requires = "command")]
    pub(crate) argv: Vec<String>,

    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// List providers and their models
    List(ModelsListArgs),
    /// Send one small request to a model, and print what it supports
    Test(ModelsTestArgs),
    /// Log in to a provider that has OAuth 2.0, or store a key that is read from standard input; in
    /// the system keyring, or in a private file if there is no keyring
    Login(ModelsLoginArgs),
    /// Delete the stored key and the login of a provider
    Logout(ModelsLogoutArgs),
}

/// The model that answers, and its provider.
#[derive(Debug, Args, Default)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelChoiceArgs {
    /// Model to use [default: from the configuration, else the provider's default]
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,

    /// Provider to use [default: from the configuration, else the first available]
    #[arg(long, value_name = "PROVIDER")]
    pub(crate) provider: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsListArgs {
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// List only this provider
    #[arg(long, value_name = "PROVIDER")]
    pub(crate) provider: Option<String>,

    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsTestArgs {
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) model: ModelChoiceArgs,

    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsLogoutArgs {
    /// Name of the provider
    pub(crate) provider: String,

    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsLoginArgs {
    /// Name of the provider
    pub(crate) provider: String,

    /// Log in with a code that you enter in the browser of any device
    #[arg(long)]
    pub(crate) device: bool,

    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ToolsArgs {
    /// Show only this tool, with its description and its types
    #[arg(conflicts_with = "ts")]
    pub(crate) name: Option<String>,

    /// Print TypeScript declarations of the tools
    #[arg(long, conflicts_with = "json")]
    pub(crate) ts: bool,

    /// Print JSON Schemas of the tools
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the JSON Schema of the configuration file, for editors
    Schema,
    /// Print the paths of the configuration files
    Path(ConfigPathArgs),
    /// Print the value of a key, as the files of the user and of this folder set it
    Get(ConfigGetArgs),
    /// Set a key in the user's configuration file
    Set(ConfigSetArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ConfigGetArgs {
    /// Key, such as model or memory.recall
    pub(crate) key: String,

    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigSetArgs {
    /// Key, such as model or memory.recall
    pub(crate) key: String,

    /// Value as in TOML; a text that is not TOML is a string
    #[arg(
        required_unless_present = "unset",
        conflicts_with = "unset",
        allow_hyphen_values = true
    )]
    pub(crate) value: Option<String>,

    /// Remove the key instead
    #[arg(long)]
    pub(crate) unset: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigPathArgs {
    /// Print the project file of DIR instead of the current folder
    #[arg(short = 'C', long = "cd", value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
}

/// Parses the values of an enumeration that is also a configuration key. The help of each value is
/// its doc comment.
pub(crate) fn enum_parser<T>() -> impl TypedValueParser<Value = T>
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
