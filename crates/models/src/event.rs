//! The events of a model's answer.

use std::time::Duration;

use selvedge_protocol::{ConversationItem, FinishReason, FunctionCall, FunctionCallKind, Usage};

use crate::ModelError;

/// An event of a model's answer, the same for every API.
///
/// `Text`, `Reasoning` and `CallDelta` are for display while the answer arrives. The items of
/// [`ItemDone`](Self::ItemDone), in their order, are the complete answer; append them unchanged to
/// the history of the next prompt.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ModelEvent {
    /// The answer begins.
    Started {
        /// The provider's id of the answer.
        id: Option<String>,
        /// Name of the model as the provider reports it.
        model: Option<String>,
    },
    /// Text of a message.
    Text {
        /// Index of the item in the answer, from zero.
        item_index: u32,
        /// Text to append to the item.
        text: String,
    },
    /// Text of the model's reasoning.
    Reasoning {
        /// Index of the item in the answer, from zero.
        item_index: u32,
        /// Whether the text is the reasoning itself or a summary.
        view: ReasoningView,
        /// Text to append to the item.
        text: String,
    },
    /// A call begins.
    CallStarted {
        /// Index of the item in the answer, from zero.
        item_index: u32,
        /// The provider's id of the call; a new one if the provider sends none.
        call_id: String,
        /// Name of the tool.
        name: String,
        /// How the arguments are written.
        kind: FunctionCallKind,
    },
    /// Arguments of a call.
    CallDelta {
        /// Index of the item in the answer, from zero.
        item_index: u32,
        /// Text to append to the arguments.
        text: String,
    },
    /// A call is incomplete because the answer was truncated. It must not run.
    CallTruncated {
        /// Index of the item in the answer, from zero.
        item_index: u32,
        /// The call with the arguments received so far.
        call: FunctionCall,
    },
    /// An item is complete.
    ItemDone {
        /// Index of the item in the answer, from zero.
        item_index: u32,
        /// The complete item.
        item: ConversationItem,
    },
    /// Token usage of the answer. At most one per answer, if the provider reports it.
    Usage(Usage),
    /// The answer is complete. It is the last event of an answer that did not fail.
    Finished {
        /// Why the model stopped.
        reason: FinishReason,
        /// The provider's explanation, such as that of a refusal.
        detail: Option<String>,
    },
    /// The provider started the answer again. Discard the events before.
    Restarted,
    /// The answer failed and is requested again. Discard the events before. Only a
    /// [`ModelClient`](crate::ModelClient) emits it.
    Retrying {
        /// Why the request failed.
        error: ModelError,
        /// Delay before the next attempt.
        delay: Duration,
    },
}

/// Form in which a provider shows a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningView {
    /// A summary by the provider.
    Summary,
    /// The reasoning itself.
    Raw,
}
