//! How an agent behaves: all of it plain values.

use std::time::Duration;

use selvedge_models::Effort;
use selvedge_protocol::Mode;

/// How an agent behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where it works, as scripts and the model are told.
    pub directory: String,
    /// Whether scripts run.
    pub mode: Mode,
    /// What the model is offered besides scripts.
    pub offer: Offer,
    /// How far one turn may go.
    pub turn_limits: Allowance,
    /// How far a whole session may go.
    pub session_limits: Allowance,
    /// Tokens of one result that the model sees.
    pub max_output_tokens: usize,
    /// Tokens of tool declarations in the system text; what does not fit is listed by name.
    pub declaration_tokens: usize,
    /// How much of the context may be used before the conversation is made shorter, in percent.
    pub compact_at_percent: u64,
    /// What happens when a script block ends while the model goes on.
    pub after_block: AfterBlock,
    /// How hard the model should think.
    pub effort: Option<Effort>,
    /// What the project says to agents, such as its AGENTS.md.
    pub project: Option<String>,
    /// What the person wants the model to know besides.
    pub instructions: Option<String>,
    /// How deep agents may launch agents.
    pub max_depth: u32,
}

/// What a model is offered besides scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Offer {
    /// Every tool as a structured call, too.
    #[default]
    ScriptsAndCalls,
    /// Nothing.
    ScriptsAlone,
}

/// What happens when a script block ends while the model goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterBlock {
    /// The model says what it wants to say.
    #[default]
    Listen,
    /// The answer ends there: nothing is said about a result that is not known yet.
    Stop,
}

/// How far something may go. `None` is as far as it likes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Allowance {
    /// Requests to the model.
    pub rounds: Option<u32>,
    /// Tokens in and out.
    pub tokens: Option<u64>,
    /// Money, in the currency of the model's prices.
    pub cost: Option<f64>,
    /// Wall time.
    pub time: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            directory: String::new(),
            mode: Mode::default(),
            offer: Offer::default(),
            turn_limits: Allowance {
                rounds: Some(100),
                ..Allowance::default()
            },
            session_limits: Allowance::default(),
            max_output_tokens: 10_000,
            declaration_tokens: 8_000,
            compact_at_percent: 85,
            after_block: AfterBlock::default(),
            effort: None,
            project: None,
            instructions: None,
            max_depth: 2,
        }
    }
}
