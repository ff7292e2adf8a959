//! Encodes a request to a Messages server.

use selvedge_protocol::{
    ConversationItem, FunctionCall, FunctionCallOutput, Message, MessageRole, OutputPart,
};
use serde_json::{Map, Value, json};

use super::cache;
use crate::pairing::is_model_output;
use crate::prompt::ToolCallMode;
use crate::request_parts::{native_for, omitted_note, request_history, role_name};
use crate::{Effort, Model, ModelTool, Prompt, Provider, ReasoningStyle};

/// Returns the body of a request.
pub(crate) fn request_body(prompt: &Prompt, model: &Model, provider: &Provider) -> Value {
    let limit = prompt.max_output_tokens.unwrap_or(model.max_output_tokens);
    let messages = build_messages(prompt, model, provider);
    let mut body =
        json!({"model": model.name, "max_tokens": limit, "messages": messages, "stream": true});
    let mut set = |key: &str, value: Value| body[key] = value;
    if !prompt.system.is_empty() {
        set("system", json!([{"type": "text", "text": prompt.system}]));
    }
    let web_search = json!({"type": "web_search_20250305", "name": "web_search"});
    let web_search = prompt.web_search.then_some(web_search);
    let has_tools = !prompt.tools.is_empty() || web_search.is_some();
    if prompt.call_mode != ToolCallMode::Off && has_tools {
        let tools = prompt.tools.iter().map(tool_definition);
        set("tools", tools.chain(web_search).collect());
        match prompt.call_mode {
            ToolCallMode::Single => {
                let choice = json!({"type": "auto", "disable_parallel_tool_use": true});
                set("tool_choice", choice);
            }
            ToolCallMode::Forbidden => set("tool_choice", json!({"type": "none"})),
            ToolCallMode::Parallel | ToolCallMode::Off => {}
        }
    }
    for (key, value) in thinking_fields(prompt, model, provider, limit) {
        set(key, value);
    }
    cache::add_cache_breakpoints(&mut body);
    body
}

fn tool_definition(tool: &ModelTool) -> Value {
    json!({"name": tool.name, "description": tool.description, "input_schema": tool.json_schema()})
}

/// Returns the fields that control thinking. `limit` is the request's `max_tokens`.
fn thinking_fields(
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
    match model.reasoning {
        ReasoningStyle::Adaptive => {
            let mut fields = vec![("thinking", json!({"type": "adaptive"}))];
            if prompt.effort.is_some() {
                fields.push(("output_config", json!({"effort": effort})));
            }
            fields
        }
        ReasoningStyle::Budget
            if prompt.effort.is_some() && !lacks_thinking_before_calls(prompt, model, provider) =>
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
        ReasoningStyle::Budget | ReasoningStyle::Effort | ReasoningStyle::Omitted => Vec::new(),
    }
}

/// Returns true if the request ends with a result and the first item that the model wrote in this
/// turn is not a thinking block of this model, as after a change of model. The API then rejects a
/// thinking budget.
fn lacks_thinking_before_calls(prompt: &Prompt, model: &Model, provider: &Provider) -> bool {
    let origin = provider.origin(&model.name);
    let from_calls = matches!(
        prompt.history.last(),
        Some(ConversationItem::FunctionCallOutput(_))
    );
    let is_user = |item: &ConversationItem| matches!(item, ConversationItem::Message(message) if message.role == MessageRole::User);
    let last_user = prompt.history.iter().rposition(is_user);
    let turn_start = last_user.map_or(0, |index| index + 1);
    let mut turn = prompt.history[turn_start..].iter();
    let first = turn.find(|item| is_model_output(item));
    let has_thinking = |item: &ConversationItem| match item {
        ConversationItem::Reasoning(reasoning) => native_for(&reasoning.native, &origin).is_some(),
        _ => false,
    };
    from_calls && !first.is_some_and(has_thinking)
}

