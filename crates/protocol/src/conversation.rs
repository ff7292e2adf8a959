//! Conversations with models: the items that are stored in history and sent with each request.
//!
//! An [`ConversationItem`] contains what all wire APIs have in common. Data that only one provider
//! understands, such as a signature or encrypted reasoning, is attached as [`NativePayload`] and
//! sent back only to the model it came from.

use std::ops::AddAssign;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::OutputPart;

/// The protocol in which a model is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WireApi {
    /// The Responses API of OpenAI.
    Responses,
    /// OpenAI Chat Completions, and servers that implement it.
    Chat,
    /// The Messages API of Anthropic.
    Messages,
}

impl WireApi {
    /// Returns the name used in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Responses => "responses",
            Self::Chat => "chat",
            Self::Messages => "messages",
        }
    }
}

/// One item of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ConversationItem {
    /// Message of the user or the model.
    Message(Message),
    /// Reasoning of the model.
    Reasoning(Reasoning),
    /// Structured call of the model.
    FunctionCall(FunctionCall),
    /// Result of a structured call.
    FunctionCallOutput(FunctionCallOutput),
    /// Item that only its provider understands, such as a search on the provider's side.
    Native(NativePayload),
}

/// A message of the user or the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Author of the message.
    pub role: MessageRole,
    /// Text and images, in order.
    pub content: Vec<OutputPart>,
    /// Provider data that is sent back with the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<NativePayload>,
}

/// Author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageRole {
    /// The user, or a program on the user's behalf.
    User,
    /// Written by the model.
    Assistant,
}

/// Reasoning of a model, as far as the provider shows it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Reasoning {
    /// Parts of the summary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub summary: Vec<String>,
    /// Parts of the full text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<String>,
    /// Signed or encrypted form that the provider expects back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<NativePayload>,
}

/// A structured call of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The model's id for the call, or a generated one.
    pub call_id: String,
    /// Name of the tool, as offered to the model.
    pub name: String,
    /// Arguments as JSON text; for a freeform call the plain text.
    pub arguments: String,
    /// Format of the arguments.
    #[serde(default, skip_serializing_if = "FunctionCallKind::is_function")]
    pub kind: FunctionCallKind,
    /// Provider data that is sent back with the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<NativePayload>,
}

/// Format of a structured call's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FunctionCallKind {
    /// A JSON object.
    #[default]
    Function,
    /// The arguments are plain text.
    Freeform,
}

impl FunctionCallKind {
    fn is_function(&self) -> bool {
        *self == Self::Function
    }
}

/// Result of a structured call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionCallOutput {
    /// Id of the call that this item answers.
    pub call_id: String,
    /// Text and images of the result, in order.
    pub output: Vec<OutputPart>,
    /// Whether the call failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

/// Data in a provider's own format, for the model that produced it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NativePayload {
    /// Model that produced the data.
    pub origin: ModelOrigin,
    /// The data, unchanged.
    pub json: Value,
}

/// The model that produced an item. Its [`NativePayload`] data is sent back only to the same model.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ModelOrigin {
    /// Wire API of the request.
    pub wire: WireApi,
    /// Name of the provider in the configuration.
    pub provider: String,
    /// Name of the requested model.
    pub model: String,
}

/// Token usage, normalised over all wire APIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Input tokens, cached or not.
    pub input_tokens: u64,
    /// Input tokens that were read from a cache.
    pub cached_input_tokens: u64,
    /// Input tokens that were written to a cache, if the provider charges for that.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_write_input_tokens: u64,
    /// Output tokens, including reasoning.
    pub output_tokens: u64,
    /// Output tokens that were reasoning.
    pub reasoning_output_tokens: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Usage {
    /// Returns the difference to `part`, field by field, at least zero.
    pub fn saturating_sub(&self, part: &Self) -> Self {
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

/// Why a model ended its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// The answer is complete.
    Stop,
    /// The model waits for the results of its calls.
    ToolCalls,
    /// The answer reached the token limit and is incomplete.
    Length,
    /// The model refused to answer, or a filter blocked the answer.
    Refused,
    /// The model continues when it receives its own answer back.
    Paused,
    /// Another reason, as the provider names it.
    Other(String),
}

macro_rules! model_error_kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $name:literal;)+) => {
        /// Why a request to a model failed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum ModelErrorKind {
            $($(#[doc = $doc])+ $kind,)+
        }

        impl ModelErrorKind {
            /// All kinds, in the order of the reference.
            pub const ALL: &[Self] = &[$(Self::$kind,)+];

            /// Returns the name used in events.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$kind => $name,)+ }
            }

            /// Returns the doc comment as one line, for the reference.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$kind => concat!($($doc,)+).trim_ascii(),)+ }
            }
        }
    };
}

