//! [`AgentModel`]: a model that a script names when it launches an agent or asks a question.

use std::fmt;
use std::sync::Arc;

use selvedge_models::{Model, ModelClient};
use selvedge_protocol::{Limits, ScriptMode, ToolSpec};
use selvedge_tools::ToolError;

/// Returns whether a tool may be used.
type ToolFilter = dyn Fn(&ToolSpec) -> bool + Send + Sync;

/// Finds a model by the name that a script wrote. The first argument is the client of the agent's
/// own provider.
pub(crate) type ModelLookup =
    dyn Fn(&ModelClient, &str) -> Result<AgentModel, ToolError> + Send + Sync;

/// A model for sub-agents and single questions: its provider, and what applies to its scripts.
#[derive(Clone)]
pub struct AgentModel {
    /// The client of the model's provider.
    pub client: ModelClient,
    /// The model that requests name.
    pub model: Model,
    /// The limits of scripts that the model writes; `None` keeps those of the agent.
    pub limits: Option<Limits>,
    /// The tools that an agent with this model may use, among those of the agent that launches it;
    /// `None` allows all.
    pub tool_filter: Option<Arc<ToolFilter>>,
}

impl AgentModel {
    /// Creates a model with the limits and tools of the agent that uses it.
    pub fn new(client: ModelClient, model: Model) -> Self {
        Self {
            client,
            model,
            limits: None,
            tool_filter: None,
        }
    }

    /// Returns whether scripts of this model run, if the model or its provider decides that.
    pub(crate) fn script_mode(&self) -> Option<ScriptMode> {
        self.model
            .script_mode
            .or(self.client.provider().script_mode)
    }
}

impl fmt::Debug for AgentModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentModel")
            .field("provider", &self.client.provider().name)
            .field("model", &self.model.name)
            .finish_non_exhaustive()
    }
}