/// Returns the messages, in which the roles alternate.
fn build_messages(prompt: &Prompt, model: &Model, provider: &Provider) -> Vec<Value> {
    let origin = provider.origin(&model.name);
    let history = request_history(prompt, model);
    let mut messages: Vec<(MessageRole, Vec<Value>)> = Vec::new();
    for item in &history {
        let (role, blocks) = match item.as_ref() {
            ConversationItem::Message(message) => (
                message.role,
                message_blocks(message, native_for(&message.native, &origin)),
            ),
            ConversationItem::Reasoning(reasoning) => {
                let block = native_for(&reasoning.native, &origin).cloned();
                (MessageRole::Assistant, Vec::from_iter(block))
            }
            ConversationItem::FunctionCall(call) => {
                let block = tool_use_block(prompt, call, native_for(&call.native, &origin));
                (MessageRole::Assistant, vec![block])
            }
            ConversationItem::FunctionCallOutput(output) => {
                (MessageRole::User, vec![tool_result_block(output)])
            }
            ConversationItem::Native(native) if native.origin == origin => {
                (MessageRole::Assistant, vec![native.json.clone()])
            }
            ConversationItem::Native(_) => continue,
        };
        append_blocks(&mut messages, role, blocks);
    }
    // A message that becomes empty is dropped, and its neighbours are merged.
    let mut merged: Vec<(MessageRole, Vec<Value>)> = Vec::new();
    for (role, blocks) in messages {
        let blocks = strip_trailing_thinking(blocks);
        if !blocks.is_empty() {
            append_blocks(&mut merged, role, blocks);
        }
    }
    let message =
        |(role, blocks): (MessageRole, _)| json!({"role": role_name(role), "content": blocks});
    merged.into_iter().map(message).collect()
}

/// Appends blocks to the last message if it has the same role, else as a new message.
fn append_blocks(
    messages: &mut Vec<(MessageRole, Vec<Value>)>,
    role: MessageRole,
    blocks: Vec<Value>,
) {
    match messages.last_mut() {
        Some((last, all)) if *last == role => all.extend(blocks),
        _ => messages.push((role, blocks)),
    }
}

/// Removes thinking blocks at the end of a message, which the API rejects. An answer ends with one
/// if it was interrupted while the model was thinking.
fn strip_trailing_thinking(mut blocks: Vec<Value>) -> Vec<Value> {
    let is_thought =
        |block: &Value| block["type"] == "thinking" || block["type"] == "redacted_thinking";
    while blocks.last().is_some_and(is_thought) {
        blocks.pop();
    }
    blocks
}

/// Returns the blocks of a message, without texts that the API rejects as empty.
fn message_blocks(message: &Message, extra: Option<&Value>) -> Vec<Value> {
    let mut blocks: Vec<Value> = message.content.iter().filter_map(content_block).collect();
    if let (Some(block), Some(Value::Object(extra))) = (blocks.first_mut(), extra) {
        for (key, value) in extra {
            block[key.as_str()] = value.clone();
        }
    }
    blocks
}

fn tool_use_block(prompt: &Prompt, call: &FunctionCall, extra: Option<&Value>) -> Value {
    let text = prompt.arguments_as_json(call);
    let input = match serde_json::from_str(&text) {
        Ok(Value::Object(input)) => Value::Object(input),
        // The API accepts only objects. The model sees the arguments that it wrote.
        _ => json!({"invalid_json": text}),
    };
    let id = valid_call_id(&call.call_id);
    let mut block = json!({"type": "tool_use", "id": id, "name": call.name, "input": input});
    for (key, value) in extra.and_then(Value::as_object).unwrap_or(&Map::new()) {
        block[key] = value.clone();
    }
    block
}

fn tool_result_block(output: &FunctionCallOutput) -> Value {
    let mut block = json!({"type": "tool_result", "tool_use_id": valid_call_id(&output.call_id)});
    let parts: Vec<Value> = output.output.iter().filter_map(content_block).collect();
    if !parts.is_empty() {
        block["content"] = parts.into();
    }
    if output.failed {
        block["is_error"] = true.into();
    }
    block
}

/// Replaces characters that this API does not allow in ids, such as those of other providers.
fn valid_call_id(id: &str) -> String {
    id.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_")
}

fn content_block(part: &OutputPart) -> Option<Value> {
    match part {
        OutputPart::Text { text } if text.trim().is_empty() => None,
        OutputPart::Text { text } => Some(json!({"type": "text", "text": text})),
        OutputPart::Image { data, mime_type } => {
            let source = json!({"type": "base64", "media_type": mime_type, "data": data});
            Some(json!({"type": "image", "source": source}))
        }
        OutputPart::Audio { mime_type, .. } => {
            Some(json!({"type": "text", "text": omitted_note(mime_type)}))
        }
    }
}
