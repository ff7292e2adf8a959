//! The keys of `config.toml`. The doc comments are the reference documentation.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use selvedge_protocol::{
    ApprovalPolicy, BlockOrder, CommandLimits, Durability, Effort, EnvironmentPolicy,
    LimitOverrides, Limits, McpServerOptions, MemoryScope, OAuthSettings, PatchFlavour, Prices,
    ReasoningStyle, Retention, RetryLimits, SandboxPolicy, ScriptMode, ShellFlavour, ToolPack,
    WeakerConfinement, WireApi,
};
use serde::{Deserialize, Serialize};

/// The configuration of Selvedge.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Config {
    /// The model to use. Defaults to the provider's default model.
    pub model: Option<String>,
    /// The provider to use: `openai`, `anthropic`, `openrouter`, `ollama`, `lmstudio`, `llamacpp`,
    /// `vllm`, or a name in `model_providers`. Defaults to the first of: a key in the environment,
    /// an accepted model server on this machine, a key that `selvedge models login` stored, another
    /// model server on this machine if you accept it.
    pub model_provider: Option<String>,
    /// How much reasoning to ask the model for.
    pub model_reasoning_effort: Option<Effort>,
    /// Context window of `model`, in tokens.
    pub model_context_window: Option<u64>,
    /// Largest answer of `model`, in tokens.
    pub model_max_output_tokens: Option<u64>,
    /// Additional providers, and changes to the built-in ones, by name.
    pub model_providers: BTreeMap<String, ModelProvider>,
    /// Properties of models that differ from the built-in table, by model name. A name that ends
    /// with `*` means all models whose names start like this.
    pub models: BTreeMap<String, ModelSettings>,
    /// When a call needs your approval.
    pub approval_policy: ApprovalPolicy,
    /// What commands and tools may change.
    pub sandbox_mode: SandboxPolicy,
    /// Settings of the sandbox mode `workspace-write`.
    pub sandbox_workspace_write: WorkspaceWriteSettings,
    /// Paths that commands and tools cannot change or read.
    pub sandbox: SandboxSettings,
    /// A weaker confinement of commands to accept where the full one is not available.
    pub weaker_confinement: Option<WeakerConfinement>,
    /// Which environment variables commands get.
    pub shell_environment_policy: EnvironmentPolicy,
    /// Resources a confined command may use.
    pub command_limits: CommandLimits,
    /// Commands that run without approval, each as the words it starts with: `[["npm", "test"]]`.
    pub allow_commands: Vec<Vec<String>>,
    /// Commands that run without approval outside the sandbox when they request that, in the same
    /// form.
    pub allow_commands_unconfined: Vec<Vec<String>>,
    /// The tools to offer: `core-codex`, `anthropic-standard`, `file-ops`, `research` (the web and
    /// the File Cabinet), `all`, or a name in `tool_packs`.
    pub tool_pack: Option<String>,
    /// Tool packs of your own, by name.
    pub tool_packs: BTreeMap<String, ToolPack>,
    /// What belongs to the workspace.
    pub workspace: WorkspaceSettings,
    /// How the web is searched and read.
    pub web: WebAccessSettings,
    /// MCP servers whose tools scripts can call, by name.
    pub mcp_servers: BTreeMap<String, McpServer>,
    /// Where the journal and the memory are stored, if not in a file of `$SELVEDGE_HOME`:
    /// `postgres://user:password@host/database`. The variable `SELVEDGE_STORE` has precedence. Only
    /// the user's file counts.
    pub store: Option<String>,
    /// Largest number of connections of a process to the database of `store`, besides those for
    /// leases and notices. Defaults to 8. Only the user's file counts.
    #[schemars(range(min = 1, max = 1000))]
    pub store_connections: Option<u16>,
    /// What the journal keeps.
    pub journal: JournalSettings,
    /// What is remembered of conversations, and how much of it enters a prompt.
    pub memory: MemorySettings,
    /// Limits of an agent session.
    pub agent: AgentSettings,
    /// Features of providers to use.
    pub features: FeatureSettings,
    /// How scripts run.
    pub script_harness: ScriptHarnessSettings,
    /// How sessions work that scripts create with `sessions.create({ env })`, by name.
    pub environments: BTreeMap<String, EnvironmentSettings>,
    /// The agent server, `selvedge serve`. Only the user's file counts.
    pub serve: ServeSettings,
    /// Variables with credentials that the user's file names, whatever the project's file changes.
    /// Not a key: loading the configuration sets it.
    #[schemars(skip)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub user_key_variables: Vec<String>,
}

