//! An agent: a model, the tools it may use, and how it behaves.

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

/// Decides what a model is offered of these tools for structured calls.
type OfferTools = dyn Fn(&Registry, &Model) -> Vec<Offered> + Send + Sync;

/// Takes turns. Cheap to clone; scripts, structured calls and sub-agents go through one orchestrator: one gate, one
/// journal.
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
    /// What is left of whoever launched this one.
    pub(crate) budget: Option<Budget>,
    pub(crate) depth: u32,
    /// What is known of models by their names.
    pub(crate) models: Arc<dyn Fn(&str) -> Model + Send + Sync>,
    offer: Arc<OfferTools>,
    /// What the model may call.
    pub(crate) tools: Vec<Tool>,
    /// About how many tokens the tools take of every request.
    pub(crate) tool_tokens: u64,
    systems: Arc<[String; 3]>,
}

impl Agent {
    /// An agent that asks this model and runs what it writes with this harness.
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

    /// The same with structured calls in the form that `offer` gives them for a model; without this,
    /// each tool is offered as it is.
    pub fn with_offer(
        mut self,
        offer: impl Fn(&Registry, &Model) -> Vec<Offered> + Send + Sync + 'static,
    ) -> Self {
        self.offer = Arc::new(offer);
        self.told()
    }

    /// The same with another way to tell the past.
    pub fn with_strategy(mut self, strategy: Arc<dyn Strategy>) -> Self {
        self.strategy = strategy;
        self
    }

    /// The same with somebody who recalls before each turn.
    pub fn with_companion(mut self, companion: Arc<dyn Companion>) -> Self {
        self.companion = Some(companion);
        self.told()
    }

    /// The same with somebody who tells at the end of each turn what it changed.
    pub fn with_changes(mut self, changes: Arc<dyn Changes>) -> Self {
        self.changes = Some(changes);
        self
    }

    /// The same with a memory: it recalls, and tells the past.
    pub fn with_memory(self, memory: &Remembering) -> Self {
        self.with_strategy(Arc::new(memory.clone()))
            .with_companion(Arc::new(memory.clone()))
    }

    /// The same as the one that these tools launch. Sub-agents keep their sessions in this journal.
    pub fn with_agents(mut self, agents: &Agents, journal: Option<Arc<Journal>>) -> Self {
        // What is launched must not keep alive what launches it.
        let mut launched = Self {
            agents: Agents::default(),
            strategy: Arc::new(Regular),
            ..self.clone()
        };
        (launched.companion, launched.changes) = (None, None);
        agents.attach(launched.told(), journal);
        self.agents = agents.clone();
        self
    }

    /// The same with another model, for the turns to come.
    pub fn with_model(mut self, client: Client, model: Model) -> Self {
        (self.client, self.model) = (client, model);
        self.told()
    }

    /// The same with what is known of models that scripts name for the agents they launch.
    pub fn with_models(mut self, models: impl Fn(&str) -> Model + Send + Sync + 'static) -> Self {
        self.models = Arc::new(models);
        self
    }

    /// The model that is asked.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Who is asked.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What scripts run in.
    pub fn harness(&self) -> &Harness {
        &self.harness
    }

    /// How it behaves.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The system text in a mode.
    pub fn system(&self, mode: Mode) -> String {
        self.systems[place(mode)].clone()
    }

    /// About how many tokens the next request of a session has.
    pub fn context_in_use(&self, session: &Session) -> u64 {
        compaction::in_use(session, self)
    }

    /// Makes a session shorter, whether or not it is full: about how many tokens it had before and has now. `None` where
    /// it would not become much shorter. Not while a turn is open.
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

    /// The same with other tools, for the turns to come.
    pub fn with_tools(self, registry: Registry) -> Self {
        let orchestrator = self.harness.orchestrator().clone().with_registry(registry);
        self.over(orchestrator)
    }

    /// The same with other tools.
    pub(crate) fn over(mut self, orchestrator: Orchestrator) -> Self {
        self.harness = self.harness.with_orchestrator(orchestrator);
        self.told()
    }

    /// What the model is told and offered, made anew.
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
        let explained = self
            .companion
            .as_ref()
            .and_then(|companion| companion.explained());
        let system =
            |mode| prompt::system(&self.settings, orchestrator.registry(), mode, explained);
        self.systems = Arc::new([Mode::Disabled, Mode::DryRun, Mode::Enabled].map(system));
        self
    }
}

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
