//! Decodes the answer of a Responses server.

use selvedge_protocol::{
    ConversationItem, FinishReason, FunctionCallKind, ModelOrigin, Usage, new_id,
};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::item::{FinishedItem, PartialResponsesItem, ResponsesItemKind};
use crate::classify::error_from_json;
use crate::decode::{DONE_MARKER, EventCollector, WireDecoder, incomplete_answer};
use crate::lenient_json::{
    LenientNumber, LenientText, parse_event, parse_optional_part, parse_part, string_at,
};
use crate::{ModelError, ModelEvent, ReasoningView};

/// An answer as received so far.
#[derive(Debug)]
pub(crate) struct ResponsesAnswerDecoder {
    origin: ModelOrigin,
    started: bool,
    items: Vec<PartialResponsesItem>,
    /// Whether a complete call was emitted.
    has_calls: bool,
    refusal: Option<String>,
    finished: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ResponsesEvent<'a> {
    #[serde(rename = "type")]
    kind: LenientText<'a>,
    delta: LenientText<'a>,
    item_id: LenientText<'a>,
    output_index: LenientNumber,
    summary_index: LenientNumber,
    content_index: LenientNumber,
    item: Option<&'a RawValue>,
    response: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ResponsesResponse<'a> {
    id: LenientText<'a>,
    model: LenientText<'a>,
    status: LenientText<'a>,
    output: Option<&'a RawValue>,
    usage: Option<&'a RawValue>,
    error: Option<Value>,
    incomplete_details: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResponsesUsage {
    input_tokens: LenientNumber,
    output_tokens: LenientNumber,
    total_tokens: LenientNumber,
    input_tokens_details: Option<ResponsesInputTokensDetails>,
    output_tokens_details: Option<ResponsesOutputTokensDetails>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResponsesInputTokensDetails {
    cached_tokens: LenientNumber,
    cache_write_tokens: LenientNumber,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResponsesOutputTokensDetails {
    reasoning_tokens: LenientNumber,
}

impl ResponsesAnswerDecoder {
    pub(crate) fn new(origin: ModelOrigin) -> Self {
        Self {
            origin,
            started: false,
            items: Vec::new(),
            has_calls: false,
            refusal: None,
            finished: false,
        }
    }
}

impl WireDecoder for ResponsesAnswerDecoder {
    fn decode_event(
        &mut self,
        _name: &[u8],
        data: &[u8],
        out: &mut EventCollector<'_>,
    ) -> Result<(), ModelError> {
        if self.finished || data == DONE_MARKER {
            return Ok(());
        }
        let event: ResponsesEvent<'_> = parse_event(data)?;
        match event.kind.or_empty() {
            "response.output_text.delta" | "response.refusal.delta" => {
                self.add_delta(&event, ResponsesItemKind::Message, out)?;
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                self.add_delta(&event, ResponsesItemKind::Reasoning, out)?;
            }
            "response.function_call_arguments.delta" => {
                self.add_delta(
                    &event,
                    ResponsesItemKind::Call(FunctionCallKind::Function),
                    out,
                )?;
            }
            "response.custom_tool_call_input.delta" => {
                self.add_delta(
                    &event,
                    ResponsesItemKind::Call(FunctionCallKind::Freeform),
                    out,
                )?;
            }
            "response.output_item.added" => {
                let item: Value = parse_optional_part(event.item)?;
                let position = self.start_item(event.output_index.0, &item, out)?;
                self.items[position].emit_call_started(position as u32, out);
            }
            "response.output_item.done" => {
                let item: Value = parse_optional_part(event.item)?;
                out.count_bytes(event.item.map_or(0, |raw| raw.get().len()))?;
                let (id, call_id) = (string_at(&item, "id"), string_at(&item, "call_id"));
                let index = event.output_index.0;
                let is_same_call =
                    |open: &PartialResponsesItem| !open.is_done && open.call_id == call_id;
                let call_without_index = match index {
                    Some(_) => None,
                    None => self.items.iter().position(is_same_call),
                };
                let found = call_without_index
                    .or_else(|| self.find_item(index, &id, ResponsesItemKind::from_json(&item)));
                let position = match found {
                    Some(position) => position,
                    None => self.start_item(index, &item, out)?,
                };
                self.complete_item(position, item, out);
            }
            "response.created" => {
                if let Some(response) = event.response {
                    self.emit_started(&parse_part(response)?, out);
                }
            }
            "response.completed"
            | "response.incomplete"
            | "response.failed"
            | "response.cancelled" => {
                let Some(raw) = event.response else {
                    return Err(ModelError::protocol("the last event has no response"));
                };
                self.decode_response(&parse_part(raw)?, out)?;
            }
            "error" => return Err(error_from_json(&parse_event(data)?)),
            // Some servers send errors without a `type`.
            "" => {
                let value: Value = parse_event(data)?;
                if !value["error"].is_null() {
                    return Err(error_from_json(&value));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn decode_body(&mut self, body: &[u8], out: &mut EventCollector<'_>) -> Result<(), ModelError> {
        self.decode_response(&parse_event(body)?, out)
    }

    fn decode_end(&mut self, _: &mut EventCollector<'_>) -> Result<(), ModelError> {
        match self.finished {
            true => Ok(()),
            false => Err(incomplete_answer()),
        }
    }

    fn needs_no_more_input(&self) -> bool {
        self.finished
    }
}

impl ResponsesAnswerDecoder {
    fn emit_started(&mut self, response: &ResponsesResponse<'_>, out: &mut EventCollector<'_>) {
        if !std::mem::replace(&mut self.started, true) {
            out.started(response.id.get(), response.model.get());
        }
    }

    /// Finds an item by its index; without an index, by its id, else the last open item of its
    /// kind. Ids are not sufficient, because some servers send a new one with every event.
    fn find_item(&self, index: Option<u64>, id: &str, kind: ResponsesItemKind) -> Option<usize> {
        let last =
            |matches: &dyn Fn(&PartialResponsesItem) -> bool| self.items.iter().rposition(matches);
        match index {
            Some(_) => last(&|item| item.index == index),
            None => last(&|item| !id.is_empty() && item.id == id)
                .or_else(|| last(&|item| !item.is_done && item.kind == kind)),
        }
    }

    /// Starts an item and returns its position.
    fn start_item(
        &mut self,
        index: Option<u64>,
        item: &Value,
        out: &mut EventCollector<'_>,
    ) -> Result<usize, ModelError> {
        out.count_item()?;
        let call_id = match string_at(item, "call_id") {
            id if id.is_empty() => new_id("call"),
            id => id,
        };
        self.items.push(PartialResponsesItem {
            index,
            id: string_at(item, "id"),
            kind: ResponsesItemKind::from_json(item),
            call_id,
            name: string_at(item, "name"),
            ..PartialResponsesItem::default()
        });
        Ok(self.items.len() - 1)
    }

    fn add_delta(
        &mut self,
        event: &ResponsesEvent<'_>,
        kind: ResponsesItemKind,
        out: &mut EventCollector<'_>,
    ) -> Result<(), ModelError> {
        let Some(text) = event.delta.get() else {
            return Ok(());
        };
        out.count_bytes(text.len())?;
        let found = self.find_item(event.output_index.0, event.item_id.or_empty(), kind);
        let position = match found {
            Some(position) => position,
            None => {
                // The server did not send `output_item.added`.
                let position = self.start_item(event.output_index.0, &Value::Null, out)?;
                self.items[position].kind = kind;
                self.items[position].id = event.item_id.or_empty().to_owned();
                position
            }
        };
        let (partial, item) = (&mut self.items[position], position as u32);
        match kind {
            ResponsesItemKind::Reasoning => {
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
            ResponsesItemKind::Message => {
                partial.text.push_str(text);
                if event.kind.or_empty() == "response.refusal.delta" {
                    partial.refusal.push_str(text);
                }
                out.text(item, text);
            }
            ResponsesItemKind::Call(_) => {
                partial.text.push_str(text);
                partial.emit_call_started(item, out);
                out.call_delta(item, text);
            }
            ResponsesItemKind::Other => {}
        }
        Ok(())
    }

    /// Emits an item from its final form.
    fn complete_item(&mut self, position: usize, value: Value, out: &mut EventCollector<'_>) {
        let (partial, item) = (&mut self.items[position], position as u32);
        if std::mem::replace(&mut partial.is_done, true) {
            return;
        }
        partial.emit_unstreamed(item, &value, out);
        if let Some(refusal) = partial.refusal_text(&value) {
            self.refusal = Some(refusal);
        }
        match partial.finish_item(value, &self.origin) {
            FinishedItem::Item(ConversationItem::Message(message))
                if message.content.is_empty() => {}
            // A call without a name cannot be run.
            FinishedItem::Item(ConversationItem::FunctionCall(call))
            | FinishedItem::TruncatedCall(call)
                if call.name.is_empty() => {}
            FinishedItem::Item(done) => {
                self.has_calls |= matches!(done, ConversationItem::FunctionCall(_));
                out.item_done(item, done);
            }
            FinishedItem::TruncatedCall(call) => out.push(ModelEvent::CallTruncated {
                item_index: item,
                call,
            }),
        }
    }

    fn decode_response(
        &mut self,
        response: &ResponsesResponse<'_>,
        out: &mut EventCollector<'_>,
    ) -> Result<(), ModelError> {
        self.emit_started(response, out);
        if let Some(error) = response.error.as_ref().filter(|error| !error.is_null()) {
            return Err(error_from_json(&serde_json::json!({"error": error})));
        }
        if matches!(response.status.or_empty(), "failed" | "cancelled") {
            return Err(error_from_json(&Value::Null));
        }
        self.complete_remaining_items(response, out)?;
        let details = response.incomplete_details.as_ref();
        let reason = match details.and_then(|details| details["reason"].as_str()) {
            Some("max_output_tokens" | "max_tokens") => FinishReason::Length,
            Some("content_filter") => FinishReason::Refused,
            Some(other) => FinishReason::Other(other.to_owned()),
            None if response.status.or_empty() == "incomplete" => FinishReason::Length,
            None if self.refusal.is_some() => FinishReason::Refused,
            None if self.has_calls => FinishReason::ToolCalls,
            None => FinishReason::Stop,
        };
        if let Some(usage) = response.usage.and_then(parse_usage) {
            out.push(ModelEvent::Usage(usage));
        }
        let detail = self.refusal.take();
        out.push(ModelEvent::Finished { reason, detail });
        self.finished = true;
        Ok(())
    }

    /// Completes items without an `output_item.done` event, from the response or from their deltas.
    fn complete_remaining_items(
        &mut self,
        response: &ResponsesResponse<'_>,
        out: &mut EventCollector<'_>,
    ) -> Result<(), ModelError> {
        let output: Vec<&RawValue> = parse_optional_part(response.output)?;
        if output.len() > self.items.len() || self.items.iter().any(|item| !item.is_done) {
            let has_indexes = self.items.iter().any(|item| item.index.is_some());
            for (output_index, raw) in output.into_iter().enumerate() {
                let item: Value = parse_part(raw)?;
                let index = output_index as u64;
                let found = match has_indexes {
                    true => self.find_item(Some(index), "", ResponsesItemKind::from_json(&item)),
                    false => (output_index < self.items.len()).then_some(output_index),
                };
                let position = match found {
                    Some(position) => position,
                    None => self.start_item(Some(index).filter(|_| has_indexes), &item, out)?,
                };
                out.count_bytes(raw.get().len())?;
                self.complete_item(position, item, out);
            }
        }
        for position in 0..self.items.len() {
            // Items of server-side tools cannot be rebuilt from deltas.
            let item = &self.items[position];
            if !item.is_done && item.kind != ResponsesItemKind::Other {
                let status = match response.status.or_empty() {
                    "incomplete" => "incomplete",
                    _ => "completed",
                };
                let value = item.build_final_form(status);
                self.complete_item(position, value, out);
            }
        }
        Ok(())
    }
}

fn parse_usage(raw: &RawValue) -> Option<Usage> {
    let counted: ResponsesUsage = serde_json::from_str(raw.get()).ok()?;
    counted.input_tokens.0.or(counted.output_tokens.0)?;
    let or_zero = |number: LenientNumber| number.0.unwrap_or(0);
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
