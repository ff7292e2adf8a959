//! How one server is reached, and how far it is trusted.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use sha2::{Digest, Sha256};

/// A server somebody configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSettings {
    /// What scripts call it.
    pub name: String,
    /// How it is reached.
    pub reach: Reach,
    /// Whether it is used at all.
    pub enabled: bool,
    /// How long it may take to start and to say what it has.
    pub startup_timeout: Duration,
    /// How long a call may stay without a sign of life.
    pub tool_timeout: Duration,
    /// Tools it has, by their own names; all where it is not set.
    pub allow: Option<Vec<String>>,
    /// Tools it does not have, whatever else says so.
    pub deny: Vec<String>,
    /// Calls at the same time; more wait.
    pub max_concurrent: usize,
    /// When a person is asked before its tools run.
    pub approval: Approval,
    /// When it may ask our model.
    pub sampling: SamplingApproval,
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

/// When a person is asked before a server's tools run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Approval {
    /// Where the tool itself says that it destroys, and under the policy `untrusted` always: what a server says of
    /// itself can make it stricter, never laxer.
    #[default]
    Auto,
    /// Always.
    Prompt,
    /// Never: the user trusts the server, and what it says about its tools.
    Approve,
}

/// When a server may ask our model something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SamplingApproval {
    /// Where a person agrees.
    #[default]
    Prompt,
    /// Always: the user has agreed to what that costs.
    Approve,
    /// Never.
    Never,
}

impl ServerSettings {
    /// A server with everything else as it is by default.
    pub fn new(name: impl Into<String>, reach: Reach) -> Self {
        Self {
            name: name.into(),
            reach,
            enabled: true,
            startup_timeout: Duration::from_secs(20),
            tool_timeout: Duration::from_secs(60),
            allow: None,
            deny: Vec::new(),
            max_concurrent: 8,
            approval: Approval::default(),
            sampling: SamplingApproval::default(),
            fault: None,
        }
    }

    /// Whether scripts get the tool of this name.
    pub(crate) fn has(&self, tool: &str) -> bool {
        let allowed = self
            .allow
            .as_ref()
            .is_none_or(|list| list.iter().any(|name| name == tool));
        allowed && !self.deny.iter().any(|name| name == tool)
    }

    /// Names what this server is, so that what another one said is never taken for its word.
    pub(crate) fn fingerprint(&self) -> String {
        let words = format!("1\n{}\n{:?}", self.name, self.reach);
        Sha256::digest(words)
            .iter()
            .take(12)
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}
