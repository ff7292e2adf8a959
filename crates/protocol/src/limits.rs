//! Limits of a script run, and the mode that decides whether scripts run.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Limits of one script run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Limits {
    /// Time limit of a script in milliseconds. It counts while the script computes or waits without
    /// a running call; a running call has its own limit.
    #[schemars(range(max = Limits::DAY_MS))]
    pub timeout_ms: u64,
    /// Time limit of a whole run in milliseconds, with its calls. Waiting for a person does not
    /// count.
    #[schemars(range(max = Limits::DAY_MS))]
    pub max_timeout_ms: u64,
    /// Heap of a script in megabytes.
    #[schemars(range(min = 1, max = Limits::MAX_MEMORY_MB))]
    pub memory_mb: u64,
    /// Stack of a script in bytes.
    #[schemars(range(min = Limits::MIN_STACK_BYTES, max = Limits::MAX_STACK_BYTES))]
    pub max_stack_bytes: u32,
    /// Calls that leave the process (commands, web, MCP, agents) one script may make.
    pub max_tool_calls: u32,
    /// Other calls (files, workspace, session, memory) one script may make.
    pub max_file_calls: u32,
    /// Time limits of the calls of single tools in milliseconds, by the name of the tool:
    /// `{ grep_files = 60000 }`. They replace the tool's default.
    pub tool_timeouts_ms: BTreeMap<String, u64>,
    /// Tool calls of one script that run at the same time; further calls wait in order.
    #[schemars(range(min = 1))]
    pub max_concurrent_tool_calls: u32,
    /// Size of the returned value as JSON, in bytes. A larger value is an error with a preview.
    pub max_return_bytes: usize,
    /// Bytes a script may show with `text()`, `image()`, `audio()`, `notify()` and in its log, in
    /// all.
    pub max_output_bytes: usize,
    /// Nesting depth of a value that leaves the script.
    #[schemars(range(min = 1, max = Limits::MAX_DEPTH))]
    pub max_value_depth: u32,
    /// Size of a script in bytes.
    #[schemars(range(max = Limits::MAX_SOURCE_BYTES))]
    pub max_source_bytes: usize,
    /// Lines a script may log. Lines that exceed `log_rate_per_sec` are joined into one event.
    pub max_log_events: usize,
    /// Log events per second.
    pub log_rate_per_sec: u32,
    /// Progress messages a script may send.
    pub max_progress_events: usize,
    /// Shortest time between two progress messages, in milliseconds.
    pub progress_interval_ms: u64,
    /// How long a cancelled call may take to stop, in milliseconds.
    pub abort_grace_ms: u64,
    /// Time limit of an approval request, in milliseconds. `0` waits without limit, as a chat
    /// always does.
    pub approval_timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout_ms: 30_000,
            max_timeout_ms: 30 * 60 * 1000,
            memory_mb: 96,
            max_stack_bytes: 512 * 1024,
            max_tool_calls: 32,
            max_file_calls: 1000,
            tool_timeouts_ms: BTreeMap::new(),
            max_concurrent_tool_calls: 4,
            max_return_bytes: 128 * 1024,
            max_output_bytes: 1 << 20,
            max_value_depth: 64,
            max_source_bytes: 20 * 1024,
            max_log_events: 200,
            log_rate_per_sec: 20,
            max_progress_events: 50,
            progress_interval_ms: 500,
            abort_grace_ms: 250,
            approval_timeout_ms: 60_000,
        }
    }
}

impl Limits {
    /// Largest heap of a script, in megabytes.
    pub const MAX_MEMORY_MB: u64 = 2048;
    const MIN_STACK_BYTES: u32 = 64 << 10;
    const MAX_STACK_BYTES: u32 = 768 << 10;
    const MAX_SOURCE_BYTES: usize = 64 << 10;
    const MAX_DEPTH: u32 = 1000;
    const DAY_MS: u64 = 24 * 60 * 60 * 1000;

