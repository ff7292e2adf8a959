//! A conversation as model APIs know it: the items that are kept in history and sent back.
//!
//! An [`Item`] says what every API has a word for. What only its maker understands (a signature, encrypted reasoning)
//! stays with it as [`Native`], and goes back to that maker alone.

use std::ops::AddAssign;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::OutputPart;

/// How a model is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WireApi {
    /// OpenAI Responses.
    Responses,
    /// OpenAI Chat Completions, and the many servers that speak it.
    Chat,
    /// Anthropic Messages.
    Messages,
}

impl WireApi {
    /// The name as the configuration spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Responses => "responses",
            Self::Chat => "chat",
            Self::Messages => "messages",
        }
    }
}

/// One entry of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Item {
    /// Somebody said something.
    Message(Message),
    /// The model thought.
    Reasoning(Reasoning),
    /// The model calls a function.
    FunctionCall(FunctionCall),
    /// What the call came to.
    FunctionCallOutput(FunctionCallOutput),
    /// Something only its maker understands, such as a search the provider did by itself.
    Native(Native),
}

/// Something said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// By whom.
    pub role: Role,
    /// What.
    pub content: Vec<OutputPart>,
    /// What goes with it on the wire it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<Native>,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The person, or whoever speaks for them.
    User,
    /// The model.
    Assistant,
}

/// What a model thought, as far as it shows.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Reasoning {
    /// In summary, part by part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub summary: Vec<String>,
    /// Word for word, part by part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<String>,
    /// The thought as its maker wants it back: signed, encrypted or under its own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<Native>,
}

/// A call the model wants made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The model's own name for the call, or one made up.
    pub call_id: String,
    /// The function.
    pub name: String,
    /// The arguments as JSON text; for a freeform call the text itself.
    pub arguments: String,
    /// Whether the arguments are JSON.
    #[serde(default, skip_serializing_if = "CallKind::is_function")]
    pub kind: CallKind,
    /// What goes with it on the wire it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<Native>,
}

/// How a call's arguments are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallKind {
    /// As JSON.
    #[default]
    Function,
    /// As text of any form.
    Freeform,
}

impl CallKind {
    fn is_function(&self) -> bool {
        *self == Self::Function
    }
}

/// What a call came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionCallOutput {
    /// The call this answers.
    pub call_id: String,
    /// Text and images, in order.
    pub output: Vec<OutputPart>,
    /// Whether the call failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

/// JSON that only the model that made it understands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Native {
    /// Who made it.
    pub origin: Origin,
    /// As it came.
    pub json: Value,
}

/// Where something came from: it goes back there and nowhere else.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// The API.
    pub wire: WireApi,
    /// The provider's name in the configuration.
    pub provider: String,
    /// The model that was asked.
    pub model: String,
}

/// Tokens that were counted, the same way on every API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// What went in, cached or not.
    pub input_tokens: u64,
    /// The part of it that was read from a cache.
    pub cached_input_tokens: u64,
    /// The part of it that was written to a cache, where that has a price of its own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_write_input_tokens: u64,
    /// What came out, reasoning included.
    pub output_tokens: u64,
    /// The part of it that was reasoning.
    pub reasoning_output_tokens: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Usage {
    /// What of this is not part of the other.
    pub fn beyond(&self, part: &Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_sub(part.input_tokens),
            cached_input_tokens: self
                .cached_input_tokens
                .saturating_sub(part.cached_input_tokens),
            cache_write_input_tokens: self
                .cache_write_input_tokens
                .saturating_sub(part.cache_write_input_tokens),
            output_tokens: self.output_tokens.saturating_sub(part.output_tokens),
            reasoning_output_tokens: self
                .reasoning_output_tokens
                .saturating_sub(part.reasoning_output_tokens),
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, more: Self) {
        self.input_tokens = self.input_tokens.saturating_add(more.input_tokens);
        self.cached_input_tokens = self
            .cached_input_tokens
            .saturating_add(more.cached_input_tokens);
        self.cache_write_input_tokens = self
            .cache_write_input_tokens
            .saturating_add(more.cache_write_input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(more.output_tokens);
        self.reasoning_output_tokens = self
            .reasoning_output_tokens
            .saturating_add(more.reasoning_output_tokens);
    }
}

/// Why a model stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// It had said what it wanted.
    Stop,
    /// It waits for the results of its calls.
    ToolCalls,
    /// It reached the limit of tokens: the end is missing.
    Length,
    /// It would not answer, or was not allowed to.
    Refused,
    /// It wants to go on when it is sent what it said.
    Paused,
    /// Something the provider has its own word for.
    Other(String),
}

