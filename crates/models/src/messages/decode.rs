//! What a Messages server answers.

use selvedge_protocol::{
    CallKind, FinishReason, FunctionCall, Item, Message, Native, Origin, OutputPart, Reasoning,
    Role,
};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::event::{Counted, Delta, Event};
use crate::decode::{Allowance, DONE, broke_off};
use crate::json::{others, part, read, text_at};
use crate::{ModelError, ModelEvent, ReasoningView};

/// An answer as far as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    origin: Origin,
    begun: bool,
    /// Blocks so far, in this message.
    count: u32,
    open: Option<Block>,
    /// A call that is written, but whose answer may yet turn out to be cut.
    written: Option<(u32, FunctionCall)>,
    any_call: bool,
    usage: Counted,
    stop: Option<(FinishReason, Option<String>)>,
    finished: bool,
}

#[derive(Debug)]
struct Block {
    item: u32,
    index: Option<u64>,
    /// As it began.
    start: Value,
    kind: BlockKind,
    /// Text, thought or arguments, piece by piece.
    text: String,
    signature: String,
    citations: Vec<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Text,
    Thinking,
    Call,
    /// Redacted thinking, and what the provider did by itself.
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

    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    pub(crate) fn may_end(&self) -> bool {
        self.finished || self.stop.is_some()
    }

