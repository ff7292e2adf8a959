//! Decodes the answer of a Messages server.

use selvedge_protocol::{
    CallKind, FinishReason, FunctionCall, Item, Message, Native, Origin, OutputPart, Reasoning,
    Role,
};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::event::{Counted, Delta, Event};
use crate::decode::{AnswerDecoder, DONE, Emitter, broke_off};
use crate::json::{optional_part, others, read, text_at};
use crate::{ModelError, ModelEvent, ReasoningView};

/// An answer as received so far.
#[derive(Debug)]
pub(crate) struct Answer {
    origin: Origin,
    begun: bool,
    /// Number of blocks so far, which is the index of the next one.
    count: u32,
    /// The block that is being received.
    open: Option<Block>,
    /// A received call that is not emitted yet: the stop reason may tell that it was truncated.
    written: Option<(u32, FunctionCall)>,
    /// Whether a call was emitted.
    any_call: bool,
    usage: Counted,
    stop: Option<(FinishReason, Option<String>)>,
    finished: bool,
}

#[derive(Debug)]
struct Block {
    item: u32,
    index: Option<u64>,
    /// Content of the `content_block_start` event.
    start: Value,
    kind: BlockKind,
    /// Text, reasoning or arguments, joined from the deltas.
    text: String,
    signature: String,
    citations: Vec<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Text,
    Thinking,
    Call,
    /// Redacted thinking, and blocks of server-side tools.
    Other,
}

impl Answer {
    pub(crate) fn new(origin: Origin) -> Self {
        Self {
            origin,
            begun: false,
            count: 0,
            open: None,
            written: None,
            any_call: false,
            usage: Counted::default(),
            stop: None,
            finished: false,
        }
    }
}

impl AnswerDecoder for Answer {
    fn event(
        &mut self,
        _name: &[u8],
        data: &[u8],
        out: &mut Emitter<'_>,
    ) -> Result<(), ModelError> {
        if self.finished || data == DONE {
            return Ok(());
        }
        let event: Event<'_> = read(data)?;
        match event.kind.or_empty() {
            "content_block_delta" => {
                if let (Some(delta), Some(block)) = (event.delta, &mut self.open) {
                    // A delta of another block is an error of the server and is ignored.
                    if event.index.0.is_none() || event.index.0 == block.index {
                        out.keep(data.len())?;
                        block.take(&delta, data, out)?;
                    }
                }
            }
            "content_block_start" => {
                let start = optional_part(event.content_block)?;
                out.item()?;
                out.keep(event.content_block.map_or(0, |raw| raw.get().len()))?;
                self.start_block(event.index.0, start, out);
            }
            "content_block_stop" => self.stop_block(out),
            "message_start" => self.start(event.message, out)?,
            "message_delta" => {
                self.usage.update(event.usage);
                let delta = event.delta.unwrap_or_default();
                if let Some(reason) = delta.stop_reason.get() {
                    let details = &read::<Value>(data)?["delta"]["stop_details"];
                    self.stopped(reason, details, out);
                }
            }
            "message_stop" => self.finish(out),
            "error" => return Err(crate::classify::of_json(&read(data)?)),
            _ => {}
        }
        Ok(())
    }

    fn body(&mut self, body: &[u8], out: &mut Emitter<'_>) -> Result<(), ModelError> {
        let message: Value = read(body)?;
        if message["error"].is_object() {
            return Err(crate::classify::of_json(&message));
        }
        self.started(&message, out);
        for block in message["content"].as_array().into_iter().flatten() {
            out.item()?;
            self.start_block(None, block.clone(), out);
            self.stop_block(out);
        }
        if let Some(reason) = message["stop_reason"].as_str() {
            self.stopped(reason, &message["stop_details"], out);
            self.finish(out);
        }
        Ok(())
    }

    fn end(&mut self, out: &mut Emitter<'_>) -> Result<(), ModelError> {
        if !self.finished {
            if self.stop.is_none() {
                return Err(broke_off());
            }
            self.finish(out);
        }
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.finished
    }

    fn may_end(&self) -> bool {
        self.finished || self.stop.is_some()
    }
}

impl Answer {
    fn start(
        &mut self,
        message: Option<&RawValue>,
        out: &mut Emitter<'_>,
    ) -> Result<(), ModelError> {
        if std::mem::replace(&mut self.begun, true) {
            // A gateway that lost its upstream starts the answer again in the same stream.
            if self.any_call {
                let why = "the provider restarted the answer after a complete call";
                return Err(ModelError::protocol(why));
            }
            *self = Self {
                begun: true,
                ..Self::new(self.origin.clone())
            };
            out.push(ModelEvent::Restarted);
        }
        self.started(&optional_part(message)?, out);
        Ok(())
    }

    fn started(&mut self, message: &Value, out: &mut Emitter<'_>) {
        self.usage.update(Counted::of(&message["usage"]));
        out.started(message["id"].as_str(), message["model"].as_str());
    }

    fn start_block(&mut self, index: Option<u64>, start: Value, out: &mut Emitter<'_>) {
        // A block without a stop event ends where the next one starts.
        self.stop_block(out);
        self.settle_call(out);
        let item = self.count;
        self.count += 1;
        let mut start = match start {
            Value::Object(_) => start,
            _ => json!({}),
        };
        let (kind, text) = match start["type"].as_str() {
            Some("text") => (BlockKind::Text, text_at(&start, "text")),
            Some("thinking") => (BlockKind::Thinking, text_at(&start, "thinking")),
            Some("tool_use") => (BlockKind::Call, String::new()),
            _ => (BlockKind::Other, String::new()),
        };
        match kind {
            BlockKind::Text => out.text(item, &text),
            BlockKind::Thinking => out.reasoning(item, ReasoningView::Raw, &text),
            BlockKind::Call => {
                let call_id = match text_at(&start, "id") {
                    id if id.is_empty() => selvedge_protocol::new_id("call"),
                    id => id,
                };
                out.call_started(item, &call_id, &text_at(&start, "name"), CallKind::Function);
                start["id"] = call_id.into();
            }
            BlockKind::Other => {}
        }
        self.open = Some(Block {
            item,
            index,
            kind,
            text,
            signature: text_at(&start, "signature"),
            citations: start["citations"].as_array().cloned().unwrap_or_default(),
            start,
        });
    }

