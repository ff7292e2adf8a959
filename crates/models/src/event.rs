//! What a model's answer consists of, while it arrives.

use std::time::Duration;

use selvedge_protocol::{CallKind, FinishReason, FunctionCall, Item, Usage};

use crate::ModelError;

/// One thing that happened. The same on every API.
///
/// Pieces (`Text`, `Reasoning`, `CallDelta`) are for showing; [`ItemDone`](Self::ItemDone) is for keeping: its items, in
/// the order they come, are what the model said, and go into the history of the next prompt as they are.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ModelEvent {
    /// The model begins to answer.
    Started {
        /// The provider's name for the answer.
        id: Option<String>,
        /// The model that answers, as it calls itself.
        model: Option<String>,
    },
    /// A piece of what it says.
    Text {
        /// Which item of the answer, from zero.
        item: u32,
        /// The piece.
        text: String,
    },
    /// A piece of what it thinks.
    Reasoning {
        /// Which item of the answer.
        item: u32,
        /// Whether this is the thought or a summary of it.
        view: ReasoningView,
        /// The piece.
        text: String,
    },
    /// It begins to write a call.
    CallStarted {
        /// Which item of the answer.
        item: u32,
        /// Its name for the call, or one made up.
        call_id: String,
        /// The function.
        name: String,
        /// How the arguments are written.
        kind: CallKind,
    },
    /// A piece of the arguments.
    CallDelta {
        /// Which item of the answer.
        item: u32,
        /// The piece.
        text: String,
    },
    /// A call whose end is missing, because the answer was cut. It must not run.
    CallCut {
        /// Which item of the answer.
        item: u32,
        /// As far as it came.
        call: FunctionCall,
    },
    /// An item is complete.
    ItemDone {
        /// Which item of the answer.
        item: u32,
        /// The item.
        done: Item,
    },
    /// What the answer took. Once per answer, where the provider tells.
    Usage(Usage),
    /// The answer is over. Always the last event of one that did not fail.
    Finished {
        /// Why.
        reason: FinishReason,
        /// The provider's own words about it, such as why it refused.
        detail: Option<String>,
    },
    /// The provider began anew in the middle: whatever came so far is void.
    Restarted,
    /// The answer failed and is asked for again: whatever came of it so far is void. Only from a
    /// [`Client`](crate::Client).
    Retrying {
        /// What went wrong.
        error: ModelError,
        /// How long is waited first.
        after: Duration,
    },
}

/// What is shown of a thought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningView {
    /// A summary the provider made.
    Summary,
    /// The thought itself.
    Raw,
}
