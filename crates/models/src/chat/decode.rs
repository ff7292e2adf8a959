//! What a Chat server answers.

use selvedge_protocol::{FinishReason, Item, Message, Origin, OutputPart, Role, Usage};
use serde_json::value::RawValue;

use super::call::Calls;
use super::chunk::{Chunk, Content, Counted, Delta, Groq, Part};
use super::thought::Thought;
use crate::decode::{Allowance, DONE, broke_off};
use crate::json::{Text, part, read};
use crate::{ModelError, ModelEvent, ReasoningView};

/// An answer as far as it came. Nothing is complete before its end: some servers go on after they said they stop.
#[derive(Debug)]
pub(crate) struct Answer {
    origin: Origin,
    begun: bool,
    items: u32,
    thought: Option<(u32, Thought)>,
    text: Option<(u32, String)>,
    refusal: String,
    calls: Calls,
    usage: Option<Usage>,
    reason: Option<FinishReason>,
    done: bool,
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

    pub(crate) fn is_finished(&self) -> bool {
        self.finished || self.done
    }

    pub(crate) fn may_end(&self) -> bool {
        self.finished || self.done || self.reason.is_some()
    }

    pub(crate) fn event(
        &mut self,
        name: &[u8],
        data: &[u8],
        events: &mut Vec<ModelEvent>,
        allowance: &mut Allowance,
    ) -> Result<(), ModelError> {
        if self.finished || self.done {
            return Ok(());
        }
        if data == DONE {
            self.done = true;
            return Ok(());
        }
        if name == b"error" {
            return Err(crate::classify::of_json(&read(data)?));
        }
        self.chunk(data, events, allowance)
    }

    pub(crate) fn body(
        &mut self,
        body: &[u8],
        events: &mut Vec<ModelEvent>,
        allowance: &mut Allowance,
    ) -> Result<(), ModelError> {
        self.chunk(body, events, allowance)
    }

    pub(crate) fn end(&mut self, events: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        if self.reason.is_none() && !self.done {
            return Err(broke_off());
        }
        let mut reason = self.reason.take().unwrap_or(FinishReason::Stop);
        if let Some((item, thought)) = self.thought.take() {
            events.push(ModelEvent::ItemDone {
                item,
                done: Item::Reasoning(thought.into_item(&self.origin)),
            });
        }
        if let Some((item, text)) = self.text.take() {
            let content = vec![OutputPart::Text { text }];
            let done = Item::Message(Message {
                role: Role::Assistant,
                content,
                native: None,
            });
            events.push(ModelEvent::ItemDone { item, done });
        }
        let last_is_cut = reason == FinishReason::Length;
        let whole = self.calls.finish(&self.origin, last_is_cut, events);
        if whole && reason == FinishReason::Stop {
            // Some say "stop" although they wait for results.
            reason = FinishReason::ToolCalls;
        }
        let refusal = std::mem::take(&mut self.refusal);
        let detail = (!refusal.is_empty()).then_some(refusal);
        if detail.is_some() {
            reason = FinishReason::Refused;
        }
        events.extend(self.usage.map(ModelEvent::Usage));
        events.push(ModelEvent::Finished { reason, detail });
        Ok(())
    }

