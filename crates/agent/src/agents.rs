//! Sub-agents: the tools `agents.llm.chat`, `agents.launch.sync`, `agents.launch.async` and
//! `agents.wait`. A sub-agent uses the gate and the journal of the agent that launched it, and its
//! requests count against that agent's budget.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use futures_util::FutureExt;
use schemars::JsonSchema;
use selvedge_journal::Journal;
use selvedge_models::{Client, Model, ModelEvent, Prompt};
use selvedge_protocol::{
    Cabinet, DocumentKind, Event, EventSink, Item, Ledger, Limits, NewDocument, Role, RunStart,
    RunStatus, ScriptToolCallOutput, TurnEnd, TurnError, Usage, new_id,
};
use selvedge_tools::{
    Call, Registry, RegistryError, ToolError, camel_case, snake_case, tool_with_call,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::budget::Budget;
use crate::{Agent, Allowance, Session, TurnOptions};

/// The tools that launch sub-agents. Register them first, create the agent with that registry, then
/// pass them to [`Agent::with_agents`]. Clones share their state.
#[derive(Clone, Default)]
pub struct Agents(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// The template of new sub-agents. Replaced when a session continues with another model.
    template: Mutex<Option<Arc<Template>>>,
    cabinet: OnceLock<Arc<dyn Cabinet>>,
    /// The turns that are running, by the id of the run that their calls belong to.
    under_way: Mutex<HashMap<String, Circumstances>>,
}

/// The agent from which sub-agents are copied, and the journal for their sessions.
pub(crate) struct Template {
    pub(crate) agent: Agent,
    journal: Option<Arc<Journal>>,
}

/// The context of the turn that a call belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Circumstances {
    pub(crate) budget: Budget,
    /// The number of agents above this one: 0 for an agent that a person started.
    pub(crate) depth: u32,
    /// Suspends scripts that wait for a person.
    pub(crate) leave: CancellationToken,
    /// Cancels the turn.
    pub(crate) stop: CancellationToken,
    pub(crate) session: String,
    pub(crate) background: Background,
}

/// The sub-agents that run in the background of a turn. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Background(Arc<Mutex<Tasks>>);

#[derive(Debug, Default)]
struct Tasks {
    running: JoinSet<()>,
    results: HashMap<String, watch::Receiver<Option<Launched>>>,
}

/// One question to a model.
#[derive(Debug, Deserialize, JsonSchema)]
struct ChatArgs {
    /// The question.
    prompt: String,
    /// The system prompt.
    system: Option<String>,
    /// Another model of the same provider.
    model: Option<String>,
    /// Maximum number of tokens of the answer.
    max_output_tokens: Option<u64>,
}

/// The answer of the model.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ChatAnswer {
    /// The text of the answer.
    text: String,
    /// Input tokens used.
    input_tokens: u64,
    /// Output tokens used.
    output_tokens: u64,
}

/// The task of an agent.
#[derive(Debug, Deserialize, JsonSchema)]
struct LaunchArgs {
    /// The task. The agent sees nothing else of this conversation.
    prompt: String,
    /// Names of the tools that the agent may use; all tools by default.
    tools: Option<Vec<String>>,
    /// Another model of the same provider.
    model: Option<String>,
    /// Maximum number of model requests (default 50).
    max_rounds: Option<u32>,
    /// Maximum number of tokens.
    max_tokens: Option<u64>,
}

/// The result of an agent.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Launched {
    /// The id of the agent.
    agent_id: String,
    /// The session of the agent.
    session_id: String,
    /// Why the agent ended: `stop`, or the limit it reached.
    status: String,
    /// The last message of the agent.
    message: String,
    /// The key of the message in the File Cabinet.
    file_key: Option<String>,
    /// Input tokens used.
    input_tokens: u64,
    /// Output tokens used.
    output_tokens: u64,
}

/// An agent that was launched in the background.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Handle {
    /// The id of the agent, for `agents.wait`.
    agent_id: String,
}

/// The agent to wait for.
#[derive(Debug, Deserialize, JsonSchema)]
struct WaitArgs {
    /// The id that `agents.launch.async` returned.
    agent_id: String,
}