    fn stop_block(&mut self, out: &mut Emitter<'_>) {
        let Some(block) = self.open.take() else {
            return;
        };
        let item = block.item;
        let native = |json: Value| Native {
            origin: self.origin.clone(),
            json,
        };
        let done = match block.kind {
            BlockKind::Text if block.text.is_empty() => return,
            BlockKind::Text => {
                let citations = block.citations;
                Item::Message(Message {
                    role: Role::Assistant,
                    content: vec![OutputPart::Text { text: block.text }],
                    native: (!citations.is_empty())
                        .then(|| native(json!({"citations": citations}))),
                })
            }
            BlockKind::Thinking => {
                let mut json = block.start;
                json["thinking"] = block.text.clone().into();
                if !block.signature.is_empty() {
                    json["signature"] = block.signature.into();
                }
                Item::Reasoning(Reasoning {
                    summary: Vec::new(),
                    content: Vec::from_iter(Some(block.text).filter(|text| !text.is_empty())),
                    native: Some(native(json)),
                })
            }
            BlockKind::Call => {
                let arguments = block.arguments(out);
                let extra = others(&block.start, &["type", "id", "name", "input"]);
                let call = FunctionCall {
                    call_id: text_at(&block.start, "id"),
                    name: text_at(&block.start, "name"),
                    arguments,
                    kind: CallKind::Function,
                    native: extra.map(|extra| native(Value::Object(extra))),
                };
                self.written = Some((item, call));
                return;
            }
            BlockKind::Other => {
                let mut json = block.start;
                if !block.text.is_empty() {
                    json["input"] = serde_json::from_str(&block.text)
                        .unwrap_or_else(|_| block.text.clone().into());
                }
                match json["type"] == "redacted_thinking" {
                    true => Item::Reasoning(Reasoning {
                        native: Some(native(json)),
                        ..Reasoning::default()
                    }),
                    false => Item::Native(native(json)),
                }
            }
        };
        out.done(item, done);
    }

    /// Emits the pending call as complete.
    fn settle_call(&mut self, out: &mut Emitter<'_>) {
        if let Some((item, call)) = self.written.take() {
            self.any_call = true;
            out.done(item, Item::FunctionCall(call));
        }
    }

    fn stopped(&mut self, reason: &str, details: &Value, out: &mut Emitter<'_>) {
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
                if let Some((item, call)) = self.written.take() {
                    out.push(ModelEvent::CallCut { item, call });
                }
            }
            _ => self.settle_call(out),
        }
        let detail = details["explanation"].as_str();
        let detail = detail.or(details["category"].as_str());
        self.stop = Some((reason, detail.map(str::to_owned)));
    }

    fn finish(&mut self, out: &mut Emitter<'_>) {
        self.stop_block(out);
        self.settle_call(out);
        self.finished = true;
        if let Some(usage) = self.usage.total() {
            out.push(ModelEvent::Usage(usage));
        }
        let default = match self.any_call {
            true => FinishReason::ToolCalls,
            false => FinishReason::Stop,
        };
        let (reason, detail) = self.stop.take().unwrap_or((default, None));
        out.push(ModelEvent::Finished { reason, detail });
    }
}

impl Block {
    /// Appends a delta. `data` is its whole event, from which rare fields are parsed.
    fn take(
        &mut self,
        delta: &Delta<'_>,
        data: &[u8],
        out: &mut Emitter<'_>,
    ) -> Result<(), ModelError> {
        let whole = || read::<Value>(data).map(|mut event| event["delta"].take());
        match (self.kind, delta.kind.or_empty()) {
            (BlockKind::Text, "text_delta") => {
                self.text.push_str(delta.text.or_empty());
                out.text(self.item, delta.text.or_empty());
            }
            (BlockKind::Thinking, "thinking_delta") => {
                self.text.push_str(delta.thinking.or_empty());
                out.reasoning(self.item, ReasoningView::Raw, delta.thinking.or_empty());
            }
            (BlockKind::Thinking, "signature_delta") => {
                self.signature.push_str(delta.signature.or_empty())
            }
            (BlockKind::Call, "input_json_delta") => {
                self.text.push_str(delta.partial_json.or_empty());
                out.call_delta(self.item, delta.partial_json.or_empty());
            }
            (BlockKind::Other, "input_json_delta") => {
                self.text.push_str(delta.partial_json.or_empty())
            }
            (BlockKind::Text, "citations_delta") => {
                self.citations.push(whole()?["citation"].take());
            }
            (BlockKind::Other, _) => {
                if let Value::Object(delta) = whole()? {
                    self.merge(delta);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Merges a delta into a block of unknown type: strings are appended, other fields replaced.
    fn merge(&mut self, delta: Map<String, Value>) {
        for (key, value) in delta {
            match (&mut self.start[key.as_str()], value) {
                _ if key == "type" => {}
                (Value::String(text), Value::String(more)) => text.push_str(&more),
                (field, value) => *field = value,
            }
        }
    }

    /// Returns the arguments of a call. Emits them if they were not streamed.
    fn arguments(&self, out: &mut Emitter<'_>) -> String {
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
