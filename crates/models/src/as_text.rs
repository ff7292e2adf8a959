//! Converts calls and results in a history to text, for servers without tool calls.

use std::borrow::Cow;

use selvedge_protocol::{FunctionCallOutput, Item, Message, OutputPart, Role};

use crate::pairing::paired;

/// Replaces every call by a message of the model, and every result by a message of the user.
pub(crate) fn without_calls(history: &[Item]) -> Vec<Cow<'_, Item>> {
    let mut names: Vec<(String, String)> = Vec::new();
    let mut converted = Vec::with_capacity(history.len());
    for item in paired(history) {
        converted.push(match item.as_ref() {
            Item::FunctionCall(call) => {
                names.push((call.call_id.clone(), call.name.clone()));
                let text = format!("[called {} with {}]", call.name, call.arguments);
                Cow::Owned(Item::message(Role::Assistant, text))
            }
            Item::FunctionCallOutput(output) => {
                let named = names.iter().rev().find(|(id, _)| *id == output.call_id);
                let name = named.map_or("the call", |(_, name)| name);
                Cow::Owned(Item::Message(result_in_words(name, output)))
            }
            _ => item,
        });
    }
    converted
}

fn result_in_words(name: &str, output: &FunctionCallOutput) -> Message {
    let verb = if output.failed { "failed" } else { "returned" };
    let mut content = vec![OutputPart::Text {
        text: format!("[{name} {verb}]\n{}", output.text()),
    }];
    let is_image = |part: &&OutputPart| matches!(part, OutputPart::Image { .. });
    content.extend(output.output.iter().filter(is_image).cloned());
    Message {
        role: Role::User,
        content,
        native: None,
    }
}
