//! Decodes the answer of a Responses server.

use selvedge_protocol::{CallKind, FinishReason, Item, Origin, Usage, new_id};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::item::{Done, Kind, Partial};
use crate::classify::of_json;
use crate::decode::{AnswerDecoder, DONE, Emitter, broke_off};
use crate::json::{Number, Text, optional_part, part, read, text_at};
use crate::{ModelError, ModelEvent, ReasoningView};

/// An answer as received so far.
#[derive(Debug)]
pub(crate) struct Answer {
    origin: Origin,
    begun: bool,
    items: Vec<Partial>,
    /// Whether a complete call was emitted.
    any_call: bool,
    refusal: Option<String>,
    finished: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Event<'a> {
    #[serde(rename = "type")]
    kind: Text<'a>,
    delta: Text<'a>,
    item_id: Text<'a>,
    output_index: Number,
    summary_index: Number,
    content_index: Number,
    item: Option<&'a RawValue>,
    response: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Response<'a> {
    id: Text<'a>,
    model: Text<'a>,
    status: Text<'a>,
    output: Option<&'a RawValue>,
    usage: Option<&'a RawValue>,
    error: Option<Value>,
    incomplete_details: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Counted {
    input_tokens: Number,
    output_tokens: Number,
    total_tokens: Number,
    input_tokens_details: Option<InputDetails>,
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct InputDetails {
    cached_tokens: Number,
    cache_write_tokens: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OutputDetails {
    reasoning_tokens: Number,
}

impl Answer {
    pub(crate) fn new(origin: Origin) -> Self {
        Self {
            origin,
            begun: false,
            items: Vec::new(),
            any_call: false,
            refusal: None,
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
            "response.output_text.delta" | "response.refusal.delta" => {
                self.piece(&event, Kind::Message, out)?;
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                self.piece(&event, Kind::Reasoning, out)?;
            }
            "response.function_call_arguments.delta" => {
                self.piece(&event, Kind::Call(CallKind::Function), out)?;
            }
            "response.custom_tool_call_input.delta" => {
                self.piece(&event, Kind::Call(CallKind::Freeform), out)?;
            }
            "response.output_item.added" => {
                let item: Value = optional_part(event.item)?;
                let position = self.begin(event.output_index.0, &item, out)?;
                self.items[position].announce(position as u32, out);
            }
            "response.output_item.done" => {
                let item: Value = optional_part(event.item)?;
                out.keep(event.item.map_or(0, |raw| raw.get().len()))?;
                let (id, call_id) = (text_at(&item, "id"), text_at(&item, "call_id"));
                let index = event.output_index.0;
                let is_same_call = |open: &Partial| !open.done && open.call_id == call_id;
                let call_without_index = match index {
                    Some(_) => None,
                    None => self.items.iter().position(is_same_call),
                };
                let found = call_without_index.or_else(|| self.find(index, &id, Kind::of(&item)));
                let position = match found {
                    Some(position) => position,
                    None => self.begin(index, &item, out)?,
                };
                self.complete(position, item, out);
            }
            "response.created" => {
                if let Some(response) = event.response {
                    self.start(&part(response)?, out);
                }
            }
            "response.completed"
            | "response.incomplete"
            | "response.failed"
            | "response.cancelled" => {
                let Some(raw) = event.response else {
                    return Err(ModelError::protocol("the last event has no response"));
                };
                self.finish(&part(raw)?, out)?;
            }
            "error" => return Err(of_json(&read(data)?)),
            // Some servers send errors without a `type`.
            "" => {
                let value: Value = read(data)?;
                if !value["error"].is_null() {
                    return Err(of_json(&value));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn body(&mut self, body: &[u8], out: &mut Emitter<'_>) -> Result<(), ModelError> {
        self.finish(&read(body)?, out)
    }

    fn end(&mut self, _: &mut Emitter<'_>) -> Result<(), ModelError> {
        match self.finished {
            true => Ok(()),
            false => Err(broke_off()),
        }
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}

impl Answer {
    fn start(&mut self, response: &Response<'_>, out: &mut Emitter<'_>) {
        if !std::mem::replace(&mut self.begun, true) {
            out.started(response.id.get(), response.model.get());
        }
    }

    /// Finds an item by its index; without an index, by its id, else the last open item of its
    /// kind. Ids are not sufficient, because some servers send a new one with every event.
    fn find(&self, index: Option<u64>, id: &str, kind: Kind) -> Option<usize> {
        let last = |matches: &dyn Fn(&Partial) -> bool| self.items.iter().rposition(matches);
        match index {
            Some(_) => last(&|item| item.index == index),
            None => last(&|item| !id.is_empty() && item.id == id)
                .or_else(|| last(&|item| !item.done && item.kind == kind)),
        }
    }

    /// Starts an item and returns its position.
    fn begin(
        &mut self,
        index: Option<u64>,
        item: &Value,
        out: &mut Emitter<'_>,
    ) -> Result<usize, ModelError> {
        out.item()?;
        let call_id = match text_at(item, "call_id") {
            id if id.is_empty() => new_id("call"),
            id => id,
        };
        self.items.push(Partial {
            index,
            id: text_at(item, "id"),
            kind: Kind::of(item),
            call_id,
            name: text_at(item, "name"),
            ..Partial::default()
        });
        Ok(self.items.len() - 1)
    }

    fn piece(
        &mut self,
        event: &Event<'_>,
        kind: Kind,
        out: &mut Emitter<'_>,
    ) -> Result<(), ModelError> {
        let Some(text) = event.delta.get() else {
            return Ok(());
        };
        out.keep(text.len())?;
        let found = self.find(event.output_index.0, event.item_id.or_empty(), kind);
        let position = match found {
            Some(position) => position,
            None => {
                // The server did not send `output_item.added`.
                let position = self.begin(event.output_index.0, &Value::Null, out)?;
                self.items[position].kind = kind;
                self.items[position].id = event.item_id.or_empty().to_owned();
                position
            }
        };
        let (partial, item) = (&mut self.items[position], position as u32);
        match kind {
            Kind::Reasoning => {
                let is_raw = event.kind.or_empty() == "response.reasoning_text.delta";
                let (view, list, part) = match is_raw {
                    true => (
                        ReasoningView::Raw,
                        &mut partial.content,
                        event.content_index.0,
                    ),
                    false => (
                        ReasoningView::Summary,
                        &mut partial.summary,
                        event.summary_index.0,
                    ),
                };
                // Parts are sent in order. An index that skips some starts the next part.
                if list.is_empty() || part.is_some_and(|part| part as usize >= list.len()) {
                    list.push(String::new());
                }
                if let Some(last) = list.last_mut() {
                    last.push_str(text);
                }
                out.reasoning(item, view, text);
            }
            Kind::Message => {
                partial.text.push_str(text);
                if event.kind.or_empty() == "response.refusal.delta" {
                    partial.refusal.push_str(text);
                }
                out.text(item, text);
            }
            Kind::Call(_) => {
                partial.text.push_str(text);
                partial.announce(item, out);
                out.call_delta(item, text);
            }
            Kind::Other => {}
        }
        Ok(())
    }

    /// Emits an item from its final form.
    fn complete(&mut self, position: usize, value: Value, out: &mut Emitter<'_>) {
        let (partial, item) = (&mut self.items[position], position as u32);
        if std::mem::replace(&mut partial.done, true) {
            return;
        }
        partial.show_unstreamed(item, &value, out);
        if let Some(refusal) = partial.refusal_of(&value) {
            self.refusal = Some(refusal);
        }
        match partial.finish(value, &self.origin) {
            Done::Item(Item::Message(message)) if message.content.is_empty() => {}
            // A call without a name cannot be run.
            Done::Item(Item::FunctionCall(call)) | Done::CutCall(call) if call.name.is_empty() => {}
            Done::Item(done) => {
                self.any_call |= matches!(done, Item::FunctionCall(_));
                out.done(item, done);
            }
            Done::CutCall(call) => out.push(ModelEvent::CallCut { item, call }),
        }
    }

    fn finish(&mut self, response: &Response<'_>, out: &mut Emitter<'_>) -> Result<(), ModelError> {
        self.start(response, out);
        if let Some(error) = response.error.as_ref().filter(|error| !error.is_null()) {
            return Err(of_json(&serde_json::json!({"error": error})));
        }
        if matches!(response.status.or_empty(), "failed" | "cancelled") {
            return Err(of_json(&Value::Null));
        }
        self.complete_the_rest(response, out)?;
        let details = response.incomplete_details.as_ref();
        let reason = match details.and_then(|details| details["reason"].as_str()) {
            Some("max_output_tokens" | "max_tokens") => FinishReason::Length,
            Some("content_filter") => FinishReason::Refused,
            Some(other) => FinishReason::Other(other.to_owned()),
            None if response.status.or_empty() == "incomplete" => FinishReason::Length,
            None if self.refusal.is_some() => FinishReason::Refused,
            None if self.any_call => FinishReason::ToolCalls,
            None => FinishReason::Stop,
        };
        if let Some(usage) = response.usage.and_then(count) {
            out.push(ModelEvent::Usage(usage));
        }
        let detail = self.refusal.take();
        out.push(ModelEvent::Finished { reason, detail });
        self.finished = true;
        Ok(())
    }

    /// Completes items without an `output_item.done` event, from the response or from their deltas.
    fn complete_the_rest(
        &mut self,
        response: &Response<'_>,
        out: &mut Emitter<'_>,
    ) -> Result<(), ModelError> {
        let output: Vec<&RawValue> = optional_part(response.output)?;
        if output.len() > self.items.len() || self.items.iter().any(|item| !item.done) {
            let has_indexes = self.items.iter().any(|item| item.index.is_some());
            for (output_index, raw) in output.into_iter().enumerate() {
                let item: Value = part(raw)?;
                let index = output_index as u64;
                let found = match has_indexes {
                    true => self.find(Some(index), "", Kind::of(&item)),
                    false => (output_index < self.items.len()).then_some(output_index),
                };
                let position = match found {
                    Some(position) => position,
                    None => self.begin(Some(index).filter(|_| has_indexes), &item, out)?,
                };
                out.keep(raw.get().len())?;
                self.complete(position, item, out);
            }
        }
        for position in 0..self.items.len() {
            // Items of server-side tools cannot be rebuilt from deltas.
            let item = &self.items[position];
            if !item.done && item.kind != Kind::Other {
                let status = match response.status.or_empty() {
                    "incomplete" => "incomplete",
                    _ => "completed",
                };
                let value = item.rebuild(status);
                self.complete(position, value, out);
            }
        }
        Ok(())
    }
}

fn count(raw: &RawValue) -> Option<Usage> {
    let counted: Counted = serde_json::from_str(raw.get()).ok()?;
    counted.input_tokens.0.or(counted.output_tokens.0)?;
    let or_zero = |number: Number| number.0.unwrap_or(0);
    let (input, output) = (
        or_zero(counted.input_tokens),
        or_zero(counted.output_tokens),
    );
    let details = counted.input_tokens_details.unwrap_or_default();
    let output_details = counted.output_tokens_details.unwrap_or_default();
    Some(Usage {
        input_tokens: input,
        cached_input_tokens: or_zero(details.cached_tokens),
        cache_write_input_tokens: or_zero(details.cache_write_tokens),
        output_tokens: output.max(or_zero(counted.total_tokens).saturating_sub(input)),
        reasoning_output_tokens: or_zero(output_details.reasoning_tokens),
    })
}
