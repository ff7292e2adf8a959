//! [`Agent`]: a model, the tools it may use, and its options.

use std::sync::{Arc, OnceLock};

use selvedge_journal::Journal;
use selvedge_models::{Model, ModelClient, ModelTool, Provider};
use selvedge_protocol::{RequestGate, ScriptMode, ToolSpec};
use selvedge_script::Harness;
use selvedge_tools::{OfferedTool, Orchestrator, Registry, ToolError, ToolRouter, offerable_tools};

use crate::agent_model::{AgentModel, ModelLookup};
use crate::budget::Budget;
use crate::history::{HistoryStrategy, RegularHistory};
use crate::script_result::recall_hint;
use crate::session_record::SessionStepKind;
use crate::sub_agents::SubAgents;
use crate::{
    AgentEnvironment, AgentError, AgentMemory, AgentOptions, ChangeTracker, Session, TurnHook,
    compaction, prompt,
};

/// Returns the tools of a registry that a model of a provider is offered for structured calls.
type OfferToolsFn = dyn Fn(&Registry, &Model, &Provider) -> Vec<OfferedTool> + Send + Sync;

/// Runs turns of sessions. Scripts, structured calls and sub-agents share one orchestrator, and
/// therefore one gate and one journal. Cheap to clone.
#[derive(Clone)]
pub struct Agent {
    pub(crate) client: ModelClient,
    pub(crate) model: Model,
    pub(crate) harness: Harness,
    pub(crate) options: AgentOptions,
    pub(crate) strategy: Arc<dyn HistoryStrategy>,
    pub(crate) turn_hook: Option<Arc<dyn TurnHook>>,
    pub(crate) change_tracker: Option<Arc<dyn ChangeTracker>>,
    pub(crate) sub_agents: SubAgents,
    /// The budget of the agent that launched this one; `None` if a person started this agent.
    pub(crate) budget: Option<Budget>,
    /// Decides about the requests of turns, also those of sub-agents.
    pub(crate) request_gate: Option<Arc<dyn RequestGate>>,
    pub(crate) depth: u32,
    /// Finds the models that scripts name.
    pub(crate) model_lookup: Arc<ModelLookup>,
    offer: Arc<OfferToolsFn>,
    /// Shared by clones until one of them changes.
    request_parts: Arc<RequestParts>,
}

/// The parts of requests that depend on the agent alone, each made on first use: an agent is
/// changed several times before its first turn, and most modes are never used.
#[derive(Default)]
struct RequestParts {
    router: OnceLock<ToolRouter>,
    /// The tools of requests in which the model may write scripts.
    tools_with_scripts: OnceLock<Vec<ModelTool>>,
    /// The tools of requests without scripts.
    tools_without_scripts: OnceLock<Vec<ModelTool>>,
    /// The system prompt of each mode, by [`mode_index`].
    system_prompts: [OnceLock<String>; 3],
}

impl Agent {
    /// Creates an agent that asks this model and runs its scripts with this harness.
    pub fn new(client: ModelClient, model: Model, harness: Harness, options: AgentOptions) -> Self {
        Self {
            client,
            model,
            harness,
            options,
            strategy: Arc::new(RegularHistory),
            turn_hook: None,
            change_tracker: None,
            sub_agents: SubAgents::default(),
            budget: None,
            request_gate: None,
            depth: 0,
            model_lookup: Arc::new(|own, name| {
                Ok(AgentModel::new(own.clone(), Model::from_table(name)))
            }),
            offer: Arc::new(|registry, _, _| {
                let tools = offerable_tools(registry);
                tools.map(OfferedTool::unmodified).collect()
            }),
            request_parts: Arc::default(),
        }
    }

    /// Sets the function that chooses the tools offered for structured calls. By default every tool
    /// that can be offered is offered unmodified.
    pub fn with_offer(
        mut self,
        offer: impl Fn(&Registry, &Model, &Provider) -> Vec<OfferedTool> + Send + Sync + 'static,
    ) -> Self {
        self.offer = Arc::new(offer);
        self.reset_request_parts()
    }