macro_rules! model_error_kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $name:literal;)+) => {
        /// What kind of failure an answer of a model ended with.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum ModelErrorKind {
            $($(#[doc = $doc])+ $kind,)+
        }

        impl ModelErrorKind {
            /// All kinds, in the order of the reference.
            pub const ALL: &[Self] = &[$(Self::$kind,)+];

            /// The kind as events spell it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$kind => $name,)+ }
            }

            /// What it means, for the reference.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$kind => concat!($($doc,)+).trim_ascii(),)+ }
            }
        }
    };
}

model_error_kinds! {
    /// The key is missing, wrong, or may not do this.
    Auth = "auth";
    /// The account has no credit left, or has used up its plan.
    Quota = "quota";
    /// Too many requests or tokens in a short time; later it works again.
    RateLimit = "rate_limit";
    /// The conversation does not fit into the model's context.
    ContextTooLong = "context_too_long";
    /// The model would not answer, or a filter stopped it.
    Refused = "refused";
    /// The request is not one the provider takes: an unknown model, a parameter, a schema.
    InvalidRequest = "invalid_request";
    /// The provider has too much to do at the moment.
    Overloaded = "overloaded";
    /// The provider failed.
    Server = "server";
    /// The provider could not be reached, or the connection broke or fell silent.
    Network = "network";
    /// What came back is not what the API promises.
    Protocol = "protocol";
}

impl std::fmt::Display for ModelErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Item {
    /// A message of one text.
    pub fn message(role: Role, text: impl Into<String>) -> Self {
        Self::Message(Message {
            role,
            content: vec![OutputPart::Text { text: text.into() }],
            native: None,
        })
    }

    /// A result of one text.
    pub fn output(call_id: impl Into<String>, text: impl Into<String>) -> Self {
        let output = vec![OutputPart::Text { text: text.into() }];
        Self::FunctionCallOutput(FunctionCallOutput {
            call_id: call_id.into(),
            output,
            failed: false,
        })
    }
}

impl Message {
    /// All its text in one.
    pub fn text(&self) -> String {
        text_of(&self.content)
    }
}

impl FunctionCallOutput {
    /// All its text in one.
    pub fn text(&self) -> String {
        text_of(&self.output)
    }
}

fn text_of(parts: &[OutputPart]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        OutputPart::Text { text } => Some(text.as_str()),
        OutputPart::Image { .. } | OutputPart::Audio { .. } => None,
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn items_are_stored_and_read_back() {
        let origin = Origin {
            wire: WireApi::Messages,
            provider: "anthropic".into(),
            model: "m".into(),
        };
        let native = Native {
            origin,
            json: json!({"type": "thinking", "signature": "x"}),
        };
        let items = vec![
            Item::message(Role::User, "hi"),
            Item::Reasoning(Reasoning {
                content: vec!["hm".into()],
                native: Some(native.clone()),
                ..Default::default()
            }),
            Item::FunctionCall(FunctionCall {
                call_id: "c".into(),
                name: "f".into(),
                arguments: "{}".into(),
                kind: CallKind::Function,
                native: None,
            }),
            Item::output("c", "42"),
            Item::Native(native),
        ];
        let text = serde_json::to_string(&items).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Item>>(&text).unwrap(), items);
        assert_eq!(
            serde_json::to_value(&items[3]).unwrap(),
            json!({"type": "function_call_output", "call_id": "c", "output": [{"type": "text", "text": "42"}]})
        );
    }

    #[test]
    fn kinds_are_spelled_as_they_are_serialised() {
        for kind in ModelErrorKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), json!(kind.as_str()));
        }
    }
}
