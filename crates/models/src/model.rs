//! What is known about a model.

use selvedge_protocol::{Mode, Prices, Thinking};

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
