//! What a model is asked: system text, the conversation so far, and the tools it may call.

use selvedge_protocol::{CallKind, Effort, FunctionCall, Item};
use serde_json::Value;

/// One request, the same for every API.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Prompt {
    /// What the model is told before everything else.
    pub system: String,
    /// The conversation, oldest first; the newest message of the user near its end.
    pub history: Vec<Item>,
    /// What it may call.
    pub tools: Vec<Tool>,
    /// Whether, and how.
    pub calls: Calls,
    /// How much it may write; the model's own limit where nothing is said.
    pub max_output_tokens: Option<u64>,
    /// How hard it should think; the model's own measure where nothing is said.
    pub effort: Option<Effort>,
    /// The same for all requests of one conversation, so that a provider finds what it has cached.
    pub cache_key: Option<String>,
}

/// Something the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// What it takes.
    pub input: ToolInput,
}

/// What a tool takes.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolInput {
    /// Arguments as a JSON object of this schema.
    Schema(Value),
    /// Text of any form. Where an API has no such tools, a function with this one argument.
    Freeform {
        /// The argument's name.
        argument: String,
        /// What it holds.
        description: String,
    },
}

/// How a model may call tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Calls {
    /// As many at once as it likes.
    #[default]
    Parallel,
    /// One after the other.
    Single,
    /// Not in this answer: what it might call and what it called stay as they were, so that caches hold.
    Forbidden,
    /// Not at all, for a server that knows no tools: what was called before is told as text.
    Off,
}

impl Tool {
    /// A tool that takes JSON.
    pub fn function(
        name: impl Into<String>,
        description: impl Into<String>,
        schema: Value,
    ) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            input: ToolInput::Schema(schema),
        }
    }

    /// The text a call of this freeform tool holds, whichever way the API carried it.
    pub fn text_of(&self, call: &FunctionCall) -> Option<String> {
        let ToolInput::Freeform { argument, .. } = &self.input else {
            return None;
        };
        match call.kind {
            CallKind::Freeform => Some(call.arguments.clone()),
            CallKind::Function => {
                let arguments: Value = serde_json::from_str(&call.arguments).ok()?;
                arguments.get(argument)?.as_str().map(str::to_owned)
            }
        }
    }

    /// The schema of the arguments where everything is a function.
    pub(crate) fn schema(&self) -> Value {
        match &self.input {
            ToolInput::Schema(schema) => schema.clone(),
            ToolInput::Freeform {
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
    /// A call's arguments as JSON text, whichever way they came.
    pub(crate) fn arguments_as_json(&self, call: &FunctionCall) -> String {
        match call.kind {
            CallKind::Function if call.arguments.trim().is_empty() => "{}".to_owned(),
            CallKind::Function => call.arguments.clone(),
            CallKind::Freeform => {
                let tool = self.tools.iter().find(|tool| tool.name == call.name);
                let argument = match tool.map(|tool| &tool.input) {
                    Some(ToolInput::Freeform { argument, .. }) => argument.as_str(),
                    _ => "input",
                };
                serde_json::json!({ argument: call.arguments }).to_string()
            }
        }
    }
}
