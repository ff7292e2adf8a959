//! Limits of a script run, and the mode that decides whether scripts run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits of one script run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Limits {
    /// Time limit of a script in milliseconds. It is paused while every pending call waits for a
    /// person. While every pending call waits for a model, a second, longer limit counts down
    /// instead.
    #[schemars(range(max = Limits::DAY_MS))]
    pub timeout_ms: u64,
    /// Largest time limit of a script, in milliseconds. Waiting for models is limited to twice
    /// this, separately.
    #[schemars(range(max = Limits::DAY_MS))]
    pub max_timeout_ms: u64,
    /// Heap of a script in megabytes.
    #[schemars(range(min = 1, max = Limits::MAX_MEMORY_MB))]
    pub memory_mb: u64,
    /// Stack of a script in bytes.
    #[schemars(range(min = Limits::MIN_STACK_BYTES, max = Limits::MAX_STACK_BYTES))]
    pub max_stack_bytes: u32,
    /// Tool calls one script may make.
    pub max_tool_calls: u32,
    /// Tool calls of one script that run at the same time; further calls wait in order.
    #[schemars(range(min = 1))]
    pub max_concurrent_tool_calls: u32,
    /// Size of the returned value as JSON, in bytes. A larger value is an error with a preview.
    pub max_return_bytes: usize,
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
            max_concurrent_tool_calls: 4,
            max_return_bytes: 128 * 1024,
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

/// Whether scripts run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScriptMode {
    /// Reject scripts.
    Disabled,
    /// Check scripts and report what they would call.
    DryRun,
    /// Run scripts.
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
