//! Decodes the answer of a Messages server.

use selvedge_protocol::{
    ConversationItem, FinishReason, FunctionCall, FunctionCallKind, Message, MessageRole,
    ModelOrigin, NativePayload, OutputPart, Reasoning,
};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::event::{MessagesDelta, MessagesEvent, MessagesUsage};
use crate::decode::{DONE_MARKER, EventCollector, WireDecoder, incomplete_answer};
use crate::lenient_json::{other_fields, parse_event, parse_optional_part, string_at};
use crate::{ModelError, ModelEvent, ReasoningView};

/// An answer as received so far.
#[derive(Debug)]
pub(crate) struct MessagesAnswerDecoder {
    origin: ModelOrigin,
    started: bool,
    /// Number of blocks so far, which is the index of the next one.
    block_count: u32,
    /// The block that is being received.
    open_block: Option<MessagesBlock>,
    /// A received call that is not emitted yet: the stop reason may tell that it was truncated.
    pending_call: Option<(u32, FunctionCall)>,
    /// Whether a call was emitted.
    has_calls: bool,
    usage: MessagesUsage,
    stop_reason: Option<(FinishReason, Option<String>)>,
    finished: bool,
}

#[derive(Debug)]
struct MessagesBlock {
    item: u32,
    index: Option<u64>,
    /// Content of the `content_block_start` event.
    start: Value,
    kind: MessagesBlockKind,
    /// Text, reasoning or arguments, joined from the deltas.
    text: String,
    signature: String,
    citations: Vec<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessagesBlockKind {
    Text,
    Thinking,
    Call,
    /// Redacted thinking, and blocks of server-side tools.
    Other,
}

impl MessagesAnswerDecoder {
    pub(crate) fn new(origin: ModelOrigin) -> Self {
        Self {
            origin,
            started: false,
            block_count: 0,
            open_block: None,
            pending_call: None,
            has_calls: false,
            usage: MessagesUsage::default(),
            stop_reason: None,
            finished: false,
        }
    }
}

impl WireDecoder for MessagesAnswerDecoder {
    fn decode_event(
        &mut self,
        _name: &[u8],
        data: &[u8],
        out: &mut EventCollector<'_>,
    ) -> Result<(), ModelError> {
        if self.finished || data == DONE_MARKER {
            return Ok(());
        }
        let event: MessagesEvent<'_> = parse_event(data)?;
        match event.kind.or_empty() {
            "content_block_delta" => {
                if let (Some(delta), Some(block)) = (event.delta, &mut self.open_block) {
                    // A delta of another block is an error of the server and is ignored.
                    if event.index.0.is_none() || event.index.0 == block.index {
                        out.count_bytes(data.len())?;
                        block.add_delta(&delta, data, out)?;
                    }
                }
            }
            "content_block_start" => {
                let start = parse_optional_part(event.content_block)?;
                out.count_item()?;
                out.count_bytes(event.content_block.map_or(0, |raw| raw.get().len()))?;
                self.start_block(event.index.0, start, out);
            }
            "content_block_stop" => self.stop_block(out),
            "message_start" => self.start_message(event.message, out)?,
            "message_delta" => {
                self.usage.update(event.usage);
                let delta = event.delta.unwrap_or_default();
                if let Some(reason) = delta.stop_reason.get() {
                    let details = &parse_event::<Value>(data)?["delta"]["stop_details"];
                    self.set_stop_reason(reason, details, out);
                }
            }
            "message_stop" => self.emit_finished(out),
            "error" => return Err(crate::classify::error_from_json(&parse_event(data)?)),
            _ => {}
        }
        Ok(())
    }

    fn decode_body(&mut self, body: &[u8], out: &mut EventCollector<'_>) -> Result<(), ModelError> {
        let message: Value = parse_event(body)?;
        if message["error"].is_object() {
            return Err(crate::classify::error_from_json(&message));
        }
        self.emit_started(&message, out);
        for block in message["content"].as_array().into_iter().flatten() {
            out.count_item()?;
            self.start_block(None, block.clone(), out);
            self.stop_block(out);
        }
        if let Some(reason) = message["stop_reason"].as_str() {
            self.set_stop_reason(reason, &message["stop_details"], out);
            self.emit_finished(out);
        }
        Ok(())
    }

    fn decode_end(&mut self, out: &mut EventCollector<'_>) -> Result<(), ModelError> {
        if !self.finished {
            if self.stop_reason.is_none() {
                return Err(incomplete_answer());
            }
            self.emit_finished(out);
        }
        Ok(())
    }

