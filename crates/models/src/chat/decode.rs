//! Decodes the answer of a Chat server.

use selvedge_protocol::{ConversationItem, FinishReason, MessageRole, ModelOrigin, Usage};
use serde_json::value::RawValue;

use super::call_deltas::ChatCallAssembler;
use super::chunk::{
    ChatChunk, ChatChunkDelta, ChatContent, ChatContentPart, ChatUsage, GroqExtension,
};
use super::reasoning::ChatReasoning;
use crate::classify::error_from_json;
use crate::decode::{DONE_MARKER, EventCollector, WireDecoder, incomplete_answer};
use crate::lenient_json::{LenientText, parse_event, parse_optional_part, parse_part};
use crate::{ModelError, ModelEvent, ReasoningView};

/// An answer as received so far. Items are emitted at the end of the input, because some servers
/// send more after a finish reason.
#[derive(Debug)]
pub(crate) struct ChatAnswerDecoder {
    origin: ModelOrigin,
    started: bool,
    /// Number of items so far, which is the index of the next one.
    item_count: u32,
    /// Reasoning, with the index of its item.
    reasoning: Option<(u32, ChatReasoning)>,
    text: Option<(u32, String)>,
    refusal: String,
    calls: ChatCallAssembler,
    usage: Option<Usage>,
    finish_reason: Option<FinishReason>,
    /// Whether the `[DONE]` event was received.
    saw_done_marker: bool,
    /// Whether the final events were emitted.
    finished: bool,
}

impl ChatAnswerDecoder {
    pub(crate) fn new(origin: ModelOrigin) -> Self {
        Self {
            origin,
            started: false,
            item_count: 0,
            reasoning: None,
            text: None,
            refusal: String::new(),
            calls: ChatCallAssembler::default(),
            usage: None,
            finish_reason: None,
            saw_done_marker: false,
            finished: false,
        }
    }
}

impl WireDecoder for ChatAnswerDecoder {
    fn needs_no_more_input(&self) -> bool {
        self.finished || self.saw_done_marker
    }

    fn may_end_here(&self) -> bool {
        self.needs_no_more_input() || self.finish_reason.is_some()
    }

    fn decode_event(
        &mut self,
        name: &[u8],
        data: &[u8],
        out: &mut EventCollector<'_>,
    ) -> Result<(), ModelError> {
        if self.finished || self.saw_done_marker {
            return Ok(());
        }
        if data == DONE_MARKER {
            self.saw_done_marker = true;
            return Ok(());
        }
        if name == b"error" {
            return Err(error_from_json(&parse_event(data)?));
        }
        self.decode_chunk(data, out)
    }

    fn decode_body(&mut self, body: &[u8], out: &mut EventCollector<'_>) -> Result<(), ModelError> {
        self.decode_chunk(body, out)
    }

    fn decode_end(&mut self, out: &mut EventCollector<'_>) -> Result<(), ModelError> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        if self.finish_reason.is_none() && !self.saw_done_marker {
            return Err(incomplete_answer());
        }
        let mut reason = self.finish_reason.take().unwrap_or(FinishReason::Stop);
        if let Some((item, reasoning)) = self.reasoning.take() {
            out.item_done(
                item,
                ConversationItem::Reasoning(reasoning.into_item(&self.origin)),
            );
        }
        if let Some((item, text)) = self.text.take() {
            out.item_done(
                item,
                ConversationItem::message(MessageRole::Assistant, text),
            );
        }
        let last_is_truncated = reason == FinishReason::Length;
        let has_calls = self.calls.emit_all(&self.origin, last_is_truncated, out);
        if has_calls && reason == FinishReason::Stop {
            // Some servers send "stop" after calls.
            reason = FinishReason::ToolCalls;
        }
        let refusal = std::mem::take(&mut self.refusal);
        let detail = (!refusal.is_empty()).then_some(refusal);
        if detail.is_some() {
            reason = FinishReason::Refused;
        }
        if let Some(usage) = self.usage {
            out.push(ModelEvent::Usage(usage));
        }
        out.push(ModelEvent::Finished { reason, detail });
        Ok(())
    }
}

