//! The JSON a Messages server sends, as far as it is read.

use selvedge_protocol::Usage;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::json::{Number, Text};

/// Tokens as this API counts them: what was cached is not in `input`.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct Counted {
    pub(super) input_tokens: Number,
    pub(super) cache_read_input_tokens: Number,
    pub(super) cache_creation_input_tokens: Number,
    pub(super) output_tokens: Number,
    pub(super) output_tokens_details: Details,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct Details {
    pub(super) thinking_tokens: Number,
}

#[derive(Deserialize)]
pub(super) struct Event<'a> {
    #[serde(borrow, default, rename = "type")]
    pub(super) kind: Text<'a>,
    #[serde(default)]
    pub(super) index: Number,
    #[serde(borrow, default)]
    pub(super) delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    pub(super) content_block: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) message: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "lenient_usage")]
    pub(super) usage: Counted,
}

#[derive(Deserialize)]
pub(super) struct Delta<'a> {
    #[serde(borrow, default, rename = "type")]
    pub(super) kind: Text<'a>,
    #[serde(borrow, default)]
    pub(super) text: Text<'a>,
    #[serde(borrow, default)]
    pub(super) thinking: Text<'a>,
    #[serde(borrow, default)]
    pub(super) signature: Text<'a>,
    #[serde(borrow, default)]
    pub(super) partial_json: Text<'a>,
    #[serde(borrow, default)]
    pub(super) stop_reason: Text<'a>,
}

fn lenient_usage<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Counted, D::Error> {
    Ok(Counted::of(&Value::deserialize(deserializer)?))
}

fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, field| !field.is_null());
    }
    value
}

impl Counted {
    /// What a message says about itself; what cannot be read counts as unsaid.
    pub(super) fn of(usage: &Value) -> Self {
        serde_json::from_value(without_nulls(usage.clone())).unwrap_or_default()
    }

    /// Takes over what is said anew: later counts include earlier ones.
    pub(super) fn update(&mut self, newer: Self) {
        let take = |old: &mut Number, new: Number| old.0 = new.0.or(old.0);
        take(&mut self.input_tokens, newer.input_tokens);
        take(
            &mut self.cache_read_input_tokens,
            newer.cache_read_input_tokens,
        );
        take(
            &mut self.cache_creation_input_tokens,
            newer.cache_creation_input_tokens,
        );
        take(&mut self.output_tokens, newer.output_tokens);
        take(
            &mut self.output_tokens_details.thinking_tokens,
            newer.output_tokens_details.thinking_tokens,
        );
    }

    pub(super) fn total(&self) -> Option<Usage> {
        let [input, read, written, output, thought] = [
            self.input_tokens,
            self.cache_read_input_tokens,
            self.cache_creation_input_tokens,
            self.output_tokens,
            self.output_tokens_details.thinking_tokens,
        ]
        .map(|number| number.0);
        input.or(output)?;
        let known = |number: Option<u64>| number.unwrap_or(0);
        Some(Usage {
            input_tokens: known(input)
                .saturating_add(known(read))
                .saturating_add(known(written)),
            cached_input_tokens: known(read),
            cache_write_input_tokens: known(written),
            output_tokens: known(output),
            reasoning_output_tokens: known(thought),
        })
    }
}