    fn chunk(
        &mut self,
        data: &[u8],
        events: &mut Vec<ModelEvent>,
        allowance: &mut Allowance,
    ) -> Result<(), ModelError> {
        let chunk: Chunk<'_> = read(data)?;
        let groq = chunk.x_groq.map(part::<Groq<'_>>).transpose()?;
        if chunk.error.is_some() || groq.as_ref().is_some_and(|groq| groq.error.is_some()) {
            return Err(crate::classify::of_json(&read(data)?));
        }
        if !std::mem::replace(&mut self.begun, true) {
            let text = |text: &Text<'_>| text.get().map(str::to_owned);
            events.push(ModelEvent::Started {
                id: text(&chunk.id),
                model: text(&chunk.model),
            });
        }
        for choice in chunk.choices.iter().flatten() {
            // Alternatives nobody asked for.
            if choice.index.0.is_some_and(|index| index != 0) {
                continue;
            }
            if let Some(delta) = choice.delta.as_ref().or(choice.message.as_ref()) {
                self.delta(delta, events, allowance)?;
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

    fn delta(
        &mut self,
        delta: &Delta<'_>,
        events: &mut Vec<ModelEvent>,
        allowance: &mut Allowance,
    ) -> Result<(), ModelError> {
        let thinks = delta.reasoning_content.get().is_some()
            || delta.reasoning.get().is_some()
            || delta.thought_signature.get().is_some()
            || delta.reasoning_details.is_some_and(|raw| raw.get() != "[]")
            || delta.extra_content.is_some();
        if thinks {
            let (item, thought) = open(&mut self.thought, &mut self.items, allowance)?;
            let details = delta.reasoning_details.map(part).transpose()?;
            let shown = [
                thought.words("reasoning_content", delta.reasoning_content.or_empty()),
                thought.words("reasoning", delta.reasoning.or_empty()),
                details
                    .map(|details| thought.details(details))
                    .unwrap_or_default(),
            ];
            // The same words under three names.
            let text = shown
                .into_iter()
                .find(|words| !words.is_empty())
                .unwrap_or_default();
            let extra = delta.extra_content.map(part).transpose()?;
            thought.extra("extra_content", extra.unwrap_or_default());
            thought.extra("thought_signature", delta.thought_signature.get().into());
            allowance
                .keep(2 * text.len() + delta.reasoning_details.map_or(0, |raw| raw.get().len()))?;
            if !text.is_empty() {
                thought.text.push_str(&text);
                events.push(ModelEvent::Reasoning {
                    item,
                    view: ReasoningView::Raw,
                    text,
                });
            }
        }
        match &delta.content {
            Content::Nothing => {}
            Content::Text(text) if text.is_empty() => {}
            Content::Text(text) => self.say(text, events, allowance)?,
            Content::Parts(parts) => self.parts(parts, events, allowance)?,
        }
        if let Some(refusal) = delta.refusal.get() {
            self.refusal.push_str(refusal);
            self.say(refusal, events, allowance)?;
        }
        for piece in delta.tool_calls.iter().flatten() {
            self.calls.take(piece, &mut self.items, events, allowance)?;
        }
        if let Some(function) = &delta.function_call {
            self.calls
                .take_function(function, &mut self.items, events, allowance)?;
        }
        Ok(())
    }

    fn parts(
        &mut self,
        parts: &[Part<'_>],
        events: &mut Vec<ModelEvent>,
        allowance: &mut Allowance,
    ) -> Result<(), ModelError> {
        for piece in parts {
            if let Some(text) = piece.text.get() {
                self.say(text, events, allowance)?;
            }
            let thinking = piece.thinking.map(RawValue::get).unwrap_or_default();
            let words = match thinking.starts_with('[') {
                true => serde_json::from_str::<Vec<Part<'_>>>(thinking)
                    .map(|parts| parts.iter().map(|part| part.text.or_empty()).collect())
                    .unwrap_or_default(),
                false => serde_json::from_str::<Text<'_>>(thinking)
                    .map(|text| text.or_empty().to_owned())
                    .unwrap_or_default(),
            };
            if !words.is_empty() {
                allowance.keep(words.len())?;
                let (item, thought) = open(&mut self.thought, &mut self.items, allowance)?;
                thought.text.push_str(&words);
                events.push(ModelEvent::Reasoning {
                    item,
                    view: ReasoningView::Raw,
                    text: words,
                });
            }
        }
        Ok(())
    }

    fn say(
        &mut self,
        text: &str,
        events: &mut Vec<ModelEvent>,
        allowance: &mut Allowance,
    ) -> Result<(), ModelError> {
        allowance.keep(text.len())?;
        let (item, said) = open(&mut self.text, &mut self.items, allowance)?;
        said.push_str(text);
        events.push(ModelEvent::Text {
            item,
            text: text.to_owned(),
        });
        Ok(())
    }

    fn count(&mut self, raw: &RawValue) {
        let Ok(usage) = serde_json::from_str::<Counted>(raw.get()).map(Counted::usage) else {
            return;
        };
        // A gateway may repeat the usage with nothing in it.
        if self.usage.is_none() || usage != Usage::default() {
            self.usage = Some(usage);
        }
    }
}

/// The thing at its place in the answer, which it gets when it first appears.
fn open<'a, T: Default>(
    place: &'a mut Option<(u32, T)>,
    items: &mut u32,
    allowance: &mut Allowance,
) -> Result<(u32, &'a mut T), ModelError> {
    if place.is_none() {
        allowance.item()?;
    }
    let (item, thing) = place.get_or_insert_with(|| {
        *items += 1;
        (*items - 1, T::default())
    });
    Ok((*item, thing))
}

fn finish_reason(reason: &str) -> Result<FinishReason, ModelError> {
    Ok(match reason {
        "stop" | "eos" | "end_turn" => FinishReason::Stop,
        "tool_calls" | "function_call" | "tool_use" => FinishReason::ToolCalls,
        "length" | "max_tokens" | "model_length" => FinishReason::Length,
        "content_filter" | "refusal" => FinishReason::Refused,
        "error" | "insufficient_system_resource" => {
            return Err(crate::classify::of_json(&serde_json::json!({"error": {
                "code": reason,
                "message": format!("the provider stopped with `{reason}`"),
            }})));
        }
        other => FinishReason::Other(other.to_owned()),
    })
}
