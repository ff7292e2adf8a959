//! Sub-agents: the tools `agents.llm.chat`, `agents.launch.sync`, `agents.launch.async` and
//! `agents.wait`. A sub-agent uses the gate and the journal of the agent that launched it, and its
//! requests count against that agent's budget.

mod arguments;
mod background;
mod launch;
mod recorded;
mod tasks;
mod tools;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use selvedge_journal::Journal;
use selvedge_models::{Model, ModelClient, ModelError, ModelEvent, Prompt};
use selvedge_protocol::{
    BudgetAmounts, ConversationItem, DocumentStore, EventSink, Limits, MessageRole, ModelErrorKind,
    ScriptMode, TurnBudgets, TurnEnd, Usage, new_document_key, new_id,
};
use selvedge_tools::{CallContext, Registry, ToolError, camel_case, snake_case};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::arguments::{
    DEFAULT_SUB_AGENT_ROUNDS, LaunchAgentArgs, LaunchAgentOutput, LaunchedAgent, LlmChatArgs,
    LlmChatOutput, SubAgentStatus,
};
pub use self::background::BackgroundPolicy;
pub(crate) use self::background::TurnBackgroundAgents;
use self::background::{BackgroundAgent, BackgroundAgents};
use self::launch::{AgentResultDocument, PreparedSubAgent};
use crate::agent_model::AgentModel;
use crate::budget::Budget;
use crate::model_request::estimate_usage;
use crate::sampling::RequestCharge;
use crate::{Agent, BudgetLimits, Session};

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
    background: BackgroundAgents,
    /// The budgets of sessions in which an agent or a task was started that can outlive its turn.
    session_budgets: Mutex<HashMap<String, Budget>>,
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
    /// Whether the scripts of the turn run. Sub-agents can have a stricter mode, but no other.
    pub(crate) script_mode: ScriptMode,
    /// The tools of the agent. Its sub-agents can have fewer, but no others.
    pub(crate) tools: Registry,
    /// Suspends scripts that wait for a person.
    pub(crate) caller_gone: CancellationToken,
    /// Cancels the turn.
    pub(crate) turn_cancel: CancellationToken,
    pub(crate) session: String,
    /// The budget of the whole session; `None` in a sub-agent.
    pub(crate) session_budget: Option<Budget>,
    pub(crate) background_agents: TurnBackgroundAgents,
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

    /// Cancels the background agents of all sessions, and waits until they stop, for a limited
    /// time. Call it when the session ends. Returns how many were running.
    pub async fn end(&self) -> usize {
        let stopped = self.stop_background_agents().await;
        // The template has the tools, which have these sub-agents: nothing of it would be freed.
        *lock(&self.0.template) = None;
        stopped
    }

    /// Stops the agents that run in the background. Returns their number.
    pub async fn stop_background_agents(&self) -> usize {
        self.0.background.stop().await
    }

    /// Counts what the turn of another session used, which a run waited for.
    pub fn add_usage(&self, run: &str, usage: Usage, cost: Option<f64>) {
        if let Some((_, context)) = self.active_turn(run) {
            context.budget.count_request(usage, cost);
        }
    }

    /// Returns the budget of a session, if agents that outlive their turn spend from it.
    pub(crate) fn session_budget(&self, session: &str) -> Option<Budget> {
        lock(&self.0.session_budgets).get(session).cloned()
    }

    /// Returns whether a run belongs to a turn that runs now.
    pub fn has_run(&self, run: &str) -> bool {
        self.active_turn(run).is_some()
    }

    /// Returns the template of sub-agents and the context of the turn that a run belongs to.
    pub(crate) fn active_turn(&self, run: &str) -> Option<(Arc<SubAgentTemplate>, TurnContext)> {
        self.0.active_turn(run)
    }
}

impl TurnBudgets for SubAgents {
    fn remaining_budget(&self, run: &str) -> BudgetAmounts {
        let turn = self.active_turn(run);
        turn.map(|(_, context)| context.budget.remaining())
            .unwrap_or_default()
    }

    fn reserve_half(&self, run: &str) -> BudgetAmounts {
        let turn = self.active_turn(run);
        turn.map(|(_, context)| context.budget.reserve_half())
            .unwrap_or_default()
    }

    fn release(&self, run: &str, amounts: BudgetAmounts) {
        if let Some((_, context)) = self.active_turn(run) {
            context.budget.release(amounts);
        }
    }