    /// Returns the limits, each within the range that the sandbox can enforce.
    pub fn clamped(mut self) -> Self {
        self.memory_mb = self.memory_mb.clamp(1, Self::MAX_MEMORY_MB);
        self.max_stack_bytes = self
            .max_stack_bytes
            .clamp(Self::MIN_STACK_BYTES, Self::MAX_STACK_BYTES);
        self.max_source_bytes = self.max_source_bytes.min(Self::MAX_SOURCE_BYTES);
        self.timeout_ms = self.timeout_ms.min(Self::DAY_MS);
        self.max_timeout_ms = self.max_timeout_ms.min(Self::DAY_MS);
        self.max_concurrent_tool_calls = self.max_concurrent_tool_calls.max(1);
        self.max_value_depth = self.max_value_depth.clamp(1, Self::MAX_DEPTH);
        self
    }
}

/// A limit that an error can report as reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// Time of the script without its calls (`timeout_ms`).
    Timeout,
    /// Time of the whole run (`max_timeout_ms`).
    RunTimeout,
    /// Memory of the script (`memory_mb`).
    Memory,
    /// Calls that leave the process (`max_tool_calls`).
    Calls,
    /// Other calls (`max_file_calls`).
    FileCalls,
    /// Size of the returned value (`max_return_bytes`).
    ReturnedValue,
    /// Size of shown output and logs (`max_output_bytes`).
    Output,
}

impl LimitKind {
    /// Name of the entry of an error's `metadata` that holds the key of the reached limit.
    pub const METADATA_KEY: &str = "limit";

    /// Returns the key below `script_harness.limits`.
    pub fn key(self) -> &'static str {
        match self {
            Self::Timeout => "timeout_ms",
            Self::RunTimeout => "max_timeout_ms",
            Self::Memory => "memory_mb",
            Self::Calls => "max_tool_calls",
            Self::FileCalls => "max_file_calls",
            Self::ReturnedValue => "max_return_bytes",
            Self::Output => "max_output_bytes",
        }
    }

    /// Returns the kind with this key.
    pub fn from_key(key: &str) -> Option<Self> {
        let all = [
            Self::Timeout,
            Self::RunTimeout,
            Self::Memory,
            Self::Calls,
            Self::FileCalls,
            Self::ReturnedValue,
            Self::Output,
        ];
        all.into_iter().find(|kind| kind.key() == key)
    }

    /// Returns the flag of `run`, `exec` and `mcp serve` that sets the limit, if there is one.
    pub fn flag(self) -> Option<&'static str> {
        match self {
            // A time limit beyond that of the whole run raises both.
            Self::Timeout | Self::RunTimeout => Some("--timeout"),
            Self::Memory => Some("--memory"),
            Self::Calls => Some("--max-calls"),
            Self::FileCalls => Some("--max-file-calls"),
            Self::ReturnedValue | Self::Output => None,
        }
    }

    /// Returns twice the limit of this kind: as a value of its key, and as a value of its flag.
    /// `None` if the limit is at its maximum.
    pub fn doubled(self, limits: &Limits) -> Option<(u64, String)> {
        let current = match self {
            Self::Timeout => limits.timeout_ms,
            Self::RunTimeout => limits.max_timeout_ms,
            Self::Memory => limits.memory_mb,
            Self::Calls => limits.max_tool_calls.into(),
            Self::FileCalls => limits.max_file_calls.into(),
            Self::ReturnedValue => limits.max_return_bytes as u64,
            Self::Output => limits.max_output_bytes as u64,
        };
        let max = match self {
            Self::Timeout | Self::RunTimeout => Limits::DAY_MS,
            Self::Memory => Limits::MAX_MEMORY_MB,
            _ => u64::MAX,
        };
        let value = current.saturating_mul(2).clamp(1, max);
        if value <= current {
            return None;
        }
        let flag_value = match self {
            Self::Timeout | Self::RunTimeout => format_millis(value),
            Self::Memory => format!("{value}MB"),
            _ => value.to_string(),
        };
        Some((value, flag_value))
    }
}

/// A limit that ended a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReachedLimit {
    /// Key of the limit below `script_harness.limits`.
    pub key: String,
    /// Whether the script or the call that started it set the limit, so that neither a flag nor the
    /// configuration can raise it.
    pub set_by_script: bool,
}

/// What set the time limit of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeoutSource {
    /// A flag, the configuration or the default.
    Configured,
    /// The `// @exec:` line of the script.
    Pragma,
    /// The argument `timeoutMs` of the call that started the script.
    Argument,
}