/// How the sessions of an environment work. A key that is not set keeps the value of the
/// configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EnvironmentSettings {
    /// Folder to work in: an absolute path, or one relative to the folder of the session that
    /// creates the session.
    pub workspace: Option<PathBuf>,
    /// The model to use.
    pub model: Option<String>,
    /// The provider to use.
    pub model_provider: Option<String>,
    /// What commands and tools may change.
    pub sandbox_mode: Option<SandboxPolicy>,
    /// When a call needs approval. Turns that a message starts never ask: what needs approval is
    /// denied.
    pub approval_policy: Option<ApprovalPolicy>,
    /// The tools to offer.
    pub tool_pack: Option<String>,
    /// Whether its sessions work in git worktrees of their own, so that several can change one
    /// repository.
    pub worktree: bool,
    /// Limits of one script run, with the keys of `script_harness.limits`.
    pub limits: LimitOverrides,
}

/// The agent server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ServeSettings {
    /// URL under which clients reach the server, such as `https://agents.example`. Requests may
    /// have its host in `Host` and `Origin`.
    pub public_url: Option<String>,
    /// Most turns at once that one token pays for: of its messages, and of those that these lead
    /// to. Further ones wait.
    #[schemars(range(min = 1, max = 1000))]
    pub max_concurrent_turns: u32,
    /// Most messages that are not answered and that one token pays for. Further ones are refused
    /// with status 429.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_queued_turns: u32,
    /// Most sessions that clients with one token create.
    #[schemars(range(min = 1))]
    pub max_sessions: u32,
    /// Most connections of one token. It also never has more than are still free.
    #[schemars(range(min = 1))]
    pub max_connections: u32,
    /// Addresses of proxies, such as `10.0.0.1` or `10.0.0.0/8`, whose `X-Forwarded-For`,
    /// `X-Forwarded-Proto` and `X-Forwarded-Host` are believed.
    pub trusted_proxies: Vec<String>,
    /// Folders whose sessions this server runs, if several servers share a database: those that it
    /// sees like the others, on a shared file system. Without any, all workspaces whose folders
    /// exist on this machine.
    pub workspaces: Vec<String>,
    /// Largest body of a request, in bytes.
    #[schemars(range(min = 1024, max = 67_108_864))]
    pub max_request_bytes: u32,
    /// How long running turns may take to end when the server stops, in milliseconds. Turns that
    /// still run then stop where they are, and continue after the next start.
    #[schemars(range(max = 600_000))]
    pub drain_timeout_ms: u32,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            public_url: None,
            max_concurrent_turns: 8,
            max_queued_turns: 100,
            max_sessions: 10_000,
            max_connections: 4096,
            trusted_proxies: Vec::new(),
            workspaces: Vec::new(),
            max_request_bytes: 4 << 20,
            drain_timeout_ms: 10_000,
        }
    }
}

/// Features of providers to use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FeatureSettings {
    /// Let the model search the web with its provider's own search, where the API has one
    /// (`responses`, `messages`). The search runs at the provider, without approval.
    pub web_search: bool,
}

/// Limits of an agent session.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AgentSettings {
    /// End an answer after its first script block, so that the model cannot write about a result it
    /// does not have yet.
    pub stop_after_block: bool,
    /// Tokens a whole session may use, input and output.
    pub session_max_tokens: Option<u64>,
    /// Money a whole session may cost. Needs the prices of the model, built in or configured.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub session_max_cost: Option<f64>,
}

/// What belongs to the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WorkspaceSettings {
    /// Globs, relative to the workspace, of the Markdown files that `workspace.query` finds:
    /// `["issues/**/*.md", "docs/**/*.md"]`. They also select ignored files. Without globs, all
    /// Markdown files are selected that are not ignored.
    #[schemars(extend("items" = { "type": "string", "format": "glob" }))]
    pub documents: Vec<String>,
}

