//! Description of a tool: name, schemas, approval.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the tool with which a script starts a task.
pub const SPAWN_TOOL: &str = "spawn.exec";

/// Name, description and schemas of a tool. `selvedge tools --json` prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolSpec {
    /// Name in structured calls, snake_case; dots separate namespaces.
    pub name: String,
    /// Name in scripts, below `tools.`.
    pub js_name: String,
    /// What the tool does, for models and people.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    /// JSON Schema of the result, if known.
    pub output_schema: Option<Value>,
    /// Whether no call of the tool changes anything.
    pub read_only: bool,
    /// When a call needs approval.
    pub approval: ApprovalRequirement,
    /// Other names that are accepted for fields: `(alias, field)`. Aliases of fields that the tool
    /// does not have are ignored.
    #[serde(skip)]
    pub aliases: Vec<(&'static str, &'static str)>,
    /// Fields that may be given by position instead of in an object.
    #[serde(skip)]
    pub positional: &'static [&'static str],
    /// Fields that only explain a call to the approver. Calls that differ only in them are
    /// identical.
    #[serde(skip)]
    pub explanatory: &'static [&'static str],
    /// Defaults of fields in structured calls, whose results a model reads as a whole:
    /// `(field, default)`. Scripts get the larger defaults of the schema.
    #[serde(skip)]
    pub structured_defaults: &'static [(&'static str, u64)],
    /// What the sandbox adds to a result.
    #[serde(skip)]
    pub result_view: ResultView,
}

/// What the sandbox adds to the results of a tool, because it would be large as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResultView {
    /// Nothing.
    #[default]
    Plain,
    /// A result is a part of a text file, with `text` and `firstLine`. Scripts also get `content`,
    /// the same string, and `numbered`, the lines with their numbers, computed when it is read.
    TextLines,
}

impl ToolSpec {
    /// Marks the tool as one that changes nothing.
    pub fn as_read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Sets the fields that may be given by position.
    pub fn with_positional(mut self, fields: &'static [&'static str]) -> Self {
        self.positional = fields;
        self
    }

    /// Sets the defaults of fields in structured calls.
    pub fn with_structured_defaults(mut self, defaults: &'static [(&'static str, u64)]) -> Self {
        self.structured_defaults = defaults;
        self
    }

    /// Marks the tool as one whose approval depends on the arguments.
    pub fn approval_by_arguments(mut self) -> Self {
        self.approval = ApprovalRequirement::ByArguments;
        self
    }
}

/// When calls of a tool need approval, apart from the approval policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalRequirement {
    /// No call needs approval.
    #[default]
    Never,
    /// The tool decides from the arguments.
    ByArguments,
    /// Every call needs approval.
    Always,
}

impl ApprovalRequirement {
    /// Returns the name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::ByArguments => "by-arguments",
            Self::Always => "always",
        }
    }
}