    fn needs_no_more_input(&self) -> bool {
        self.finished
    }

    fn may_end_here(&self) -> bool {
        self.finished || self.stop_reason.is_some()
    }
}

impl MessagesAnswerDecoder {
    fn start_message(
        &mut self,
        message: Option<&RawValue>,
        out: &mut EventCollector<'_>,
    ) -> Result<(), ModelError> {
        if std::mem::replace(&mut self.started, true) {
            // A gateway that lost its upstream starts the answer again in the same stream.
            if self.has_calls {
                let why = "the provider restarted the answer after a complete call";
                return Err(ModelError::protocol(why));
            }
            *self = Self {
                started: true,
                ..Self::new(self.origin.clone())
            };
            out.push(ModelEvent::Restarted);
        }
        self.emit_started(&parse_optional_part(message)?, out);
        Ok(())
    }

    fn emit_started(&mut self, message: &Value, out: &mut EventCollector<'_>) {
        self.usage
            .update(MessagesUsage::from_json(&message["usage"]));
        out.started(message["id"].as_str(), message["model"].as_str());
    }

    fn start_block(&mut self, index: Option<u64>, start: Value, out: &mut EventCollector<'_>) {
        // A block without a stop event ends where the next one starts.
        self.stop_block(out);
        self.emit_pending_call(out);
        let item = self.block_count;
        self.block_count += 1;
        let mut start = match start {
            Value::Object(_) => start,
            _ => json!({}),
        };
        let (kind, text) = match start["type"].as_str() {
            Some("text") => (MessagesBlockKind::Text, string_at(&start, "text")),
            Some("thinking") => (MessagesBlockKind::Thinking, string_at(&start, "thinking")),
            Some("tool_use") => (MessagesBlockKind::Call, String::new()),
            _ => (MessagesBlockKind::Other, String::new()),
        };
        match kind {
            MessagesBlockKind::Text => out.text(item, &text),
            MessagesBlockKind::Thinking => out.reasoning(item, ReasoningView::Raw, &text),
            MessagesBlockKind::Call => {
                let call_id = match string_at(&start, "id") {
                    id if id.is_empty() => selvedge_protocol::new_id("call"),
                    id => id,
                };
                out.call_started(
                    item,
                    &call_id,
                    &string_at(&start, "name"),
                    FunctionCallKind::Function,
                );
                start["id"] = call_id.into();
            }
            MessagesBlockKind::Other => {}
        }
        self.open_block = Some(MessagesBlock {
            item,
            index,
            kind,
            text,
            signature: string_at(&start, "signature"),
            citations: start["citations"].as_array().cloned().unwrap_or_default(),
            start,
        });
    }

    fn stop_block(&mut self, out: &mut EventCollector<'_>) {
        let Some(block) = self.open_block.take() else {
            return;
        };
        let item = block.item;
        let native = |json: Value| NativePayload {
            origin: self.origin.clone(),
            json,
        };
        let done = match block.kind {
            MessagesBlockKind::Text if block.text.is_empty() => return,
            MessagesBlockKind::Text => {
                let citations = block.citations;
                ConversationItem::Message(Message {
                    role: MessageRole::Assistant,
                    content: vec![OutputPart::Text { text: block.text }],
                    native: (!citations.is_empty())
                        .then(|| native(json!({"citations": citations}))),
                })
            }
            MessagesBlockKind::Thinking => {
                let mut json = block.start;
                json["thinking"] = block.text.clone().into();
                if !block.signature.is_empty() {
                    json["signature"] = block.signature.into();
                }
                ConversationItem::Reasoning(Reasoning {
                    summary: Vec::new(),
                    content: Vec::from_iter(Some(block.text).filter(|text| !text.is_empty())),
                    native: Some(native(json)),
                })
            }
            MessagesBlockKind::Call => {
                let arguments = block.finish_arguments(out);
                let extra = other_fields(&block.start, &["type", "id", "name", "input"]);
                let call = FunctionCall {
                    call_id: string_at(&block.start, "id"),
                    name: string_at(&block.start, "name"),
                    arguments,
                    kind: FunctionCallKind::Function,
                    native: extra.map(|extra| native(Value::Object(extra))),
                };
                self.pending_call = Some((item, call));
                return;
            }
            MessagesBlockKind::Other => {
                let mut json = block.start;
                if !block.text.is_empty() {
                    json["input"] = serde_json::from_str(&block.text)
                        .unwrap_or_else(|_| block.text.clone().into());
                }
                match json["type"] == "redacted_thinking" {
                    true => ConversationItem::Reasoning(Reasoning {
                        native: Some(native(json)),
                        ..Reasoning::default()
                    }),
                    false => ConversationItem::Native(native(json)),
                }
            }
        };
        out.item_done(item, done);
    }