impl ChatAnswerDecoder {
    fn decode_chunk(
        &mut self,
        data: &[u8],
        out: &mut EventCollector<'_>,
    ) -> Result<(), ModelError> {
        let chunk: ChatChunk<'_> = parse_event(data)?;
        let groq = chunk
            .x_groq
            .map(parse_part::<GroqExtension<'_>>)
            .transpose()?;
        if chunk.error.is_some() || groq.as_ref().is_some_and(|groq| groq.error.is_some()) {
            return Err(error_from_json(&parse_event(data)?));
        }
        if !std::mem::replace(&mut self.started, true) {
            out.started(chunk.id.get(), chunk.model.get());
        }
        for choice in chunk.choices.iter().flatten() {
            // Only the first choice is used; the request asks for one.
            if choice.index.0.is_some_and(|index| index != 0) {
                continue;
            }
            if let Some(delta) = choice.delta.as_ref().or(choice.message.as_ref()) {
                self.decode_delta(delta, out)?;
            }
            if let Some(usage) = choice.usage {
                self.record_usage(usage);
            }
            if let Some(reason) = choice.finish_reason.get() {
                self.finish_reason = Some(parse_finish_reason(reason)?);
            }
        }
        if let Some(usage) = chunk.usage.or(groq.and_then(|groq| groq.usage)) {
            self.record_usage(usage);
        }
        Ok(())
    }

    fn decode_delta(
        &mut self,
        delta: &ChatChunkDelta<'_>,
        out: &mut EventCollector<'_>,
    ) -> Result<(), ModelError> {
        let has_reasoning = delta.reasoning_content.get().is_some()
            || delta.reasoning.get().is_some()
            || delta.thought_signature.get().is_some()
            || delta.reasoning_details.is_some_and(|raw| raw.get() != "[]")
            || delta.extra_content.is_some();
        if has_reasoning {
            let (item, reasoning) =
                get_or_start_item(&mut self.reasoning, &mut self.item_count, out)?;
            let texts = [
                reasoning.add_text("reasoning_content", delta.reasoning_content.or_empty()),
                reasoning.add_text("reasoning", delta.reasoning.or_empty()),
                match delta.reasoning_details {
                    Some(details) => reasoning.add_details(parse_part(details)?),
                    None => String::new(),
                },
            ];
            // The fields repeat the same text.
            let text = texts.into_iter().find(|text| !text.is_empty());
            let text = text.unwrap_or_default();
            reasoning.set_field("extra_content", parse_optional_part(delta.extra_content)?);
            reasoning.set_field("thought_signature", delta.thought_signature.get().into());
            let details = delta.reasoning_details.map_or(0, |raw| raw.get().len());
            out.count_bytes(2 * text.len() + details)?;
            reasoning.text.push_str(&text);
            out.reasoning(item, ReasoningView::Raw, &text);
        }
        match &delta.content {
            ChatContent::Empty => {}
            ChatContent::Text(text) if text.is_empty() => {}
            ChatContent::Text(text) => self.add_text(text, out)?,
            ChatContent::Parts(parts) => self.decode_parts(parts, out)?,
        }
        if let Some(refusal) = delta.refusal.get() {
            self.refusal.push_str(refusal);
            self.add_text(refusal, out)?;
        }
        for call_delta in delta.tool_calls.iter().flatten() {
            self.calls
                .add_delta(call_delta, &mut self.item_count, out)?;
        }
        if let Some(function) = &delta.function_call {
            self.calls
                .add_function_delta(function, &mut self.item_count, out)?;
        }
        Ok(())
    }

    fn decode_parts(
        &mut self,
        parts: &[ChatContentPart<'_>],
        out: &mut EventCollector<'_>,
    ) -> Result<(), ModelError> {
        for part in parts {
            if let Some(text) = part.text.get() {
                self.add_text(text, out)?;
            }
            let thinking = part.thinking.map(RawValue::get).unwrap_or_default();
            let text = match thinking.starts_with('[') {
                true => serde_json::from_str::<Vec<ChatContentPart<'_>>>(thinking)
                    .map(|parts| parts.iter().map(|part| part.text.or_empty()).collect())
                    .unwrap_or_default(),
                false => serde_json::from_str::<LenientText<'_>>(thinking)
                    .map(|text| text.or_empty().to_owned())
                    .unwrap_or_default(),
            };
            if !text.is_empty() {
                out.count_bytes(text.len())?;
                let (item, reasoning) =
                    get_or_start_item(&mut self.reasoning, &mut self.item_count, out)?;
                reasoning.text.push_str(&text);
                out.reasoning(item, ReasoningView::Raw, &text);
            }
        }
        Ok(())
    }

    fn add_text(&mut self, text: &str, out: &mut EventCollector<'_>) -> Result<(), ModelError> {
        out.count_bytes(text.len())?;
        let (item, message) = get_or_start_item(&mut self.text, &mut self.item_count, out)?;
        message.push_str(text);
        out.text(item, text);
        Ok(())
    }

    fn record_usage(&mut self, raw: &RawValue) {
        let Ok(usage) = serde_json::from_str::<ChatUsage>(raw.get()).map(ChatUsage::into_usage)
        else {
            return;
        };
        // A gateway may send an empty usage after the real one.
        if self.usage.is_none() || usage != Usage::default() {
            self.usage = Some(usage);
        }
    }
}

/// Returns the index and value of an item, and starts the item if it does not exist.
fn get_or_start_item<'a, T: Default>(
    item: &'a mut Option<(u32, T)>,
    items: &mut u32,
    out: &mut EventCollector<'_>,
) -> Result<(u32, &'a mut T), ModelError> {
    if item.is_none() {
        out.count_item()?;
    }
    let (item, value) = item.get_or_insert_with(|| {
        *items += 1;
        (*items - 1, T::default())
    });
    Ok((*item, value))
}

fn parse_finish_reason(reason: &str) -> Result<FinishReason, ModelError> {
    Ok(match reason {
        "stop" | "eos" | "end_turn" => FinishReason::Stop,
        "tool_calls" | "function_call" | "tool_use" => FinishReason::ToolCalls,
        "length" | "max_tokens" | "model_length" => FinishReason::Length,
        "content_filter" | "refusal" => FinishReason::Refused,
        "error" | "insufficient_system_resource" => {
            return Err(error_from_json(&serde_json::json!({"error": {
                "code": reason,
                "message": format!("the provider stopped with `{reason}`"),
            }})));
        }
        other => FinishReason::Other(other.to_owned()),
    })
}
