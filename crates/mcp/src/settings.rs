//! How one server is reached, and how far it is trusted.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use selvedge_protocol::McpServerOptions;
use sha2::{Digest, Sha256};

/// A server somebody configured.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerSettings {
    /// What scripts call it.
    pub name: String,
    /// How it is reached.
    pub reach: Reach,
    /// How its tools are offered and called.
    pub options: McpServerOptions,
    /// Why it cannot be used as it is configured, where that is so.
    pub fault: Option<String>,
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// A program of the user's, spoken to over its standard input and output.
    Program {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Variables it gets besides those every program needs.
        env: BTreeMap<String, String>,
        /// Names of variables that are handed on.
        env_vars: Vec<String>,
        /// Where it runs; where we run, if not set.
        cwd: Option<PathBuf>,
    },
    /// A streamable HTTP endpoint.
    Http {
        /// Its address.
        url: String,
        /// The variable that holds a bearer token.
        bearer_token_env_var: Option<String>,
        /// Headers of every request.
        headers: BTreeMap<String, String>,
    },
}

impl ServerSettings {
    /// A server with everything else as it is by default.
    pub fn new(name: impl Into<String>, reach: Reach) -> Self {
        Self {
            name: name.into(),
            reach,
            options: McpServerOptions::default(),
            fault: None,
        }
    }

    /// Whether scripts get the tool of this name.
    pub(crate) fn has(&self, tool: &str) -> bool {
        let listed = |list: &Vec<String>| list.iter().any(|name| name == tool);
        self.options.enabled_tools.as_ref().is_none_or(listed)
            && !listed(&self.options.disabled_tools)
    }

    pub(crate) fn startup_timeout(&self) -> Duration {
        seconds(self.options.startup_timeout_sec)
    }

    pub(crate) fn tool_timeout(&self) -> Duration {
        seconds(self.options.tool_timeout_sec)
    }

    /// Names what this server is, so that what another one said is never taken for its word.
    pub(crate) fn fingerprint(&self) -> String {
        let words = format!("1\n{}\n{:?}", self.name, self.reach);
        selvedge_text::hex(&Sha256::digest(words)[..12])
    }
}

/// A limit in seconds. A number that is no time, such as a negative one, limits nothing.
fn seconds(seconds: f64) -> Duration {
    const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
    Duration::try_from_secs_f64(seconds).map_or(LONGEST, |time| time.min(LONGEST))
}