    fn sub_agent_tools(&self, run: &str) -> Option<Vec<String>> {
        let (_, context) = self.active_turn(run)?;
        let names = context.tools.iter().map(|tool| tool.spec.name.clone());
        (context.depth > 0).then(|| names.collect())
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
            ToolError::new("agents can be launched only during an agent's turn")
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
        if let Some(end) = context.budget.before_request().await {
            return Err(budget_error(end));
        }
        let AgentModel { client, model, .. } = template.find_model(args.model.as_deref())?;
        check_prices_known(&context.budget, &model)?;
        let question = self.question_text(args.prompt, args.prompt_keys).await?;
        let prompt = Prompt {
            system: args.system.unwrap_or_default(),
            history: vec![ConversationItem::message(MessageRole::User, question)],
            max_output_tokens: args.max_output_tokens,
            ..Prompt::default()
        };
        let mut charge = RequestCharge {
            budget: context.budget.clone(),
            model: &model,
            usage: estimate_usage(&prompt),
        };
        let answered = tokio::select! {
            biased;
            () = call.cancel.cancelled() => return Err(ToolError::new("the call was cancelled")),
            answered = ask_for_text(&client, &prompt, &model) => answered,
        };
        // A request that failed costs nothing.
        charge.usage = answered
            .as_ref()
            .map_or(Usage::default(), |(_, usage)| *usage);
        drop(charge);
        context.budget.settle().await;
        let (text, usage) = answered?;
        Ok(LlmChatOutput {
            text,
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
        })
    }

    /// Returns the text of a question: the stored prompts in order, then `prompt`.
    async fn question_text(
        &self,
        prompt: Option<String>,
        keys: Option<Vec<String>>,
    ) -> Result<String, ToolError> {
        let keys = keys.unwrap_or_default();
        if keys.is_empty() {
            return prompt.ok_or_else(|| {
                ToolError::new("the question is missing: pass `prompt` or `promptKeys`")
            });
        }
        let no_cabinet = || ToolError::new("no File Cabinet is available");
        let cabinet = self.cabinet.get().cloned().ok_or_else(no_cabinet)?;
        let read = move || keys.iter().map(|key| stored_text(&*cabinet, key)).collect();
        let stored = tokio::task::spawn_blocking(read).await;
        let stored: Result<Vec<String>, ToolError> =
            stored.map_err(|error| ToolError::new(error.to_string()))?;
        let parts: Vec<String> = stored?.into_iter().chain(prompt).collect();
        Ok(parts.join("\n\n"))
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
        let chosen = template.find_model(args.model.as_deref())?;
        check_prices_known(&context.budget, &chosen.model)?;
        let mut agent = template.agent.clone();
        agent.options.mode = context.script_mode;
        if args.model.is_some() {
            agent = agent.with_chosen_model(chosen);
        }
        agent.options.turn_limits = BudgetLimits {
            max_rounds: args.max_rounds.or(Some(DEFAULT_SUB_AGENT_ROUNDS)),
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
        if context.depth > 0 {
            agent = agent.with_tools_where(|spec| context.tools.get(&spec.name).is_some());
        }
        if let Some(tools) = &args.tools {
            agent = restrict_tools(agent, tools)?;
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
            parent_run_id: call.scope_id.clone(),
            parent_call_id: call.id.clone(),
            file_key: None,
        })
    }

    async fn launch_in_background(
        self: &Arc<Self>,
        args: LaunchAgentArgs,
        call: &CallContext,
    ) -> Result<LaunchedAgent, ToolError> {
        let (_, context) = self.turn_of_call(call)?;
        let mut launch = self.prepare_launch(args, call).await?;
        let agent_id = launch.id.clone();
        let file_key = self.cabinet.get().map(|_| new_document_key());
        launch.file_key.clone_from(&file_key);
        self.keep_session_budget(&context);
        let cancel = self.background.cancel.child_token();
        let events = context
            .background_agents
            .events_of_turn(call.events.clone());
        let (done, result) = watch::channel(None);
        let (shared, stop) = (self.clone(), cancel.clone());
        let running = tokio::spawn(async move {
            done.send_replace(Some(shared.run_in_background(launch, stop, events).await));
        });
        let agent = BackgroundAgent {
            parent_session_id: context.session.clone(),
            cancel,
            abort: running.abort_handle(),
            result,
        };
        context.background_agents.add(agent.clone());
        self.background.add(agent_id.clone(), agent);
        Ok(LaunchedAgent { agent_id, file_key })
    }

    /// Runs an agent until it ends. Its result is stored under its key, also if it failed.
    async fn run_in_background(
        &self,
        launch: PreparedSubAgent,
        cancel: CancellationToken,
        events: EventSink,
    ) -> LaunchAgentOutput {
        let document = AgentResultDocument {
            agent_id: launch.id.clone(),
            prompt: launch.prompt.clone(),
            file_key: launch.file_key.clone(),
        };
        let (agent_id, session_id) = (launch.id.clone(), launch.session.id().to_owned());
        match launch.run(cancel, events).await {
            Ok(output) => output,
            Err(error) => LaunchAgentOutput {
                file_key: document.store(self, error.message.clone()).await,
                agent_id,
                session_id,
                status: SubAgentStatus::Failed,
                message: error.message,
                ..LaunchAgentOutput::default()
            },
        }
    }

