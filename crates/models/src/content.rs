//! Parts of a request that several APIs share: the history, native items, images and names.

use std::borrow::Cow;

use selvedge_protocol::{Effort, Item, Native, Origin, Role};
use serde_json::Value;

use crate::as_text::without_calls;
use crate::pairing::paired;
use crate::{Calls, Prompt};

/// Returns the native JSON of an item if it came from this API, provider and model.
pub(crate) fn ours<'a>(native: &'a Option<Native>, origin: &Origin) -> Option<&'a Value> {
    let native = native.as_ref().filter(|native| native.origin == *origin);
    native.map(|native| &native.json)
}

/// Returns the history to send: calls followed by their results, or converted to text if the
/// server has no tool calls.
pub(crate) fn history(prompt: &Prompt) -> Vec<Cow<'_, Item>> {
    match prompt.calls {
        Calls::Off => without_calls(&prompt.history),
        Calls::Parallel | Calls::Single | Calls::Forbidden => paired(&prompt.history),
    }
}

pub(crate) fn role_name(role: Role) -> &'static str {
    match role {
        Role::User => "user",
        Role::Assistant => "assistant",
    }
}

/// Returns the name of an effort in the two APIs of OpenAI.
pub(crate) fn effort_word(effort: Effort) -> &'static str {
    match effort {
        Effort::Max => "xhigh",
        other => other.as_str(),
    }
}

/// Returns the `data:` URL of an image.
pub(crate) fn image_url(data: &str, mime_type: &str) -> String {
    format!("data:{mime_type};base64,{data}")
}

/// Returns the text that replaces content which an API does not support.
pub(crate) fn not_shown(mime_type: &str) -> String {
    format!("[{mime_type} omitted: not supported by this API]")
}
