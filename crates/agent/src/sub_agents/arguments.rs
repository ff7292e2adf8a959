//! Arguments and results of the tools that launch sub-agents.

use schemars::JsonSchema;
use selvedge_protocol::TurnEnd;
use serde::{Deserialize, Serialize};

/// Maximum number of model requests of an agent, unless the launching call sets another. The
/// description of `max_rounds` names it.
pub(super) const DEFAULT_SUB_AGENT_ROUNDS: u32 = 50;

/// One question to a model.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct LlmChatArgs {
    /// The question. With `promptKeys`, it follows the stored prompts.
    pub(super) prompt: Option<String>,
    /// Keys of stored prompts or documents (prompts.save, or a fileKey) to put before `prompt`.
    pub(super) prompt_keys: Option<Vec<String>>,
    /// The system prompt.
    pub(super) system: Option<String>,
    /// Model to use instead of the agent's: a name, or `provider/model`.
    pub(super) model: Option<String>,
    /// Maximum number of tokens of the answer.
    pub(super) max_output_tokens: Option<u64>,
}

/// The answer of the model.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LlmChatOutput {
    /// The text of the answer.
    pub(super) text: String,
    /// Input tokens used.
    pub(super) input_tokens: u64,
    /// Output tokens used.
    pub(super) output_tokens: u64,
}

/// The task of an agent.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct LaunchAgentArgs {
    /// The task. The agent sees nothing else of this conversation.
    pub(super) prompt: String,
    /// Names of the tools that the agent may use; all tools by default.
    pub(super) tools: Option<Vec<String>>,
    /// Model to use instead of the agent's: a name, or `provider/model`.
    pub(super) model: Option<String>,
    /// Maximum number of model requests (default 50).
    pub(super) max_rounds: Option<u32>,
    /// Maximum number of tokens.
    pub(super) max_tokens: Option<u64>,
}

/// The result of an agent.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LaunchAgentOutput {
    /// The id of the agent.
    pub(super) agent_id: String,
    /// The session of the agent.
    pub(super) session_id: String,
    /// Why the agent ended: `stop`, the limit it reached, or `failed`.
    pub(super) status: SubAgentStatus,
    /// The last message of the agent.
    pub(super) message: String,
    /// The key of the message in the File Cabinet.
    pub(super) file_key: Option<String>,
    /// Input tokens used.
    pub(super) input_tokens: u64,
    /// Output tokens used.
    pub(super) output_tokens: u64,
}

/// Why an agent ended.
#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum SubAgentStatus {
    /// The message is the error.
    #[default]
    Failed,
    #[serde(untagged)]
    Ended(TurnEnd),
}

/// An agent that was launched in the background.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LaunchedAgent {
    /// The id of the agent, for `agents.wait` in this turn or a later one.
    pub(super) agent_id: String,
    /// The key of its result in the File Cabinet, which is stored when it ends.
    pub(super) file_key: Option<String>,
}

/// The agent to wait for.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct WaitForAgentArgs {
    /// The id that `agents.launch.async` returned.
    pub(super) agent_id: String,
}
