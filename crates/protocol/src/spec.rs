//! A tool as others see it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the tool by which a script starts a task.
pub const SPAWN: &str = "spawn.exec";

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
    /// Other names that are accepted for fields: `(alias, field)`. Those of fields that the tool does
    /// not have are ignored.
    #[serde(skip)]
    pub aliases: Vec<(&'static str, &'static str)>,
    /// Fields that may be given by position instead of in an object.
    #[serde(skip)]
    pub positional: &'static [&'static str],
}

impl ToolSpec {
    /// The same for a tool that leaves the world as it was.
    pub fn as_read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// The same for a tool that judges each call by its arguments.
    pub fn judged_by_arguments(mut self) -> Self {
        self.approval = Approval::ByArguments;
        self
    }
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