impl Agents {
    /// Registers the tools.
    pub fn register(&self, registry: &mut Registry) -> Result<(), RegistryError> {
        let shared = || {
            let shared = Arc::downgrade(&self.0);
            move || strong(&shared)
        };
        let own = shared();
        let chat = tool_with_call(
            "agents.llm.chat",
            "Asks a model one question, without tools or history.",
            move |args: ChatArgs, call| {
                let shared = own();
                async move { shared?.chat(args, &call).await }
            },
        );
        registry.register(chat.positional(&["prompt"]).takes_its_time())?;
        let own = shared();
        let launch = tool_with_call(
            "agents.launch.sync",
            "Launches an agent with its own task and waits for its result. Use Promise.all to run \
             several in parallel.",
            move |args: LaunchArgs, call| {
                let shared = own();
                async move {
                    let launch = shared?.prepare(args, &call).await?;
                    launch.run(call.cancel.clone(), call.events.clone()).await
                }
            },
        );
        registry.register(launch.positional(&["prompt"]).takes_its_time())?;
        let own = shared();
        let launch = tool_with_call(
            "agents.launch.async",
            "Launches an agent in the background, at most until this turn ends. agents.wait \
             returns its result.",
            move |args: LaunchArgs, call| {
                let shared = own();
                async move { shared?.launch_aside(args, &call).await }
            },
        );
        registry.register(launch.positional(&["prompt"]))?;
        let own = shared();
        let wait = tool_with_call(
            "agents.wait",
            "Waits for an agent that runs in the background, and returns its result.",
            move |args: WaitArgs, call| {
                let shared = own();
                async move { shared?.wait(&args.agent_id, &call).await }
            },
        );
        let wait = wait.positional(&["agent_id"]);
        registry.register(wait.takes_its_time().read_only())
    }

    /// Also stores the results of agents in this File Cabinet. Only the first call has an effect.
    pub fn store_results_in(&self, cabinet: Arc<dyn Cabinet>) {
        let _ = self.0.cabinet.set(cabinet);
    }

    /// Sets the template of new sub-agents and the journal for their sessions.
    pub(crate) fn attach(&self, agent: Agent, journal: Option<Arc<Journal>>) {
        *lock(&self.0.template) = Some(Arc::new(Template { agent, journal }));
    }

    /// Registers a run whose calls may launch sub-agents.
    pub(crate) fn enter(&self, run: &str, context: Circumstances) {
        lock(&self.0.under_way).insert(run.to_owned(), context);
    }

    /// Removes a run that [`Agents::enter`] registered.
    pub(crate) fn leave(&self, run: &str) {
        lock(&self.0.under_way).remove(run);
    }

    /// Returns the template of sub-agents and the context of the turn that a run belongs to.
    pub(crate) fn under_way(&self, run: &str) -> Option<(Arc<Template>, Circumstances)> {
        self.0.under_way(run)
    }
}