    pub(crate) fn event(
        &mut self,
        data: &[u8],
        events: &mut Vec<ModelEvent>,
        allowance: &mut Allowance,
    ) -> Result<(), ModelError> {
        if self.finished || data == DONE {
            return Ok(());
        }
        let event: Event<'_> = read(data)?;
        match event.kind.or_empty() {
            "content_block_delta" => {
                if let (Some(delta), Some(block)) = (event.delta, &mut self.open) {
                    // Another block's piece would be a server's mistake that nothing here can mend.
                    if event.index.0.is_none() || event.index.0 == block.index {
                        allowance.keep(data.len())?;
                        block.take(&delta, data, events)?;
                    }
                }
            }
            "content_block_start" => {
                let start = event
                    .content_block
                    .map(part::<Value>)
                    .transpose()?
                    .unwrap_or_default();
                allowance.item()?;
                allowance.keep(event.content_block.map_or(0, |raw| raw.get().len()))?;
                self.start_block(event.index.0, start, events);
            }
            "content_block_stop" => self.stop_block(events),
            "message_start" => self.start(event.message, events)?,
            "message_delta" => {
                self.usage.update(event.usage);
                if let Some(reason) = event
                    .delta
                    .as_ref()
                    .and_then(|delta| delta.stop_reason.get())
                {
                    self.stopped(
                        reason,
                        &read::<Value>(data)?["delta"]["stop_details"],
                        events,
                    );
                }
            }
            "message_stop" => self.finish(events),
            "error" => return Err(crate::classify::of_json(&read(data)?)),
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn body(
        &mut self,
        body: &[u8],
        events: &mut Vec<ModelEvent>,
        allowance: &mut Allowance,
    ) -> Result<(), ModelError> {
        let message: Value = read(body)?;
        if message["error"].is_object() {
            return Err(crate::classify::of_json(&message));
        }
        events.push(started(&message));
        self.usage.update(Counted::of(&message["usage"]));
        for block in message["content"].as_array().into_iter().flatten() {
            allowance.item()?;
            self.start_block(None, block.clone(), events);
            self.stop_block(events);
        }
        if let Some(reason) = message["stop_reason"].as_str() {
            self.stopped(reason, &message["stop_details"], events);
            self.finish(events);
        }
        Ok(())
    }

    pub(crate) fn end(&mut self, events: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        if !self.finished {
            if self.stop.is_none() {
                return Err(broke_off());
            }
            self.finish(events);
        }
        Ok(())
    }

    fn start(
        &mut self,
        message: Option<&RawValue>,
        events: &mut Vec<ModelEvent>,
    ) -> Result<(), ModelError> {
        if std::mem::replace(&mut self.begun, true) {
            // A gateway that lost its upstream begins again in the same stream.
            if self.any_call {
                return Err(ModelError::protocol(
                    "the provider began a second answer after calls of the first",
                ));
            }
            *self = Self {
                begun: true,
                ..Self::new(self.origin.clone())
            };
            events.push(ModelEvent::Restarted);
        }
        let message = message.map(part::<Value>).transpose()?.unwrap_or_default();
        self.usage.update(Counted::of(&message["usage"]));
        events.push(started(&message));
        Ok(())
    }

    fn start_block(&mut self, index: Option<u64>, start: Value, events: &mut Vec<ModelEvent>) {
        // What nobody ended ends where the next begins.
        self.stop_block(events);
        self.settle_call(events);
        let item = self.count;
        self.count += 1;
        let start = if start.is_object() {
            start
        } else {
            Value::Object(Map::new())
        };
        let (kind, text) = match start["type"].as_str() {
            Some("text") => (BlockKind::Text, text_at(&start, "text")),
            Some("thinking") => (BlockKind::Thinking, text_at(&start, "thinking")),
            Some("tool_use") => (BlockKind::Call, String::new()),
            _ => (BlockKind::Other, String::new()),
        };
        match kind {
            BlockKind::Text if !text.is_empty() => events.push(ModelEvent::Text {
                item,
                text: text.clone(),
            }),
            BlockKind::Thinking if !text.is_empty() => {
                events.push(ModelEvent::Reasoning {
                    item,
                    view: ReasoningView::Raw,
                    text: text.clone(),
                });
            }
            BlockKind::Call => {
                let (call_id, name) = (text_at(&start, "id"), text_at(&start, "name"));
                let call_id = if call_id.is_empty() {
                    selvedge_protocol::new_id("call")
                } else {
                    call_id
                };
                events.push(ModelEvent::CallStarted {
                    item,
                    call_id: call_id.clone(),
                    name,
                    kind: CallKind::Function,
                });
                let signature = String::new();
                let mut start = start;
                start["id"] = call_id.into();
                self.open = Some(Block {
                    item,
                    index,
                    start,
                    kind,
                    text,
                    signature,
                    citations: Vec::new(),
                });
                return;
            }
            _ => {}
        }
        let signature = text_at(&start, "signature");
        let citations = start["citations"].as_array().cloned().unwrap_or_default();
        self.open = Some(Block {
            item,
            index,
            start,
            kind,
            text,
            signature,
            citations,
        });
    }

    fn stop_block(&mut self, events: &mut Vec<ModelEvent>) {
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
                let citations = (!block.citations.is_empty())
                    .then(|| native(json!({"citations": block.citations})));
                Item::Message(Message {
                    role: Role::Assistant,
                    content: vec![OutputPart::Text { text: block.text }],
                    native: citations,
                })
            }
            BlockKind::Thinking => {
                let mut json = block.start;
                json["thinking"] = block.text.clone().into();
                if !block.signature.is_empty() {
                    json["signature"] = block.signature.into();
                }
                let content = if block.text.is_empty() {
                    Vec::new()
                } else {
                    vec![block.text]
                };
                Item::Reasoning(Reasoning {
                    summary: Vec::new(),
                    content,
                    native: Some(native(json)),
                })
            }
            BlockKind::Call => {
                let arguments = block.arguments(events);
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
                if json["type"] == "redacted_thinking" {
                    Item::Reasoning(Reasoning {
                        native: Some(native(json)),
                        ..Reasoning::default()
                    })
                } else {
                    Item::Native(native(json))
                }
            }
        };
        events.push(ModelEvent::ItemDone { item, done });
    }

    /// A written call is complete once something else follows it.
    fn settle_call(&mut self, events: &mut Vec<ModelEvent>) {
        if let Some((item, call)) = self.written.take() {
            self.any_call = true;
            events.push(ModelEvent::ItemDone {
                item,
                done: Item::FunctionCall(call),
            });
        }
    }