impl TimeoutSource {
    /// Name of the entry of an error's `metadata` that is true if the script or its call set the
    /// reached limit.
    pub const METADATA_KEY: &str = "limitSetByScript";
}

/// Where a script was started, which decides how a limit can be raised there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LimitSurface {
    /// A program that embeds the crates.
    #[default]
    Library,
    /// The command `selvedge run`.
    Run,
    /// The command `selvedge exec`.
    Exec,
    /// A chat in the terminal.
    Chat,
    /// A client of `selvedge mcp serve`.
    Mcp,
}

impl LimitSurface {
    /// Returns the hint that says how to raise a limit on this surface, `None` at its maximum. In
    /// an agent's turn a model reads it, which can change its script, but neither flags nor the
    /// configuration.
    pub fn raise_hint(self, kind: LimitKind, limits: &Limits) -> Option<String> {
        let (value, flag_value) = kind.doubled(limits)?;
        let name = kind.key();
        let key = format!("{name} = {value} under [script_harness.limits] in config.toml");
        let flag = kind.flag().map(|flag| format!("{flag} {flag_value}"));
        Some(match (self, kind, flag) {
            (Self::Library, ..) => format!("raise `Limits::{name}`"),
            (Self::Run, _, Some(flag)) => format!("pass {flag}"),
            (Self::Exec | Self::Chat, LimitKind::Timeout, _) => {
                format!("start the script with `// @exec: {{\"timeout_ms\": {value}}}`")
            }
            (Self::Exec, _, Some(flag)) => {
                format!("the user can raise the limit with {flag}")
            }
            (Self::Exec | Self::Chat, ..) => format!("the user can set {key}"),
            (Self::Mcp, LimitKind::Timeout, _) => {
                format!("pass `timeoutMs: {value}`, or set {key}")
            }
            (Self::Run | Self::Mcp, ..) => format!("set {key}"),
        })
    }

    /// Returns the hint that says how to raise the time limit of a script that `source` set, `None`
    /// at its maximum.
    pub fn raise_timeout_hint(self, source: TimeoutSource, limits: &Limits) -> Option<String> {
        let kind = LimitKind::Timeout;
        let (value, _) = kind.doubled(limits)?;
        match (source, self) {
            (TimeoutSource::Pragma, _) => Some(format!(
                "set \"timeout_ms\": {value} in the `// @exec:` line of the script"
            )),
            (TimeoutSource::Argument, Self::Exec | Self::Chat | Self::Mcp) => {
                Some(format!("pass `timeoutMs: {value}`"))
            }
            _ => self.raise_hint(kind, limits),
        }
    }

    /// Returns the hint that says how to give the calls of a tool more time. `limit_ms` is the
    /// limit that the call reached.
    pub fn raise_call_timeout_hint(
        self,
        tool: &str,
        accepts_timeout: bool,
        limit_ms: u64,
    ) -> String {
        let value = limit_ms.saturating_mul(2).max(1);
        let key = match tool.contains('.') {
            true => format!("\"{tool}\""),
            false => tool.to_owned(),
        };
        let set = match self {
            Self::Library => format!("raise `Limits::tool_timeouts_ms` for `{tool}`"),
            _ => format!(
                "set {key} = {value} under [script_harness.limits.tool_timeouts_ms] in config.toml"
            ),
        };
        match accepts_timeout {
            true => format!("pass `timeoutMs: {value}`, or {set}"),
            false => set,
        }
    }
}

/// Returns a time as a flag takes it: the largest unit in which it is a whole number.
fn format_millis(ms: u64) -> String {
    match ms {
        ms if ms % 60_000 == 0 => format!("{}m", ms / 60_000),
        ms if ms % 1000 == 0 => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    }
}

/// Limits that differ from those of [`Limits`] for some models. A limit that is not set keeps its
/// value.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
pub struct LimitOverrides(Map<String, Value>);

impl LimitOverrides {
    /// Returns `limits` with the limits that are set here.
    pub fn apply(&self, limits: Limits) -> Limits {
        // Values of the wrong type were refused when the overrides were created.
        overlay(&limits, &self.0).unwrap_or(limits)
    }

