//! Encodes a request to a Responses server.

use selvedge_protocol::{
    ConversationItem, FunctionCall, FunctionCallKind, FunctionCallOutput, Message, MessageRole,
    OutputPart,
};
use serde_json::{Value, json};

use crate::pairing::is_model_output;
use crate::prompt::ToolCallMode;
use crate::request_parts::{
    data_url, effort_name, native_for, omitted_note, request_history, role_name,
};
use crate::{Model, ModelTool, ModelToolInput, Prompt, Provider, ReasoningStyle};

/// Returns the body of a request.
pub(crate) fn request_body(prompt: &Prompt, model: &Model, provider: &Provider) -> Value {
    let mut body = json!({
        "model": model.name,
        "input": build_input(prompt, model, provider),
        "stream": true,
        "store": false,
    });
    let mut set = |key: &str, value: Value| body[key] = value;
    if !prompt.system.is_empty() {
        set("instructions", prompt.system.as_str().into());
    }
    let web_search = prompt.web_search.then(|| json!({"type": "web_search"}));
    let has_tools = !prompt.tools.is_empty() || web_search.is_some();
    if prompt.call_mode != ToolCallMode::Off && has_tools {
        let tools = prompt.tools.iter().map(|tool| tool_definition(tool, model));
        set("tools", tools.chain(web_search).collect());
        let is_forbidden = prompt.call_mode == ToolCallMode::Forbidden;
        let choice = if is_forbidden { "none" } else { "auto" };
        set("tool_choice", choice.into());
        let is_parallel = prompt.call_mode != ToolCallMode::Single;
        set("parallel_tool_calls", is_parallel.into());
    }
    if model.reasoning != ReasoningStyle::Omitted {
        // With `store: false`, the reasoning has to be sent back in later requests.
        set("include", json!(["reasoning.encrypted_content"]));
        let mut reasoning = json!({"summary": "auto"});
        if let Some(effort) = prompt.effort {
            reasoning["effort"] = effort_name(effort).into();
        }
        set("reasoning", reasoning);
    }
    if let Some(key) = &prompt.cache_key {
        set("prompt_cache_key", key.as_str().into());
    }
    if let Some(limit) = prompt.max_output_tokens {
        set("max_output_tokens", limit.into());
    }
    body
}

fn tool_definition(tool: &ModelTool, model: &Model) -> Value {
    let (name, description) = (&tool.name, &tool.description);
    match &tool.input {
        ModelToolInput::Freeform { .. } if model.freeform_tools => {
            json!({"type": "custom", "name": name, "description": description})
        }
        // `strict` is true by default, and rejects schemas with optional fields.
        _ => json!({
            "type": "function",
            "name": name,
            "description": description,
            "parameters": tool.json_schema(),
            "strict": tool.strict,
        }),
    }
}

fn build_input(prompt: &Prompt, model: &Model, provider: &Provider) -> Vec<Value> {
    let origin = provider.origin(&model.name);
    let history = request_history(prompt, model);
    let mut input = Vec::with_capacity(history.len());
    for (index, item) in history.iter().enumerate() {
        match item.as_ref() {
            ConversationItem::Message(message) => {
                input.extend(message_item(message, native_for(&message.native, &origin)))
            }
            ConversationItem::Reasoning(reasoning) => {
                // The API rejects reasoning that no other item of the answer follows.
                let next = history.get(index + 1);
                let followed = next.is_some_and(|next| is_model_output(next));
                if let (true, Some(json)) = (followed, native_for(&reasoning.native, &origin)) {
                    let mut json = json.clone();
                    // The API rejects the id of an item that it did not store. Encrypted
                    // reasoning needs no id.
                    if json["encrypted_content"].is_string()
                        && let Some(fields) = json.as_object_mut()
                    {
                        fields.remove("id");
                    }
                    input.push(json);
                }
            }
            ConversationItem::FunctionCall(call) => input.push(call_item(
                prompt,
                call,
                model,
                native_for(&call.native, &origin),
            )),
            ConversationItem::FunctionCallOutput(output) => {
                let kind = sent_call_kind(&history[..index], output, model);
                input.push(output_item(output, kind));
            }
            ConversationItem::Native(native) if native.origin == origin => {
                input.push(native.json.clone())
            }
            ConversationItem::Native(_) => {}
        }
    }
    input
}

fn message_item(message: &Message, extra: Option<&Value>) -> Option<Value> {
    let parts: Vec<Value> = match message.role {
        MessageRole::User => message.content.iter().map(content_part).collect(),
        MessageRole::Assistant => match message.text() {
            text if text.is_empty() => Vec::new(),
            text => vec![json!({"type": "output_text", "text": text})],
        },
    };
    let role = role_name(message.role);
    let item = json!({"type": "message", "role": role, "content": parts});
    (!parts.is_empty()).then(|| with_native_fields(item, extra))
}

fn call_item(prompt: &Prompt, call: &FunctionCall, model: &Model, extra: Option<&Value>) -> Value {
    let (id, name) = (&call.call_id, &call.name);
    let item = match call.kind {
        FunctionCallKind::Freeform if model.freeform_tools => {
            let input = &call.arguments;
            json!({"type": "custom_tool_call", "call_id": id, "name": name, "input": input})
        }
        _ => {
            let arguments = prompt.arguments_as_json(call);
            json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments})
        }
    };
    with_native_fields(item, extra)
}

/// Returns the kind as which the call of this result was sent.
fn sent_call_kind(
    before: &[std::borrow::Cow<'_, ConversationItem>],
    output: &FunctionCallOutput,
    model: &Model,
) -> FunctionCallKind {
    let call = before.iter().rev().find_map(|item| match item.as_ref() {
        ConversationItem::FunctionCall(call) if call.call_id == output.call_id => Some(call.kind),
        _ => None,
    });
    call.filter(|_| model.freeform_tools).unwrap_or_default()
}

fn output_item(output: &FunctionCallOutput, kind: FunctionCallKind) -> Value {
    let is_text = |part: &OutputPart| matches!(part, OutputPart::Text { .. });
    let content: Value = match output.output.iter().all(is_text) {
        true => output.text().into(),
        false => output.output.iter().map(content_part).collect(),
    };
    let name = match kind {
        FunctionCallKind::Function => "function_call_output",
        FunctionCallKind::Freeform => "custom_tool_call_output",
    };
    json!({"type": name, "call_id": output.call_id, "output": content})
}

fn content_part(part: &OutputPart) -> Value {
    match part {
        OutputPart::Text { text } => json!({"type": "input_text", "text": text}),
        OutputPart::Image { data, mime_type } => {
            json!({"type": "input_image", "image_url": data_url(data, mime_type)})
        }
        OutputPart::Audio { mime_type, .. } => {
            json!({"type": "input_text", "text": omitted_note(mime_type)})
        }
    }
}

/// Adds native fields that the item does not have.
fn with_native_fields(mut item: Value, extra: Option<&Value>) -> Value {
    if let (Some(fields), Some(Value::Object(extra))) = (item.as_object_mut(), extra) {
        for (key, value) in extra {
            fields.entry(key).or_insert_with(|| value.clone());
        }
    }
    item
}
