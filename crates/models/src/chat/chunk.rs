//! The JSON that a Chat server sends, with the fields that are used.

use std::borrow::Cow;

use selvedge_protocol::Usage;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::call::{CallPiece, FunctionPiece};
use crate::json::{Number, Text};

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Chunk<'a> {
    pub(super) id: Text<'a>,
    pub(super) model: Text<'a>,
    pub(super) choices: Option<Vec<Choice<'a>>>,
    pub(super) usage: Option<&'a RawValue>,
    pub(super) x_groq: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Choice<'a> {
    pub(super) index: Number,
    pub(super) delta: Option<Delta<'a>>,
    /// Replaces `delta` if the answer was not streamed.
    pub(super) message: Option<Delta<'a>>,
    pub(super) finish_reason: Text<'a>,
    pub(super) usage: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Delta<'a> {
    pub(super) content: Content<'a>,
    pub(super) reasoning_content: Text<'a>,
    pub(super) reasoning: Text<'a>,
    pub(super) reasoning_details: Option<&'a RawValue>,
    pub(super) extra_content: Option<&'a RawValue>,
    pub(super) thought_signature: Text<'a>,
    pub(super) refusal: Text<'a>,
    pub(super) tool_calls: Option<Vec<CallPiece<'a>>>,
    pub(super) function_call: Option<FunctionPiece<'a>>,
}

/// Content of a message: a string, or a list of parts, of which some are reasoning.
#[derive(Default)]
pub(super) enum Content<'a> {
    #[default]
    Nothing,
    Text(Cow<'a, str>),
    Parts(Vec<Part<'a>>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content<'de>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a text or a list of parts")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Content::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Content::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Content::Nothing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = seq.next_element()? {
            parts.push(part);
        }
        Ok(Content::Parts(parts))
    }
}

/// A part of content.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Part<'a> {
    pub(super) text: Text<'a>,
    pub(super) thinking: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Counted {
    pub(super) prompt_tokens: Number,
    pub(super) completion_tokens: Number,
    pub(super) total_tokens: Number,
    pub(super) prompt_tokens_details: Option<PromptDetails>,
    pub(super) completion_tokens_details: Option<CompletionDetails>,
    pub(super) prompt_cache_hit_tokens: Number,
    pub(super) cached_tokens: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PromptDetails {
    pub(super) cached_tokens: Number,
    pub(super) cache_write_tokens: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CompletionDetails {
    pub(super) reasoning_tokens: Number,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Groq<'a> {
    pub(super) usage: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
}

impl Counted {
    pub(super) fn usage(self) -> Usage {
        let or_zero = |number: Number| number.0.unwrap_or(0);
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
