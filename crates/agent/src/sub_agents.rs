//! Sub-agents: the tools `agents.llm.chat`, `agents.launch.sync`, `agents.launch.async` and
//! `agents.wait`. A sub-agent uses the gate and the journal of the agent that launched it, and its
//! requests count against that agent's budget.

mod arguments;
mod tools;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::FutureExt;
use selvedge_journal::Journal;
use selvedge_models::{Model, ModelClient, ModelEvent, Prompt};
use selvedge_protocol::{
    ConversationItem, DocumentKind, DocumentStore, EventSink, Ledger, Limits, MessageRole,
    NewDocument, RunStart, RunStatus, RuntimeEvent, ScriptToolCallOutput, TurnEnd, TurnError,
    Usage, new_id,
};
use selvedge_tools::{CallContext, ToolError, camel_case, snake_case};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::arguments::{
    LaunchAgentArgs, LaunchAgentOutput, LaunchedAgentId, LlmChatArgs, LlmChatOutput, SubAgentStatus,
};
use crate::budget::Budget;
use crate::{Agent, BudgetLimits, Session, TurnOptions};

/// The tools that launch sub-agents. Register them first, create the agent with that registry, then
/// pass them to [`Agent::with_sub_agents`]. Clones share their state.
#[derive(Clone, Default)]
pub struct SubAgents(Arc<SubAgentsInner>);

#[derive(Default)]
struct SubAgentsInner {
    /// The template of new sub-agents. Replaced when a session continues with another model.
    template: Mutex<Option<Arc<SubAgentTemplate>>>,
    cabinet: OnceLock<Arc<dyn DocumentStore>>,
    /// The turns that are running, by the id of the run that their calls belong to.
    active_runs: Mutex<HashMap<String, TurnContext>>,
}

/// The agent from which sub-agents are copied, and the journal for their sessions.
pub(crate) struct SubAgentTemplate {
    pub(crate) agent: Agent,
    journal: Option<Arc<Journal>>,
}

/// The context of the turn that a call belongs to.
#[derive(Debug, Clone)]
pub(crate) struct TurnContext {
    pub(crate) budget: Budget,
    /// The number of agents above this one: 0 for an agent that a person started.
    pub(crate) depth: u32,
    /// Suspends scripts that wait for a person.
    pub(crate) caller_gone: CancellationToken,
    /// Cancels the turn.
    pub(crate) turn_cancel: CancellationToken,
    pub(crate) session: String,
    pub(crate) background: BackgroundAgents,
}

/// The sub-agents that run in the background of a turn. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct BackgroundAgents(Arc<Mutex<BackgroundAgentsState>>);

#[derive(Debug, Default)]
struct BackgroundAgentsState {
    running: JoinSet<()>,
    results: HashMap<String, watch::Receiver<Option<LaunchAgentOutput>>>,
}

impl SubAgents {
    /// Also stores the results of agents in this File Cabinet. Only the first call has an effect.
    pub fn store_results_in(&self, cabinet: Arc<dyn DocumentStore>) {
        let _ = self.0.cabinet.set(cabinet);
    }

    /// Sets the template of new sub-agents and the journal for their sessions.
    pub(crate) fn set_template(&self, agent: Agent, journal: Option<Arc<Journal>>) {
        *lock(&self.0.template) = Some(Arc::new(SubAgentTemplate { agent, journal }));
    }

    /// Registers a run whose calls may launch sub-agents.
    pub(crate) fn register_run(&self, run: &str, context: TurnContext) {
        lock(&self.0.active_runs).insert(run.to_owned(), context);
    }

    /// Removes a run that [`SubAgents::register_run`] registered.
    pub(crate) fn unregister_run(&self, run: &str) {
        lock(&self.0.active_runs).remove(run);
    }

    /// Returns the template of sub-agents and the context of the turn that a run belongs to.
    pub(crate) fn active_turn(&self, run: &str) -> Option<(Arc<SubAgentTemplate>, TurnContext)> {
        self.0.active_turn(run)
    }
}

