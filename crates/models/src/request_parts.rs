//! Parts of a request that several APIs share: the history, native items, images and names.

use std::borrow::Cow;

use selvedge_protocol::{ConversationItem, Effort, MessageRole, ModelOrigin, NativePayload};
use serde_json::Value;

use crate::calls_as_text::calls_as_text;
use crate::pairing::pair_calls_with_results;
use crate::{Prompt, ToolCallMode};

/// Returns the native JSON of an item if it came from this API, provider and model.
pub(crate) fn native_for<'a>(
    native: &'a Option<NativePayload>,
    origin: &ModelOrigin,
) -> Option<&'a Value> {
    let native = native.as_ref().filter(|native| native.origin == *origin);
    native.map(|native| &native.json)
}

/// Returns the history to send: calls followed by their results, or converted to text if the
/// server has no tool calls.
pub(crate) fn request_history(prompt: &Prompt) -> Vec<Cow<'_, ConversationItem>> {
    match prompt.call_mode {
        ToolCallMode::Off => calls_as_text(&prompt.history),
        ToolCallMode::Parallel | ToolCallMode::Single | ToolCallMode::Forbidden => {
            pair_calls_with_results(&prompt.history)
        }
    }
}

pub(crate) fn role_name(role: MessageRole) -> &'static str {
    match role {
        MessageRole::User => "user",
        MessageRole::Assistant => "assistant",
    }
}

/// Returns the name of an effort in the two APIs of OpenAI.
pub(crate) fn effort_name(effort: Effort) -> &'static str {
    match effort {
        Effort::Max => "xhigh",
        other => other.as_str(),
    }
}

/// Returns the `data:` URL of an image.
pub(crate) fn data_url(data: &str, mime_type: &str) -> String {
    format!("data:{mime_type};base64,{data}")
}

/// Returns the text that replaces content which an API does not support.
pub(crate) fn omitted_note(mime_type: &str) -> String {
    format!("[{mime_type} omitted: not supported by this API]")
}