    /// Sets the strategy that chooses which earlier turns a prompt contains.
    pub fn with_strategy(mut self, strategy: Arc<dyn HistoryStrategy>) -> Self {
        self.strategy = strategy;
        self
    }

    /// Sets the hook that is called before and after each turn.
    pub fn with_turn_hook(mut self, hook: Arc<dyn TurnHook>) -> Self {
        self.turn_hook = Some(hook);
        self.reset_request_parts()
    }

    /// Sets the tracker that reports the file changes of each turn.
    pub fn with_change_tracker(mut self, changes: Arc<dyn ChangeTracker>) -> Self {
        self.change_tracker = Some(changes);
        self
    }

    /// Sets what decides about each request of a turn to a model, besides the limits of the turn.
    pub fn with_request_gate(mut self, gate: Arc<dyn RequestGate>) -> Self {
        self.request_gate = Some(gate);
        self
    }

    /// Uses a memory as history strategy and as turn hook.
    pub fn with_memory(self, memory: &AgentMemory) -> Self {
        self.with_strategy(Arc::new(memory.clone()))
            .with_turn_hook(Arc::new(memory.clone()))
    }

    /// Makes a copy of this agent the template of the agents that the tools of `agents` launch.
    /// Their sessions are stored in `journal`, or only in memory without one.
    pub fn with_sub_agents(mut self, agents: &SubAgents, journal: Option<Arc<Journal>>) -> Self {
        // The template must not hold a reference to `agents`, which holds the template.
        let mut template = Self {
            sub_agents: SubAgents::default(),
            strategy: Arc::new(RegularHistory),
            ..self.clone()
        };
        (template.turn_hook, template.change_tracker) = (None, None);
        agents.set_template(template.reset_request_parts(), journal);
        self.sub_agents = agents.clone();
        self
    }

    /// Sets the model that a script chose, with its limits and tools. The mode can only become
    /// stricter.
    pub(crate) fn with_chosen_model(mut self, chosen: AgentModel) -> Self {
        let mode = self.options.mode;
        self.options.mode = chosen.script_mode().map_or(mode, |own| own.min(mode));
        if let Some(limits) = &chosen.limits {
            self.harness = self.harness.with_limits(limits.clone());
        }
        let agent = self.with_model(chosen.client, chosen.model);
        match chosen.tool_filter {
            Some(filter) => agent.with_tools_where(|spec| filter(spec)),
            None => agent,
        }
    }

    /// Sets another model for later turns.
    pub fn with_model(mut self, client: ModelClient, model: Model) -> Self {
        (self.client, self.model) = (client, model);
        self.reset_request_parts()
    }

