//! What a Responses server answers.

use selvedge_protocol::{CallKind, FinishReason, Item, Origin, Usage, new_id};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::item::{Done, Kind, Partial};
use crate::decode::{Allowance, DONE, broke_off};
use crate::json::{Number, Text, part, read, text_at};
use crate::{ModelError, ModelEvent, ReasoningView};

/// An answer as far as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    origin: Origin,
    begun: bool,
    items: Vec<Partial>,
    any_call: bool,
    refusal: Option<String>,
    finished: bool,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow, default)]
    delta: Text<'a>,
    #[serde(borrow, default)]
    item_id: Text<'a>,
    #[serde(default)]
    output_index: Number,
    #[serde(default)]
    summary_index: Number,
    #[serde(default)]
    content_index: Number,
    #[serde(borrow, default)]
    item: Option<&'a RawValue>,
    #[serde(borrow, default)]
    response: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default)]
    model: Text<'a>,
    #[serde(borrow, default)]
    status: Text<'a>,
    #[serde(borrow, default)]
    output: Option<&'a RawValue>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<Value>,
    #[serde(default)]
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

    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    pub(crate) fn end(&self) -> Result<(), ModelError> {
        if self.finished {
            Ok(())
        } else {
            Err(broke_off())
        }
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
            "response.output_text.delta" | "response.refusal.delta" => {
                self.piece(&event, Kind::Message, events, allowance)?;
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                self.piece(&event, Kind::Reasoning, events, allowance)?;
            }
            "response.function_call_arguments.delta" => {
                self.piece(&event, Kind::Call(CallKind::Function), events, allowance)?;
            }
            "response.custom_tool_call_input.delta" => {
                self.piece(&event, Kind::Call(CallKind::Freeform), events, allowance)?;
            }
            "response.output_item.added" => {
                let item: Value = event.item.map(part).transpose()?.unwrap_or_default();
                let at = self.begin(event.output_index.0, &item, allowance)?;
                self.items[at].announce(at as u32, events);
            }
            "response.output_item.done" => {
                let item: Value = event.item.map(part).transpose()?.unwrap_or_default();
                allowance.keep(event.item.map_or(0, |raw| raw.get().len()))?;
                let (id, call_id) = (text_at(&item, "id"), text_at(&item, "call_id"));
                let by_call = || {
                    self.items
                        .iter()
                        .position(|open| !open.done && open.call_id == call_id)
                };
                let unnumbered_call = if event.output_index.0.is_none() {
                    by_call()
                } else {
                    None
                };
                let at = match unnumbered_call
                    .or_else(|| self.find(event.output_index.0, &id, Kind::of(&item)))
                {
                    Some(at) => at,
                    None => self.begin(event.output_index.0, &item, allowance)?,
                };
                self.complete(at, item, events);
            }
            "response.created" => {
                if let Some(response) = event.response {
                    self.start(&part(response)?, events);
                }
            }
            "response.completed"
            | "response.incomplete"
            | "response.failed"
            | "response.cancelled" => {
                let Some(raw) = event.response else {
                    return Err(ModelError::protocol("the answer ended without a result"));
                };
                self.finish(&part(raw)?, events, allowance)?;
            }
            "error" => return Err(crate::classify::of_json(&read(data)?)),
            // Servers that are not this API, but speak of failure the same way.
            "" => {
                let value: Value = read(data)?;
                if !value["error"].is_null() {
                    return Err(crate::classify::of_json(&value));
                }
            }
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
        let response: Response<'_> = read(body)?;
        self.start(&response, events);
        self.finish(&response, events, allowance)
    }

    fn start(&mut self, response: &Response<'_>, events: &mut Vec<ModelEvent>) {
        if !std::mem::replace(&mut self.begun, true) {
            let text = |text: &Text<'_>| text.get().map(str::to_owned);
            events.push(ModelEvent::Started {
                id: text(&response.id),
                model: text(&response.model),
            });
        }
    }

    /// Where an item stands, by its index, else its id, else because it is the last one of its kind that is open. Ids
    /// alone are not enough: some servers make up a new one for every event.
    fn find(&self, index: Option<u64>, id: &str, kind: Kind) -> Option<usize> {
        let by_index = || self.items.iter().rposition(|item| item.index == index);
        let by_id = || {
            self.items
                .iter()
                .rposition(|item| !id.is_empty() && item.id == id)
        };
        let by_kind = || {
            self.items
                .iter()
                .rposition(|item| !item.done && item.kind == kind)
        };
        match index {
            Some(_) => by_index(),
            None => by_id().or_else(by_kind),
        }
    }

    fn begin(
        &mut self,
        index: Option<u64>,
        item: &Value,
        allowance: &mut Allowance,
    ) -> Result<usize, ModelError> {
        allowance.item()?;
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
        events: &mut Vec<ModelEvent>,
        allowance: &mut Allowance,
    ) -> Result<(), ModelError> {
        let Some(text) = event.delta.get() else {
            return Ok(());
        };
        allowance.keep(text.len())?;
        let at = match self.find(event.output_index.0, event.item_id.or_empty(), kind) {
            Some(at) => at,
            None => {
                // Nobody announced it.
                let at = self.begin(event.output_index.0, &Value::Null, allowance)?;
                self.items[at].kind = kind;
                self.items[at].id = event.item_id.or_empty().to_owned();
                at
            }
        };
        let (partial, item) = (&mut self.items[at], at as u32);
        let text = text.to_owned();
        match kind {
            Kind::Reasoning => {
                let (view, list, part) = match event.kind.or_empty() {
                    "response.reasoning_text.delta" => (
                        ReasoningView::Raw,
                        &mut partial.content,
                        event.content_index.0,
                    ),
                    _ => (
                        ReasoningView::Summary,
                        &mut partial.summary,
                        event.summary_index.0,
                    ),
                };
                // Parts come in order; a number that skips some is not followed.
                if list.is_empty() || part.is_some_and(|part| part as usize >= list.len()) {
                    list.push(String::new());
                }
                if let Some(last) = list.last_mut() {
                    last.push_str(&text);
                }
                events.push(ModelEvent::Reasoning { item, view, text });
            }
            Kind::Message => {
                partial.text.push_str(&text);
                if event.kind.or_empty() == "response.refusal.delta" {
                    partial.refusal.push_str(&text);
                }
                events.push(ModelEvent::Text { item, text });
            }
            Kind::Call(_) => {
                partial.text.push_str(&text);
                partial.announce(item, events);
                events.push(ModelEvent::CallDelta { item, text });
            }
            Kind::Other => {}
        }
        Ok(())
    }

    /// An item is there whole.
    fn complete(&mut self, at: usize, value: Value, events: &mut Vec<ModelEvent>) {
        let (partial, item) = (&mut self.items[at], at as u32);
        if std::mem::replace(&mut partial.done, true) {
            return;
        }
        partial.show_unstreamed(item, &value, events);
        if let Some(refusal) = partial.refusal_of(&value) {
            self.refusal = Some(refusal);
        }
        match partial.finish(value, &self.origin) {
            Done::Item(Item::Message(message)) if message.content.is_empty() => {}
            // A call without a name can be neither made nor answered.
            Done::Item(Item::FunctionCall(call)) | Done::CutCall(call) if call.name.is_empty() => {}
            Done::Item(done) => {
                self.any_call |= matches!(done, Item::FunctionCall(_));
                events.push(ModelEvent::ItemDone { item, done });
            }
            Done::CutCall(call) => events.push(ModelEvent::CallCut { item, call }),
        }
    }

    fn finish(
        &mut self,
        response: &Response<'_>,
        events: &mut Vec<ModelEvent>,
        allowance: &mut Allowance,
    ) -> Result<(), ModelError> {
        self.start(response, events);
        if let Some(error) = response.error.as_ref().filter(|error| !error.is_null()) {
            return Err(crate::classify::of_json(
                &serde_json::json!({"error": error}),
            ));
        }
        if matches!(response.status.or_empty(), "failed" | "cancelled") {
            return Err(crate::classify::of_json(&Value::Null));
        }
        self.complete_the_rest(response, events, allowance)?;
        let incomplete = response
            .incomplete_details
            .as_ref()
            .and_then(|details| details["reason"].as_str());
        let reason = match incomplete {
            Some("max_output_tokens" | "max_tokens") => FinishReason::Length,
            Some("content_filter") => FinishReason::Refused,
            Some(other) => FinishReason::Other(other.to_owned()),
            None if response.status.or_empty() == "incomplete" => FinishReason::Length,
            None if self.refusal.is_some() => FinishReason::Refused,
            None if self.any_call => FinishReason::ToolCalls,
            None => FinishReason::Stop,
        };
        events.extend(response.usage.and_then(count).map(ModelEvent::Usage));
        events.push(ModelEvent::Finished {
            reason,
            detail: self.refusal.take(),
        });
        self.finished = true;
        Ok(())
    }

    /// Items that were never said to be done, or never streamed, stand in the response itself.
    fn complete_the_rest(
        &mut self,
        response: &Response<'_>,
        events: &mut Vec<ModelEvent>,
        allowance: &mut Allowance,
    ) -> Result<(), ModelError> {
        let output: Vec<&RawValue> = response.output.map(part).transpose()?.unwrap_or_default();
        if output.len() > self.items.len() || self.items.iter().any(|item| !item.done) {
            let indexed = self.items.iter().any(|known| known.index.is_some());
            for (at, raw) in output.into_iter().enumerate() {
                let item: Value = part(raw)?;
                let index = at as u64;
                let found = match indexed {
                    true => self.find(Some(index), "", Kind::of(&item)),
                    false => (at < self.items.len()).then_some(at),
                };
                let at = match found {
                    Some(at) => at,
                    None => self.begin(Some(index).filter(|_| indexed), &item, allowance)?,
                };
                allowance.keep(raw.get().len())?;
                self.complete(at, item, events);
            }
        }
        for at in 0..self.items.len() {
            // Of what the provider does by itself, only its own words count.
            if !self.items[at].done && self.items[at].kind != Kind::Other {
                let status = response.status.or_empty();
                let rebuilt = self.items[at].rebuild(if status == "incomplete" {
                    status
                } else {
                    "completed"
                });
                self.complete(at, rebuilt, events);
            }
        }
        Ok(())
    }
}

fn count(raw: &RawValue) -> Option<Usage> {
    let counted: Counted = serde_json::from_str(raw.get()).ok()?;
    let known = |number: Number| number.0.unwrap_or(0);
    let input = counted
        .input_tokens
        .0
        .or(counted.output_tokens.0)
        .map(|_| known(counted.input_tokens))?;
    let details = counted.input_tokens_details.unwrap_or_default();
    Some(Usage {
        input_tokens: input,
        cached_input_tokens: known(details.cached_tokens),
        cache_write_input_tokens: known(details.cache_write_tokens),
        output_tokens: known(counted.output_tokens)
            .max(known(counted.total_tokens).saturating_sub(input)),
        reasoning_output_tokens: known(
            counted
                .output_tokens_details
                .unwrap_or_default()
                .reasoning_tokens,
        ),
    })
}