    /// Emits the pending call as complete.
    fn emit_pending_call(&mut self, out: &mut EventCollector<'_>) {
        if let Some((item, call)) = self.pending_call.take() {
            self.has_calls = true;
            out.item_done(item, ConversationItem::FunctionCall(call));
        }
    }

    fn set_stop_reason(&mut self, reason: &str, details: &Value, out: &mut EventCollector<'_>) {
        self.stop_block(out);
        let reason = match reason {
            "end_turn" | "stop_sequence" => FinishReason::Stop,
            "tool_use" => FinishReason::ToolCalls,
            "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
            "refusal" => FinishReason::Refused,
            "pause_turn" => FinishReason::Paused,
            other => FinishReason::Other(other.to_owned()),
        };
        match reason {
            FinishReason::Length => {
                if let Some((item, call)) = self.pending_call.take() {
                    out.push(ModelEvent::CallTruncated {
                        item_index: item,
                        call,
                    });
                }
            }
            _ => self.emit_pending_call(out),
        }
        let detail = details["explanation"].as_str();
        let detail = detail.or(details["category"].as_str());
        self.stop_reason = Some((reason, detail.map(str::to_owned)));
    }

    fn emit_finished(&mut self, out: &mut EventCollector<'_>) {
        self.stop_block(out);
        self.emit_pending_call(out);
        self.finished = true;
        if let Some(usage) = self.usage.into_usage() {
            out.push(ModelEvent::Usage(usage));
        }
        let default = match self.has_calls {
            true => FinishReason::ToolCalls,
            false => FinishReason::Stop,
        };
        let (reason, detail) = self.stop_reason.take().unwrap_or((default, None));
        out.push(ModelEvent::Finished { reason, detail });
    }
}

impl MessagesBlock {
    /// Appends a delta. `data` is its whole event, from which rare fields are parsed.
    fn add_delta(
        &mut self,
        delta: &MessagesDelta<'_>,
        data: &[u8],
        out: &mut EventCollector<'_>,
    ) -> Result<(), ModelError> {
        let whole = || parse_event::<Value>(data).map(|mut event| event["delta"].take());
        match (self.kind, delta.kind.or_empty()) {
            (MessagesBlockKind::Text, "text_delta") => {
                self.text.push_str(delta.text.or_empty());
                out.text(self.item, delta.text.or_empty());
            }
            (MessagesBlockKind::Thinking, "thinking_delta") => {
                self.text.push_str(delta.thinking.or_empty());
                out.reasoning(self.item, ReasoningView::Raw, delta.thinking.or_empty());
            }
            (MessagesBlockKind::Thinking, "signature_delta") => {
                self.signature.push_str(delta.signature.or_empty())
            }
            (MessagesBlockKind::Call, "input_json_delta") => {
                self.text.push_str(delta.partial_json.or_empty());
                out.call_delta(self.item, delta.partial_json.or_empty());
            }
            (MessagesBlockKind::Other, "input_json_delta") => {
                self.text.push_str(delta.partial_json.or_empty())
            }
            (MessagesBlockKind::Text, "citations_delta") => {
                self.citations.push(whole()?["citation"].take());
            }
            (MessagesBlockKind::Other, _) => {
                if let Value::Object(delta) = whole()? {
                    self.merge_delta(delta);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Merges a delta into a block of unknown type: strings are appended, other fields replaced.
    fn merge_delta(&mut self, delta: Map<String, Value>) {
        for (key, value) in delta {
            match (&mut self.start[key.as_str()], value) {
                _ if key == "type" => {}
                (Value::String(text), Value::String(more)) => text.push_str(&more),
                (field, value) => *field = value,
            }
        }
    }

    /// Returns the arguments of a call. Emits them if they were not streamed.
    fn finish_arguments(&self, out: &mut EventCollector<'_>) -> String {
        if !self.text.is_empty() {
            return self.text.clone();
        }
        match &self.start["input"] {
            Value::Object(input) if !input.is_empty() => {
                let text = Value::Object(input.clone()).to_string();
                out.call_delta(self.item, &text);
                text
            }
            _ => "{}".to_owned(),
        }
    }
}
