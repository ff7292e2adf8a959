//! [`Agent`]: a model, the tools it may use, and its options.

use std::sync::Arc;

use selvedge_journal::Journal;
use selvedge_models::{Client, Model, Tool};
use selvedge_protocol::Mode;
use selvedge_script::Harness;
use selvedge_tools::{Offered, Orchestrator, Registry, ToolRouter, offerable};

use crate::agents::Agents;
use crate::budget::Budget;
use crate::history::{Regular, Strategy};
use crate::record::StepKind;
use crate::{AgentError, Changes, Companion, Remembering, Session, Settings, compaction, prompt};

/// Returns the tools of a registry that a model is offered for structured calls.
type OfferTools = dyn Fn(&Registry, &Model) -> Vec<Offered> + Send + Sync;

/// Runs turns of sessions. Scripts, structured calls and sub-agents share one orchestrator, and
/// therefore one gate and one journal. Cheap to clone.
#[derive(Clone)]
pub struct Agent {
    pub(crate) client: Client,
    pub(crate) model: Model,
    pub(crate) harness: Harness,
    pub(crate) router: ToolRouter,
    pub(crate) settings: Settings,
    pub(crate) strategy: Arc<dyn Strategy>,
    pub(crate) companion: Option<Arc<dyn Companion>>,
    pub(crate) changes: Option<Arc<dyn Changes>>,
    pub(crate) agents: Agents,
    /// The budget of the agent that launched this one; `None` if a person started this agent.
    pub(crate) budget: Option<Budget>,
    pub(crate) depth: u32,
    /// Returns what is known about a model, by its name.
    pub(crate) models: Arc<dyn Fn(&str) -> Model + Send + Sync>,
    offer: Arc<OfferTools>,
    /// The tools that the model may call.
    pub(crate) tools: Vec<Tool>,
    /// The estimated number of tokens of the tool definitions in every request.
    pub(crate) tool_tokens: u64,
    /// The system prompt of each mode, in the order of [`place`].
    systems: Arc<[String; 3]>,
}

impl Agent {
    /// Creates an agent that asks this model and runs its scripts with this harness.
    pub fn new(client: Client, model: Model, harness: Harness, settings: Settings) -> Self {
        let router = ToolRouter::new(harness.orchestrator().clone(), Vec::new());
        let agent = Self {
            client,
            model,
            harness,
            router,
            settings,
            strategy: Arc::new(Regular),
            companion: None,
            changes: None,
            agents: Agents::default(),
            budget: None,
            depth: 0,
            models: Arc::new(Model::known),
            offer: Arc::new(|registry, _| {
                let tools = offerable(registry);
                tools.map(Offered::as_it_is).collect()
            }),
            tools: Vec::new(),
            tool_tokens: 0,
            systems: Arc::default(),
        };
        agent.told()
    }

    /// Sets the function that chooses the tools offered for structured calls. By default every tool
    /// that can be offered is offered unmodified.
    pub fn with_offer(
        mut self,
        offer: impl Fn(&Registry, &Model) -> Vec<Offered> + Send + Sync + 'static,
    ) -> Self {
        self.offer = Arc::new(offer);
        self.told()
    }

    /// Sets the strategy that chooses which earlier turns a prompt contains.
    pub fn with_strategy(mut self, strategy: Arc<dyn Strategy>) -> Self {
        self.strategy = strategy;
        self
    }

    /// Sets the hook that is called before and after each turn.
    pub fn with_companion(mut self, hook: Arc<dyn Companion>) -> Self {
        self.companion = Some(hook);
        self.told()
    }

    /// Sets the tracker that reports the file changes of each turn.
    pub fn with_changes(mut self, changes: Arc<dyn Changes>) -> Self {
        self.changes = Some(changes);
        self
    }

    /// Uses a memory as history strategy and as turn hook.
    pub fn with_memory(self, memory: &Remembering) -> Self {
        self.with_strategy(Arc::new(memory.clone()))
            .with_companion(Arc::new(memory.clone()))
    }

    /// Makes a copy of this agent the template of the agents that the tools of `agents` launch.
    /// Their sessions are stored in `journal`, or only in memory without one.
    pub fn with_agents(mut self, agents: &Agents, journal: Option<Arc<Journal>>) -> Self {
        // The template must not hold a reference to `agents`, which holds the template.
        let mut template = Self {
            agents: Agents::default(),
            strategy: Arc::new(Regular),
            ..self.clone()
        };
        (template.companion, template.changes) = (None, None);
        agents.attach(template.told(), journal);
        self.agents = agents.clone();
        self
    }

    /// Sets another model for later turns.
    pub fn with_model(mut self, client: Client, model: Model) -> Self {
        (self.client, self.model) = (client, model);
        self.told()
    }

    /// Sets the lookup for models that scripts name when they launch agents.
    pub fn with_models(mut self, models: impl Fn(&str) -> Model + Send + Sync + 'static) -> Self {
        self.models = Arc::new(models);
        self
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the client of the model's provider.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the harness that runs scripts.
    pub fn harness(&self) -> &Harness {
        &self.harness
    }

    /// Returns the options of the agent.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the system prompt for a mode.
    pub fn system(&self, mode: Mode) -> String {
        self.systems[place(mode)].clone()
    }

    /// Returns the estimated number of tokens of a session's next request.
    pub fn context_in_use(&self, session: &Session) -> u64 {
        compaction::in_use(session, self)
    }

    /// Compacts a session even if it does not fill the context. Returns the estimated tokens before
    /// and after. Returns `None` if it would not become much shorter or a turn is open.
    pub async fn compact(&self, session: &mut Session) -> Result<Option<(u64, u64)>, AgentError> {
        if session.is_open() {
            return Ok(None);
        }
        let Some(compacted) = compaction::harder(session, self).await else {
            return Ok(None);
        };
        session
            .add(StepKind::Compacted, Vec::new(), compacted.wire)
            .await?;
        Ok(Some((compacted.tokens_before, compacted.tokens_after)))
    }

    /// Sets other tools for later turns.
    pub fn with_tools(self, registry: Registry) -> Self {
        let orchestrator = self.harness.orchestrator().clone().with_registry(registry);
        self.over(orchestrator)
    }

    /// Sets another orchestrator, and with it other tools.
    pub(crate) fn over(mut self, orchestrator: Orchestrator) -> Self {
        self.harness = self.harness.with_orchestrator(orchestrator);
        self.told()
    }

    /// Rebuilds the system prompts and the offered tools after a change of the agent.
    fn told(mut self) -> Self {
        let orchestrator = self.harness.orchestrator();
        let offered = (self.offer)(orchestrator.registry(), &self.model);
        self.router = ToolRouter::new(orchestrator.clone(), offered);
        let wire = self.client.provider().wire;
        self.tools = prompt::offered(
            &self.settings,
            self.router.offered(),
            wire,
            self.model.freeform_tools,
        );
        self.tool_tokens = self.tools.iter().map(prompt::tokens_of_tool).sum();
        let note = self.companion.as_ref().and_then(|hook| hook.explained());
        let system = |mode| prompt::system(&self.settings, orchestrator.registry(), mode, note);
        self.systems = Arc::new([Mode::Disabled, Mode::DryRun, Mode::Enabled].map(system));
        self
    }
}

/// Returns the index of a mode in [`Agent::systems`].
fn place(mode: Mode) -> usize {
    match mode {
        Mode::Disabled => 0,
        Mode::DryRun => 1,
        Mode::Enabled => 2,
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent")
            .field("model", &self.model.name)
            .field("settings", &self.settings)
            .finish()
    }
}
