//! Assembles an item of an answer from its deltas, its final form, or both.

use selvedge_protocol::{
    CallKind, FunctionCall, Item, Message, Native, Origin, OutputPart, Reasoning, Role,
};
use serde_json::{Value, json};

use crate::ReasoningView;
use crate::decode::Emitter;
use crate::json::{others, text_at};

/// An item as received so far.
#[derive(Debug, Default)]
pub(super) struct Partial {
    pub(super) index: Option<u64>,
    pub(super) id: String,
    pub(super) kind: Kind,
    pub(super) call_id: String,
    pub(super) name: String,
    /// Text of a message, or arguments of a call.
    pub(super) text: String,
    pub(super) refusal: String,
    pub(super) summary: Vec<String>,
    pub(super) content: Vec<String>,
    /// Whether `CallStarted` was emitted.
    pub(super) announced: bool,
    /// Whether the item was emitted as complete.
    pub(super) done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Kind {
    Message,
    Reasoning,
    Call(CallKind),
    /// Server-side tools, and types that are not known here.
    #[default]
    Other,
}

/// An item in its final form.
pub(super) enum Done {
    Item(Item),
    CutCall(FunctionCall),
}

impl Kind {
    pub(super) fn of(item: &Value) -> Self {
        match item["type"].as_str() {
            Some("message") => Self::Message,
            Some("reasoning") => Self::Reasoning,
            Some("function_call") => Self::Call(CallKind::Function),
            Some("custom_tool_call") => Self::Call(CallKind::Freeform),
            _ => Self::Other,
        }
    }
}

impl Partial {
    /// Emits `CallStarted` once, as soon as the name of the call is known.
    pub(super) fn announce(&mut self, item: u32, out: &mut Emitter<'_>) {
        let Kind::Call(kind) = self.kind else { return };
        if self.name.is_empty() || std::mem::replace(&mut self.announced, true) {
            return;
        }
        out.call_started(item, &self.call_id, &self.name, kind);
    }

    /// Emits the text of the final form that was not streamed.
    pub(super) fn show_unstreamed(&mut self, item: u32, value: &Value, out: &mut Emitter<'_>) {
        self.kind = Kind::of(value);
        match self.kind {
            Kind::Message if self.text.is_empty() => out.text(item, &message_text(value)),
            Kind::Reasoning => {
                for (streamed, view, parts) in [
                    (&self.summary, ReasoningView::Summary, &value["summary"]),
                    (&self.content, ReasoningView::Raw, &value["content"]),
                ] {
                    if streamed.is_empty() {
                        out.reasoning(item, view, &texts(parts).join("\n"));
                    }
                }
            }
            Kind::Call(kind) => {
                let (name, call_id) = (text_at(value, "name"), text_at(value, "call_id"));
                if !name.is_empty() {
                    self.name = name;
                }
                if !call_id.is_empty() {
                    self.call_id = call_id;
                }
                self.announce(item, out);
                if self.text.is_empty() {
                    out.call_delta(item, &arguments(value, kind));
                }
            }
            Kind::Message | Kind::Other => {}
        }
    }

    /// Returns the text of a refusal, from the final form or else from the deltas.
    pub(super) fn refusal_of(&self, value: &Value) -> Option<String> {
        let parts = value["content"].as_array().into_iter().flatten();
        let refusal: String = parts.filter_map(|part| part["refusal"].as_str()).collect();
        let mut sources = [refusal, self.refusal.clone()].into_iter();
        sources.find(|text| !text.is_empty())
    }

    /// Returns the item from its final form. Texts that are missing there are taken from the
    /// deltas.
    pub(super) fn finish(&mut self, mut value: Value, origin: &Origin) -> Done {
        let native = |json: Value| {
            Some(Native {
                origin: origin.clone(),
                json,
            })
        };
        Done::Item(match self.kind {
            Kind::Message => {
                let text = match message_text(&value) {
                    text if text.is_empty() => std::mem::take(&mut self.text),
                    text => text,
                };
                let text = Some(text).filter(|text| !text.is_empty());
                let extra = others(&value, &["type", "id", "status", "role", "content"]);
                Item::Message(Message {
                    role: Role::Assistant,
                    content: Vec::from_iter(text.map(|text| OutputPart::Text { text })),
                    native: extra.and_then(|extra| native(Value::Object(extra))),
                })
            }
            Kind::Reasoning => {
                let or_streamed =
                    |texts: Vec<String>, streamed: &mut Vec<String>| match texts.is_empty() {
                        true => std::mem::take(streamed),
                        false => texts,
                    };
                let summary = or_streamed(texts(&value["summary"]), &mut self.summary);
                let content = or_streamed(texts(&value["content"]), &mut self.content);
                if let Some(fields) = value.as_object_mut() {
                    fields.remove("status");
                }
                Item::Reasoning(Reasoning {
                    summary,
                    content,
                    native: native(value),
                })
            }
            Kind::Call(kind) => {
                let arguments = match arguments(&value, kind) {
                    text if text.is_empty() => std::mem::take(&mut self.text),
                    text => text,
                };
                let known = [
                    "type",
                    "id",
                    "call_id",
                    "name",
                    "arguments",
                    "input",
                    "status",
                ];
                let extra = others(&value, &known);
                let mut call = FunctionCall {
                    call_id: self.call_id.clone(),
                    name: self.name.clone(),
                    arguments,
                    kind,
                    native: extra.and_then(|extra| native(Value::Object(extra))),
                };
                if value["status"] == "incomplete" {
                    return Done::CutCall(call);
                }
                if kind == CallKind::Function && call.arguments.trim().is_empty() {
                    call.arguments = "{}".to_owned();
                }
                Item::FunctionCall(call)
            }
            Kind::Other => Item::Native(Native {
                origin: origin.clone(),
                json: value,
            }),
        })
    }

    /// Builds a final form for an item whose final form was not received.
    pub(super) fn rebuild(&self, status: &str) -> Value {
        match self.kind {
            Kind::Message => json!({"type": "message", "status": status, "content": []}),
            Kind::Reasoning => {
                let part = |kind: &str, texts: &[String]| -> Value {
                    let parts = texts.iter();
                    parts
                        .map(|text| json!({"type": kind, "text": text}))
                        .collect()
                };
                let mut item =
                    json!({"type": "reasoning", "summary": part("summary_text", &self.summary)});
                if !self.content.is_empty() {
                    item["content"] = part("reasoning_text", &self.content);
                }
                item
            }
            Kind::Call(CallKind::Function) => json!({"type": "function_call", "status": status}),
            Kind::Call(CallKind::Freeform) => json!({"type": "custom_tool_call", "status": status}),
            Kind::Other => json!({"status": status}),
        }
    }
}

fn arguments(value: &Value, kind: CallKind) -> String {
    let key = match kind {
        CallKind::Function => "arguments",
        CallKind::Freeform => "input",
    };
    match &value[key] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        // Some servers send the arguments as an object, not as a string.
        other => other.to_string(),
    }
}

fn message_text(value: &Value) -> String {
    let parts = value["content"].as_array().into_iter().flatten();
    parts
        .filter_map(|part| part["text"].as_str().or(part["refusal"].as_str()))
        .collect()
}

fn texts(list: &Value) -> Vec<String> {
    let parts = list.as_array().into_iter().flatten();
    let texts = parts.map(|part| text_at(part, "text"));
    texts.filter(|text| !text.is_empty()).collect()
}
