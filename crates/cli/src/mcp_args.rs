//! The command line of `selvedge mcp`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::args::{LimitArgs, PlaceArgs};
use crate::units;

#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    /// Offer one tool, `script`, to an agent: over standard input and output, or over HTTP
    Serve(ServeArgs),
    /// Start the configured servers and show how each is doing
    List(ListArgs),
    /// Log in to a server that wants it, in the browser
    Login(LoginArgs),
    /// Show how to add `selvedge mcp serve` to an agent, or do it
    Install(InstallArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Serve streamable HTTP at this address, such as 127.0.0.1:8765, under /mcp
    #[arg(long, value_name = "ADDR")]
    pub(crate) http: Option<String>,

    /// With --http: the environment variable that holds the bearer token clients must show; required off loopback
    #[arg(
        long,
        value_name = "NAME",
        default_value = "SELVEDGE_MCP_TOKEN",
        requires = "http"
    )]
    pub(crate) token_env: String,

    /// With --http: another host name under which clients reach us; may be given several times
    #[arg(long, value_name = "HOST", requires = "http")]
    pub(crate) allow_host: Vec<String>,

    /// Answer with a handle when a script still runs after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "45s")]
    pub(crate) patience: Duration,

    /// Tokens the tool's description may cost
    #[arg(long, value_name = "N", default_value_t = 1600)]
    pub(crate) description_tokens: usize,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Name every tool
    #[arg(long)]
    pub(crate) tools: bool,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// The server's name
    pub(crate) server: String,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// The agent
    #[arg(long, value_enum)]
    pub(crate) client: Client,

    /// Write it into the agent's configuration instead of printing it
    #[arg(long)]
    pub(crate) write: bool,

    /// Words for `selvedge mcp serve`, such as --approval untrusted
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) args: Vec<String>,
}

/// Agents whose configuration is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Client {
    /// .mcp.json in the current folder
    ClaudeCode,
    /// ~/.codex/config.toml
    Codex,
    /// .cursor/mcp.json in the current folder
    Cursor,
    /// .vscode/mcp.json in the current folder
    Vscode,
}
