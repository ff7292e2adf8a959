//! The keys of `config.toml`. The doc comments are the reference.

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
    /// How scripts run.
    pub script_harness: ScriptHarness,
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