    fn stopped(&mut self, reason: &str, details: &Value, events: &mut Vec<ModelEvent>) {
        self.stop_block(events);
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
                    events.push(ModelEvent::CallCut { item, call });
                }
            }
            _ => self.settle_call(events),
        }
        let detail = details["explanation"]
            .as_str()
            .or(details["category"].as_str())
            .map(str::to_owned);
        self.stop = Some((reason, detail));
    }

    fn finish(&mut self, events: &mut Vec<ModelEvent>) {
        self.stop_block(events);
        self.settle_call(events);
        self.finished = true;
        if let Some(usage) = self.usage.total() {
            events.push(ModelEvent::Usage(usage));
        }
        let unsaid = if self.any_call {
            FinishReason::ToolCalls
        } else {
            FinishReason::Stop
        };
        let (reason, detail) = self.stop.take().unwrap_or((unsaid, None));
        events.push(ModelEvent::Finished { reason, detail });
    }
}

impl Block {
    /// Takes a piece; `data` is the event it came in, for what is not read of every one.
    fn take(
        &mut self,
        delta: &Delta<'_>,
        data: &[u8],
        events: &mut Vec<ModelEvent>,
    ) -> Result<(), ModelError> {
        let whole = || read::<Value>(data).map(|mut event| event["delta"].take());
        let item = self.item;
        match (self.kind, delta.kind.or_empty()) {
            (BlockKind::Text, "text_delta") => {
                if let Some(text) = delta.text.get() {
                    self.text.push_str(text);
                    events.push(ModelEvent::Text {
                        item,
                        text: text.to_owned(),
                    });
                }
            }
            (BlockKind::Thinking, "thinking_delta") => {
                if let Some(text) = delta.thinking.get() {
                    self.text.push_str(text);
                    events.push(ModelEvent::Reasoning {
                        item,
                        view: ReasoningView::Raw,
                        text: text.to_owned(),
                    });
                }
            }
            (BlockKind::Thinking, "signature_delta") => {
                self.signature.push_str(delta.signature.or_empty())
            }
            (BlockKind::Call, "input_json_delta") => {
                if let Some(text) = delta.partial_json.get() {
                    self.text.push_str(text);
                    events.push(ModelEvent::CallDelta {
                        item,
                        text: text.to_owned(),
                    });
                }
            }
            (BlockKind::Other, "input_json_delta") => {
                self.text.push_str(delta.partial_json.or_empty())
            }
            (BlockKind::Text, "citations_delta") => {
                self.citations.push(whole()?["citation"].take());
            }
            (BlockKind::Other, _) => {
                if let Value::Object(piece) = whole()? {
                    self.merge(piece);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes the fields of a piece of a block nothing here understands: texts grow, the rest is replaced.
    fn merge(&mut self, piece: Map<String, Value>) {
        for (key, value) in piece {
            match (&mut self.start[key.as_str()], value) {
                _ if key == "type" => {}
                (Value::String(text), Value::String(more)) => text.push_str(&more),
                (place, value) => *place = value,
            }
        }
    }

    /// The arguments, told in one piece where they were not streamed.
    fn arguments(&self, events: &mut Vec<ModelEvent>) -> String {
        if !self.text.is_empty() {
            return self.text.clone();
        }
        match &self.start["input"] {
            Value::Object(input) if !input.is_empty() => {
                let text = Value::Object(input.clone()).to_string();
                events.push(ModelEvent::CallDelta {
                    item: self.item,
                    text: text.clone(),
                });
                text
            }
            _ => "{}".to_owned(),
        }
    }
}

fn started(message: &Value) -> ModelEvent {
    let at = |key: &str| message[key].as_str().map(str::to_owned);
    ModelEvent::Started {
        id: at("id"),
        model: at("model"),
    }
}
