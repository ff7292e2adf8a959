//! Decodes the answer of a Chat server.

use selvedge_protocol::{FinishReason, Item, Origin, Role, Usage};
use serde_json::value::RawValue;

use super::call::Calls;
use super::chunk::{Chunk, Content, Counted, Delta, Groq, Part};
use super::thought::Thought;
use crate::classify::of_json;
use crate::decode::{AnswerDecoder, DONE, Emitter, broke_off};
use crate::json::{Text, optional_part, part, read};
use crate::{ModelError, ModelEvent, ReasoningView};

/// An answer as received so far. Items are emitted at the end of the input, because some servers
/// send more after a finish reason.
#[derive(Debug)]
pub(crate) struct Answer {
    origin: Origin,
    begun: bool,
    /// Number of items so far, which is the index of the next one.
    items: u32,
    /// Reasoning, with the index of its item.
    thought: Option<(u32, Thought)>,
    text: Option<(u32, String)>,
    refusal: String,
    calls: Calls,
    usage: Option<Usage>,
    reason: Option<FinishReason>,
    /// Whether the `[DONE]` event was received.
    done: bool,
    /// Whether the final events were emitted.
    finished: bool,
}

impl Answer {
    pub(crate) fn new(origin: Origin) -> Self {
        Self {
            origin,
            begun: false,
            items: 0,
            thought: None,
            text: None,
            refusal: String::new(),
            calls: Calls::default(),
            usage: None,
            reason: None,
            done: false,
            finished: false,
        }
    }
}

impl AnswerDecoder for Answer {
    fn is_finished(&self) -> bool {
        self.finished || self.done
    }

    fn may_end(&self) -> bool {
        self.is_finished() || self.reason.is_some()
    }

    fn event(&mut self, name: &[u8], data: &[u8], out: &mut Emitter<'_>) -> Result<(), ModelError> {
        if self.finished || self.done {
            return Ok(());
        }
        if data == DONE {
            self.done = true;
            return Ok(());
        }
        if name == b"error" {
            return Err(of_json(&read(data)?));
        }
        self.chunk(data, out)
    }

    fn body(&mut self, body: &[u8], out: &mut Emitter<'_>) -> Result<(), ModelError> {
        self.chunk(body, out)
    }

