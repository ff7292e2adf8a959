//! The JSON that a Chat server sends, with the fields that are used.

use std::borrow::Cow;

use selvedge_protocol::Usage;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::call_deltas::{ChatCallDelta, ChatFunctionDelta};
use crate::lenient_json::{LenientNumber, LenientText};

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ChatChunk<'a> {
    pub(super) id: LenientText<'a>,
    pub(super) model: LenientText<'a>,
    pub(super) choices: Option<Vec<ChatChunkChoice<'a>>>,
    pub(super) usage: Option<&'a RawValue>,
    pub(super) x_groq: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ChatChunkChoice<'a> {
    pub(super) index: LenientNumber,
    pub(super) delta: Option<ChatChunkDelta<'a>>,
    /// Replaces `delta` if the answer was not streamed.
    pub(super) message: Option<ChatChunkDelta<'a>>,
    pub(super) finish_reason: LenientText<'a>,
    pub(super) usage: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ChatChunkDelta<'a> {
    pub(super) content: ChatContent<'a>,
    pub(super) reasoning_content: LenientText<'a>,
    pub(super) reasoning: LenientText<'a>,
    pub(super) reasoning_details: Option<&'a RawValue>,
    pub(super) extra_content: Option<&'a RawValue>,
    pub(super) thought_signature: LenientText<'a>,
    pub(super) refusal: LenientText<'a>,
    pub(super) tool_calls: Option<Vec<ChatCallDelta<'a>>>,
    pub(super) function_call: Option<ChatFunctionDelta<'a>>,
}

/// Content of a message: a string, or a list of parts, of which some are reasoning.
#[derive(Default)]
pub(super) enum ChatContent<'a> {
    #[default]
    Empty,
    Text(Cow<'a, str>),
    Parts(Vec<ChatContentPart<'a>>),
}

impl<'de: 'a, 'a> Deserialize<'de> for ChatContent<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ChatContentVisitor)
    }
}

struct ChatContentVisitor;

impl<'de> Visitor<'de> for ChatContentVisitor {
    type Value = ChatContent<'de>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a text or a list of parts")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(ChatContent::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(ChatContent::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(ChatContent::Empty)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = seq.next_element()? {
            parts.push(part);
        }
        Ok(ChatContent::Parts(parts))
    }
}

/// A part of content.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ChatContentPart<'a> {
    pub(super) text: LenientText<'a>,
    pub(super) thinking: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChatUsage {
    pub(super) prompt_tokens: LenientNumber,
    pub(super) completion_tokens: LenientNumber,
    pub(super) total_tokens: LenientNumber,
    pub(super) prompt_tokens_details: Option<ChatPromptTokensDetails>,
    pub(super) completion_tokens_details: Option<ChatCompletionTokensDetails>,
    pub(super) prompt_cache_hit_tokens: LenientNumber,
    pub(super) cached_tokens: LenientNumber,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChatPromptTokensDetails {
    pub(super) cached_tokens: LenientNumber,
    pub(super) cache_write_tokens: LenientNumber,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChatCompletionTokensDetails {
    pub(super) reasoning_tokens: LenientNumber,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct GroqExtension<'a> {
    pub(super) usage: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
}

impl ChatUsage {
    pub(super) fn into_usage(self) -> Usage {
        let or_zero = |number: LenientNumber| number.0.unwrap_or(0);
        let input = or_zero(self.prompt_tokens);
        let prompt = self.prompt_tokens_details.unwrap_or_default();
        let cached = prompt.cached_tokens.0.or(self.prompt_cache_hit_tokens.0);
        let cached = cached.or(self.cached_tokens.0);
        let completion = self.completion_tokens_details.unwrap_or_default();
        Usage {
            input_tokens: input,
            cached_input_tokens: cached.unwrap_or(0),
            cache_write_input_tokens: or_zero(prompt.cache_write_tokens),
            // Some servers count reasoning in the total, but not in the completion.
            output_tokens: or_zero(self.completion_tokens)
                .max(or_zero(self.total_tokens).saturating_sub(input)),
            reasoning_output_tokens: or_zero(completion.reasoning_tokens),
        }
    }
}
