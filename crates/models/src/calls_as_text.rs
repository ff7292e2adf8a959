//! Converts calls and results in a history to text, for servers without tool calls.

use std::borrow::Cow;

use selvedge_protocol::{ConversationItem, FunctionCallOutput, Message, MessageRole, OutputPart};

use crate::pairing::pair_calls_with_results;

/// Replaces every call by a message of the model, and every result by a message of the user.
pub(crate) fn calls_as_text(history: &[ConversationItem]) -> Vec<Cow<'_, ConversationItem>> {
    let mut names: Vec<(String, String)> = Vec::new();
    let mut converted = Vec::with_capacity(history.len());
    for item in pair_calls_with_results(history) {
        converted.push(match item.as_ref() {
            ConversationItem::FunctionCall(call) => {
                names.push((call.call_id.clone(), call.name.clone()));
                let text = format!("[called {} with {}]", call.name, call.arguments);
                Cow::Owned(ConversationItem::message(MessageRole::Assistant, text))
            }
            ConversationItem::FunctionCallOutput(output) => {
                let named = names.iter().rev().find(|(id, _)| *id == output.call_id);
                let name = named.map_or("the call", |(_, name)| name);
                Cow::Owned(ConversationItem::Message(result_as_text(name, output)))
            }
            _ => item,
        });
    }
    converted
}

fn result_as_text(name: &str, output: &FunctionCallOutput) -> Message {
    let verb = if output.failed { "failed" } else { "returned" };
    let mut content = vec![OutputPart::Text {
        text: format!("[{name} {verb}]\n{}", output.text()),
    }];
    let is_image = |part: &&OutputPart| matches!(part, OutputPart::Image { .. });
    content.extend(output.output.iter().filter(is_image).cloned());
    Message {
        role: MessageRole::User,
        content,
        native: None,
    }
}