/// How the web is searched and read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WebAccessSettings {
    /// URL of a SearXNG server for `webSearch`, with JSON output enabled. Takes precedence over
    /// Perplexity.
    pub searxng_url: Option<String>,
    /// Environment variable that holds the Perplexity key. If it is set, `webSearch` uses
    /// Perplexity.
    pub perplexity_env_key: String,
    /// URL of the Perplexity API.
    pub perplexity_url: String,
    /// Environment variable that holds the Firecrawl key. If it is set, `fetchUrl` uses Firecrawl.
    pub firecrawl_env_key: String,
    /// URL of the Firecrawl API.
    pub firecrawl_url: String,
    /// Hosts that are reached without approval while the network is off: `docs.rs`,
    /// `*.example.org`, `localhost:3000`.
    pub allow_hosts: Vec<String>,
    /// Hosts that may have private addresses, by name or address.
    pub allow_private_hosts: Vec<String>,
    /// Time limit of a request, in milliseconds.
    pub timeout_ms: u64,
    /// Largest page that is read, in megabytes.
    pub max_mb: u64,
}

impl Default for WebAccessSettings {
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

/// A model provider. A key that is not set keeps the value of the built-in provider of the same
/// name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ModelProvider {
    /// Has no effect; accepted because Codex has it.
    pub name: Option<String>,
    /// Base URL including the version segment. `/responses`, `/chat/completions` or `/messages` is
    /// appended.
    pub base_url: Option<String>,
    /// Environment variable that holds the API key. `selvedge models login` stores a key in the
    /// system's keyring or a private file instead.
    pub env_key: Option<String>,
    /// Header that carries the key. Defaults to `Authorization: Bearer`; with `messages` to
    /// `x-api-key`.
    pub key_header: Option<String>,
    /// OAuth 2.0 login, for `selvedge models login`. Only the user's file counts. A key in the
    /// environment has precedence.
    pub oauth: Option<OAuthSettings>,
    /// The API the provider speaks. Defaults to `chat`.
    pub wire_api: Option<WireApi>,
    /// The model to use if none is named.
    pub model: Option<String>,
    /// Headers to send with every request.
    pub http_headers: BTreeMap<String, String>,
    /// Additional headers whose values are read from environment variables.
    pub env_http_headers: BTreeMap<String, String>,
    /// Query parameters added to every URL.
    pub query_params: BTreeMap<String, String>,
    /// How often a request is repeated, and how long a streamed answer may pause.
    #[serde(flatten)]
    pub retries: RetryLimits,
    /// How scripts run with its models: a mode, or a table with `mode` and `limits`, which has the
    /// keys of `script_harness.limits`. A key that is not set keeps the value of `script_harness`.
    pub script_harness: Option<ModelScriptSettings>,
    /// The tool pack its models get. Defaults to `tool_pack`.
    pub tool_pack: Option<String>,
    /// Which file the provider is from. Not a key: loading the configuration sets it.
    #[schemars(skip)]
    #[serde(skip_serializing_if = "ProviderOrigin::is_user")]
    pub origin: ProviderOrigin,
}

/// Which file a provider is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderOrigin {
    /// The user's file has a section for it, and the project does not change its address.
    #[default]
    User,
    /// Only the project's file has a section for it, without an address.
    Project,
    /// The project sets its address. It gets only keys that the project names.
    Redirected,
}

impl ProviderOrigin {
    fn is_user(&self) -> bool {
        *self == Self::User
    }
}

/// Properties of a model. A key that is not set keeps the value of the built-in table.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ModelSettings {
    /// Context window in tokens, including the answer.
    pub context_window: Option<u64>,
    /// Largest answer in tokens.
    pub max_output_tokens: Option<u64>,
    /// Whether it calls tools. Scripts in its text work either way.
    pub tools: Option<bool>,
    /// Whether it takes tools whose input is plain text (with `responses`).
    pub freeform_tools: Option<bool>,
    /// Whether it reads images.
    pub images: Option<bool>,
    /// The tool with which it runs commands in structured calls.
    pub shell: Option<ShellFlavour>,
    /// The form in which it writes patches in structured calls. Defaults to `freeform` if it takes
    /// such tools, else to `text`.
    pub patch: Option<PatchFlavour>,
    /// Whether the provider enforces the schemas of structured calls (`responses`, `chat`).
    pub strict_schemas: Option<bool>,
    /// How a request asks it to reason.
    pub reasoning: Option<ReasoningStyle>,
    /// Prices per million tokens. Defaults to the list prices in US dollars that are built in for
    /// some models of `openai`, `anthropic` and `openrouter`.
    pub prices: Option<Prices>,
    /// How scripts run with it, in the same form. A key that is not set keeps the value of the
    /// provider's `script_harness`.
    pub script_harness: Option<ModelScriptSettings>,
    /// The tool pack it gets. Defaults to the provider's `tool_pack`.
    pub tool_pack: Option<String>,
}

