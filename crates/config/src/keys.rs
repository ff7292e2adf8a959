//! The keys of `config.toml`. The doc comments are the reference.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use selvedge_protocol::{ApprovalPolicy, Limits, Mode, SandboxPolicy, WireApi};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::mcp::McpServer;

/// Everything a `config.toml` can say. Keys of other programs that share the file are left alone.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Config {
    /// The model that is asked; the provider's own choice where nothing is said.
    pub model: Option<String>,
    /// The provider that is asked: `openai`, `anthropic`, `openrouter`, `ollama`, `lmstudio`, `llamacpp`, `vllm`, or one
    /// of `model_providers`. Where nothing is said, the first whose key is there, else a server found on this machine.
    pub model_provider: Option<String>,
    /// How hard the model thinks: `none`, `minimal`, `low`, `medium`, `high` or `xhigh`.
    pub model_reasoning_effort: Option<ReasoningEffort>,
    /// How many tokens a conversation with `model` may have.
    pub model_context_window: Option<u64>,
    /// How many tokens an answer of `model` may have.
    pub model_max_output_tokens: Option<u64>,
    /// Providers of one's own, and changes to the built-in ones: `[model_providers.name]`, see below.
    pub model_providers: BTreeMap<String, ModelProvider>,
    /// What is known about models, over the built-in table: `[models."name"]`, see below.
    pub models: BTreeMap<String, ModelSettings>,
    /// When a person is asked before a call runs: `untrusted`, `on-request`, `on-failure` or `never`.
    pub approval_policy: ApprovalPolicy,
    /// What commands and tools may change: `read-only`, `workspace-write` or `danger-full-access`.
    pub sandbox_mode: SandboxPolicy,
    /// More about `workspace-write`.
    pub sandbox_workspace_write: WorkspaceWrite,
    /// A weaker wall that will do where commands cannot be confined as they should: `shared-proc`, which lets them see
    /// the names of other processes, or `landlock`, which keeps them from writing elsewhere and from the network, but
    /// not from `.git`, credentials and other processes.
    pub weaker_wall: Option<WeakerWall>,
    /// Which environment variables commands get.
    pub shell_environment_policy: ShellEnvironmentPolicy,
    /// How much a confined command may use.
    pub command_limits: CommandLimits,
    /// Commands that run without a question, each as the words it begins with: `[["npm", "test"]]`.
    pub allow_commands: Vec<Vec<String>>,
    /// The same for commands that ask to run without the sandbox.
    pub allow_commands_unconfined: Vec<Vec<String>>,
    /// The tools there are: `core-codex`, `anthropic-standard`, `file-ops`, `research` (the web and the File Cabinet),
    /// `all`, or one of `tool_packs`.
    pub tool_pack: Option<String>,
    /// Packs of one's own: `[tool_packs.name]` with `extends`, `tools` and `without`.
    pub tool_packs: BTreeMap<String, ToolPack>,
    /// How the web is searched and read.
    pub web: Web,
    /// MCP servers whose tools scripts can call: `[mcp_servers.name]`, see docs/mcp.md.
    pub mcp_servers: BTreeMap<String, McpServer>,
    /// How long what ran is remembered.
    pub journal: JournalKeeping,
    /// What is remembered of conversations, and how much of it a prompt gets.
    pub memory: MemoryKeys,
    /// How far an agent may go, and how its answers end.
    pub agent: AgentKeys,
    /// How scripts run.
    pub script_harness: ScriptHarness,
}

/// How far an agent may go, and how its answers end.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentKeys {
    /// Ends an answer with its first script block: nothing is said about a result that is not known yet.
    pub stop_after_block: bool,
    /// Tokens a whole session may use, in and out.
    pub session_max_tokens: Option<u64>,
    /// Money a whole session may cost, where the model's prices are configured.
    pub session_max_cost: Option<f64>,
}

