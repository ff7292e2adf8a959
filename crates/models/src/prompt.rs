//! The input of a request: system text, history, and tools.

use selvedge_protocol::{ConversationItem, Effort, FunctionCall, FunctionCallKind};
use serde_json::Value;

/// The input of one request, independent of the API.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Prompt {
    /// System text; may be empty.
    pub system: String,
    /// The conversation, oldest item first.
    pub history: Vec<ConversationItem>,
    /// Tools that the model may call.
    pub tools: Vec<ModelTool>,
    /// Whether the model may call tools, and how many at once.
    pub call_mode: ToolCallMode,
    /// Maximum number of tokens of the answer; `None` uses the limit of the model.
    pub max_output_tokens: Option<u64>,
    /// Reasoning effort; `None` uses the default of the model.
    pub effort: Option<Effort>,
    /// Whether the model may use the provider's own web search. Chat has none.
    pub web_search: bool,
    /// Key that is the same for all requests of a conversation, for the provider's prompt cache.
    pub cache_key: Option<String>,
}

/// Definition of a tool for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelTool {
    /// Name of the tool.
    pub name: String,
    /// Description for the model.
    pub description: String,
    /// Form of the tool's input.
    pub input: ModelToolInput,
    /// Whether the provider enforces the schema, in which every field must be required. Messages
    /// ignores this.
    pub strict: bool,
}

/// Form of a tool's input.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelToolInput {
    /// A JSON object with this schema.
    Schema(Value),
    /// Plain text. If the API or model has no such tools, a function with one string argument.
    Freeform {
        /// Name of the argument.
        argument: String,
        /// Description of the argument.
        description: String,
    },
}

/// Whether and how a model may call tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolCallMode {
    /// Any number of calls in one answer.
    #[default]
    Parallel,
    /// At most one call in one answer.
    Single,
    /// No calls in this answer. Tools and earlier calls are still sent, so that the cached prefix
    /// stays valid.
    Forbidden,
    /// The server has no tool calls. Tools are not sent, and earlier calls are sent as text.
    Off,
}

impl ModelTool {
    /// Creates a tool with a JSON object as input.
    pub fn function(
        name: impl Into<String>,
        description: impl Into<String>,
        schema: Value,
    ) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            input: ModelToolInput::Schema(schema),
            strict: false,
        }
    }

    /// Returns the input text of a call to this tool, whether the API sent it as freeform text or
    /// as an argument. `None` if the tool is not freeform or the argument is missing.
    pub fn freeform_text(&self, call: &FunctionCall) -> Option<String> {
        let ModelToolInput::Freeform { argument, .. } = &self.input else {
            return None;
        };
        match call.kind {
            FunctionCallKind::Freeform => Some(call.arguments.clone()),
            FunctionCallKind::Function => {
                let arguments: Value = serde_json::from_str(&call.arguments).ok()?;
                arguments.get(argument)?.as_str().map(str::to_owned)
            }
        }
    }

    /// Returns the JSON Schema of the arguments, for APIs and models without freeform tools.
    pub(crate) fn json_schema(&self) -> Value {
        match &self.input {
            ModelToolInput::Schema(schema) => schema.clone(),
            ModelToolInput::Freeform {
                argument,
                description,
            } => serde_json::json!({
                "type": "object",
                "properties": { argument: { "type": "string", "description": description } },
                "required": [argument],
                "additionalProperties": false,
            }),
        }
    }
}

impl Prompt {
    /// Returns the arguments of a call as JSON text, also if the call is freeform.
    pub(crate) fn arguments_as_json(&self, call: &FunctionCall) -> String {
        match call.kind {
            FunctionCallKind::Function if call.arguments.trim().is_empty() => "{}".to_owned(),
            FunctionCallKind::Function => call.arguments.clone(),
            FunctionCallKind::Freeform => {
                let tool = self.tools.iter().find(|tool| tool.name == call.name);
                let argument = match tool.map(|tool| &tool.input) {
                    Some(ModelToolInput::Freeform { argument, .. }) => argument.as_str(),
                    _ => "input",
                };
                serde_json::json!({ argument: call.arguments }).to_string()
            }
        }
    }
}
