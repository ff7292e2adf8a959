//! Limits of a script run, and the mode that decides whether scripts run.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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
pub struct ScriptModeLevels {
    /// Mode of this turn or command.
    pub turn: Option<ScriptMode>,
    /// Mode of the provider.
    pub provider: Option<ScriptMode>,
    /// Mode of the configuration file.
    pub global: Option<ScriptMode>,
}

impl ScriptModeLevels {
    /// Returns the mode of the narrowest level that sets one, else [`ScriptMode::Enabled`].
    pub fn resolve(self) -> ScriptMode {
        self.turn
            .or(self.provider)
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
    fn a_value_of_another_type_is_refused() {
        for wrong in [
            json!({"max_tool_calls": 4_294_967_296_u64}),
            json!({"memory_mb": "1"}),
        ] {
            assert!(serde_json::from_value::<LimitOverrides>(wrong).is_err());
        }
    }
}
