//! The keys of `config.toml`. The doc comments are the reference.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use selvedge_protocol::{ApprovalPolicy, Limits, Mode, SandboxPolicy};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Everything a `config.toml` can say. Keys of other programs that share the file are left alone.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Config {
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
    /// The tools there are: `core-codex`, `anthropic-standard`, `file-ops`, `research`
    /// (web tools, of which there are none yet), `all`, or one of `tool_packs`.
    pub tool_pack: Option<String>,
    /// Packs of one's own: `[tool_packs.name]` with `extends`, `tools` and `without`.
    pub tool_packs: BTreeMap<String, ToolPack>,
    /// How long what ran is remembered.
    pub journal: JournalKeeping,
    /// What is remembered of conversations, and how much of it a prompt gets.
    pub memory: MemoryKeys,
    /// How scripts run.
    pub script_harness: ScriptHarness,
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
}

impl Default for JournalKeeping {
    fn default() -> Self {
        Self { days: 90, megabytes: 1024, secret_names: Vec::new() }
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
        Self { processes: 4096, file_mb: 16 * 1024, memory_mb: None }
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
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Expose {
    /// Names of the tools scripts can call; all of them where it is not set.
    pub tools: Option<Vec<String>>,
}

pub(crate) fn reference() -> String {
    let settings =
        schemars::generate::SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<Config>().to_value();
    let defaults = serde_json::to_value(Config::default()).unwrap_or_default();
    let mut rows = String::from("| key | default | meaning |\n|---|---|---|\n");
    describe(&schema, &defaults, "", &mut rows);
    rows
}

fn describe(schema: &Value, defaults: &Value, prefix: &str, rows: &mut String) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let default = &defaults[name];
        if property.get("properties").is_some() {
            describe(property, default, &key, rows);
            continue;
        }
        let meaning = property["description"].as_str().unwrap_or_default().replace('\n', " ");
        let default = if default.is_null() { "not set".to_owned() } else { format!("`{default}`") };
        rows.push_str(&format!("| `{key}` | {default} | {meaning} |\n"));
    }
}
