//! Settings of one MCP server: how to connect to it, and how its tools are offered.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use selvedge_protocol::{McpApproval, McpSampling, McpServerOptions};
use sha2::{Digest, Sha256};

/// A configured MCP server.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// Name of the server in the configuration and in scripts (`tools.mcp.<name>`).
    pub name: String,
    /// How to connect to the server.
    pub transport: McpTransport,
    /// How the server's tools are offered and called.
    pub options: McpServerOptions,
    /// Where the server is configured.
    pub origin: ServerOrigin,
    /// Finds the program of a local server. `None` starts the command as it is.
    pub program: Option<Arc<dyn ProgramFinder>>,
    /// Error in the configuration of this server. If set, the server is never started.
    pub config_error: Option<ServerConfigError>,
}

/// An error in the configuration of a server, which concerns only this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfigError {
    /// Reason, in one line.
    pub reason: String,
    /// What the user can do about it.
    pub hint: String,
}

/// Finds the program of a local server. It is asked directly before each start, because commands of
/// agents may have changed files since the configuration was read.
#[async_trait]
pub trait ProgramFinder: std::fmt::Debug + Send + Sync {
    /// Returns the program, or why it is not started.
    async fn find(&self) -> Result<ServerProgram, ServerConfigError>;
}

/// The program of a local server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerProgram {
    /// It was found.
    Found {
        /// Its full path.
        path: PathBuf,
        /// The value of `PATH` with which it runs.
        search_path: OsString,
    },
    /// It was not found.
    Missing,
}

/// Where a server is configured, which decides what its declarations can grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerOrigin {
    /// The user's own configuration.
    #[default]
    User,
    /// Files of the project, at least in part. What such a server declares about its tools grants
    /// nothing: it can only make approval necessary.
    Project,
}

/// How to connect to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpTransport {
    /// Start a local program and exchange messages over its standard input and output.
    Stdio {
        /// Name or path of the program.
        command: String,
        /// Arguments of the program.
        args: Vec<String>,
        /// Environment variables to set, besides the inherited ones.
        env: BTreeMap<String, String>,
        /// Names of environment variables to inherit, besides the basic ones such as `PATH`.
        env_vars: Vec<String>,
        /// Working directory of the program; `None` is the current one.
        cwd: Option<PathBuf>,
    },
    /// Connect to a streamable HTTP endpoint.
    Http {
        /// URL of the endpoint.
        url: String,
        /// Name of the environment variable that holds a bearer token.
        bearer_token_env_var: Option<String>,
        /// Headers to send with every request.
        headers: BTreeMap<String, String>,
    },
}

impl McpTransport {
    /// Returns the command that starts a local server, for messages.
    pub(crate) fn command_line(&self) -> Option<String> {
        let Self::Stdio { command, args, .. } = self else {
            return None;
        };
        let words = std::iter::once(command).chain(args);
        Some(words.cloned().collect::<Vec<_>>().join(" "))
    }
}

impl ServerSettings {
    /// Creates settings with default options.
    pub fn new(name: impl Into<String>, transport: McpTransport) -> Self {
        Self {
            name: name.into(),
            transport,
            options: McpServerOptions::default(),
            origin: ServerOrigin::default(),
            program: None,
            config_error: None,
        }
    }

    /// Returns the hint for a server that did not answer while it started.
    pub(crate) fn slow_start_hint(&self) -> String {
        let wait = format!(
            "set startup_timeout_sec = {} under [mcp_servers.{}] in config.toml",
            self.startup_timeout().as_secs_f64() * 2.0,
            self.name
        );
        match self.transport.command_line() {
            Some(line) => format!("run `{line}` to see its output, or {wait}"),
            None => wait,
        }
    }

    /// Whether the configuration offers this tool to scripts. `tool` is the server's own name.
    pub(crate) fn offers_tool(&self, tool: &str) -> bool {
        let listed = |list: &Vec<String>| list.iter().any(|name| name == tool);
        self.options.enabled_tools.as_ref().is_none_or(listed)
            && !listed(&self.options.disabled_tools)
    }

    /// Returns when the server's tools need approval. Files of a project cannot approve the calls
    /// of their own servers.
    pub(crate) fn approval_mode(&self) -> McpApproval {
        match (self.origin, self.options.default_tools_approval_mode) {
            (ServerOrigin::Project, McpApproval::Approve) => McpApproval::Auto,
            (_, mode) => mode,
        }
    }

    /// Returns whether the server may send requests to the model. Files of a project cannot approve
    /// the requests of their own servers.
    pub(crate) fn sampling(&self) -> McpSampling {
        match (self.origin, self.options.sampling) {
            (ServerOrigin::Project, McpSampling::Approve) => McpSampling::Prompt,
            (_, sampling) => sampling,
        }
    }

    pub(crate) fn startup_timeout(&self) -> Duration {
        timeout_from_secs(self.options.startup_timeout_sec)
    }

    pub(crate) fn tool_timeout(&self) -> Duration {
        timeout_from_secs(self.options.tool_timeout_sec)
    }

    /// Cache key of name and connection, for file names of stored catalogues and logins.
    ///
    /// A server with another connection never reads the files of this one.
    pub(crate) fn fingerprint(&self) -> String {
        let identity = format!("1\n{}\n{:?}", self.name, self.transport);
        selvedge_text::hex(&Sha256::digest(identity)[..12])
    }
}

/// Converts a configured timeout. A value that is not a duration, such as a negative one, means
/// no limit.
fn timeout_from_secs(seconds: f64) -> Duration {
    const MAX_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
    Duration::try_from_secs_f64(seconds).map_or(MAX_TIMEOUT, |time| time.min(MAX_TIMEOUT))
}