/// How scripts run with the models of a provider, or with one model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ModelScriptSettings {
    /// Whether scripts run.
    Mode(ScriptMode),
    /// Whether scripts run, and their limits.
    Table {
        /// Whether scripts run.
        mode: Option<ScriptMode>,
        /// Limits of one script run.
        #[serde(default)]
        limits: LimitOverrides,
    },
}

impl ModelScriptSettings {
    /// Returns the mode, if it is set.
    pub fn mode(&self) -> Option<ScriptMode> {
        match self {
            Self::Mode(mode) => Some(*mode),
            Self::Table { mode, .. } => *mode,
        }
    }

    /// Returns the limits that are set.
    pub fn limits(&self) -> LimitOverrides {
        match self {
            Self::Mode(_) => LimitOverrides::default(),
            Self::Table { limits, .. } => limits.clone(),
        }
    }
}

/// An MCP server: `command` starts a program, `url` names a server that is already running.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct McpServer {
    /// The program to start.
    pub command: Option<String>,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Environment variables to set for it, besides the few every program needs.
    pub env: BTreeMap<String, String>,
    /// Names of environment variables to pass on to it.
    pub env_vars: Vec<String>,
    /// The folder it runs in, relative to the workspace. A server of the user runs in a folder of
    /// its own unless this is set, one of the project in the workspace. Agents can write the
    /// workspace, and a program may execute files of its folder.
    pub cwd: Option<PathBuf>,
    /// URL of a server that speaks streamable HTTP.
    pub url: Option<String>,
    /// Environment variable that holds its bearer token.
    pub bearer_token_env_var: Option<String>,
    /// Headers of every request.
    pub http_headers: BTreeMap<String, String>,
    /// Headers whose values are read from environment variables.
    pub env_http_headers: BTreeMap<String, String>,
    /// How its tools are offered and called.
    #[serde(flatten)]
    pub options: McpServerOptions,
    /// Name of an environment variable that the server needs and that is not set. Not a key.
    #[serde(skip)]
    pub missing_variable: Option<String>,
}

/// What is remembered of conversations, and how much of it enters a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MemorySettings {
    /// Which earlier turns enter a prompt.
    pub strategy: MemoryStrategy,
    /// Tokens of a prompt for earlier turns.
    pub history_tokens: u32,
    /// Shares of raw, smoothed, compressed and tiny turns in `history_tokens`, in percent.
    pub level_shares: [u32; 4],
    /// Search the memory before each turn.
    pub recall: bool,
    /// Whose turns are searched.
    pub scope: MemoryScope,
    /// Time limit of that search and of the small model's answers about its results, in
    /// milliseconds. Results that arrive in time are used.
    pub recall_timeout_ms: u64,
    /// Tokens of a prompt for the results of that search and for the announcement board.
    pub recall_tokens: u32,
    /// A small model that writes summaries, filters search results and extracts lessons, or
    /// `provider/model`. If not set, fixed rules do.
    pub model: Option<String>,
    /// Whether lessons are extracted with the provider's batch API, which answers within a day and
    /// costs less.
    pub batch: MemoryBatch,
    /// Extract lessons twice a day: in a chat after this many minutes without activity, in the
    /// agent server, or in the background after a command. `0` leaves it to
    /// `selvedge memory distill`.
    pub distill_idle_minutes: u32,
    /// An embedding model that compares meanings, as `provider/model`: any provider with an
    /// OpenAI-compatible `embeddings` resource. It receives the text of turns. If not set, the
    /// built-in encoder is used if this build has one; `none` disables it.
    pub encoder: Option<String>,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self {
            strategy: MemoryStrategy::Gradient,
            history_tokens: 100_000,
            level_shares: [40, 16, 30, 14],
            recall: true,
            scope: MemoryScope::Project,
            recall_timeout_ms: 1200,
            recall_tokens: 2000,
            model: None,
            batch: MemoryBatch::Auto,
            distill_idle_minutes: 30,
            encoder: None,
        }
    }
}

