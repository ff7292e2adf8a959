//! Encodes a request to a Responses server.

use selvedge_protocol::{
    CallKind, FunctionCall, FunctionCallOutput, Item, Message, OutputPart, Role,
};
use serde_json::{Value, json};

use crate::content::{effort_word, history, image_url, not_shown, ours, role_name};
use crate::pairing::belongs_to_an_answer;
use crate::prompt::Calls;
use crate::{Model, Prompt, Provider, Thinking, Tool, ToolInput};

/// Returns the body of a request.
pub(crate) fn request(prompt: &Prompt, model: &Model, provider: &Provider) -> Value {
    let mut body = json!({
        "model": model.name,
        "input": input(prompt, model, provider),
        "stream": true,
        "store": false,
    });
    let mut set = |key: &str, value: Value| body[key] = value;
    if !prompt.system.is_empty() {
        set("instructions", prompt.system.as_str().into());
    }
    if prompt.calls != Calls::Off && !prompt.tools.is_empty() {
        let tools = prompt.tools.iter().map(|tool| definition(tool, model));
        set("tools", tools.collect());
        let is_forbidden = prompt.calls == Calls::Forbidden;
        let choice = if is_forbidden { "none" } else { "auto" };
        set("tool_choice", choice.into());
        let is_parallel = prompt.calls != Calls::Single;
        set("parallel_tool_calls", is_parallel.into());
    }
    if model.thinking != Thinking::Unsaid {
        // With `store: false`, the reasoning has to be sent back in later requests.
        set("include", json!(["reasoning.encrypted_content"]));
        let mut reasoning = json!({"summary": "auto"});
        if let Some(effort) = prompt.effort {
            reasoning["effort"] = effort_word(effort).into();
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

fn definition(tool: &Tool, model: &Model) -> Value {
    let (name, description) = (&tool.name, &tool.description);
    match &tool.input {
        ToolInput::Freeform { .. } if model.freeform_tools => {
            json!({"type": "custom", "name": name, "description": description})
        }
        // `strict` is true by default, and rejects schemas with optional fields.
        _ => json!({
            "type": "function",
            "name": name,
            "description": description,
            "parameters": tool.schema(),
            "strict": false,
        }),
    }
}

fn input(prompt: &Prompt, model: &Model, provider: &Provider) -> Vec<Value> {
    let origin = provider.origin(&model.name);
    let history = history(prompt);
    let mut input = Vec::with_capacity(history.len());
    for (index, item) in history.iter().enumerate() {
        match item.as_ref() {
            Item::Message(message) => input.extend(said(message, ours(&message.native, &origin))),
            Item::Reasoning(reasoning) => {
                // The API rejects reasoning that no other item of the answer follows.
                let next = history.get(index + 1);
                let followed = next.is_some_and(|next| belongs_to_an_answer(next));
                if let (true, Some(json)) = (followed, ours(&reasoning.native, &origin)) {
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
            Item::FunctionCall(call) => {
                input.push(called(prompt, call, model, ours(&call.native, &origin)))
            }
            Item::FunctionCallOutput(output) => {
                let kind = freeform_call(&history[..index], output, model);
                input.push(result(output, kind));
            }
            Item::Native(native) if native.origin == origin => input.push(native.json.clone()),
            Item::Native(_) => {}
        }
    }
    input
}

fn said(message: &Message, extra: Option<&Value>) -> Option<Value> {
    let parts: Vec<Value> = match message.role {
        Role::User => message.content.iter().map(shown).collect(),
        Role::Assistant => match message.text() {
            text if text.is_empty() => Vec::new(),
            text => vec![json!({"type": "output_text", "text": text})],
        },
    };
    let role = role_name(message.role);
    let item = json!({"type": "message", "role": role, "content": parts});
    (!parts.is_empty()).then(|| with(item, extra))
}

fn called(prompt: &Prompt, call: &FunctionCall, model: &Model, extra: Option<&Value>) -> Value {
    let (id, name) = (&call.call_id, &call.name);
    let item = match call.kind {
        CallKind::Freeform if model.freeform_tools => {
            let input = &call.arguments;
            json!({"type": "custom_tool_call", "call_id": id, "name": name, "input": input})
        }
        _ => {
            let arguments = prompt.arguments_as_json(call);
            json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments})
        }
    };
    with(item, extra)
}

/// Returns the kind as which the call of this result was sent.
fn freeform_call(
    before: &[std::borrow::Cow<'_, Item>],
    output: &FunctionCallOutput,
    model: &Model,
) -> CallKind {
    let call = before.iter().rev().find_map(|item| match item.as_ref() {
        Item::FunctionCall(call) if call.call_id == output.call_id => Some(call.kind),
        _ => None,
    });
    call.filter(|_| model.freeform_tools).unwrap_or_default()
}

fn result(output: &FunctionCallOutput, kind: CallKind) -> Value {
    let is_text = |part: &OutputPart| matches!(part, OutputPart::Text { .. });
    let content: Value = match output.output.iter().all(is_text) {
        true => output.text().into(),
        false => output.output.iter().map(shown).collect(),
    };
    let name = match kind {
        CallKind::Function => "function_call_output",
        CallKind::Freeform => "custom_tool_call_output",
    };
    json!({"type": name, "call_id": output.call_id, "output": content})
}

fn shown(part: &OutputPart) -> Value {
    match part {
        OutputPart::Text { text } => json!({"type": "input_text", "text": text}),
        OutputPart::Image { data, mime_type } => {
            json!({"type": "input_image", "image_url": image_url(data, mime_type)})
        }
        OutputPart::Audio { mime_type, .. } => {
            json!({"type": "input_text", "text": not_shown(mime_type)})
        }
    }
}

/// Adds native fields that the item does not have.
fn with(mut item: Value, extra: Option<&Value>) -> Value {
    if let (Some(fields), Some(Value::Object(extra))) = (item.as_object_mut(), extra) {
        for (key, value) in extra {
            fields.entry(key).or_insert_with(|| value.clone());
        }
    }
    item
}