impl Background {
    /// Waits for agents that were told to stop, and aborts those that take too long.
    pub(crate) async fn end(&self) {
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

    fn lock(&self) -> MutexGuard<'_, Tasks> {
        lock(&self.0)
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn strong(shared: &Weak<Shared>) -> Result<Arc<Shared>, ToolError> {
    shared
        .upgrade()
        .ok_or_else(|| ToolError::new("agents cannot be launched here"))
}

impl Shared {
    fn under_way(&self, run: &str) -> Option<(Arc<Template>, Circumstances)> {
        let template = lock(&self.template).clone();
        template.zip(lock(&self.under_way).get(run).cloned())
    }

    fn of(&self, call: &Call) -> Result<(Arc<Template>, Circumstances), ToolError> {
        self.under_way(&call.scope_id).ok_or_else(|| {
            ToolError::new("agents can only be launched in a turn of an agent")
                .suggest("run the task with `selvedge exec`")
        })
    }

    /// Asks a model one question (`agents.llm.chat`).
    async fn chat(&self, args: ChatArgs, call: &Call) -> Result<ChatAnswer, ToolError> {
        let (template, context) = self.of(call)?;
        if let Some(end) = context.budget.reached() {
            return Err(spent(end));
        }
        let agent = &template.agent;
        let model = args
            .model
            .as_deref()
            .map_or_else(|| agent.model.clone(), |name| (agent.models)(name));
        check_price(&context.budget, &model)?;
        let prompt = Prompt {
            system: args.system.unwrap_or_default(),
            history: vec![Item::message(Role::User, args.prompt)],
            max_output_tokens: args.max_output_tokens,
            ..Prompt::default()
        };
        let (text, usage) = tokio::select! {
            biased;
            () = call.cancel.cancelled() => return Err(ToolError::new("the call was cancelled")),
            answered = answer(&agent.client, &prompt, &model) => answered?,
        };
        context
            .budget
            .spend(usage, model.prices.map(|prices| prices.cost(&usage)));
        Ok(ChatAnswer {
            text,
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
        })
    }

    async fn prepare(self: &Arc<Self>, args: LaunchArgs, call: &Call) -> Result<Launch, ToolError> {
        let (template, circumstances) = self.of(call)?;
        let max_depth = template.agent.settings.max_depth;
        if circumstances.depth >= max_depth {
            return Err(ToolError::new(format!(
                "agents can be nested at most {max_depth} levels deep"
            ))
            .suggest("do the work in this agent"));
        }
        if let Some(end) = circumstances.budget.reached() {
            return Err(spent(end));
        }
        let mut agent = template.agent.clone();
        agent.settings.turn_limits = Allowance {
            rounds: args.max_rounds.or(Some(50)),
            tokens: args.max_tokens,
            ..Allowance::default()
        };
        agent.budget = Some(circumstances.budget.clone());
        agent.depth = circumstances.depth + 1;
        agent.agents = Agents(self.clone());
        // The launching agent waits for this agent as long as for any other call. The calls of this
        // agent get a shorter grace period, so that they end first.
        let limits = agent.harness.limits().clone();
        let abort_grace_ms = limits.abort_grace_ms >> agent.depth;
        agent.harness = agent.harness.with_limits(Limits {
            abort_grace_ms,
            ..limits
        });
        if let Some(model) = &args.model {
            agent.model = (agent.models)(model);
        }
        check_price(&circumstances.budget, &agent.model)?;
        if let Some(tools) = &args.tools {
            let orchestrator = agent.harness.orchestrator().clone().only(|spec| {
                let (name, camel) = (&spec.name, camel_case(&spec.name));
                tools
                    .iter()
                    .any(|tool| snake_case(tool) == *name || camel == *tool)
            });
            if orchestrator.registry().iter().next().is_none() {
                return Err(ToolError::new("none of the tools in `tools` exists")
                    .suggest("omit `tools` to allow all tools"));
            }
            agent = agent.over(orchestrator);
        }
        let session = match &template.journal {
            Some(journal) => {
                let parent = Some(circumstances.session.as_str());
                Session::begin_under(journal, &agent.settings.directory, parent).await
            }
            None => Ok(Session::in_memory()),
        };
        let session = session.map_err(|error| ToolError::new(error.to_string()))?;
        Ok(Launch {
            id: new_id("agt"),
            agent,
            session,
            prompt: args.prompt,
            leave: circumstances.leave,
            shared: self.clone(),
            by: (call.scope_id.clone(), call.id.clone()),
        })
    }

    async fn launch_aside(
        self: &Arc<Self>,
        args: LaunchArgs,
        call: &Call,
    ) -> Result<Handle, ToolError> {
        let (_, circumstances) = self.of(call)?;
        let launch = self.prepare(args, call).await?;
        let agent_id = launch.id.clone();
        let (done, result) = watch::channel(None);
        let (cancel, events) = (circumstances.stop.child_token(), call.events.clone());
        let mut tasks = circumstances.background.lock();
        tasks.results.insert(agent_id.clone(), result);
        let failed = agent_id.clone();
        tasks.running.spawn(async move {
            let launched = launch.run(cancel, events).await;
            let _ = done.send(Some(launched.unwrap_or_else(|error| Launched {
                agent_id: failed,
                status: "failed".to_owned(),
                message: error.message,
                ..Launched::default()
            })));
        });
        Ok(Handle { agent_id })
    }

    async fn wait(&self, id: &str, call: &Call) -> Result<Launched, ToolError> {
        let (_, context) = self.of(call)?;
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
struct Launch {
    id: String,
    agent: Agent,
    session: Session,
    prompt: String,
    leave: CancellationToken,
    shared: Arc<Shared>,
    /// The ids of the run and of the call that launched the agent.
    by: (String, String),
}

impl Launch {
    async fn run(
        mut self,
        cancel: CancellationToken,
        events: EventSink,
    ) -> Result<Launched, ToolError> {
        let ledger = self.agent.harness.orchestrator().ledger().cloned();
        let mut ending = Ending {
            ledger: ledger.clone(),
            id: self.id.clone(),
        };
        if let Some(ledger) = &ledger {
            let begin = ledger.begin(RunStart {
                id: &self.id,
                source: &self.prompt,
                directory: &self.agent.settings.directory,
                session: self.session.id(),
                seed: "0",
                resumes: None,
                setting: "",
            });
            if let Err(error) = begin.await {
                ending.ledger = None;
                let message = format!("cannot record the agent: {error}");
                return Err(ToolError::new(message));
            }
        }
        let (parent_id, call_id) = self.by;
        let session_id = self.session.id().to_owned();
        events.emit(Event::AgentStarted {
            agent_id: self.id.clone(),
            parent_id,
            call_id,
            session_id,
        });
        let options = TurnOptions {
            cancel,
            leave: self.leave,
            events: inner(events),
            ..TurnOptions::default()
        };
        // Boxed, because an agent can launch agents.
        let turn = self
            .agent
            .turn(&mut self.session, self.prompt.as_str(), &options);
        let outcome = Box::pin(turn).await;
        if let Some(ledger) = ending.ledger.take() {
            let mut output = ScriptToolCallOutput::new(&self.id, "");
            output.status = match outcome.end {
                Ok(TurnEnd::Stop) => RunStatus::Completed,
                _ => RunStatus::Error,
            };
            output.output_json = serde_json::to_string(&outcome.message).ok();
            ledger.end(&output, None).await.map_err(|error| {
                ToolError::new(format!("cannot record the end of the agent: {error}"))
            })?;
        }
        let status = match outcome.end {
            // The agent may have changed something before it was cancelled.
            Ok(TurnEnd::Interrupted) => {
                return Err(ToolError::new("the agent was cancelled").outcome_unknown());
            }
            Ok(end) => end.as_str().to_owned(),
            Err(TurnError { kind, message }) => {
                let message = format!("the agent failed ({kind}): {message}");
                return Err(ToolError::new(message).outcome_unknown());
            }
        };
        let message = outcome.message.unwrap_or_default();
        let title = self.prompt.lines().next().unwrap_or_default();
        let title: String = title.chars().take(80).collect();
        let file_key = match self.shared.cabinet.get().cloned() {
            Some(cabinet) => keep_result(cabinet, title, message.clone()).await,
            None => None,
        };
        Ok(Launched {
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
async fn keep_result(cabinet: Arc<dyn Cabinet>, title: String, message: String) -> Option<String> {
    let keep = move || {
        cabinet.keep(&NewDocument {
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
struct Ending {
    ledger: Option<Arc<dyn Ledger>>,
    id: String,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(ledger) = &self.ledger {
            let output = ScriptToolCallOutput::new(&self.id, "");
            // If this fails, the run counts as died once this process ends.
            let _ = ledger.end(&output, None).now_or_never();
        }
    }
}

/// Asks a model and returns the text of its answer and the tokens used.
pub(crate) async fn answer(
    client: &Client,
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
pub(crate) fn spent(end: TurnEnd) -> ToolError {
    ToolError::new(format!("the budget is used up ({})", end.as_str()))
}

/// Fails if the cost is limited and the prices of the model are not known.
pub(crate) fn check_price(budget: &Budget, model: &Model) -> Result<(), ToolError> {
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
fn inner(events: EventSink) -> EventSink {
    EventSink::new(move |event| match event {
        Event::ThreadStarted { .. }
        | Event::TurnStarted { .. }
        | Event::ItemStarted { .. }
        | Event::ItemUpdated { .. }
        | Event::ItemCompleted { .. }
        | Event::ItemDropped { .. }
        | Event::ThreadCompacted { .. }
        | Event::UsageUpdated { .. }
        | Event::PlanUpdated { .. }
        | Event::DiffUpdated { .. }
        | Event::TurnCompleted { .. }
        | Event::TurnFailed { .. } => {}
        other => events.emit(other),
    })
}
