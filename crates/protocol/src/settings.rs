//! Settings that are both keys of the configuration file and inputs of other crates.
//!
//! Field names are the keys of `config.toml`. The doc comments are the reference documentation.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{CallReach, Usage};

/// How much reasoning a model is asked for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
#[schemars(transform = accept_max)]
pub enum Effort {
    /// No reasoning, where the model can turn it off.
    None,
    /// The least the model offers.
    Minimal,
    /// Less than usual.
    Low,
    /// The usual amount.
    Medium,
    /// More than usual.
    High,
    /// The most the model offers.
    #[serde(rename = "xhigh", alias = "max")]
    Max,
}

/// Adds the alias of [`Effort::Max`], which schemars does not read from `serde(alias)`.
fn accept_max(schema: &mut schemars::Schema) {
    let values = schema
        .get_mut("oneOf")
        .and_then(|values| values.as_array_mut());
    values.into_iter().for_each(|values| {
        values.push(json!({ "const": "max", "description": "The same as `xhigh`." }));
    });
}

impl Effort {
    /// All values, in ascending order.
    pub const ALL: [Self; 6] = [
        Self::None,
        Self::Minimal,
        Self::Low,
        Self::Medium,
        Self::High,
        Self::Max,
    ];

    /// Returns the name for display; the highest is `max`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Max => "max",
        }
    }

    /// Parses a name; `xhigh` is OpenAI's name for `max`.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "xhigh" {
            return Some(Self::Max);
        }
        Self::ALL.into_iter().find(|effort| effort.as_str() == text)
    }
}

/// Which sessions memory reads for a session.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum MemoryScope {
    /// Only the session itself.
    Session,
    /// All sessions of its project: those in the same git repository, or in the same folder.
    #[default]
    Project,
    /// All sessions of all projects, and imported conversations.
    All,
}

impl MemoryScope {
    /// Returns the name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Project => "project",
            Self::All => "all",
        }
    }
}

/// How a request asks a model to reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReasoningStyle {
    /// The request does not mention reasoning.
    Omitted,
    /// With a named effort (`responses`, `chat`).
    Effort,
    /// The model decides, guided by a named effort (`messages`, newer models).
    Adaptive,
    /// With a number of tokens (`messages`, older models).
    Budget,
}

/// In which order several script blocks of one answer run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BlockOrder {
    /// One after the other.
    #[default]
    Sequential,
    /// At the same time.
    Parallel,
}

/// The tool with which a model runs commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ShellFlavour {
    /// `shell` with a program and its arguments as a list, and terminals.
    #[default]
    Argv,
    /// `shell_command` with one line for bash, and terminals.
    CommandLine,
    /// Only terminals, which keep running between calls: `exec_command` and `write_stdin`.
    Terminal,
    /// No such tool.
    None,
}

/// The format in which a model writes patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PatchFlavour {
    /// Plain text instead of JSON arguments, for APIs with freeform tools.
    Freeform,
    /// The patch as one string field.
    Text,
    /// A path with the old and the new content.
    Json,
}

/// Prices per million tokens, in US dollars.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Prices {
    /// Input tokens that are not read from a cache.
    #[schemars(range(min = 0.0))]
    pub input: f64,
    /// Input tokens read from a cache. Defaults to `input`.
    #[schemars(range(min = 0.0))]
    pub cached_input: Option<f64>,
    /// Input tokens written to a cache. Defaults to `input`.
    #[schemars(range(min = 0.0))]
    pub cache_write: Option<f64>,
    /// Output tokens, including those for reasoning.
    #[schemars(range(min = 0.0))]
    pub output: f64,
}

impl Prices {
    /// Returns the cost of this usage.
    pub fn cost(&self, usage: &Usage) -> f64 {
        let (cached, written) = (usage.cached_input_tokens, usage.cache_write_input_tokens);
        let fresh = usage
            .input_tokens
            .saturating_sub(cached)
            .saturating_sub(written);
        let millionths = fresh as f64 * self.input
            + cached as f64 * self.cached_input.unwrap_or(self.input)
            + written as f64 * self.cache_write.unwrap_or(self.input)
            + usage.output_tokens as f64 * self.output;
        millionths / 1e6
    }
}

/// How to log in to a provider with OAuth 2.0.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct OAuthSettings {
    /// Id of the client that is registered at the authorization server. It has no secret.
    pub client_id: String,
    /// URL at which the authorization server issues and refreshes tokens.
    pub token_url: String,
    /// URL that starts the device flow: the user enters a code in any browser.
    pub device_authorization_url: Option<String>,
    /// URL of the page that the user opens in a browser of this machine (authorization code flow
    /// with PKCE). It returns to `http://127.0.0.1:PORT/callback`.
    pub authorization_url: Option<String>,
    /// Port to which the browser returns. Any free port if not set.
    #[schemars(range(min = 1))]
    pub redirect_port: Option<u16>,
    /// Scopes to request.
    #[serde(default)]
    pub scopes: Vec<String>,
}

/// How often a request to a provider is repeated, and how long a streamed answer may pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RetryLimits {
    /// How often a failed request is sent again.
    pub request_max_retries: u32,
    /// How often an interrupted answer is requested again.
    pub stream_max_retries: u32,
    /// Longest pause in a streamed answer, in milliseconds.
    pub stream_idle_timeout_ms: u64,
}