    fn end(&mut self, out: &mut Emitter<'_>) -> Result<(), ModelError> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        if self.reason.is_none() && !self.done {
            return Err(broke_off());
        }
        let mut reason = self.reason.take().unwrap_or(FinishReason::Stop);
        if let Some((item, thought)) = self.thought.take() {
            out.done(item, Item::Reasoning(thought.into_item(&self.origin)));
        }
        if let Some((item, text)) = self.text.take() {
            out.done(item, Item::message(Role::Assistant, text));
        }
        let last_is_cut = reason == FinishReason::Length;
        let has_calls = self.calls.finish(&self.origin, last_is_cut, out);
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

impl Answer {
    fn chunk(&mut self, data: &[u8], out: &mut Emitter<'_>) -> Result<(), ModelError> {
        let chunk: Chunk<'_> = read(data)?;
        let groq = chunk.x_groq.map(part::<Groq<'_>>).transpose()?;
        if chunk.error.is_some() || groq.as_ref().is_some_and(|groq| groq.error.is_some()) {
            return Err(of_json(&read(data)?));
        }
        if !std::mem::replace(&mut self.begun, true) {
            out.started(chunk.id.get(), chunk.model.get());
        }
        for choice in chunk.choices.iter().flatten() {
            // Only the first choice is used; the request asks for one.
            if choice.index.0.is_some_and(|index| index != 0) {
                continue;
            }
            if let Some(delta) = choice.delta.as_ref().or(choice.message.as_ref()) {
                self.delta(delta, out)?;
            }
            if let Some(usage) = choice.usage {
                self.count(usage);
            }
            if let Some(reason) = choice.finish_reason.get() {
                self.reason = Some(finish_reason(reason)?);
            }
        }
        if let Some(usage) = chunk.usage.or(groq.and_then(|groq| groq.usage)) {
            self.count(usage);
        }
        Ok(())
    }

    fn delta(&mut self, delta: &Delta<'_>, out: &mut Emitter<'_>) -> Result<(), ModelError> {
        let has_reasoning = delta.reasoning_content.get().is_some()
            || delta.reasoning.get().is_some()
            || delta.thought_signature.get().is_some()
            || delta.reasoning_details.is_some_and(|raw| raw.get() != "[]")
            || delta.extra_content.is_some();
        if has_reasoning {
            let (item, thought) = open(&mut self.thought, &mut self.items, out)?;
            let texts = [
                thought.words("reasoning_content", delta.reasoning_content.or_empty()),
                thought.words("reasoning", delta.reasoning.or_empty()),
                match delta.reasoning_details {
                    Some(details) => thought.details(part(details)?),
                    None => String::new(),
                },
            ];
            // The fields repeat the same text.
            let text = texts.into_iter().find(|text| !text.is_empty());
            let text = text.unwrap_or_default();
            thought.extra("extra_content", optional_part(delta.extra_content)?);
            thought.extra("thought_signature", delta.thought_signature.get().into());
            let details = delta.reasoning_details.map_or(0, |raw| raw.get().len());
            out.keep(2 * text.len() + details)?;
            thought.text.push_str(&text);
            out.reasoning(item, ReasoningView::Raw, &text);
        }
        match &delta.content {
            Content::Nothing => {}
            Content::Text(text) if text.is_empty() => {}
            Content::Text(text) => self.say(text, out)?,
            Content::Parts(parts) => self.parts(parts, out)?,
        }
        if let Some(refusal) = delta.refusal.get() {
            self.refusal.push_str(refusal);
            self.say(refusal, out)?;
        }
        for piece in delta.tool_calls.iter().flatten() {
            self.calls.take(piece, &mut self.items, out)?;
        }
        if let Some(function) = &delta.function_call {
            self.calls.take_function(function, &mut self.items, out)?;
        }
        Ok(())
    }

    fn parts(&mut self, parts: &[Part<'_>], out: &mut Emitter<'_>) -> Result<(), ModelError> {
        for part in parts {
            if let Some(text) = part.text.get() {
                self.say(text, out)?;
            }
            let thinking = part.thinking.map(RawValue::get).unwrap_or_default();
            let reasoning = match thinking.starts_with('[') {
                true => serde_json::from_str::<Vec<Part<'_>>>(thinking)
                    .map(|parts| parts.iter().map(|part| part.text.or_empty()).collect())
                    .unwrap_or_default(),
                false => serde_json::from_str::<Text<'_>>(thinking)
                    .map(|text| text.or_empty().to_owned())
                    .unwrap_or_default(),
            };
            if !reasoning.is_empty() {
                out.keep(reasoning.len())?;
                let (item, thought) = open(&mut self.thought, &mut self.items, out)?;
                thought.text.push_str(&reasoning);
                out.reasoning(item, ReasoningView::Raw, &reasoning);
            }
        }
        Ok(())
    }

    fn say(&mut self, text: &str, out: &mut Emitter<'_>) -> Result<(), ModelError> {
        out.keep(text.len())?;
        let (item, message) = open(&mut self.text, &mut self.items, out)?;
        message.push_str(text);
        out.text(item, text);
        Ok(())
    }

    fn count(&mut self, raw: &RawValue) {
        let Ok(usage) = serde_json::from_str::<Counted>(raw.get()).map(Counted::usage) else {
            return;
        };
        // A gateway may send an empty usage after the real one.
        if self.usage.is_none() || usage != Usage::default() {
            self.usage = Some(usage);
        }
    }
}

/// Returns the index and value of an item, and starts the item if it does not exist.
fn open<'a, T: Default>(
    slot: &'a mut Option<(u32, T)>,
    items: &mut u32,
    out: &mut Emitter<'_>,
) -> Result<(u32, &'a mut T), ModelError> {
    if slot.is_none() {
        out.item()?;
    }
    let (item, value) = slot.get_or_insert_with(|| {
        *items += 1;
        (*items - 1, T::default())
    });
    Ok((*item, value))
}

fn finish_reason(reason: &str) -> Result<FinishReason, ModelError> {
    Ok(match reason {
        "stop" | "eos" | "end_turn" => FinishReason::Stop,
        "tool_calls" | "function_call" | "tool_use" => FinishReason::ToolCalls,
        "length" | "max_tokens" | "model_length" => FinishReason::Length,
        "content_filter" | "refusal" => FinishReason::Refused,
        "error" | "insufficient_system_resource" => {
            return Err(of_json(&serde_json::json!({"error": {
                "code": reason,
                "message": format!("the provider stopped with `{reason}`"),
            }})));
        }
        other => FinishReason::Other(other.to_owned()),
    })
}