/// How the web is searched and read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Web {
    /// Address of a SearXNG server that `webSearch` asks; its settings must switch JSON on. Goes before Perplexity.
    pub searxng_url: Option<String>,
    /// Variable that holds the key for Perplexity's search, which `webSearch` asks where it is set.
    pub perplexity_env_key: String,
    /// Where Perplexity is.
    pub perplexity_url: String,
    /// Variable that holds the key for Firecrawl, which `fetchUrl` asks for pages where it is set.
    pub firecrawl_env_key: String,
    /// Where Firecrawl is.
    pub firecrawl_url: String,
    /// Hosts that are reached without a question although the network is off: `docs.rs`, `*.example.org`,
    /// `localhost:3000`.
    pub allow_hosts: Vec<String>,
    /// Hosts that may have private addresses, by name or address.
    pub allow_private_hosts: Vec<String>,
    /// How long a page or an answer may take.
    pub timeout_ms: u64,
    /// How much of a page is read, in MB.
    pub max_mb: u64,
}

impl Default for Web {
    fn default() -> Self {
        Self {
            searxng_url: None,
            perplexity_env_key: "PERPLEXITY_API_KEY".to_owned(),
            perplexity_url: "https://api.perplexity.ai".to_owned(),
            firecrawl_env_key: "FIRECRAWL_API_KEY".to_owned(),
            firecrawl_url: "https://api.firecrawl.dev".to_owned(),
            allow_hosts: Vec::new(),
            allow_private_hosts: Vec::new(),
            timeout_ms: 30_000,
            max_mb: 10,
        }
    }
}

/// A provider of models. What is left out is as the built-in provider of that name has it, or as the default says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ModelProvider {
    /// What people call it.
    pub name: Option<String>,
    /// Where it is, with its version segment; only `/responses`, `/chat/completions` or `/messages` is added.
    pub base_url: Option<String>,
    /// The environment variable that holds the key. A key in the system's keyring will do as well.
    pub env_key: Option<String>,
    /// The header the key goes into; `Authorization: Bearer` where nothing is said, with `messages` `x-api-key`.
    pub key_header: Option<String>,
    /// How it is spoken to: `responses`, `chat` or `messages`; `chat` where nothing is said.
    pub wire_api: Option<WireApi>,
    /// The model that is asked where none is named.
    pub model: Option<String>,
    /// More headers.
    pub http_headers: BTreeMap<String, String>,
    /// Headers whose values are in environment variables.
    pub env_http_headers: BTreeMap<String, String>,
    /// What is added to every address as a query.
    pub query_params: BTreeMap<String, String>,
    /// How often a request that failed is sent again; 4 where nothing is said.
    pub request_max_retries: Option<u32>,
    /// How often an answer that broke off is asked for again; 5 where nothing is said.
    pub stream_max_retries: Option<u32>,
    /// How long an answer may be silent, in milliseconds; 300,000 where nothing is said.
    pub stream_idle_timeout_ms: Option<u64>,
    /// Whether scripts run with its models: `disabled`, `dry-run` or `enabled`.
    pub script_harness: Option<Mode>,
    /// The pack of tools its models get.
    pub tool_pack: Option<String>,
}

/// What is known about a model. What is left out is as the table has it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSettings {
    /// How many tokens a conversation may have, the answer included.
    pub context_window: Option<u64>,
    /// How many tokens an answer may have.
    pub max_output_tokens: Option<u64>,
    /// Whether it calls tools. Where not, scripts in its text still work.
    pub tools: Option<bool>,
    /// Whether it takes tools whose input is plain text (with `responses`).
    pub freeform_tools: Option<bool>,
    /// Whether it sees images.
    pub images: Option<bool>,
    /// How it is told to think: `unsaid`, `effort`, `adaptive` or `budget`.
    pub thinking: Option<ThinkingStyle>,
    /// What a million tokens cost.
    pub prices: Option<TokenPrices>,
    /// Whether scripts run with it: `disabled`, `dry-run` or `enabled`.
    pub script_harness: Option<Mode>,
    /// The pack of tools it gets.
    pub tool_pack: Option<String>,
}

/// What a million tokens cost, in the currency you think in.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenPrices {
    /// Read for the first time.
    pub input: f64,
    /// Read from a cache; as `input` where nothing is said.
    pub cached_input: Option<f64>,
    /// Written to a cache; as `input` where nothing is said.
    pub cache_write: Option<f64>,
    /// Written by the model.
    pub output: f64,
}