impl Default for RetryLimits {
    fn default() -> Self {
        Self {
            request_max_retries: 4,
            stream_max_retries: 5,
            stream_idle_timeout_ms: 300_000,
        }
    }
}

/// What a completed write of the journal survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// A crash of the process.
    #[default]
    Normal,
    /// A power failure, too; each write waits for the disk.
    Full,
}

/// How many ended runs the journal keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Retention {
    /// Delete runs that ended more than this many days ago.
    pub days: u32,
    /// Delete the oldest ended runs while the journal is larger than this many megabytes.
    pub megabytes: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            days: 90,
            megabytes: 1024,
        }
    }
}

/// A weaker confinement of commands that is accepted where the full one is not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WeakerConfinement {
    /// Everything but a private /proc: commands see the names of other processes.
    SharedProc,
    /// Landlock and seccomp only: writes outside writable folders and the network are blocked, but
    /// `.git`, credentials and other processes are not protected.
    Landlock,
}

/// Resources a confined command may use. All but `processes` apply to each of its processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CommandLimits {
    /// Processes and threads at the same time.
    pub processes: u64,
    /// Size of one file that is written, in megabytes.
    pub file_mb: u64,
    /// Address space of each process, in megabytes.
    pub memory_mb: Option<u64>,
}

impl Default for CommandLimits {
    fn default() -> Self {
        Self {
            processes: 4096,
            file_mb: 16 * 1024,
            memory_mb: None,
        }
    }
}

/// Which environment variables commands get.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EnvironmentPolicy {
    /// The variables to start from.
    pub inherit: InheritedVariables,
    /// Keep variables whose name or value looks like a secret.
    pub ignore_default_excludes: bool,
    /// Globs of variable names to remove, such as `AWS_*`.
    #[schemars(extend("items" = { "type": "string", "format": "glob" }))]
    pub exclude: Vec<String>,
    /// Variables to set.
    pub set: BTreeMap<String, String>,
    /// Globs of variable names to keep. An empty list keeps all.
    #[schemars(extend("items" = { "type": "string", "format": "glob" }))]
    pub include_only: Vec<String>,
}

/// The variables an environment starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InheritedVariables {
    /// All variables of Selvedge's own environment.
    #[default]
    All,
    /// The variables a shell needs.
    Core,
    /// Inherit no variables.
    None,
}

/// A set of tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolPack {
    /// Packs whose tools it includes.
    pub extends: Vec<String>,
    /// Tools it includes, in snake_case or camelCase; `mcp.github.*` includes all tools of a
    /// server.
    pub tools: Vec<String>,
    /// Tools it excludes, also if an extended pack includes them.
    pub without: Vec<String>,
}

/// How the tools of one MCP server are offered and called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct McpServerOptions {
    /// Use the server.
    pub enabled: bool,
    /// Seconds the server may take to start and list its tools.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub startup_timeout_sec: f64,
    /// Seconds a call may take without a message from the server.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub tool_timeout_sec: f64,
    /// Names of its tools that scripts can call. All if not set.
    pub enabled_tools: Option<Vec<String>>,
    /// Names of its tools that scripts cannot call.
    pub disabled_tools: Vec<String>,
    /// Calls at the same time; further calls wait.
    #[schemars(range(min = 1))]
    pub max_concurrent: usize,
    /// When its tools need approval.
    pub default_tools_approval_mode: McpApproval,
    /// Whether the server may send requests to your model (sampling) while an agent runs.
    pub sampling: McpSampling,
}

impl Default for McpServerOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            startup_timeout_sec: 20.0,
            tool_timeout_sec: CallReach::Service.default_timeout().as_secs_f64(),
            enabled_tools: None,
            disabled_tools: Vec::new(),
            max_concurrent: 8,
            default_tools_approval_mode: McpApproval::default(),
            sampling: McpSampling::default(),
        }
    }
}

/// When the tools of an MCP server need approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum McpApproval {
    /// If the tool declares itself destructive; under the policy `untrusted` always. For a server
    /// that files of a project configure, also always under `on-request`.
    #[default]
    Auto,
    /// Before every call.
    Prompt,
    /// Never: you trust the server and what it declares about its tools. Means `auto` for a server
    /// that files of a project configure.
    Approve,
}

/// Whether an MCP server may send requests to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum McpSampling {
    /// If you approve the request.
    #[default]
    Prompt,
    /// Always; the turn's budget pays.
    Approve,
    /// Decline every request.
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_tokens_have_their_own_price() {
        let prices = Prices {
            input: 3.0,
            cached_input: Some(0.3),
            cache_write: Some(3.75),
            output: 15.0,
        };
        let usage = Usage {
            input_tokens: 1_000_000,
            cached_input_tokens: 400_000,
            cache_write_input_tokens: 200_000,
            output_tokens: 100_000,
            reasoning_output_tokens: 50_000,
        };
        assert!((prices.cost(&usage) - (1.2 + 0.12 + 0.75 + 1.5)).abs() < 1e-9);
    }
}
