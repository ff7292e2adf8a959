//! A tool as others see it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name, purpose and shape of a tool: what `selvedge tools --json` lists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolSpec {
    /// Name in structured calls, snake_case; dots separate namespaces.
    pub name: String,
    /// Name in scripts, below `tools.`.
    pub js_name: String,
    /// What it does, for a model and for people.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    /// JSON Schema of the result, where it is known.
    pub output_schema: Option<Value>,
    /// Whether it leaves the world as it was.
    pub read_only: bool,
    /// When it asks a person: `never`, `by-arguments` or `always`.
    pub approval: String,
}