impl BackgroundAgents {
    /// Waits for agents that were cancelled, and aborts those that take too long.
    pub(crate) async fn wait_or_abort(&self) {
        const STOP_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);
        let mut running = std::mem::take(&mut self.lock().running);
        let ended = async { while running.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_TIMEOUT, ended).await.is_err() {
            running.abort_all();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().running.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, BackgroundAgentsState> {
        lock(&self.0)
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SubAgentsInner {
    fn active_turn(&self, run: &str) -> Option<(Arc<SubAgentTemplate>, TurnContext)> {
        let template = lock(&self.template).clone();
        template.zip(lock(&self.active_runs).get(run).cloned())
    }

    fn turn_of_call(
        &self,
        call: &CallContext,
    ) -> Result<(Arc<SubAgentTemplate>, TurnContext), ToolError> {
        self.active_turn(&call.scope_id).ok_or_else(|| {
            ToolError::new("agents can only be launched in a turn of an agent")
                .suggest("run the task with `selvedge exec`")
        })
    }

    /// Asks a model one question (`agents.llm.chat`).
    async fn chat(
        &self,
        args: LlmChatArgs,
        call: &CallContext,
    ) -> Result<LlmChatOutput, ToolError> {
        let (template, context) = self.turn_of_call(call)?;
        if let Some(end) = context.budget.reached_limit() {
            return Err(budget_error(end));
        }
        let agent = &template.agent;
        let model = args
            .model
            .as_deref()
            .map_or_else(|| agent.model.clone(), |name| (agent.model_lookup)(name));
        check_prices_known(&context.budget, &model)?;
        let prompt = Prompt {
            system: args.system.unwrap_or_default(),
            history: vec![ConversationItem::message(MessageRole::User, args.prompt)],
            max_output_tokens: args.max_output_tokens,
            ..Prompt::default()
        };
        let (text, usage) = tokio::select! {
            biased;
            () = call.cancel.cancelled() => return Err(ToolError::new("the call was cancelled")),
            answered = ask_for_text(&agent.client, &prompt, &model) => answered?,
        };
        context
            .budget
            .add_request(usage, model.prices.map(|prices| prices.cost(&usage)));
        Ok(LlmChatOutput {
            text,
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
        })
    }

    async fn prepare_launch(
        self: &Arc<Self>,
        args: LaunchAgentArgs,
        call: &CallContext,
    ) -> Result<PreparedSubAgent, ToolError> {
        let (template, context) = self.turn_of_call(call)?;
        let max_depth = template.agent.options.max_agent_depth;
        if context.depth >= max_depth {
            return Err(ToolError::new(format!(
                "agents can be nested at most {max_depth} levels deep"
            ))
            .suggest("do the work in this agent"));
        }
        if let Some(end) = context.budget.reached_limit() {
            return Err(budget_error(end));
        }
        let mut agent = template.agent.clone();
        agent.options.turn_limits = BudgetLimits {
            max_rounds: args.max_rounds.or(Some(50)),
            max_tokens: args.max_tokens,
            ..BudgetLimits::default()
        };
        agent.budget = Some(context.budget.clone());
        agent.depth = context.depth + 1;
        agent.sub_agents = SubAgents(self.clone());
        // The launching agent waits for this agent as long as for any other call. The calls of this
        // agent get a shorter grace period, so that they end first.
        let limits = agent.harness.limits().clone();
        let abort_grace_ms = limits.abort_grace_ms >> agent.depth;
        agent.harness = agent.harness.with_limits(Limits {
            abort_grace_ms,
            ..limits
        });
        if let Some(model) = &args.model {
            agent.model = (agent.model_lookup)(model);
        }
        check_prices_known(&context.budget, &agent.model)?;
        if let Some(tools) = &args.tools {
            let orchestrator = agent
                .harness
                .orchestrator()
                .clone()
                .with_tools_where(|spec| {
                    let (name, camel) = (&spec.name, camel_case(&spec.name));
                    tools
                        .iter()
                        .any(|tool| snake_case(tool) == *name || camel == *tool)
                });
            if orchestrator.registry().iter().next().is_none() {
                return Err(ToolError::new("none of the tools in `tools` exists")
                    .suggest("omit `tools` to allow all tools"));
            }
            agent = agent.with_orchestrator(orchestrator);
        }
        let session = match &template.journal {
            Some(journal) => {
                let parent = Some(context.session.as_str());
                Session::begin_child(journal, &agent.options.directory, parent).await
            }
            None => Ok(Session::in_memory()),
        };
        let session = session.map_err(|error| ToolError::new(error.to_string()))?;
        Ok(PreparedSubAgent {
            id: new_id("agt"),
            agent,
            session,
            prompt: args.prompt,
            caller_gone: context.caller_gone,
            shared: self.clone(),
            launched_by: (call.scope_id.clone(), call.id.clone()),
        })
    }

    async fn launch_in_background(
        self: &Arc<Self>,
        args: LaunchAgentArgs,
        call: &CallContext,
    ) -> Result<LaunchedAgentId, ToolError> {
        let (_, context) = self.turn_of_call(call)?;
        let launch = self.prepare_launch(args, call).await?;
        let agent_id = launch.id.clone();
        let (done, result) = watch::channel(None);
        let (cancel, events) = (context.turn_cancel.child_token(), call.events.clone());
        let mut tasks = context.background.lock();
        tasks.results.insert(agent_id.clone(), result);
        let failed = agent_id.clone();
        tasks.running.spawn(async move {
            let launched = launch.run(cancel, events).await;
            let _ = done.send(Some(launched.unwrap_or_else(|error| LaunchAgentOutput {
                agent_id: failed,
                status: SubAgentStatus::Failed,
                message: error.message,
                ..LaunchAgentOutput::default()
            })));
        });
        Ok(LaunchedAgentId { agent_id })
    }

    async fn wait(&self, id: &str, call: &CallContext) -> Result<LaunchAgentOutput, ToolError> {
        let (_, context) = self.turn_of_call(call)?;
        let result = context.background.lock().results.get(id).cloned();
        let mut result = result
            .ok_or_else(|| ToolError::new(format!("no agent `{id}` was launched in this turn")))?;
        let done = tokio::select! {
            biased;
            () = call.cancel.cancelled() => return Err(ToolError::new("the wait was cancelled")),
            done = result.wait_for(Option::is_some) => done.ok().and_then(|done| done.clone()),
        };
        done.ok_or_else(|| ToolError::new("the agent was cancelled"))
    }
}

/// A sub-agent that is ready to run.
struct PreparedSubAgent {
    id: String,
    agent: Agent,
    session: Session,
    prompt: String,
    caller_gone: CancellationToken,
    shared: Arc<SubAgentsInner>,
    /// The ids of the run and of the call that launched the agent.
    launched_by: (String, String),
}

impl PreparedSubAgent {
    async fn run(
        mut self,
        cancel: CancellationToken,
        events: EventSink,
    ) -> Result<LaunchAgentOutput, ToolError> {
        let ledger = self.agent.harness.orchestrator().ledger().cloned();
        let mut ending = SubAgentRunGuard {
            ledger: ledger.clone(),
            id: self.id.clone(),
        };
        if let Some(ledger) = &ledger {
            let begin = ledger.record_run_start(RunStart {
                id: &self.id,
                source: &self.prompt,
                directory: &self.agent.options.directory,
                session: self.session.id(),
                seed: "0",
                resumes: None,
                saved_config: "",
            });
            if let Err(error) = begin.await {
                ending.ledger = None;
                let message = format!("cannot record the agent: {error}");
                return Err(ToolError::new(message));
            }
        }
        let (parent_id, call_id) = self.launched_by;
        let session_id = self.session.id().to_owned();
        events.emit(RuntimeEvent::AgentStarted {
            agent_id: self.id.clone(),
            parent_id,
            call_id,
            session_id,
        });
        let options = TurnOptions {
            cancel,
            caller_gone: self.caller_gone,
            events: sub_agent_events(events),
            ..TurnOptions::default()
        };
        // Boxed, because an agent can launch agents.
        let turn = self
            .agent
            .run_turn(&mut self.session, self.prompt.as_str(), &options);
        let outcome = Box::pin(turn).await;
        if let Some(ledger) = ending.ledger.take() {
            let mut output = ScriptToolCallOutput::new(&self.id, "");
            output.status = match outcome.end {
                Ok(TurnEnd::Stop) => RunStatus::Completed,
                _ => RunStatus::Error,
            };
            output.output_json = serde_json::to_string(&outcome.message).ok();
            ledger
                .record_run_end(&output, None)
                .await
                .map_err(|error| {
                    ToolError::new(format!("cannot record the end of the agent: {error}"))
                })?;
        }
        let status = match outcome.end {
            // The agent may have changed something before it was cancelled.
            Ok(TurnEnd::Interrupted) => {
                return Err(ToolError::new("the agent was cancelled").outcome_unknown());
            }
            Ok(end) => SubAgentStatus::Ended(end),
            Err(TurnError { kind, message }) => {
                let message = format!("the agent failed ({kind}): {message}");
                return Err(ToolError::new(message).outcome_unknown());
            }
        };
        let message = outcome.message.unwrap_or_default();
        let title = self.prompt.lines().next().unwrap_or_default();
        let title: String = title.chars().take(80).collect();
        let file_key = match self.shared.cabinet.get().cloned() {
            Some(cabinet) => store_result(cabinet, title, message.clone()).await,
            None => None,
        };
        Ok(LaunchAgentOutput {
            agent_id: self.id,
            session_id: self.session.id().to_owned(),
            status,
            message,
            file_key,
            input_tokens: outcome.usage.input_tokens,
            output_tokens: outcome.usage.output_tokens,
        })
    }
}

/// Stores the last message of an agent in the File Cabinet, and returns its key.
async fn store_result(
    cabinet: Arc<dyn DocumentStore>,
    title: String,
    message: String,
) -> Option<String> {
    let keep = move || {
        cabinet.save(&NewDocument {
            kind: DocumentKind::Result,
            title: &title,
            source: "",
            media_type: "text/plain",
            content: message.as_bytes(),
        })
    };
    Some(tokio::task::spawn_blocking(keep).await.ok()?.ok()?.key)
}

/// Records the end of an agent whose future is dropped before it ends.
struct SubAgentRunGuard {
    ledger: Option<Arc<dyn Ledger>>,
    id: String,
}

impl Drop for SubAgentRunGuard {
    fn drop(&mut self) {
        if let Some(ledger) = &self.ledger {
            let output = ScriptToolCallOutput::new(&self.id, "");
            // If this fails, the run counts as died once this process ends.
            let _ = ledger.record_run_end(&output, None).now_or_never();
        }
    }
}

/// Asks a model and returns the text of its answer and the tokens used.
pub(crate) async fn ask_for_text(
    client: &ModelClient,
    prompt: &Prompt,
    model: &Model,
) -> Result<(String, Usage), ToolError> {
    let mut stream = client.stream(prompt, model);
    let (mut text, mut usage) = (String::new(), Usage::default());
    while let Some(event) = stream.next().await {
        match event.map_err(|error| {
            ToolError::new(format!("the model failed ({}): {error}", error.kind))
        })? {
            ModelEvent::Text { text: delta, .. } => text.push_str(&delta),
            ModelEvent::Usage(counted) => usage = counted,
            ModelEvent::Restarted | ModelEvent::Retrying { .. } => text.clear(),
            _ => {}
        }
    }
    Ok((text, usage))
}

/// Returns the error of a request after a limit of the budget was reached.
pub(crate) fn budget_error(end: TurnEnd) -> ToolError {
    ToolError::new(format!("the budget is used up ({})", end.as_str()))
}

/// Fails if the cost is limited and the prices of the model are not known.
pub(crate) fn check_prices_known(budget: &Budget, model: &Model) -> Result<(), ToolError> {
    if !budget.limits_cost() || model.prices.is_some() {
        return Ok(());
    }
    let message = format!(
        "the cost is limited, and the prices of model {} are not known",
        model.name
    );
    Err(ToolError::new(message).suggest("omit `model`"))
}

/// Returns a sink that forwards the events of a sub-agent's scripts, calls and approvals, which
/// carry the id of their run. Its messages, turns and plans are dropped, because observers would
/// attribute them to the parent agent.
fn sub_agent_events(events: EventSink) -> EventSink {
    EventSink::new(move |event| match event {
        RuntimeEvent::ThreadStarted { .. }
        | RuntimeEvent::TurnStarted { .. }
        | RuntimeEvent::ItemStarted { .. }
        | RuntimeEvent::ItemUpdated { .. }
        | RuntimeEvent::ItemCompleted { .. }
        | RuntimeEvent::ItemDropped { .. }
        | RuntimeEvent::ThreadCompacted { .. }
        | RuntimeEvent::UsageUpdated { .. }
        | RuntimeEvent::PlanUpdated { .. }
        | RuntimeEvent::DiffUpdated { .. }
        | RuntimeEvent::TurnCompleted { .. }
        | RuntimeEvent::TurnFailed { .. } => {}
        other => events.emit(other),
    })
}
