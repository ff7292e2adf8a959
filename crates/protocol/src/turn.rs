//! Items that a turn adds to a conversation, in the order the model produced them, and how a turn
//! ends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ConversationItem, MessageRole, ModelErrorKind, ScriptToolCall, ScriptToolCallOutput};

/// One item of a turn, as events and history contain it.
///
/// A script takes the place of the block or call it came from and is followed by its output. The
/// form in which a model receives the items can differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TurnItem {
    /// A script the model wants to run.
    ScriptToolCall(ScriptToolCall),
    /// Result of a script.
    ScriptToolCallOutput(Box<ScriptToolCallOutput>),
    /// A message, reasoning, a structured call or its result.
    Conversation(ConversationItem),
}

impl TurnItem {
    /// Returns the item's `type`, as it is serialised.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ScriptToolCall(_) => "script_tool_call",
            Self::ScriptToolCallOutput(_) => "script_tool_call_output",
            Self::Conversation(ConversationItem::Message(_)) => "message",
            Self::Conversation(ConversationItem::Reasoning(_)) => "reasoning",
            Self::Conversation(ConversationItem::FunctionCall(_)) => "function_call",
            Self::Conversation(ConversationItem::FunctionCallOutput(_)) => "function_call_output",
            Self::Conversation(ConversationItem::Native(_)) => "native",
        }
    }

    /// Returns the id of the call that the item is or answers.
    pub fn call_id(&self) -> Option<&str> {
        match self {
            Self::ScriptToolCall(call) => Some(&call.call_id),
            Self::ScriptToolCallOutput(output) => Some(&output.call_id),
            Self::Conversation(ConversationItem::FunctionCall(call)) => Some(&call.call_id),
            Self::Conversation(ConversationItem::FunctionCallOutput(output)) => {
                Some(&output.call_id)
            }
            Self::Conversation(_) => None,
        }
    }

    /// Returns the text of an assistant message, `None` for other items.
    pub fn assistant_text(&self) -> Option<String> {
        match self {
            Self::Conversation(ConversationItem::Message(message))
                if message.role == MessageRole::Assistant =>
            {
                Some(message.text())
            }
            _ => None,
        }
    }

    /// Returns a copy for display, without the data that only the model's provider understands.
    pub fn without_native(&self) -> Self {
        let mut item = self.clone();
        match &mut item {
            Self::Conversation(ConversationItem::Message(message)) => message.native = None,
            Self::Conversation(ConversationItem::Reasoning(reasoning)) => reasoning.native = None,
            Self::Conversation(ConversationItem::FunctionCall(call)) => call.native = None,
            _ => {}
        }
        item
    }
}

impl From<ConversationItem> for TurnItem {
    fn from(item: ConversationItem) -> Self {
        Self::Conversation(item)
    }
}

macro_rules! turn_ends {
    ($($(#[doc = $doc:literal])+ $end:ident = $name:literal;)+) => {
        /// Why a turn that did not fail ended.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum TurnEnd {
            $($(#[doc = $doc])+ $end,)+
        }

        impl TurnEnd {
            /// All values, in the order of the reference.
            pub const ALL: &[Self] = &[$(Self::$end,)+];

            /// Returns the name used in events.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$end => $name,)+ }
            }

            /// Returns the doc comment as one line, for the reference.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$end => concat!($($doc,)+).trim_ascii(),)+ }
            }
        }
    };
}

turn_ends! {
    /// The model finished its answer.
    Stop = "stop";
    /// The answer reached its token limit. Complete items are kept.
    Length = "length";
    /// The user stopped the turn. The session continues with the next turn.
    Interrupted = "interrupted";
    /// A script waits for an approval. The turn continues when it is given or denied.
    Suspended = "suspended";
    /// The turn reached its limit of rounds, which are requests to the model.
    MaxRounds = "max_rounds";
    /// The turn or the session reached its token limit.
    MaxTokens = "max_tokens";
    /// The turn or the session reached its cost limit.
    MaxCost = "max_cost";
    /// The turn reached its time limit.
    MaxTime = "max_time";
}

/// Why a turn failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnError {
    /// Class of the failure.
    pub kind: TurnErrorKind,
    /// One line that says what failed.
    pub message: String,
}

impl TurnError {
    /// Creates a failure of this class.
    pub fn new(kind: impl Into<TurnErrorKind>, message: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            message: message.into(),
        }
    }
}

/// Class of a turn's failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TurnErrorKind {
    /// The session cannot be read from the journal or written to it.
    Journal,
    /// The disk of the journal is full.
    DiskFull,
    /// A run that belongs to the turn is still active in another process.
    InUse,
    /// The agent could not be set up, for example because of its configuration.
    Setup,
    /// A request to the model failed.
    #[serde(untagged)]
    Model(ModelErrorKind),
}

impl TurnErrorKind {
    /// Returns the name used in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::DiskFull => "disk_full",
            Self::InUse => "in_use",
            Self::Setup => "setup",
            Self::Model(kind) => kind.as_str(),
        }
    }
}

impl From<ModelErrorKind> for TurnErrorKind {
    fn from(kind: ModelErrorKind) -> Self {
        Self::Model(kind)
    }
}

impl std::fmt::Display for TurnErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FunctionCallOutput, OutputPart, RunMetadata, RunStatus};
    use serde_json::json;

    #[test]
    fn items_of_every_type_round_trip_through_json() {
        let call = ScriptToolCall {
            id: "scr_1".into(),
            call_id: "call_1".into(),
            language: "ts".into(),
            source_code: "return 1".into(),
            source_sha256: String::new(),
            status: RunStatus::Pending,
        };
        let output = ScriptToolCallOutput {
            id: "scr_1".into(),
            call_id: "call_1".into(),
            status: RunStatus::Completed,
            output_json: Some("1".into()),
            error: None,
            summary: None,
            output: vec![OutputPart::Text { text: "hi".into() }],
            calls: Vec::new(),
            logs: Vec::new(),
            warnings: Vec::new(),
            metadata: RunMetadata::default(),
        };
        let items = vec![
            TurnItem::from(ConversationItem::message(MessageRole::User, "hi")),
            TurnItem::ScriptToolCall(call),
            TurnItem::ScriptToolCallOutput(Box::new(output)),
            TurnItem::from(ConversationItem::FunctionCallOutput(FunctionCallOutput {
                call_id: "c".into(),
                output: Vec::new(),
                failed: true,
            })),
        ];
        for item in items {
            let value = serde_json::to_value(&item).unwrap();
            assert_eq!(value["type"], json!(item.kind()));
            assert_eq!(serde_json::from_value::<TurnItem>(value).unwrap(), item);
        }
    }

    #[test]
    fn turn_end_and_error_names_match_their_serialised_form() {
        for end in TurnEnd::ALL {
            assert_eq!(serde_json::to_value(end).unwrap(), json!(end.as_str()));
        }
        let model_kinds = ModelErrorKind::ALL
            .iter()
            .copied()
            .map(TurnErrorKind::Model);
        use TurnErrorKind::{DiskFull, InUse, Journal, Setup};
        let own_kinds = [Journal, DiskFull, InUse, Setup].into_iter();
        for kind in own_kinds.chain(model_kinds) {
            let value = serde_json::to_value(kind).unwrap();
            assert_eq!(value, json!(kind.as_str()));
            assert_eq!(
                serde_json::from_value::<TurnErrorKind>(value).unwrap(),
                kind
            );
        }
    }
}
