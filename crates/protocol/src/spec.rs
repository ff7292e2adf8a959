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
    /// When a call needs approval.
    pub approval: Approval,
}

/// When a call of a tool needs a person's approval, apart from the approval policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Approval {
    /// No call does.
    #[default]
    Never,
    /// It depends on the arguments.
    ByArguments,
    /// Every call does.
    Always,
}

impl Approval {
    /// The value as JSON spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::ByArguments => "by-arguments",
            Self::Always => "always",
        }
    }
}
