//! The command line of `selvedge mcp`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::args::{ScriptLimitArgs, WorkspaceArgs};
use crate::units;

#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    /// Serve the tools `script` and `script_wait` over standard input and output, or over HTTP
    Serve(McpServeArgs),
    /// Start the configured servers and print the state of each
    List(McpServerListArgs),
    /// Add a server to the user's configuration
    Add(McpAddArgs),
    /// Remove a server from the user's configuration
    Remove(McpNameArgs),
    /// Print the settings of a server in the user's configuration
    Get(McpNameArgs),
    /// Log in to a server in the browser
    Login(McpLoginArgs),
    /// Print or write the configuration that adds `selvedge mcp serve` to an agent
    Install(McpInstallArgs),
}

#[derive(Debug, Args)]
pub(crate) struct McpAddArgs {
    /// Name of the server
    pub(crate) name: String,

    /// URL of a server that speaks streamable HTTP
    #[arg(long, value_name = "URL", conflicts_with_all = ["command", "env"])]
    pub(crate) url: Option<String>,

    /// Environment variable that holds the bearer token, with --url
    #[arg(long, value_name = "NAME", requires = "url")]
    pub(crate) bearer_token_env_var: Option<String>,

    /// Environment variable to set for the program; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,

    /// Replace a server of this name
    #[arg(long)]
    pub(crate) force: bool,

    /// Program and arguments of the server
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct McpNameArgs {
    /// Name of the server
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct McpServeArgs {
    /// Serve streamable HTTP on ADDR, such as 127.0.0.1:8765, at the path /mcp
    #[arg(long, value_name = "ADDR")]
    pub(crate) http: Option<String>,

    /// Read the bearer token from the environment variable NAME [default: SELVEDGE_MCP_TOKEN if
    /// set, else a random token, which is printed]
    #[arg(
        long,
        value_name = "NAME",
        requires = "http",
        conflicts_with = "token_file"
    )]
    pub(crate) token_env: Option<String>,

    /// Read the bearer token from FILE, which only its owner may access
    #[arg(long, value_name = "FILE", requires = "http")]
    pub(crate) token_file: Option<PathBuf>,

    /// Accept requests without a token; every user of this machine can then run scripts as you.
    /// Loopback addresses only
    #[arg(long, requires = "http", conflicts_with_all = ["token_env", "token_file"])]
    pub(crate) no_token: bool,

    /// Let HTTP clients approve the calls of their own scripts, such as commands without
    /// confinement; by default such calls are denied
    #[arg(long, requires = "http")]
    pub(crate) client_approves: bool,

    /// Accept requests for this host name, with --http; may be repeated
    #[arg(long, value_name = "HOST", requires = "http")]
    pub(crate) allow_host: Vec<String>,

    /// Return a handle for `script_wait` if a script still runs after TIME
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "45s")]
    pub(crate) yield_after: Duration,

    /// Maximum size of the tool's description, in tokens
    #[arg(long, value_name = "N", default_value_t = 1600)]
    pub(crate) description_tokens: usize,

    #[command(flatten)]
    pub(crate) limits: ScriptLimitArgs,

    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct McpServerListArgs {
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Print the names of all tools
    #[arg(long)]
    pub(crate) tools: bool,

    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct McpLoginArgs {
    /// Name of the server
    pub(crate) server: String,

    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct McpInstallArgs {
    /// The agent to configure
    #[arg(long, value_enum)]
    pub(crate) client: InstallClient,

    /// Write to the agent's configuration file instead of printing
    #[arg(long)]
    pub(crate) write: bool,

    /// Arguments for `selvedge mcp serve`, such as --approval untrusted
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) args: Vec<String>,
}

/// Agents whose configuration format is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum InstallClient {
    /// .mcp.json in the current folder
    ClaudeCode,
    /// Claude/claude_desktop_config.json in the user's configuration folder; works in the current
    /// folder
    ClaudeDesktop,
    /// cline_mcp_settings.json of the extension in VS Code
    Cline,
    /// config.toml in ~/.codex or $CODEX_HOME
    Codex,
    /// .cursor/mcp.json in the current folder
    Cursor,
    /// .gemini/settings.json in the current folder
    GeminiCli,
    /// .vscode/mcp.json in the current folder
    Vscode,
    /// The file ~/.codeium/windsurf/mcp_config.json
    Windsurf,
    /// zed/settings.json in the user's configuration folder
    Zed,
}
