//! Parts of a request that several APIs share: the history, native items, images and names.

use std::borrow::Cow;

use selvedge_protocol::{
    ConversationItem, Effort, MessageRole, ModelOrigin, NativePayload, OutputPart,
};
use serde_json::Value;

use crate::calls_as_text::calls_as_text;
use crate::pairing::pair_calls_with_results;
use crate::{Model, Prompt, ToolCallMode};

/// Returns the native JSON of an item if it came from this API, provider and model.
pub(crate) fn native_for<'a>(
    native: &'a Option<NativePayload>,
    origin: &ModelOrigin,
) -> Option<&'a Value> {
    let native = native.as_ref().filter(|native| native.origin == *origin);
    native.map(|native| &native.json)
}

/// Returns the history to send: calls followed by their results, or converted to text if the
/// server has no tool calls. If the model accepts no images, a note replaces each of them: earlier
/// turns with another model, and scripts, may contain some.
pub(crate) fn request_history<'a>(
    prompt: &'a Prompt,
    model: &Model,
) -> Vec<Cow<'a, ConversationItem>> {
    let mut history = match prompt.call_mode {
        ToolCallMode::Off => calls_as_text(&prompt.history),
        ToolCallMode::Parallel | ToolCallMode::Single | ToolCallMode::Forbidden => {
            pair_calls_with_results(&prompt.history)
        }
    };
    if !model.images {
        history.iter_mut().for_each(replace_images);
    }
    history
}

/// Replaces the images of an item by notes.
fn replace_images(item: &mut Cow<'_, ConversationItem>) {
    let parts = match item.as_ref() {
        ConversationItem::Message(message) => &message.content,
        ConversationItem::FunctionCallOutput(output) => &output.output,
        _ => return,
    };
    let is_image = |part: &OutputPart| matches!(part, OutputPart::Image { .. });
    if !parts.iter().any(is_image) {
        return;
    }
    let parts = match item.to_mut() {
        ConversationItem::Message(message) => &mut message.content,
        ConversationItem::FunctionCallOutput(output) => &mut output.output,
        _ => return,
    };
    for (index, part) in parts.iter_mut().enumerate() {
        if let OutputPart::Image { mime_type, .. } = part {
            // Some APIs join the texts of a result.
            let line_break = if index > 0 { "\n" } else { "" };
            let text = format!("{line_break}[{mime_type} omitted: the model accepts no images]");
            *part = OutputPart::Text { text };
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
