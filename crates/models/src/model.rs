//! Properties of a model.

use selvedge_protocol::{
    LimitOverrides, PatchFlavour, Prices, ReasoningStyle, ScriptMode, ShellFlavour,
};

/// Where the context window of a model comes from. A size that the server reports replaces it,
/// unless it is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WindowSource {
    /// The model is not in the table.
    #[default]
    Assumed,
    /// The built-in table.
    Table,
    /// The configuration sets it.
    Configured,
}

/// A model, with its limits and capabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Name of the model at the provider.
    pub name: String,
    /// Maximum number of tokens of a conversation, including the answer.
    pub context_window: u64,
    /// How the context window is known.
    pub window_source: WindowSource,
    /// Maximum number of tokens of an answer.
    pub max_output_tokens: u64,
    /// How reasoning is requested.
    pub reasoning: ReasoningStyle,
    /// Whether the model supports tool calls. Without them, scripts in its text still run.
    pub tools: bool,
    /// Whether the model supports tools with plain text as input. Only Responses has them.
    pub freeform_tools: bool,
    /// Whether the model accepts images.
    pub images: bool,
    /// The tool with which the model runs commands in structured calls.
    pub shell: ShellFlavour,
    /// The form in which the model writes patches in structured calls; `None` chooses by
    /// `freeform_tools`.
    pub patch: Option<PatchFlavour>,
    /// Whether the provider enforces the schemas of structured calls. Messages cannot.
    pub strict_schemas: bool,
    /// Prices of tokens; `None` if they are neither built in nor configured.
    pub prices: Option<Prices>,
    /// Whether scripts run with this model; `None` uses the setting of the provider.
    pub script_mode: Option<ScriptMode>,
    /// Limits of scripts with this model that differ from those of the provider.
    pub script_limits: LimitOverrides,
    /// Pack of tools for this model; `None` uses the setting of the provider.
    pub tool_pack: Option<String>,
}
