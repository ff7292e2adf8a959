//! Encodes a request to a Chat server.

use selvedge_protocol::{FunctionCall, FunctionCallOutput, Item, Message, OutputPart, Role};
use serde_json::{Map, Value, json};

use crate::content::{effort_word, history, image_url, not_shown, ours};
use crate::prompt::Calls;
use crate::{Model, OutputLimit, Prompt, Provider, Thinking, Tool};

/// Returns the body of a request.
pub(crate) fn request(prompt: &Prompt, model: &Model, provider: &Provider) -> Value {
    let mut body = json!({
        "model": model.name,
        "messages": messages(prompt, model, provider),
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    let mut set = |key: &str, value: Value| body[key] = value;
    if prompt.calls != Calls::Off && !prompt.tools.is_empty() {
        set("tools", prompt.tools.iter().map(definition).collect());
        // Many servers do not know this field. Parallel calls are the default.
        if prompt.calls == Calls::Single {
            set("parallel_tool_calls", false.into());
        }
        if prompt.calls == Calls::Forbidden {
            set("tool_choice", "none".into());
        }
    }
    if let (true, Some(effort)) = (model.thinking != Thinking::Unsaid, prompt.effort) {
        set("reasoning_effort", effort_word(effort).into());
    }
    if let Some(limit) = prompt.max_output_tokens {
        let key = match provider.output_limit {
            OutputLimit::MaxTokens => "max_tokens",
            OutputLimit::MaxCompletionTokens => "max_completion_tokens",
        };
        set(key, limit.into());
    }
    // Only OpenAI accepts `prompt_cache_key`, and only OpenAI uses `max_completion_tokens`.
    let is_openai = provider.output_limit == OutputLimit::MaxCompletionTokens;
    if let (true, Some(key)) = (is_openai, &prompt.cache_key) {
        set("prompt_cache_key", key.as_str().into());
    }
    body
}

fn definition(tool: &Tool) -> Value {
    json!({"type": "function", "function": {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.schema(),
    }})
}

fn messages(prompt: &Prompt, model: &Model, provider: &Provider) -> Vec<Value> {
    let origin = provider.origin(&model.name);
    let history = history(prompt);
    let mut messages = Vec::with_capacity(history.len() + 1);
    if !prompt.system.is_empty() {
        messages.push(json!({"role": "system", "content": prompt.system}));
    }
    let mut answer = Answer::default();
    // A result cannot contain images. They follow the last result as a message of the user.
    let mut images: Vec<Value> = Vec::new();
    for item in &history {
        if !matches!(item.as_ref(), Item::FunctionCallOutput(_)) && !images.is_empty() {
            messages.push(json!({"role": "user", "content": std::mem::take(&mut images)}));
        }
        match item.as_ref() {
            Item::Message(message) if message.role == Role::Assistant => {
                answer.text(&message.text(), &mut messages);
            }
            Item::Message(message) => {
                answer.end(&mut messages);
                messages.extend(said(message));
            }
            Item::Reasoning(reasoning) => {
                answer.thought(ours(&reasoning.native, &origin), &mut messages)
            }
            Item::FunctionCall(call) => answer.call(prompt, call, ours(&call.native, &origin)),
            Item::FunctionCallOutput(output) => {
                answer.end(&mut messages);
                messages.push(result(output));
                let is_image = |part: &&OutputPart| matches!(part, OutputPart::Image { .. });
                images.extend(output.output.iter().filter(is_image).map(shown));
            }
            Item::Native(_) => {}
        }
    }
    answer.end(&mut messages);
    if !images.is_empty() {
        messages.push(json!({"role": "user", "content": images}));
    }
    messages
}

/// Collects consecutive items of the model, which are one message in this API.
#[derive(Default)]
struct Answer {
    text: String,
    calls: Vec<Value>,
    thought: Map<String, Value>,
}

impl Answer {
    fn text(&mut self, text: &str, messages: &mut Vec<Value>) {
        // Text after calls is another message.
        if !self.calls.is_empty() {
            self.end(messages);
        }
        self.text.push_str(text);
    }

    fn thought(&mut self, fields: Option<&Value>, messages: &mut Vec<Value>) {
        if !self.calls.is_empty() || !self.text.is_empty() {
            self.end(messages);
        }
        if let Some(Value::Object(fields)) = fields {
            self.thought.extend(fields.clone());
        }
    }

    fn call(&mut self, prompt: &Prompt, call: &FunctionCall, extra: Option<&Value>) {
        let mut json = json!({"id": call.call_id, "type": "function", "function": {
            "name": call.name,
            "arguments": prompt.arguments_as_json(call),
        }});
        for (key, value) in extra.and_then(Value::as_object).into_iter().flatten() {
            json[key] = value.clone();
        }
        self.calls.push(json);
    }

    fn end(&mut self, messages: &mut Vec<Value>) {
        let Self {
            text,
            calls,
            thought,
        } = std::mem::take(self);
        if text.is_empty() && calls.is_empty() {
            return;
        }
        let content = Some(text).filter(|text| !text.is_empty());
        let mut message = json!({"role": "assistant", "content": content});
        if !calls.is_empty() {
            // Reasoning is sent back only with the calls that follow it. Some servers reject it in
            // other messages.
            for (key, value) in thought {
                message[key] = value;
            }
            message["tool_calls"] = calls.into();
        }
        messages.push(message);
    }
}

fn said(message: &Message) -> Option<Value> {
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
            None => parts.iter().map(shown).collect::<Value>(),
        },
    };
    Some(json!({"role": "user", "content": content}))
}

fn result(output: &FunctionCallOutput) -> Value {
    json!({"role": "tool", "tool_call_id": output.call_id, "content": output.text()})
}

fn shown(part: &OutputPart) -> Value {
    match part {
        OutputPart::Text { text } => json!({"type": "text", "text": text}),
        OutputPart::Image { data, mime_type } => {
            json!({"type": "image_url", "image_url": {"url": image_url(data, mime_type)}})
        }
        OutputPart::Audio { mime_type, .. } => {
            json!({"type": "text", "text": not_shown(mime_type)})
        }
    }
}