/// How hard a model thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReasoningEffort {
    /// Not at all, where it can be switched off.
    None,
    /// Hardly.
    Minimal,
    /// A little.
    Low,
    /// As usual.
    Medium,
    /// Hard.
    High,
    /// As hard as it can.
    #[serde(alias = "max")]
    Xhigh,
}

/// How a model is told to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ThinkingStyle {
    /// It is not.
    Unsaid,
    /// With a word for the effort (`responses`, `chat`).
    Effort,
    /// As much as it finds right (`messages`, newer models).
    Adaptive,
    /// With a number of tokens (`messages`, older models).
    Budget,
}

/// What is remembered of conversations, and how much of it a prompt gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryKeys {
    /// What a prompt gets of earlier turns: `gradient` (all of them, the older the shorter), `regular` (the newest that
    /// fit, in full) or `one-shot` (nothing).
    pub strategy: MemoryStrategy,
    /// Tokens of a prompt for earlier turns.
    pub budget: u32,
    /// The shares of raw, smoothed, compressed and tiny turns in it, in per cent.
    pub bands: [u32; 4],
    /// Whether what matters now is looked up before each turn.
    pub recall: bool,
    /// How long looking it up may take, in milliseconds. What has arrived by then is used.
    pub recall_ms: u64,
    /// Tokens of a prompt for what was recalled and for the announcement board.
    pub recall_tokens: u32,
    /// A small model that writes summaries, filters what was recalled and draws lessons, as `model` names one. Without
    /// it all of that is done by rules.
    pub model: Option<String>,
    /// Whether lessons are drawn by the provider's batches, which answer within a day and cost less: `auto` where the
    /// provider of `memory.model` is `openai` or `anthropic`, `always` where another one has the same endpoints, `never`.
    pub batch: MemoryBatch,
    /// Draw lessons when nothing has happened for so many minutes; `0` leaves that to `selvedge memory distill`.
    pub distill_idle_minutes: u32,
}

impl Default for MemoryKeys {
    fn default() -> Self {
        Self {
            strategy: MemoryStrategy::Gradient,
            budget: 100_000,
            bands: [40, 16, 30, 14],
            recall: true,
            recall_ms: 1000,
            recall_tokens: 2000,
            model: None,
            batch: MemoryBatch::Auto,
            distill_idle_minutes: 30,
        }
    }
}

/// What a prompt gets of earlier turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryStrategy {
    /// All of them, the older the shorter.
    #[default]
    Gradient,
    /// The newest that fit, in full.
    Regular,
    /// None.
    OneShot,
}

/// Whether lessons are drawn by a provider's batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryBatch {
    /// Where the provider is known to have them.
    #[default]
    Auto,
    /// Whoever the provider is.
    Always,
    /// Every prompt is answered at once.
    Never,
}

/// How long what ran is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JournalKeeping {
    /// Runs that ended longer ago are forgotten. A run that goes on never is.
    pub days: u32,
    /// The oldest are forgotten when the journal is larger, in MB.
    pub megabytes: u64,
    /// More names of fields and variables whose values are never shown.
    pub secret_names: Vec<String>,
    /// What a write has survived when it is done: `normal` the death of the process, `full` the loss of power too, at
    /// the price of waiting for the disk at each call.
    pub durability: Durability,
    /// Seals scripts, arguments, results and what `memory` keeps with a key from the system's keyring. Names of tools and
    /// sessions, times and states stay readable, as do runs from before; memory's index has digests instead of words.
    pub encrypt: bool,
}

/// What a write of the journal has survived when it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The death of the process.
    #[default]
    Normal,
    /// The loss of power too.
    Full,
}

impl Default for JournalKeeping {
    fn default() -> Self {
        Self {
            days: 90,
            megabytes: 1024,
            secret_names: Vec::new(),
            durability: Durability::Normal,
            encrypt: false,
        }
    }
}