model_error_kinds! {
    /// The API key is missing or wrong, or lacks a permission.
    Auth = "auth";
    /// The account has no credit left, or reached a limit of its plan.
    Quota = "quota";
    /// Too many requests or tokens in a short time. A later request can succeed.
    RateLimit = "rate_limit";
    /// The conversation does not fit into the model's context.
    ContextTooLong = "context_too_long";
    /// The model refused to answer, or a filter blocked the answer.
    Refused = "refused";
    /// The provider has no model of this name, or the account may not use it.
    UnknownModel = "unknown_model";
    /// The provider rejected the request: an invalid parameter or schema.
    InvalidRequest = "invalid_request";
    /// The provider's `base_url` is invalid, or does not lead to its API.
    BaseUrl = "base_url";
    /// The provider is overloaded.
    Overloaded = "overloaded";
    /// The provider failed internally.
    Server = "server";
    /// The provider could not be reached, or the connection was lost.
    Network = "network";
    /// The provider was reached and did not answer in time.
    Timeout = "timeout";
    /// The response does not conform to the API.
    Protocol = "protocol";
}

impl std::fmt::Display for ModelErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ConversationItem {
    /// Creates a message with one text part.
    pub fn message(role: MessageRole, text: impl Into<String>) -> Self {
        Self::Message(Message {
            role,
            content: vec![OutputPart::Text { text: text.into() }],
            native: None,
        })
    }

    /// Creates the result of a successful call with one text part.
    pub fn function_call_output(call_id: impl Into<String>, text: impl Into<String>) -> Self {
        let output = vec![OutputPart::Text { text: text.into() }];
        Self::FunctionCallOutput(FunctionCallOutput {
            call_id: call_id.into(),
            output,
            failed: false,
        })
    }
}

impl Message {
    /// Returns all text parts, concatenated.
    pub fn text(&self) -> String {
        text_of(&self.content)
    }
}

impl FunctionCallOutput {
    /// Returns all text parts, concatenated.
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
    fn items_round_trip_through_json() {
        let origin = ModelOrigin {
            wire: WireApi::Messages,
            provider: "anthropic".into(),
            model: "m".into(),
        };
        let native = NativePayload {
            origin,
            json: json!({"type": "thinking", "signature": "x"}),
        };
        let items = vec![
            ConversationItem::message(MessageRole::User, "hi"),
            ConversationItem::Reasoning(Reasoning {
                content: vec!["hm".into()],
                native: Some(native.clone()),
                ..Default::default()
            }),
            ConversationItem::FunctionCall(FunctionCall {
                call_id: "c".into(),
                name: "f".into(),
                arguments: "{}".into(),
                kind: FunctionCallKind::Function,
                native: None,
            }),
            ConversationItem::function_call_output("c", "42"),
            ConversationItem::Native(native),
        ];
        let text = serde_json::to_string(&items).unwrap();
        assert_eq!(
            serde_json::from_str::<Vec<ConversationItem>>(&text).unwrap(),
            items
        );
        assert_eq!(
            serde_json::to_value(&items[3]).unwrap(),
            json!({
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "text", "text": "42"}]
            })
        );
    }

    #[test]
    fn error_kind_names_match_their_serialised_form() {
        for kind in ModelErrorKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), json!(kind.as_str()));
        }
    }
}
