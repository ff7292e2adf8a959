//! What is known about a model.

use selvedge_protocol::{Mode, Usage};

/// A model: how large, how it thinks, what it can do.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Its name, as the provider knows it.
    pub name: String,
    /// How many tokens a conversation may have, the answer included.
    pub context_window: u64,
    /// How many tokens an answer may have.
    pub max_output_tokens: u64,
    /// How it is told to think.
    pub thinking: Thinking,
    /// Whether it calls tools. Where not, scripts in its text still work.
    pub tools: bool,
    /// Whether it takes tools whose input is plain text (Responses alone has them).
    pub freeform_tools: bool,
    /// Whether it sees images.
    pub images: bool,
    /// What tokens cost, where somebody said.
    pub prices: Option<Prices>,
    /// Whether scripts run with this model; where nothing is said, as everywhere.
    pub script_mode: Option<Mode>,
    /// The pack of tools it gets; where nothing is said, as everywhere.
    pub tool_pack: Option<String>,
}

/// How a model is told to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// It is not: it does not think, or does as it likes.
    Unsaid,
    /// With a word for the effort (Responses, Chat).
    Effort,
    /// As much as it finds right, with a word for the effort (Messages, newer models).
    Adaptive,
    /// With a number of tokens (Messages, older models).
    Budget,
}

/// What a million tokens cost, in one currency.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Prices {
    /// Read for the first time.
    pub input: f64,
    /// Read from a cache; as `input` where nothing is said.
    pub cached_input: Option<f64>,
    /// Written to a cache; as `input` where nothing is said.
    pub cache_write: Option<f64>,
    /// Written by the model.
    pub output: f64,
}

impl Prices {
    /// What this usage cost.
    pub fn cost(&self, usage: &Usage) -> f64 {
        let (cached, written) = (usage.cached_input_tokens, usage.cache_write_input_tokens);
        let fresh = usage
            .input_tokens
            .saturating_sub(cached)
            .saturating_sub(written);
        let millionths = fresh as f64 * self.input
            + cached as f64 * self.cached_input.unwrap_or(self.input)
            + written as f64 * self.cache_write.unwrap_or(self.input)
            + usage.output_tokens as f64 * self.output;
        millionths / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_tokens_have_their_own_price() {
        let prices = Prices {
            input: 3.0,
            cached_input: Some(0.3),
            cache_write: Some(3.75),
            output: 15.0,
        };
        let usage = Usage {
            input_tokens: 1_000_000,
            cached_input_tokens: 400_000,
            cache_write_input_tokens: 200_000,
            output_tokens: 100_000,
            reasoning_output_tokens: 50_000,
        };
        assert!((prices.cost(&usage) - (1.2 + 0.12 + 0.75 + 1.5)).abs() < 1e-9);
    }
}