/// Which earlier turns enter a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryStrategy {
    /// All of them; the older a turn, the shorter its text.
    #[default]
    Gradient,
    /// All of them, in full; when the context is nearly full, the session is compacted.
    Regular,
    /// No earlier turns.
    OneShot,
}

/// Whether lessons are extracted with a provider's batch API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryBatch {
    /// If the provider of `memory.model` is `openai` or `anthropic`.
    #[default]
    Auto,
    /// With every provider.
    Always,
    /// With no provider.
    Never,
}

/// What the journal keeps.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct JournalSettings {
    /// How many ended runs are kept.
    #[serde(flatten)]
    pub retention: Retention,
    /// Additional names of fields and variables whose values are redacted.
    pub secret_names: Vec<String>,
    /// What a completed write survives.
    pub durability: Durability,
    /// Encrypt scripts, arguments, results and memory with a key from the system's keyring. Names
    /// of tools and sessions, times and states stay readable, and so do earlier runs; the memory
    /// index holds digests instead of words.
    pub encrypt: bool,
    /// The key `store` of the configuration. Not a key: loading the configuration sets it.
    #[schemars(skip)]
    #[serde(skip)]
    pub store: Option<String>,
    /// The key `store_connections` of the configuration. Not a key: loading the configuration sets
    /// it.
    #[schemars(skip)]
    #[serde(skip)]
    pub store_connections: Option<u16>,
}

/// Settings of the sandbox mode `workspace-write`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WorkspaceWriteSettings {
    /// Let confined commands reach the network.
    pub network_access: bool,
    /// Let confined commands create Unix sockets in the file system, as some databases and test
    /// servers do. They can then also reach sockets of other programs that are created or moved
    /// while the command runs.
    pub unix_sockets: bool,
    /// Additional folders that may be written.
    pub writable_roots: Vec<PathBuf>,
}

/// Paths that commands and tools cannot change or read. Relative paths are relative to the
/// workspace, and `~` is the home folder.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SandboxSettings {
    /// Further paths that stay read-only in writable folders, besides `.git`, `.vscode`, `.envrc`
    /// and the like. A single name means every file and folder of that name.
    pub protected_paths: Vec<PathBuf>,
    /// Names that are read-only by default and may be changed, such as `.vscode`. `.git` and
    /// `.selvedge` always stay read-only.
    pub unprotected_paths: Vec<PathBuf>,
    /// Further files and folders that cannot be read, besides credentials such as `~/.ssh`.
    pub hidden_paths: Vec<PathBuf>,
    /// Credential files and folders that may be read although they are hidden by default, such as
    /// `~/.npmrc`. A folder includes what is in it.
    pub visible_paths: Vec<PathBuf>,
}

/// How scripts run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ScriptHarnessSettings {
    /// Whether scripts run.
    pub mode: ScriptMode,
    /// In which order several script blocks of one answer run.
    pub blocks: BlockOrder,
    /// Wait for calls that a script did not await, instead of cancelling them when it ends.
    pub allow_detached_promises: bool,
    /// Limits of one script run.
    pub limits: Limits,
    /// What scripts can call.
    pub expose: ExposeSettings,
}

/// What scripts can call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ExposeSettings {
    /// Names of the tools scripts can call. All if not set.
    pub tools: Option<Vec<String>>,
    /// Let scripts call the tools of MCP servers.
    pub enable_mcp: bool,
    /// Offer `tools.spawn`: calls that continue after their script has ended.
    pub enable_spawn: bool,
    /// Offer `tools.http`: plain HTTP requests, under the network policy.
    pub enable_http: bool,
}

impl Default for ExposeSettings {
    fn default() -> Self {
        Self {
            tools: None,
            enable_mcp: true,
            enable_spawn: false,
            enable_http: false,
        }
    }
}
