//! Description of a tool: name, schemas, approval.

use std::time::Duration;

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
    /// Fields that may be given by position instead of in an object. If empty, the schema decides:
    /// see [`ToolSpec::positional_fields`].
    #[serde(skip)]
    pub positional: &'static [&'static str],
    /// Fields that only explain a call to the approver. Calls that differ only in them are
    /// identical.
    #[serde(skip)]
    pub explanatory: &'static [&'static str],
    /// What a call reaches, which decides the limit of calls that it counts against.
    #[serde(skip)]
    pub reach: CallReach,
    /// Time limit of a call.
    #[serde(skip)]
    pub timeout: CallTimeout,
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
    /// Results are what the tool returned.
    #[default]
    Plain,
    /// A result is a part of a text file, with `text` and `firstLine`. Scripts also get `content`,
    /// the same string, and `numbered`, the lines with their numbers, computed when it is read.
    TextLines,
    /// A result is a session, with `id`, or a list of sessions. Scripts also get the function
    /// `send` of each, which calls `sessions.send` with that id.
    Session,
}

impl ToolSpec {
    /// Returns the first line of the description.
    pub fn summary(&self) -> &str {
        self.description.lines().next().unwrap_or_default()
    }

    /// Returns the MCP server that the tool belongs to, by its name in scripts. `None` for other
    /// tools.
    pub fn mcp_server(&self) -> Option<&str> {
        self.js_name.strip_prefix("mcp.")?.split('.').next()
    }

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

    /// Sets what calls reach, and their default time limit with it.
    pub fn with_reach(mut self, reach: CallReach) -> Self {
        self.reach = reach;
        self.timeout = CallTimeout::new(reach.default_timeout());
        self
    }

    /// Sets the time limit of a call. Call it after [`with_reach`](Self::with_reach).
    pub fn with_timeout(mut self, timeout: CallTimeout) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the fields that a call may give by position, in this order. If the spec declares
    /// none, it is the one field that every call needs, or the only field. A field that takes
    /// objects does not count, because one object is always the object of all fields.
    pub fn positional_fields(&self) -> Vec<&str> {
        if !self.positional.is_empty() {
            return self.positional.to_vec();
        }
        let schema = &self.input_schema;
        let properties = schema["properties"].as_object();
        let required = schema["required"].as_array();
        let required: Vec<&str> = required
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let only = match (&required[..], properties) {
            ([field], _) => Some(*field),
            ([], Some(properties)) if properties.len() == 1 => {
                properties.keys().next().map(String::as_str)
            }
            _ => None,
        };
        only.filter(|field| properties.is_some_and(|all| all.contains_key(*field)))
            .filter(|field| !self.field_accepts_objects(field))
            .into_iter()
            .collect()
    }

    /// Whether an object can be the value of a field.
    pub fn field_accepts_objects(&self, field: &str) -> bool {
        let schema = &self.input_schema;
        let mut visits = MAX_VISITED_SCHEMAS;
        accepts_objects(&schema["properties"][field], schema, 0, &mut visits)
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

/// What the calls of a tool reach. Decides which limit of calls they count against, and their
/// default time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallReach {
    /// This process and its files: the workspace, the session, memory.
    Local,
    /// A command of this machine.
    Command,
    /// Pages of the web.
    Web,
    /// An MCP server, or any other service.
    #[default]
    Service,
    /// An agent or a model.
    Agent,
}

impl CallReach {
    /// Returns the time limit of a call whose tool and arguments set none.
    pub const fn default_timeout(self) -> Duration {
        Duration::from_secs(match self {
            Self::Local | Self::Web => 30,
            Self::Command => 120,
            Self::Service => 60,
            Self::Agent => 30 * 60,
        })
    }

    /// Whether a call leaves this process. Such calls have a lower limit than the others.
    pub fn leaves_process(self) -> bool {
        self != Self::Local
    }
}

/// The time limit of a tool's calls. The orchestrator enforces it; waiting for a person does not
/// count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallTimeout {
    /// Limit of a call that sets none.
    pub default: Duration,
    /// Largest limit that a call can set with its argument `timeout_ms`. `None` if the tool has no
    /// such argument.
    pub max_requested: Option<Duration>,
    /// Time that a tool which enforces the limit itself has to end the call. After the limit and
    /// this time, the orchestrator ends it.
    pub tool_margin: Duration,
}

impl CallTimeout {
    /// Creates a limit that calls cannot change and that only the orchestrator enforces.
    pub const fn new(default: Duration) -> Self {
        Self {
            default,
            max_requested: None,
            tool_margin: Duration::ZERO,
        }
    }

    /// Lets calls set their limit with the argument `timeout_ms`, up to `max`.
    pub const fn or_requested(mut self, max: Duration) -> Self {
        self.max_requested = Some(max);
        self
    }

    /// Declares that the tool enforces the limit itself, within `margin` after it.
    pub const fn enforced_by_tool(mut self, margin: Duration) -> Self {
        self.tool_margin = margin;
        self
    }

    /// Returns the limit of a call with these arguments. `configured` replaces the default.
    pub fn of_call(&self, args: &Value, configured: Option<Duration>) -> Duration {
        let default = configured.unwrap_or(self.default);
        match (self.max_requested, args["timeout_ms"].as_u64()) {
            (Some(max), Some(requested)) => Duration::from_millis(requested).min(max),
            _ => default,
        }
    }
}

impl Default for CallTimeout {
    fn default() -> Self {
        Self::new(CallReach::default().default_timeout())
    }
}

/// Most schemas that are visited to find out whether a field accepts objects.
const MAX_VISITED_SCHEMAS: usize = 1000;

/// Whether a schema, of which `root` is the whole document, accepts objects. `visits` is the number
/// of schemas that may still be visited; a schema that needs more counts as one that does.
fn accepts_objects(schema: &Value, root: &Value, depth: usize, visits: &mut usize) -> bool {
    let Some(left) = visits.checked_sub(1).filter(|_| depth <= 8) else {
        return true;
    };
    *visits = left;
    let reference = schema["$ref"].as_str();
    if let Some(path) = reference.and_then(|reference| reference.strip_prefix('#')) {
        let target = root.pointer(path);
        return target.is_none_or(|target| accepts_objects(target, root, depth + 1, visits));
    }
    for word in ["anyOf", "oneOf"] {
        if let Some(options) = schema[word].as_array() {
            let mut options = options.iter();
            return options.any(|option| accepts_objects(option, root, depth + 1, visits));
        }
    }
    match &schema["type"] {
        Value::String(name) => name == "object",
        Value::Array(names) => names.iter().any(|name| name == "object"),
        _ => schema["enum"].is_null() && schema["const"].is_null(),
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