    async fn wait(&self, id: &str, call: &CallContext) -> Result<LaunchAgentOutput, ToolError> {
        let (template, context) = self.turn_of_call(call)?;
        let Some(mut result) = self.background.result_of(id, &context.session) else {
            return self
                .recorded_result(template.journal.as_ref(), id, &context.session)
                .await;
        };
        let done = tokio::select! {
            biased;
            () = call.cancel.cancelled() => return Err(ToolError::new("the wait was cancelled")),
            done = result.wait_for(Option::is_some) => done.ok().and_then(|done| done.clone()),
        };
        done.ok_or_else(|| ToolError::new("the agent was cancelled"))
    }

    /// Keeps the budget of a session, so that later turns count what its agents spend meanwhile.
    fn keep_session_budget(&self, context: &TurnContext) {
        if let Some(budget) = &context.session_budget {
            lock(&self.session_budgets).insert(context.session.clone(), budget.clone());
        }
    }
}

impl SubAgentTemplate {
    /// Returns the model that a script named, or the agent's own.
    fn find_model(&self, name: Option<&str>) -> Result<AgentModel, ToolError> {
        let agent = &self.agent;
        match name {
            Some(name) => (agent.model_lookup)(&agent.client, name),
            None => Ok(AgentModel::new(agent.client.clone(), agent.model.clone())),
        }
    }
}

/// Returns the agent with only these of its tools. Fails if it has none of them.
fn restrict_tools(agent: Agent, names: &[String]) -> Result<Agent, ToolError> {
    let agent = agent.with_tools_where(|spec| {
        let (name, camel) = (&spec.name, camel_case(&spec.name));
        let is_named = |wanted: &String| snake_case(wanted) == *name || camel == *wanted;
        names.iter().any(is_named)
    });
    match agent.harness.orchestrator().registry().is_empty() {
        true => Err(ToolError::new("none of the tools in `tools` exists")
            .suggest("omit `tools` to allow all tools")),
        false => Ok(agent),
    }
}

/// Returns the text of a stored prompt or document.
fn stored_text(cabinet: &dyn DocumentStore, key: &str) -> Result<String, ToolError> {
    let found = cabinet
        .get(key)
        .map_err(|error| ToolError::new(format!("cannot access the File Cabinet: {error}")))?;
    let found = found.ok_or_else(|| {
        ToolError::new(format!(
            "no document in the File Cabinet has the key `{key}`"
        ))
        .suggest("use a key that prompts.save or saveToFc returned in the last 30 days")
    })?;
    String::from_utf8(found.content).map_err(|_| ToolError::new(format!("{key} is not text")))
}

/// Asks a model and returns the text of its answer and the tokens used.
pub(crate) async fn ask_for_text(
    client: &ModelClient,
    prompt: &Prompt,
    model: &Model,
) -> Result<(String, Usage), ToolError> {
    let mut text = String::new();
    let usage = read_text(client, prompt, model, &mut text).await;
    let usage = usage.map_err(|error| model_tool_error(client, &error))?;
    Ok((text, usage))
}

/// Asks a model, writes its answer to `text` as it arrives, and returns the tokens used, with those
/// of attempts that broke off.
pub(crate) async fn read_text(
    client: &ModelClient,
    prompt: &Prompt,
    model: &Model,
    text: &mut String,
) -> Result<Usage, ModelError> {
    let mut stream = client.stream(prompt, model);
    let (mut usage, mut earlier) = (Usage::default(), Usage::default());
    while let Some(event) = stream.next().await {
        match event? {
            ModelEvent::Text { text: delta, .. } => text.push_str(&delta),
            ModelEvent::Usage(counted) => usage = counted,
            ModelEvent::Restarted => text.clear(),
            ModelEvent::Retrying { .. } => {
                text.clear();
                earlier += std::mem::take(&mut usage);
            }
            _ => {}
        }
    }
    earlier += usage;
    Ok(earlier)
}

/// Returns the error of a request that a script made to a model.
fn model_tool_error(client: &ModelClient, error: &ModelError) -> ToolError {
    let name = &client.provider().name;
    let mut failure = ToolError::new(match error.kind {
        // The message of a failed connection names the provider.
        ModelErrorKind::Network | ModelErrorKind::Timeout => error.message.clone(),
        _ => format!("provider `{name}`: {error}"),
    });
    failure.retryable = error.is_transient();
    match error.kind {
        ModelErrorKind::UnknownModel => failure.suggest("omit `model` to use your own"),
        _ => failure,
    }
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
