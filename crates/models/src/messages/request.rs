//! Encodes a request to a Messages server.

use selvedge_protocol::{FunctionCall, FunctionCallOutput, Item, Message, OutputPart, Role};
use serde_json::{Map, Value, json};

use super::cache;
use crate::content::{history, not_shown, ours, role_name};
use crate::pairing::belongs_to_an_answer;
use crate::prompt::Calls;
use crate::{Effort, Model, Prompt, Provider, Thinking, Tool};

/// Returns the body of a request.
pub(crate) fn request(prompt: &Prompt, model: &Model, provider: &Provider) -> Value {
    let limit = prompt.max_output_tokens.unwrap_or(model.max_output_tokens);
    let turns = turns(prompt, model, provider);
    let mut body =
        json!({"model": model.name, "max_tokens": limit, "messages": turns, "stream": true});
    let mut set = |key: &str, value: Value| body[key] = value;
    if !prompt.system.is_empty() {
        set("system", json!([{"type": "text", "text": prompt.system}]));
    }
    if prompt.calls != Calls::Off && !prompt.tools.is_empty() {
        set("tools", prompt.tools.iter().map(definition).collect());
        match prompt.calls {
            Calls::Single => {
                let choice = json!({"type": "auto", "disable_parallel_tool_use": true});
                set("tool_choice", choice);
            }
            Calls::Forbidden => set("tool_choice", json!({"type": "none"})),
            Calls::Parallel | Calls::Off => {}
        }
    }
    for (key, value) in thinking(prompt, model, provider, limit) {
        set(key, value);
    }
    cache::mark(&mut body);
    body
}

fn definition(tool: &Tool) -> Value {
    json!({"name": tool.name, "description": tool.description, "input_schema": tool.schema()})
}

/// Returns the fields that control thinking. `limit` is the request's `max_tokens`.
fn thinking(
    prompt: &Prompt,
    model: &Model,
    provider: &Provider,
    limit: u64,
) -> Vec<(&'static str, Value)> {
    if prompt.effort == Some(Effort::None) {
        return Vec::new();
    }
    let effort = match prompt.effort {
        Some(Effort::None | Effort::Minimal | Effort::Low) => "low",
        Some(Effort::High) => "high",
        Some(Effort::Max) => "max",
        Some(Effort::Medium) | None => "medium",
    };
    match model.thinking {
        Thinking::Adaptive => {
            let mut fields = vec![("thinking", json!({"type": "adaptive"}))];
            if prompt.effort.is_some() {
                fields.push(("output_config", json!({"effort": effort})));
            }
            fields
        }
        Thinking::Budget
            if prompt.effort.is_some() && !answers_without_thought(prompt, model, provider) =>
        {
            let budget = match effort {
                "low" => 4_096,
                "high" => 16_384,
                "max" => 32_768,
                _ => 8_192,
            };
            // The API requires a budget of at least 1,024 that is smaller than the limit.
            match budget.min(limit.saturating_sub(1024)) {
                ..1024 => Vec::new(),
                budget => {
                    let thinking = json!({"type": "enabled", "budget_tokens": budget});
                    vec![("thinking", thinking)]
                }
            }
        }
        Thinking::Budget | Thinking::Effort | Thinking::Unsaid => Vec::new(),
    }
}

/// Whether the request continues after calls that no thinking block of this model precedes, as
/// after a change of model. The API rejects a thinking budget in such a request.
fn answers_without_thought(prompt: &Prompt, model: &Model, provider: &Provider) -> bool {
    let origin = provider.origin(&model.name);
    let from_calls = matches!(prompt.history.last(), Some(Item::FunctionCallOutput(_)));
    let is_user =
        |item: &Item| matches!(item, Item::Message(message) if message.role == Role::User);
    let last_user = prompt.history.iter().rposition(is_user);
    let turn_start = last_user.map_or(0, |index| index + 1);
    let mut turn = prompt.history[turn_start..].iter();
    let first = turn.find(|item| belongs_to_an_answer(item));
    let has_thinking = |item: &Item| match item {
        Item::Reasoning(reasoning) => ours(&reasoning.native, &origin).is_some(),
        _ => false,
    };
    from_calls && !first.is_some_and(has_thinking)
}