/// More about `workspace-write`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WorkspaceWrite {
    /// Lets confined commands reach the network.
    pub network_access: bool,
    /// Lets confined commands make sockets that have a name in the file system, as some databases and test servers do.
    /// Sockets of others that appear or move while a command runs can then be reached.
    pub unix_sockets: bool,
    /// More folders that may be written.
    pub writable_roots: Vec<PathBuf>,
}

/// Walls that keep less than was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WeakerWall {
    /// Everything but a /proc of its own.
    SharedProc,
    /// Landlock and seccomp alone.
    Landlock,
}

/// Which environment variables commands get.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ShellEnvironmentPolicy {
    /// Where to begin: `all`, `core` or `none`.
    pub inherit: Inherit,
    /// Keeps variables that look like secrets, by their name or value.
    pub ignore_default_excludes: bool,
    /// Patterns of names to leave out, such as `AWS_*`.
    pub exclude: Vec<String>,
    /// Variables to set.
    pub set: BTreeMap<String, String>,
    /// Patterns of names to keep; all where it is empty.
    pub include_only: Vec<String>,
}

/// Where an environment begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Inherit {
    /// With everything there is.
    #[default]
    All,
    /// With what a shell cannot do without.
    Core,
    /// With nothing.
    None,
}

/// How much a confined command may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CommandLimits {
    /// Processes and threads at once.
    pub processes: u64,
    /// Size of one file it writes, in MB.
    pub file_mb: u64,
    /// Address space of each process, in MB.
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

/// A set of tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolPack {
    /// Packs whose tools it has as well.
    pub extends: Vec<String>,
    /// Tools it has.
    pub tools: Vec<String>,
    /// Tools it does not have.
    pub without: Vec<String>,
}

/// How scripts run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScriptHarness {
    /// Whether scripts run: `disabled`, `dry-run` or `enabled`.
    pub mode: Mode,
    /// Wait for calls a script did not await, instead of stopping them when it ends.
    pub allow_detached_promises: bool,
    /// How far a script may go.
    pub limits: Limits,
    /// What scripts can reach.
    pub expose: Expose,
}

/// What scripts can reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Expose {
    /// Names of the tools scripts can call; all of them where it is not set.
    pub tools: Option<Vec<String>>,
    /// Whether scripts can call the tools of MCP servers.
    pub enable_mcp: bool,
    /// Offers `tools.spawn`: calls that go on when their script has ended.
    pub enable_spawn: bool,
    /// Offers `tools.http`: plain HTTP requests, under the network policy.
    pub enable_http: bool,
}

impl Default for Expose {
    fn default() -> Self {
        Self {
            tools: None,
            enable_mcp: true,
            enable_spawn: false,
            enable_http: false,
        }
    }
}

pub(crate) fn reference() -> String {
    table::<Config>("")
}

/// The keys below a table whose name is one's own choice.
pub(crate) fn reference_of_models() -> String {
    let provider = table::<ModelProvider>("model_providers.name");
    let model = table::<ModelSettings>("models.\"name\"");
    format!("{provider}\n{model}")
}

/// The keys of one `[mcp_servers.name]`.
pub(crate) fn mcp_reference() -> String {
    table::<McpServer>("")
}

fn table<T: JsonSchema + Serialize + Default>(prefix: &str) -> String {
    let settings = schemars::generate::SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true);
    let schema = settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value();
    let defaults = serde_json::to_value(T::default()).unwrap_or_default();
    let mut rows = String::from("| key | default | meaning |\n|---|---|---|\n");
    describe(&schema, &defaults, prefix, &mut rows);
    rows
}

fn describe(schema: &Value, defaults: &Value, prefix: &str, rows: &mut String) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let key = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}.{name}")
        };
        let default = &defaults[name];
        if property.get("properties").is_some() {
            describe(property, default, &key, rows);
            continue;
        }
        let meaning = property["description"]
            .as_str()
            .unwrap_or_default()
            .replace('\n', " ");
        let default = if default.is_null() {
            "not set".to_owned()
        } else {
            format!("`{default}`")
        };
        rows.push_str(&format!("| `{key}` | {default} | {meaning} |\n"));
    }
}
