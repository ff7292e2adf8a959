//! Assembles an item of an answer from its deltas, its final form, or both.

use selvedge_protocol::{
    ConversationItem, FunctionCall, FunctionCallKind, Message, MessageRole, ModelOrigin,
    NativePayload, OutputPart, Reasoning,
};
use serde_json::{Value, json};

use crate::ReasoningView;
use crate::decode::EventCollector;
use crate::lenient_json::{other_fields, string_at};

/// An item as received so far.
#[derive(Debug, Default)]
pub(super) struct PartialResponsesItem {
    pub(super) index: Option<u64>,
    pub(super) id: String,
    pub(super) kind: ResponsesItemKind,
    pub(super) call_id: String,
    pub(super) name: String,
    /// Text of a message, or arguments of a call.
    pub(super) text: String,
    pub(super) refusal: String,
    pub(super) summary: Vec<String>,
    pub(super) content: Vec<String>,
    /// Whether `CallStarted` was emitted.
    pub(super) call_started_emitted: bool,
    /// Whether the item was emitted as complete.
    pub(super) is_done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ResponsesItemKind {
    Message,
    Reasoning,
    Call(FunctionCallKind),
    /// Server-side tools, and types that are not known here.
    #[default]
    Other,
}

/// An item in its final form.
pub(super) enum FinishedItem {
    Item(ConversationItem),
    TruncatedCall(FunctionCall),
}

impl ResponsesItemKind {
    pub(super) fn from_json(item: &Value) -> Self {
        match item["type"].as_str() {
            Some("message") => Self::Message,
            Some("reasoning") => Self::Reasoning,
            Some("function_call") => Self::Call(FunctionCallKind::Function),
            Some("custom_tool_call") => Self::Call(FunctionCallKind::Freeform),
            _ => Self::Other,
        }
    }
}

impl PartialResponsesItem {
    /// Emits `CallStarted` once, as soon as the name of the call is known.
    pub(super) fn emit_call_started(&mut self, item: u32, out: &mut EventCollector<'_>) {
        let ResponsesItemKind::Call(kind) = self.kind else {
            return;
        };
        if self.name.is_empty() || std::mem::replace(&mut self.call_started_emitted, true) {
            return;
        }
        out.call_started(item, &self.call_id, &self.name, kind);
    }

    /// Emits the text of the final form that was not streamed.
    pub(super) fn emit_unstreamed(
        &mut self,
        item: u32,
        value: &Value,
        out: &mut EventCollector<'_>,
    ) {
        self.kind = ResponsesItemKind::from_json(value);
        match self.kind {
            ResponsesItemKind::Message if self.text.is_empty() => {
                out.text(item, &message_text(value))
            }
            ResponsesItemKind::Reasoning => {
                for (streamed, view, parts) in [
                    (&self.summary, ReasoningView::Summary, &value["summary"]),
                    (&self.content, ReasoningView::Raw, &value["content"]),
                ] {
                    if streamed.is_empty() {
                        out.reasoning(item, view, &part_texts(parts).join("\n"));
                    }
                }
            }
            ResponsesItemKind::Call(kind) => {
                let (name, call_id) = (string_at(value, "name"), string_at(value, "call_id"));
                if !name.is_empty() {
                    self.name = name;
                }
                if !call_id.is_empty() {
                    self.call_id = call_id;
                }
                self.emit_call_started(item, out);
                if self.text.is_empty() {
                    out.call_delta(item, &arguments_text(value, kind));
                }
            }
            ResponsesItemKind::Message | ResponsesItemKind::Other => {}
        }
    }

    /// Returns the text of a refusal, from the final form or else from the deltas.
    pub(super) fn refusal_text(&self, value: &Value) -> Option<String> {
        let parts = value["content"].as_array().into_iter().flatten();
        let refusal: String = parts.filter_map(|part| part["refusal"].as_str()).collect();
        let mut sources = [refusal, self.refusal.clone()].into_iter();
        sources.find(|text| !text.is_empty())
    }

    /// Returns the item from its final form. Texts that are missing there are taken from the
    /// deltas.
    pub(super) fn finish_item(&mut self, mut value: Value, origin: &ModelOrigin) -> FinishedItem {
        let native = |json: Value| {
            Some(NativePayload {
                origin: origin.clone(),
                json,
            })
        };
        FinishedItem::Item(match self.kind {
            ResponsesItemKind::Message => {
                let text = match message_text(&value) {
                    text if text.is_empty() => std::mem::take(&mut self.text),
                    text => text,
                };
                let text = Some(text).filter(|text| !text.is_empty());
                let extra = other_fields(&value, &["type", "id", "status", "role", "content"]);
                ConversationItem::Message(Message {
                    role: MessageRole::Assistant,
                    content: Vec::from_iter(text.map(|text| OutputPart::Text { text })),
                    native: extra.and_then(|extra| native(Value::Object(extra))),
                })
            }
            ResponsesItemKind::Reasoning => {
                let or_streamed =
                    |texts: Vec<String>, streamed: &mut Vec<String>| match texts.is_empty() {
                        true => std::mem::take(streamed),
                        false => texts,
                    };
                let summary = or_streamed(part_texts(&value["summary"]), &mut self.summary);
                let content = or_streamed(part_texts(&value["content"]), &mut self.content);
                if let Some(fields) = value.as_object_mut() {
                    fields.remove("status");
                }
                ConversationItem::Reasoning(Reasoning {
                    summary,
                    content,
                    native: native(value),
                })
            }
            ResponsesItemKind::Call(kind) => {
                let arguments = match arguments_text(&value, kind) {
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
                let extra = other_fields(&value, &known);
                let mut call = FunctionCall {
                    call_id: self.call_id.clone(),
                    name: self.name.clone(),
                    arguments,
                    kind,
                    native: extra.and_then(|extra| native(Value::Object(extra))),
                };
                if value["status"] == "incomplete" {
                    return FinishedItem::TruncatedCall(call);
                }
                if kind == FunctionCallKind::Function && call.arguments.trim().is_empty() {
                    call.arguments = "{}".to_owned();
                }
                ConversationItem::FunctionCall(call)
            }
            ResponsesItemKind::Other => ConversationItem::Native(NativePayload {
                origin: origin.clone(),
                json: value,
            }),
        })
    }

    /// Builds a final form for an item whose final form was not received.
    pub(super) fn build_final_form(&self, status: &str) -> Value {
        match self.kind {
            ResponsesItemKind::Message => {
                json!({"type": "message", "status": status, "content": []})
            }
            ResponsesItemKind::Reasoning => {
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
            ResponsesItemKind::Call(FunctionCallKind::Function) => {
                json!({"type": "function_call", "status": status})
            }
            ResponsesItemKind::Call(FunctionCallKind::Freeform) => {
                json!({"type": "custom_tool_call", "status": status})
            }
            ResponsesItemKind::Other => json!({"status": status}),
        }
    }
}

fn arguments_text(value: &Value, kind: FunctionCallKind) -> String {
    let key = match kind {
        FunctionCallKind::Function => "arguments",
        FunctionCallKind::Freeform => "input",
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

fn part_texts(list: &Value) -> Vec<String> {
    let parts = list.as_array().into_iter().flatten();
    let texts = parts.map(|part| string_at(part, "text"));
    texts.filter(|text| !text.is_empty()).collect()
}