    /// Returns these overrides with those of `narrower`, which have precedence.
    pub fn with(&self, narrower: &Self) -> Self {
        let mut all = self.0.clone();
        all.extend(narrower.0.clone());
        Self(all)
    }
}

fn overlay(limits: &Limits, overrides: &Map<String, Value>) -> Result<Limits, serde_json::Error> {
    let mut all = serde_json::to_value(limits)?;
    if let Some(all) = all.as_object_mut() {
        all.extend(overrides.clone());
    }
    serde_json::from_value(all)
}

impl TryFrom<Map<String, Value>> for LimitOverrides {
    type Error = serde_json::Error;

    /// Fails if a value has not the type of its limit.
    fn try_from(overrides: Map<String, Value>) -> Result<Self, Self::Error> {
        overlay(&Limits::default(), &overrides)?;
        Ok(Self(overrides))
    }
}

impl From<LimitOverrides> for Map<String, Value> {
    fn from(overrides: LimitOverrides) -> Self {
        overrides.0
    }
}

impl JsonSchema for LimitOverrides {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LimitOverrides".into()
    }

    /// The keys of [`Limits`], without their defaults.
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = Limits::json_schema(generator);
        let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
        for property in properties.into_iter().flat_map(Map::values_mut) {
            if let Some(property) = property.as_object_mut() {
                property.remove("default");
            }
        }
        schema
    }
}

/// Whether scripts run. A later variant allows more.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ScriptMode {
    /// Reject all scripts.
    Disabled,
    /// Check scripts and report what they would call.
    DryRun,
    /// Check and run scripts.
    #[default]
    Enabled,
}

impl ScriptMode {
    /// Returns the name used in flags and configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::DryRun => "dry-run",
            Self::Enabled => "enabled",
        }
    }
}

/// The mode as set at each level. The narrowest level has precedence.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScriptModeSettings {
    /// Mode that a flag of the command sets.
    pub flag: Option<ScriptMode>,
    /// Mode of the model, or else of the provider.
    pub model_or_provider: Option<ScriptMode>,
    /// Mode of the configuration file.
    pub global: Option<ScriptMode>,
}

impl ScriptModeSettings {
    /// Returns the mode of the narrowest level that sets one, else [`ScriptMode::Enabled`].
    pub fn resolve(self) -> ScriptMode {
        self.flag
            .or(self.model_or_provider)
            .or(self.global)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn overrides(value: Value) -> LimitOverrides {
        serde_json::from_value(value).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn overrides_change_only_the_limits_that_they_set() {
        let global = Limits {
            memory_mb: 12,
            ..Limits::default()
        };
        let provider = overrides(json!({"timeout_ms": 5, "max_tool_calls": 3}));
        let model = overrides(json!({"timeout_ms": 7}));
        let expected = Limits {
            timeout_ms: 7,
            max_tool_calls: 3,
            ..global.clone()
        };
        assert_eq!(provider.with(&model).apply(global.clone()), expected);
        assert_eq!(LimitOverrides::default().apply(global.clone()), global);
    }

    #[test]
    fn a_limit_at_its_maximum_is_not_suggested_again() {
        let limits = Limits {
            memory_mb: Limits::MAX_MEMORY_MB,
            timeout_ms: Limits::DAY_MS,
            ..Limits::default()
        };
        use LimitSurface::{Chat, Exec, Library, Mcp, Run};
        for surface in [Library, Run, Exec, Chat, Mcp] {
            for kind in [LimitKind::Memory, LimitKind::Timeout] {
                assert_eq!(
                    surface.raise_hint(kind, &limits),
                    None,
                    "{surface:?} {kind:?}"
                );
            }
            let calls = surface.raise_hint(LimitKind::Calls, &limits);
            assert!(calls.is_some(), "{surface:?}");
        }
    }

    #[test]
    fn a_value_of_another_type_is_refused() {
        for wrong in [
            json!({"max_tool_calls": 4_294_967_296_u64}),
            json!({"memory_mb": "1"}),
        ] {
            assert!(serde_json::from_value::<LimitOverrides>(wrong).is_err());
        }
    }
}
