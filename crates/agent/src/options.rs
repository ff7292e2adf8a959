//! The options of an agent.

use std::time::Duration;

use selvedge_models::Effort;
use selvedge_protocol::{BlockOrder, ScriptMode};

use crate::AgentEnvironment;

/// The options of an agent.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// The working folder, as scripts and the model see it.
    pub directory: String,
    /// What the system prompt says about the sandbox and the project; `None` leaves it out.
    pub environment: Option<AgentEnvironment>,
    /// Whether scripts run, are only checked, or are disabled.
    pub mode: ScriptMode,
    /// Whether the model is offered structured calls besides scripts.
    pub tool_offer: AgentToolOffer,
    /// The limits of one turn.
    pub turn_limits: BudgetLimits,
    /// The limits of a whole session.
    pub session_limits: BudgetLimits,
    /// The maximum number of tokens of one result that the model gets.
    pub max_result_tokens: usize,
    /// The maximum number of tokens of tool declarations in the system prompt. If they exceed it,
    /// the tools are listed by name.
    pub max_declaration_tokens: usize,
    /// The share of the context that may be used before the conversation is compacted, in percent.
    pub compact_at_percent: u64,
    /// What happens when a script block ends and the model continues to write.
    pub after_block: AfterBlock,
    /// Whether several script blocks of one answer run one after the other.
    pub block_order: BlockOrder,
    /// Whether the model may use its provider's own web search, where the API has one.
    pub provider_web_search: bool,
    /// The reasoning effort; `None` uses the default of the model.
    pub effort: Option<Effort>,
    /// Instructions of the project, such as its AGENTS.md, for the system prompt.
    pub project_instructions: Option<String>,
    /// Further instructions for the system prompt, such as the schema of the answer.
    pub extra_instructions: Option<String>,
    /// The maximum nesting depth of launched agents.
    pub max_agent_depth: u32,
}

/// Whether a model is offered structured calls besides scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AgentToolOffer {
    /// The model is offered the tools as structured calls as well.
    #[default]
    ScriptsAndCalls,
    /// The model is only offered the tool `script`.
    ScriptsOnly,
}

/// What happens when a script block ends and the model continues to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterBlock {
    /// The rest of the answer is read.
    #[default]
    Continue,
    /// The answer ends after the block, so that the model does not guess the result.
    Stop,
}

/// The limits of a turn or a session. `None` means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BudgetLimits {
    /// The number of requests to the model.
    pub max_rounds: Option<u32>,
    /// The number of input and output tokens.
    pub max_tokens: Option<u64>,
    /// The cost, in the currency of the model's prices.
    pub max_cost: Option<f64>,
    /// The wall-clock time.
    pub max_time: Option<Duration>,
}

impl Default for AgentOptions {
    fn default() -> Self {
        Self {
            directory: String::new(),
            environment: None,
            mode: ScriptMode::default(),
            tool_offer: AgentToolOffer::default(),
            turn_limits: BudgetLimits {
                max_rounds: Some(100),
                ..BudgetLimits::default()
            },
            session_limits: BudgetLimits::default(),
            max_result_tokens: 10_000,
            max_declaration_tokens: 8_000,
            compact_at_percent: 90,
            after_block: AfterBlock::default(),
            block_order: BlockOrder::default(),
            provider_web_search: false,
            effort: None,
            project_instructions: None,
            extra_instructions: None,
            max_agent_depth: 2,
        }
    }
}
