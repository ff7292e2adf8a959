//! Encodes a request to a Chat server.

use selvedge_protocol::{
    ConversationItem, FunctionCall, FunctionCallOutput, Message, MessageRole, OutputPart,
};
use serde_json::{Map, Value, json};

use crate::prompt::ToolCallMode;
use crate::request_parts::{data_url, effort_name, native_for, omitted_note, request_history};
use crate::{Model, ModelTool, OutputLimitField, Prompt, Provider, ReasoningStyle};

/// Returns the body of a request.
pub(crate) fn request_body(prompt: &Prompt, model: &Model, provider: &Provider) -> Value {
    let mut body = json!({
        "model": model.name,
        "messages": build_messages(prompt, model, provider),
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    let mut set = |key: &str, value: Value| body[key] = value;
    if prompt.call_mode != ToolCallMode::Off && !prompt.tools.is_empty() {
        set("tools", prompt.tools.iter().map(tool_definition).collect());
        // Many servers do not know this field. Parallel calls are the default.
        if prompt.call_mode == ToolCallMode::Single {
            set("parallel_tool_calls", false.into());
        }
        if prompt.call_mode == ToolCallMode::Forbidden {
            set("tool_choice", "none".into());
        }
    }
    if let (true, Some(effort)) = (model.reasoning != ReasoningStyle::Omitted, prompt.effort) {
        set("reasoning_effort", effort_name(effort).into());
    }
    if let Some(limit) = prompt.max_output_tokens {
        let key = match provider.output_limit {
            OutputLimitField::MaxTokens => "max_tokens",
            OutputLimitField::MaxCompletionTokens => "max_completion_tokens",
        };
        set(key, limit.into());
    }
    // Only OpenAI accepts `prompt_cache_key`, and only OpenAI uses `max_completion_tokens`.
    let is_openai = provider.output_limit == OutputLimitField::MaxCompletionTokens;
    if let (true, Some(key)) = (is_openai, &prompt.cache_key) {
        set("prompt_cache_key", key.as_str().into());
    }
    body
}

fn tool_definition(tool: &ModelTool) -> Value {
    let mut function = json!({
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.json_schema(),
    });
    // Many servers do not know the field.
    if tool.strict {
        function["strict"] = true.into();
    }
    json!({"type": "function", "function": function})
}

fn build_messages(prompt: &Prompt, model: &Model, provider: &Provider) -> Vec<Value> {
    let origin = provider.origin(&model.name);
    let history = request_history(prompt, model);
    let mut messages = Vec::with_capacity(history.len() + 1);
    if !prompt.system.is_empty() {
        messages.push(json!({"role": "system", "content": prompt.system}));
    }
    let mut answer = ChatMessageBuilder::default();
    // A result cannot contain images. They follow the last result as a message of the user.
    let mut images: Vec<Value> = Vec::new();
    for item in &history {
        if !matches!(item.as_ref(), ConversationItem::FunctionCallOutput(_)) && !images.is_empty() {
            messages.push(json!({"role": "user", "content": std::mem::take(&mut images)}));
        }
        match item.as_ref() {
            ConversationItem::Message(message) if message.role == MessageRole::Assistant => {
                answer.add_text(&message.text(), &mut messages);
            }
            ConversationItem::Message(message) => {
                answer.flush(&mut messages);
                messages.extend(user_message(message));
            }
            ConversationItem::Reasoning(reasoning) => {
                answer.add_reasoning(native_for(&reasoning.native, &origin), &mut messages)
            }
            ConversationItem::FunctionCall(call) => {
                answer.add_call(prompt, call, native_for(&call.native, &origin))
            }
            ConversationItem::FunctionCallOutput(output) => {
                answer.flush(&mut messages);
                messages.push(tool_message(output));
                let is_image = |part: &&OutputPart| matches!(part, OutputPart::Image { .. });
                images.extend(output.output.iter().filter(is_image).map(content_part));
            }
            ConversationItem::Native(_) => {}
        }
    }
    answer.flush(&mut messages);
    if !images.is_empty() {
        messages.push(json!({"role": "user", "content": images}));
    }
    messages
}

/// Collects consecutive items of the model, which are one message in this API.
#[derive(Default)]
struct ChatMessageBuilder {
    text: String,
    calls: Vec<Value>,
    reasoning: Map<String, Value>,
}

impl ChatMessageBuilder {
    fn add_text(&mut self, text: &str, messages: &mut Vec<Value>) {
        // Text after calls is another message.
        if !self.calls.is_empty() {
            self.flush(messages);
        }
        self.text.push_str(text);
    }

    fn add_reasoning(&mut self, fields: Option<&Value>, messages: &mut Vec<Value>) {
        if !self.calls.is_empty() || !self.text.is_empty() {
            self.flush(messages);
        }
        if let Some(Value::Object(fields)) = fields {
            self.reasoning.extend(fields.clone());
        }
    }

    fn add_call(&mut self, prompt: &Prompt, call: &FunctionCall, extra: Option<&Value>) {
        let mut json = json!({"id": call.call_id, "type": "function", "function": {
            "name": call.name,
            "arguments": prompt.arguments_as_json(call),
        }});
        for (key, value) in extra.and_then(Value::as_object).into_iter().flatten() {
            json[key] = value.clone();
        }
        self.calls.push(json);
    }

    fn flush(&mut self, messages: &mut Vec<Value>) {
        let Self {
            text,
            calls,
            reasoning,
        } = std::mem::take(self);
        if text.is_empty() && calls.is_empty() {
            return;
        }
        let content = Some(text).filter(|text| !text.is_empty());
        let mut message = json!({"role": "assistant", "content": content});
        if !calls.is_empty() {
            // Reasoning is sent back only with the calls that follow it. Some servers reject it in
            // other messages.
            for (key, value) in reasoning {
                message[key] = value;
            }
            message["tool_calls"] = calls.into();
        }
        messages.push(message);
    }
}

fn user_message(message: &Message) -> Option<Value> {
    let text = |part: &OutputPart| match part {
        OutputPart::Text { text } => Some(text.clone()),
        _ => None,
    };
    let content = match &message.content[..] {
        [] => return None,
        [OutputPart::Text { text }] if text.is_empty() => return None,
        // Many servers accept only a string.
        parts => match parts.iter().map(text).collect::<Option<Vec<_>>>() {
            Some(texts) => texts.join("\n\n").into(),
            None => parts.iter().map(content_part).collect::<Value>(),
        },
    };
    Some(json!({"role": "user", "content": content}))
}

fn tool_message(output: &FunctionCallOutput) -> Value {
    json!({"role": "tool", "tool_call_id": output.call_id, "content": output.text()})
}

fn content_part(part: &OutputPart) -> Value {
    match part {
        OutputPart::Text { text } => json!({"type": "text", "text": text}),
        OutputPart::Image { data, mime_type } => {
            json!({"type": "image_url", "image_url": {"url": data_url(data, mime_type)}})
        }
        OutputPart::Audio { mime_type, .. } => {
            json!({"type": "text", "text": omitted_note(mime_type)})
        }
    }
}
