//! How far a script may go, and whether it may go at all.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits of one script run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Wall time of a script in milliseconds. Stands still while every pending call waits for a person or
    /// a model.
    pub timeout_ms: u64,
    /// Longest time a call may ask for with `timeoutMs`, in milliseconds. A script waits twice as long for models.
    pub max_timeout_ms: u64,
    /// Heap of a script in megabytes, 1 to 2,048.
    pub memory_mb: u64,
    /// Stack of a script in bytes, 65,536 to 786,432.
    pub max_stack_bytes: u32,
    /// Tool calls one script may make.
    pub max_tool_calls: u32,
    /// Tool calls of one script that run at the same time; more wait in order.
    pub max_concurrent_tool_calls: u32,
    /// Size of the returned value as JSON, in bytes. A larger one is cut to a preview, with an error that says so.
    pub max_return_bytes: usize,
    /// Levels a value may be nested when it leaves the script.
    pub max_value_depth: u32,
    /// Size of a script in bytes, up to 65,536.
    pub max_source_bytes: usize,
    /// Lines a script may log; what comes faster than `log_rate_per_sec` is joined into one event.
    pub max_log_events: usize,
    /// Log events per second.
    pub log_rate_per_sec: u32,
    /// Progress messages a script may send.
    pub max_progress_events: usize,
    /// Least time between two progress messages, in milliseconds.
    pub progress_interval_ms: u64,
    /// How long a call may take to stop when it is aborted, in milliseconds.
    pub abort_grace_ms: u64,
    /// How long a person has to answer an approval, in milliseconds; 0 waits for ever.
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
    /// The same within what the sandbox can keep: 1 MB to 2 GB of heap, 64 to 768 KB of stack, 64 KB of source.
    pub fn clamped(mut self) -> Self {
        const DAY: u64 = 24 * 60 * 60 * 1000;
        self.memory_mb = self.memory_mb.clamp(1, 2048);
        self.max_stack_bytes = self.max_stack_bytes.clamp(64 << 10, 768 << 10);
        self.max_source_bytes = self.max_source_bytes.min(64 << 10);
        self.timeout_ms = self.timeout_ms.min(DAY);
        self.max_timeout_ms = self.max_timeout_ms.min(DAY);
        self.max_concurrent_tool_calls = self.max_concurrent_tool_calls.max(1);
        self.max_value_depth = self.max_value_depth.clamp(1, 1000);
        self
    }
}

/// Whether scripts run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Scripts are refused.
    Disabled,
    /// Scripts are checked and reported on; nothing runs.
    DryRun,
    /// Scripts run.
    #[default]
    Enabled,
}

impl Mode {
    /// The mode as flags and config spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::DryRun => "dry-run",
            Self::Enabled => "enabled",
        }
    }
}

/// Where a mode may be set; the narrowest place wins.
#[derive(Debug, Clone, Copy, Default)]
pub struct ModeSettings {
    /// For this turn or this command.
    pub turn: Option<Mode>,
    /// For this provider.
    pub provider: Option<Mode>,
    /// For everything.
    pub global: Option<Mode>,
}

impl ModeSettings {
    /// Turn before provider before global; enabled where nothing is said.
    pub fn effective(self) -> Mode {
        self.turn
            .or(self.provider)
            .or(self.global)
            .unwrap_or_default()
    }
}