    /// Sets the lookup for models that scripts name when they launch agents or ask questions. Its
    /// first argument is the client of this agent's provider. By default a name is a model of that
    /// provider.
    pub fn with_model_lookup(
        mut self,
        models: impl Fn(&ModelClient, &str) -> Result<AgentModel, ToolError> + Send + Sync + 'static,
    ) -> Self {
        self.model_lookup = Arc::new(models);
        self
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the client of the model's provider.
    pub fn client(&self) -> &ModelClient {
        &self.client
    }

    /// Returns the harness that runs scripts.
    pub fn harness(&self) -> &Harness {
        &self.harness
    }

    /// Returns the options of the agent.
    pub fn options(&self) -> &AgentOptions {
        &self.options
    }

    /// Returns the tools that requests define in a mode. Other offered tools can be called as well.
    pub fn request_tools(&self, mode: ScriptMode) -> &[ModelTool] {
        match mode {
            ScriptMode::Disabled => {
                let make = || prompt::tools_without_scripts(&self.options, self.router().offered());
                self.request_parts.tools_without_scripts.get_or_init(make)
            }
            ScriptMode::DryRun | ScriptMode::Enabled => {
                let make = || {
                    prompt::tools_with_scripts(
                        &self.options,
                        self.router().offered(),
                        self.harness.orchestrator().registry(),
                        self.harness.limits(),
                        self.client.provider().wire_api,
                        self.model.freeform_tools,
                    )
                };
                self.request_parts.tools_with_scripts.get_or_init(make)
            }
        }
    }

    /// Returns the estimated number of tokens of the tool definitions in every request.
    pub(crate) fn tool_tokens(&self) -> u64 {
        let tools = self.request_tools(self.options.mode);
        tools.iter().map(prompt::estimate_tool_tokens).sum()
    }

    /// Returns the size of the model's context in tokens, as its server reports it if it does.
    pub fn context_window(&self) -> u64 {
        self.client.context_window(&self.model)
    }

    /// Returns what a session that begins now states for all its turns.
    pub(crate) fn start_note(&self) -> Option<String> {
        let environment = self.options.environment.as_ref();
        environment.map(AgentEnvironment::session_start_note)
    }

    /// Returns the system prompt for a mode, without what a session states when it begins.
    pub fn system_prompt(&self, mode: ScriptMode) -> String {
        let make = || {
            let hook = self.turn_hook.as_ref();
            let note = hook.and_then(|hook| hook.memory_section());
            let registry = self.harness.orchestrator().registry();
            prompt::system_prompt(&self.options, registry, mode, self.harness.limits(), note)
        };
        let prompt = self.request_parts.system_prompts[mode_index(mode)].get_or_init(make);
        prompt.clone()
    }

    /// Returns the router of structured calls, with the tools that the model is offered.
    pub(crate) fn router(&self) -> &ToolRouter {
        self.request_parts.router.get_or_init(|| {
            let orchestrator = self.harness.orchestrator();
            let registry = orchestrator.registry();
            let offered = (self.offer)(registry, &self.model, self.client.provider());
            ToolRouter::new(orchestrator.clone(), offered).with_result_hint(recall_hint)
        })
    }

    /// Returns the estimated number of tokens of a session's next request.
    pub fn estimated_context_tokens(&self, session: &Session) -> u64 {
        compaction::estimate_next_request(session, self)
    }

    /// Compacts a session even if it does not fill the context. Returns the estimated tokens before
    /// and after. Returns `None` if it would not become much shorter or a turn is open.
    pub async fn compact(&self, session: &mut Session) -> Result<Option<(u64, u64)>, AgentError> {
        if session.has_open_turn() {
            return Ok(None);
        }
        let Some(compacted) = compaction::force_compact(session, self).await else {
            return Ok(None);
        };
        session
            .add_step(
                SessionStepKind::Compaction,
                Vec::new(),
                compacted.request_items,
            )
            .await?;
        Ok(Some((compacted.tokens_before, compacted.tokens_after)))
    }

    /// Sets other tools for later turns.
    pub fn with_tools(self, registry: Registry) -> Self {
        let orchestrator = self.harness.orchestrator().clone().with_registry(registry);
        self.with_orchestrator(orchestrator)
    }

    /// Keeps only some of the tools.
    pub(crate) fn with_tools_where(self, keep: impl Fn(&ToolSpec) -> bool) -> Self {
        let orchestrator = self.harness.orchestrator().clone();
        self.with_orchestrator(orchestrator.with_tools_where(keep))
    }

    /// Sets another orchestrator, and with it other tools.
    fn with_orchestrator(mut self, orchestrator: Orchestrator) -> Self {
        self.harness = self.harness.with_orchestrator(orchestrator);
        self.reset_request_parts()
    }

    /// Forgets the parts of requests after a change of the agent.
    fn reset_request_parts(mut self) -> Self {
        self.request_parts = Arc::default();
        self
    }
}

/// Returns the index of a mode in `RequestParts::system_prompts`.
fn mode_index(mode: ScriptMode) -> usize {
    match mode {
        ScriptMode::Disabled => 0,
        ScriptMode::DryRun => 1,
        ScriptMode::Enabled => 2,
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent")
            .field("model", &self.model.name)
            .field("options", &self.options)
            .finish()
    }
}