/// Returns the messages, in which the roles alternate.
fn turns(prompt: &Prompt, model: &Model, provider: &Provider) -> Vec<Value> {
    let origin = provider.origin(&model.name);
    let history = history(prompt);
    let mut turns: Vec<(Role, Vec<Value>)> = Vec::new();
    for item in &history {
        let (role, blocks) = match item.as_ref() {
            Item::Message(message) => (message.role, said(message, ours(&message.native, &origin))),
            Item::Reasoning(reasoning) => {
                let block = ours(&reasoning.native, &origin).cloned();
                (Role::Assistant, Vec::from_iter(block))
            }
            Item::FunctionCall(call) => {
                let block = called(prompt, call, ours(&call.native, &origin));
                (Role::Assistant, vec![block])
            }
            Item::FunctionCallOutput(output) => (Role::User, vec![result(output)]),
            Item::Native(native) if native.origin == origin => {
                (Role::Assistant, vec![native.json.clone()])
            }
            Item::Native(_) => continue,
        };
        add(&mut turns, role, blocks);
    }
    // A message that becomes empty is dropped, and its neighbours are merged.
    let mut messages: Vec<(Role, Vec<Value>)> = Vec::new();
    for (role, blocks) in turns {
        let blocks = ending_in_more_than_a_thought(blocks);
        if !blocks.is_empty() {
            add(&mut messages, role, blocks);
        }
    }
    let message = |(role, blocks): (Role, _)| json!({"role": role_name(role), "content": blocks});
    messages.into_iter().map(message).collect()
}

/// Appends blocks to the last message if it has the same role, else as a new message.
fn add(turns: &mut Vec<(Role, Vec<Value>)>, role: Role, blocks: Vec<Value>) {
    match turns.last_mut() {
        Some((last, all)) if *last == role => all.extend(blocks),
        _ => turns.push((role, blocks)),
    }
}

/// Removes thinking blocks at the end of a message, which the API rejects. An answer ends with one
/// if it was interrupted while the model was thinking.
fn ending_in_more_than_a_thought(mut blocks: Vec<Value>) -> Vec<Value> {
    let is_thought =
        |block: &Value| block["type"] == "thinking" || block["type"] == "redacted_thinking";
    while blocks.last().is_some_and(is_thought) {
        blocks.pop();
    }
    blocks
}

/// Returns the blocks of a message, without texts that the API rejects as empty.
fn said(message: &Message, extra: Option<&Value>) -> Vec<Value> {
    let mut blocks: Vec<Value> = message.content.iter().filter_map(shown).collect();
    if let (Some(block), Some(Value::Object(extra))) = (blocks.first_mut(), extra) {
        for (key, value) in extra {
            block[key.as_str()] = value.clone();
        }
    }
    blocks
}

fn called(prompt: &Prompt, call: &FunctionCall, extra: Option<&Value>) -> Value {
    let text = prompt.arguments_as_json(call);
    let input = match serde_json::from_str(&text) {
        Ok(Value::Object(input)) => Value::Object(input),
        // The API accepts only objects. The model sees the arguments that it wrote.
        _ => json!({"invalid_json": text}),
    };
    let id = call_id(&call.call_id);
    let mut block = json!({"type": "tool_use", "id": id, "name": call.name, "input": input});
    for (key, value) in extra.and_then(Value::as_object).unwrap_or(&Map::new()) {
        block[key] = value.clone();
    }
    block
}

fn result(output: &FunctionCallOutput) -> Value {
    let mut block = json!({"type": "tool_result", "tool_use_id": call_id(&output.call_id)});
    let parts: Vec<Value> = output.output.iter().filter_map(shown).collect();
    if !parts.is_empty() {
        block["content"] = parts.into();
    }
    if output.failed {
        block["is_error"] = true.into();
    }
    block
}

/// Replaces characters that this API does not allow in ids, such as those of other providers.
fn call_id(id: &str) -> String {
    id.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_")
}

fn shown(part: &OutputPart) -> Option<Value> {
    match part {
        OutputPart::Text { text } if text.trim().is_empty() => None,
        OutputPart::Text { text } => Some(json!({"type": "text", "text": text})),
        OutputPart::Image { data, mime_type } => {
            let source = json!({"type": "base64", "media_type": mime_type, "data": data});
            Some(json!({"type": "image", "source": source}))
        }
        OutputPart::Audio { mime_type, .. } => {
            Some(json!({"type": "text", "text": not_shown(mime_type)}))
        }
    }
}
