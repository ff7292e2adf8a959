//! The JSON that a Messages server sends, with the fields that are used.

use selvedge_protocol::Usage;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::lenient_json::{LenientNumber, LenientText};

/// Token counts of this API. `input_tokens` does not include cached tokens.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct MessagesUsage {
    pub(super) input_tokens: LenientNumber,
    pub(super) cache_read_input_tokens: LenientNumber,
    pub(super) cache_creation_input_tokens: LenientNumber,
    pub(super) output_tokens: LenientNumber,
    pub(super) output_tokens_details: MessagesOutputTokensDetails,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct MessagesOutputTokensDetails {
    pub(super) thinking_tokens: LenientNumber,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct MessagesEvent<'a> {
    #[serde(rename = "type")]
    pub(super) kind: LenientText<'a>,
    pub(super) index: LenientNumber,
    pub(super) delta: Option<MessagesDelta<'a>>,
    pub(super) content_block: Option<&'a RawValue>,
    pub(super) message: Option<&'a RawValue>,
    #[serde(deserialize_with = "lenient_usage")]
    pub(super) usage: MessagesUsage,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct MessagesDelta<'a> {
    #[serde(rename = "type")]
    pub(super) kind: LenientText<'a>,
    pub(super) text: LenientText<'a>,
    pub(super) thinking: LenientText<'a>,
    pub(super) signature: LenientText<'a>,
    pub(super) partial_json: LenientText<'a>,
    pub(super) stop_reason: LenientText<'a>,
}

fn lenient_usage<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<MessagesUsage, D::Error> {
    Ok(MessagesUsage::from_json(&Value::deserialize(deserializer)?))
}

impl MessagesUsage {
    /// Parses the `usage` of a message. Fields that cannot be parsed count as absent.
    pub(super) fn from_json(usage: &Value) -> Self {
        let mut usage = usage.clone();
        if let Value::Object(fields) = &mut usage {
            fields.retain(|_, field| !field.is_null());
        }
        serde_json::from_value(usage).unwrap_or_default()
    }

    /// Replaces the counts that `newer` has. Later counts include earlier ones.
    pub(super) fn update(&mut self, mut newer: Self) {
        for (old, new) in self.counts_mut().into_iter().zip(newer.counts_mut()) {
            old.0 = new.0.or(old.0);
        }
    }

    fn counts_mut(&mut self) -> [&mut LenientNumber; 5] {
        [
            &mut self.input_tokens,
            &mut self.cache_read_input_tokens,
            &mut self.cache_creation_input_tokens,
            &mut self.output_tokens,
            &mut self.output_tokens_details.thinking_tokens,
        ]
    }

    /// Converts to the usage of an event; `None` if no counts were received.
    pub(super) fn into_usage(mut self) -> Option<Usage> {
        self.input_tokens.0.or(self.output_tokens.0)?;
        let numbers = self.counts_mut().map(|number| number.0.unwrap_or(0));
        let [input, cache_read, cache_write, output, reasoning] = numbers;
        Some(Usage {
            input_tokens: input.saturating_add(cache_read).saturating_add(cache_write),
            cached_input_tokens: cache_read,
            cache_write_input_tokens: cache_write,
            output_tokens: output,
            reasoning_output_tokens: reasoning,
        })
    }
}
