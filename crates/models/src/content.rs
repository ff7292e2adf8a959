//! What only some can take: images, and what a model made for itself alone.

use std::borrow::Cow;

use selvedge_protocol::{Effort, Item, Native, Origin, Role};
use serde_json::Value;

use crate::as_text::without_calls;
use crate::pairing::paired;
use crate::{Calls, Prompt};

/// What goes back to its maker, if this is the maker.
pub(crate) fn ours<'a>(native: &'a Option<Native>, origin: &Origin) -> Option<&'a Value> {
    let native = native.as_ref().filter(|native| native.origin == *origin);
    native.map(|native| &native.json)
}

/// The conversation as it is sent: calls paired with their results, or told as text where calls are off.
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

/// The word of the two APIs of OpenAI for an effort.
pub(crate) fn effort_word(effort: Effort) -> &'static str {
    match effort {
        Effort::Max => "xhigh",
        other => other.as_str(),
    }
}

/// An image as an address that holds it.
pub(crate) fn image_url(data: &str, mime_type: &str) -> String {
    format!("data:{mime_type};base64,{data}")
}

/// What stands in place of something an API cannot carry.
pub(crate) fn not_shown(mime_type: &str) -> String {
    format!("[{mime_type} that cannot be shown here]")
}
