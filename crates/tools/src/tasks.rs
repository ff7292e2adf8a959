//! Tasks: calls that run in the background and continue after their script has ended. They belong
//! to a session and end with it.
//!
//! A task is a batch of one call for the same orchestrator, in a scope of its own.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use schemars::JsonSchema;
use selvedge_protocol::{
    CallEnd, CallRecord, CallStatus, ErrorCode, EventSink, Ledger, ResumeAs, RunMetadata, RunStart,
    RunStatus, SPAWN_TOOL, ScriptError, ScriptToolCallOutput, UnrecordedStart, new_id,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::digest::without_explanations;
use crate::orchestrator::{always_reruns, is_read_only_call};
use crate::prior::{CallEffect, PriorLookup};
use crate::stop::run_or_stop_on_request;
use crate::{
    BatchReport, CallArguments, CallContext, CallFailure, CallOutcome, CallRequest, FieldCase,
    Orchestrator, PriorOutcome, Registry, RegistryError, Scope, ScopeLimits, ToolError, ToolLookup,
    parse_args, tool, tool_with_context,
};

/// Largest number of running tasks of a session.
const MAX_RUNNING_TASKS: usize = 8;
/// How long tasks may take to stop when their session ends.
const TASK_STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of ended tasks whose results can still be requested.
const MAX_ENDED_TASKS: usize = 64;

/// The tasks of a session. Clones share them.
#[derive(Clone, Default)]
pub struct TaskSet(Arc<TaskSetInner>);

#[derive(Default)]
struct TaskSetInner {
    tasks: Mutex<VecDeque<BackgroundTask>>,
    cancel: CancellationToken,
    recorded_lookup: OnceLock<Box<RecordedTaskLookup>>,
    access: OnceLock<Box<TaskAccess>>,
    /// Tool that a task calls if the script names none, and example arguments of `spawn`.
    default_task: Option<(String, String)>,
}

/// Looks up the recorded outcome of a task of another session. Returns `None` if the task failed,
/// does not exist, or may not be used.
type RecordedTaskLookup =
    dyn Fn(TaskQuery) -> BoxFuture<'static, Option<PriorOutcome>> + Send + Sync;

/// Decides whether the run with the first id may use a task of the session with the second id.
type TaskAccess = dyn Fn(&str, &str) -> bool + Send + Sync;

/// A call that waits for a task or cancels it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskQuery {
    /// Id of the task.
    pub id: String,
    /// Id of the run that makes the call.
    pub scope_id: String,
}

/// What is needed to run and record a task.
#[derive(Clone)]
pub struct TaskContext {
    /// Runs the call.
    pub orchestrator: Orchestrator,
    /// Limits of the task's scope. The number of calls is always one.
    pub limits: ScopeLimits,
    /// Working directory of the task's run.
    pub directory: String,
    /// Id of the session that the task's run belongs to.
    pub session: String,
}

/// A task to start.
struct NewTask {
    id: String,
    tool: String,
    args: Map<String, Value>,
    events: EventSink,
    /// Idempotency key of the recorded task that this task repeats.
    idempotency_key: Option<String>,
}

struct BackgroundTask {
    id: String,
    session: String,
    cancel: CancellationToken,
    result: watch::Receiver<Option<TaskResult>>,
}

/// Result of a task.
type TaskResult = Result<Value, CallFailure>;

impl TaskSet {
    /// Creates an empty set of tasks. `tool` is the tool to call if the script names none;
    /// `example` are arguments of a call that starts a task, for descriptions and hints.
    pub fn with_default_tool(tool: &str, example: &str) -> Self {
        Self(Arc::new(TaskSetInner {
            default_task: Some((tool.to_owned(), example.to_owned())),
            ..TaskSetInner::default()
        }))
    }

    /// Returns an example call that starts a task, for descriptions and hints.
    fn example(&self) -> String {
        let default = self.0.default_task.as_ref();
        let args = default.map_or("\"name\", { … }", |(_, example)| example);
        format!("tools.{SPAWN_TOOL}({args})")
    }

    /// Registers the tools that start tasks, wait for them and cancel them.
    pub fn register(&self, registry: &mut Registry) -> Result<(), RegistryError> {
        let [for_wait, for_cancel] = [(); 2].map(|()| self.clone());
        let example = format!("const task = {}", self.example());
        let description = format!(
            "Starts a call of another tool in the background and returns at once. The task \
             continues after the script ends, until the session ends.\nIn scripts: {example}; \
             later `await task.done`, `await task.cancel()`, or in another script \
             tools.spawn.wait({{ id }})."
        );
        registry.register(
            // Scripts start tasks through `start_from_script`; only structured calls come here.
            tool(SPAWN_TOOL, &description, move |_: SpawnArgs| {
                let error = ToolError::new("tasks can only be started by a script");
                std::future::ready(Err::<SpawnOutput, _>(error.suggest(&example)))
            })
            .positional(&["tool", "args"]),
        )?;
        registry.register(
            tool_with_context(
                "spawn.wait",
                "Waits for a task and returns its result.",
                move |args: TaskIdArgs, call| {
                    let tasks = for_wait.clone();
                    let query = args.query(&call);
                    async move { tasks.wait(&query, &call.cancel).await }
                },
            )
            .read_only()
            .positional(&["id"]),
        )?;
        registry.register(
            tool_with_context(
                "spawn.cancel",
                "Cancels a task. Returns false if it had already ended.",
                move |args: TaskIdArgs, call| {
                    let tasks = for_cancel.clone();
                    async move { tasks.cancel(&args.query(&call)).await }
                },
            )
            .positional(&["id"]),
        )
    }

    /// Sets the lookup for tasks of other sessions: a script that was suspended may wait in another
    /// process for a task it started. Later calls have no effect.
    pub fn set_recorded_lookup<F>(&self, lookup: impl Fn(TaskQuery) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Option<PriorOutcome>> + Send + 'static,
    {
        // Already set: there is one ledger per process.
        let _ = self
            .0
            .recorded_lookup
            .set(Box::new(move |query| lookup(query).boxed()));
    }

    /// Sets which tasks a run may use, if the set holds the tasks of several sessions:
    /// `may_use(run, session)` decides whether the run may use a task that the session started.
    /// Later calls have no effect.
    pub fn set_access(&self, may_use: impl Fn(&str, &str) -> bool + Send + Sync + 'static) {
        let _ = self.0.access.set(Box::new(may_use));
    }

    /// Returns the number of running tasks.
    pub fn running_count(&self) -> usize {
        self.lock_tasks()
            .iter()
            .filter(|task| task.result.borrow().is_none())
            .count()
    }

    /// Ends the session: cancels running tasks, waits a limited time until they stop, and refuses
    /// new ones. Returns the number of tasks that were running.
    pub async fn end(&self) -> usize {
        let running: Vec<_> = self
            .lock_tasks()
            .iter()
            .map(|task| task.result.clone())
            .filter(|task| task.borrow().is_none())
            .collect();
        self.0.cancel.cancel();
        let count = running.len();
        let all = join_all(
            running
                .into_iter()
                .map(|mut task| async move { _ = task.wait_for(Option::is_some).await }),
        );
        // A tool that does not stop is ended with the process.
        let _ = tokio::time::timeout(TASK_STOP_TIMEOUT, all).await;
        count
    }

    /// Starts a task with the argument list of a script's call, and returns its id. It counts as a
    /// call of the script and follows the same rules in a resumed run.
    pub async fn start_from_script(
        &self,
        list: Vec<Value>,
        scope: &Scope,
        context: TaskContext,
    ) -> Result<String, CallFailure> {
        scope.reserve_call()?;
        let (tool, args) = self.parse_spawn_args(list)?;
        let spawn = SpawnCall::new(&context.orchestrator, &scope.id, &tool, &args);
        scope.add_recorded(spawn.resume_as);
        let id = new_id("tsk");
        let (origin, idempotency_key) = match spawn.look_up(scope, &id) {
            PriorLookup::New => (None, None),
            PriorLookup::Repeat {
                origin,
                idempotency_key,
            } => (Some(origin), idempotency_key),
            PriorLookup::Blocked => {
                let undecided = scope
                    .prior_calls
                    .as_ref()
                    .map(|prior| prior.undecided_failure(SPAWN_TOOL));
                return Err(
                    undecided.unwrap_or_else(|| crate::failure::aborted_failure(SPAWN_TOOL))
                );
            }
            // The task's own run is recorded as well: waiting for the task returns its result.
            PriorLookup::Recorded { origin, .. } => {
                spawn.record(&origin, TaskOrigin::Reused).await?;
                return Ok(origin);
            }
            PriorLookup::Skipped { value } => {
                spawn.record(&id, TaskOrigin::Skipped).await?;
                self.add_finished(id.clone(), context.session, value);
                return Ok(id);
            }
        };
        let new = NewTask {
            id,
            tool,
            args,
            events: scope.events.clone(),
            idempotency_key,
        };
        let call_id = new.id.clone();
        let how = TaskOrigin::Started { repeats: origin };
        let started = self.start(new, context, spawn, how).await;
        if let (Err(_), Some(prior)) = (&started, &scope.prior_calls) {
            prior.release(&call_id);
        }
        started
    }

    /// Returns the tool to start and its arguments.
    fn parse_spawn_args(
        &self,
        list: Vec<Value>,
    ) -> Result<(String, Map<String, Value>), ToolError> {
        let mut list = list.into_iter();
        let (tool, args) = match (list.next(), list.next()) {
            (Some(Value::String(tool)), None) => (Some(tool), Map::new()),
            (Some(Value::String(tool)), Some(Value::Object(args))) => (Some(tool), args),
            (Some(first @ Value::Object(_)), None) => {
                let SpawnArgs { tool, args, rest } = parse_args(first)?;
                let default = self.0.default_task.as_ref().map(|(tool, _)| tool.clone());
                (tool.or(default), args.unwrap_or(rest))
            }
            _ => (None, Map::new()),
        };
        let tool = tool.ok_or_else(|| {
            ToolError::new(format!(
                "{SPAWN_TOOL} takes a tool's name and its arguments"
            ))
            .suggest(self.example())
        })?;
        Ok((tool, args))
    }

    /// Adds a task that has already ended, because the script decided what it returns.
    fn add_finished(&self, id: String, session: String, value: Value) {
        let (_, result) = watch::channel(Some(Ok(value)));
        let cancel = CancellationToken::new();
        push_task(
            &mut self.lock_tasks(),
            BackgroundTask {
                id,
                session,
                cancel,
                result,
            },
        );
    }

    async fn start(
        &self,
        NewTask {
            id,
            tool,
            args,
            events,
            idempotency_key,
        }: NewTask,
        context: TaskContext,
        spawn: SpawnCall,
        how: TaskOrigin,
    ) -> Result<String, CallFailure> {
        if tool.starts_with("spawn") {
            return Err(ToolError::new("a task cannot start a task").into());
        }
        if self.0.cancel.is_cancelled() {
            let message = "cannot start a task: the session has ended";
            return Err(ToolError::new(message).into());
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Err(ToolError::new("cannot start a task: there is no async runtime").into());
        };
        if self.running_count() >= MAX_RUNNING_TASKS {
            let hint =
                "wait for one with `await task.done`, or stop one with `await task.cancel()`";
            let message = format!("{MAX_RUNNING_TASKS} tasks are running, which is the limit");
            return Err(ToolError::new(message).suggest(hint).into());
        }
        let limits = ScopeLimits {
            max_calls: 1,
            max_concurrent: 1,
            ..context.limits.clone()
        };
        let mut scope = Scope::new(id.clone(), limits, &self.0.cancel, events);
        scope.idempotency_key = idempotency_key;
        let (sender, result) = watch::channel(None);
        let cancel = scope.cancel.child_token();
        push_task(
            &mut self.lock_tasks(),
            BackgroundTask {
                id: id.clone(),
                session: context.session.clone(),
                cancel: cancel.clone(),
                result,
            },
        );
        let request = CallRequest {
            id: "tool_1".to_owned(),
            tool,
            args: CallArguments::Object(Value::Object(args)),
            line: None,
            cancel,
        };
        let (record_sender, recorded) = oneshot::channel();
        // The task starts once it is recorded, also if the script is cancelled meanwhile.
        runtime.spawn(async move {
            // A task that is not recorded must not start.
            let recorded = spawn.record(&scope.id, how).await;
            let _ = record_sender.send(recorded.clone());
            let result = match recorded {
                Ok(()) => run_task(&context, &scope, request).await,
                Err(failure) => Err(failure),
            };
            sender.send_replace(Some(result));
        });
        let dropped = |_| Err(ToolError::new("the task was dropped before it started").into());
        recorded.await.unwrap_or_else(dropped).map(|()| id)
    }

    async fn wait(
        &self,
        query: &TaskQuery,
        cancel: &CancellationToken,
    ) -> Result<Value, ToolError> {
        let id = &query.id;
        let mut receiver = match self.find(query, |task| task.result.clone()) {
            Ok(task) => task,
            Err(error) => return self.recorded_result(query).await.unwrap_or(Err(error)),
        };
        let result = tokio::select! {
            () = cancel.cancelled() => {
                return Err(ToolError::new("the wait was cancelled; the task is still running"));
            }
            result = receiver.wait_for(Option::is_some) => result,
        };
        match result.map(|result| result.clone()).unwrap_or_default() {
            Some(Ok(value)) => Ok(value),
            Some(Err(failure)) => Err(task_error(failure)),
            None => Err(ToolError::new(format!("task {id} ended without a result"))),
        }
    }

    /// Returns the recorded result of a task of another session.
    async fn recorded_result(&self, query: &TaskQuery) -> Option<Result<Value, ToolError>> {
        let lookup = self.0.recorded_lookup.get()?;
        Some(match lookup(query.clone()).await? {
            PriorOutcome::Succeeded(value) => Ok(value),
            PriorOutcome::Unknown => {
                let message = format!("the outcome of task {} is unknown", query.id);
                let failure = CallFailure::new(ErrorCode::OutcomeUnknownError, message);
                Err(task_error(failure))
            }
        })
    }

    async fn cancel(&self, query: &TaskQuery) -> Result<bool, ToolError> {
        let running = self.find(query, |task| {
            let running = task.result.borrow().is_none();
            task.cancel.cancel();
            running
        });
        match running {
            Err(error) => {
                let recorded = self.recorded_result(query).await;
                recorded.map(|_| false).ok_or(error)
            }
            running => running,
        }
    }

    fn find<T>(
        &self,
        query: &TaskQuery,
        read: impl FnOnce(&BackgroundTask) -> T,
    ) -> Result<T, ToolError> {
        let access = self.0.access.get();
        let may_use = |task: &BackgroundTask| {
            access.is_none_or(|may_use| may_use(&query.scope_id, &task.session))
        };
        let found = self
            .lock_tasks()
            .iter()
            .find(|task| task.id == query.id && may_use(task))
            .map(read);
        found.ok_or_else(|| {
            let id: String = query.id.chars().take(40).collect();
            ToolError::new(format!("there is no task `{id}` in this session")).suggest(format!(
                "run `selvedge runs show {id}` for a task of an earlier session"
            ))
        })
    }

    fn lock_tasks(&self) -> MutexGuard<'_, VecDeque<BackgroundTask>> {
        self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for TaskSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.lock_tasks().iter().map(|task| &task.id))
            .finish()
    }
}

/// Adds a task. If there are too many, the oldest that have ended are removed.
fn push_task(all: &mut VecDeque<BackgroundTask>, task: BackgroundTask) {
    while all.len() >= MAX_ENDED_TASKS + MAX_RUNNING_TASKS {
        let Some(ended) = all.iter().position(|task| task.result.borrow().is_some()) else {
            break;
        };
        all.remove(ended);
    }
    all.push_back(task);
}

/// Converts the failure of a task's call to an error of the call that waits for the task.
fn task_error(failure: CallFailure) -> ToolError {
    let mut error = ToolError::new(failure.message);
    (error.retryable, error.suggestions, error.metadata) =
        (failure.retryable, failure.suggestions, failure.metadata);
    error
        .metadata
        .insert("code".to_owned(), Value::String(failure.code.to_string()));
    error
}

/// The call with which a script starts a task. It is recorded as a call of the script.
struct SpawnCall {
    ledger: Option<Arc<dyn Ledger>>,
    run: String,
    /// Canonical tool name and arguments if the tool exists and accepts them, else as written.
    args: Value,
    digest: String,
    effect: CallEffect,
    /// What a started task means to a resumed run: `Rerun` if it only reads and costs nothing.
    resume_as: ResumeAs,
}

/// Where a task comes from.
enum TaskOrigin {
    /// Started by this call, possibly to repeat a recorded task.
    Started { repeats: Option<String> },
    /// Started by the resumed run.
    Reused,
    /// Not started: the script decided what it returns.
    Skipped,
}

impl SpawnCall {
    fn new(orchestrator: &Orchestrator, run: &str, tool: &str, args: &Map<String, Value>) -> Self {
        let given = Value::Object(args.clone());
        let found = match orchestrator.registry().look_up(tool) {
            ToolLookup::Tool(tool) => Some(tool),
            ToolLookup::Namespace | ToolLookup::NotFound(_) => None,
        };
        let accepted = found.and_then(|tool| {
            let args = tool.validate(CallArguments::Object(given.clone())).ok()?;
            let read_only = is_read_only_call(tool, &args);
            let resume_as = match always_reruns(tool, read_only) {
                true => ResumeAs::Rerun,
                false => ResumeAs::Answer,
            };
            let effect = CallEffect::from_read_only(read_only);
            Some((tool.spec.name.as_str(), effect, resume_as, args))
        });
        let (tool, effect, resume_as, args) =
            accepted.unwrap_or((tool, CallEffect::MayChange, ResumeAs::Answer, given));
        let fields = found.map_or(FieldCase::Camel, |tool| tool.tool.field_case());
        let compared = json!({"tool": tool, "args": without_explanations(args.clone(), fields)});
        let digest = orchestrator.digest_of(SPAWN_TOOL, &compared, FieldCase::Camel);
        Self {
            ledger: orchestrator.ledger().cloned(),
            run: run.to_owned(),
            args: json!({"tool": tool, "args": args}),
            digest,
            effect,
            resume_as,
        }
    }

    /// Looks up the recorded calls of the resumed run.
    fn look_up(&self, scope: &Scope, id: &str) -> PriorLookup {
        match &scope.prior_calls {
            Some(prior) if self.resume_as != ResumeAs::Rerun => {
                prior.look_up(id, &self.digest, self.effect)
            }
            _ => PriorLookup::New,
        }
    }

    async fn record(&self, id: &str, how: TaskOrigin) -> Result<(), CallFailure> {
        let Some(ledger) = &self.ledger else {
            return Ok(());
        };
        let (origin, reused, resume_as) = match how {
            TaskOrigin::Started { repeats } => (repeats, false, self.resume_as),
            TaskOrigin::Reused => (Some(id.to_owned()), true, ResumeAs::Answer),
            TaskOrigin::Skipped => (None, true, ResumeAs::Rerun),
        };
        let record = CallRecord {
            id: id.to_owned(),
            tool: SPAWN_TOOL.to_owned(),
            status: CallStatus::Done,
            reused,
            duration_ms: 0.0,
            args_digest: self.digest.clone(),
            line: None,
            error: None,
        };
        let value = json!({"id": id});
        let answered = UnrecordedStart {
            origin,
            args: self.args.clone(),
            read_only: self.effect == CallEffect::ReadOnly,
        };
        let settled = CallEnd {
            run: &self.run,
            record: &record,
            value: Some(&value),
            shown: None,
            resume_as,
            unrecorded_start: Some(&answered),
        };
        ledger.record_call_end(settled).await.map_err(|error| {
            let message =
                format!("the task was not started, because it could not be recorded: {error}");
            ToolError::new(message).into()
        })
    }
}

/// Arguments of `spawn`.
#[derive(Debug, Deserialize, JsonSchema)]
struct SpawnArgs {
    /// Name of the tool. Defaults to the tool that runs commands.
    tool: Option<String>,
    /// Arguments of the tool. They may also be given directly, beside `tool`.
    args: Option<Map<String, Value>>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Result of `spawn`.
#[derive(Debug, Serialize, JsonSchema)]
struct SpawnOutput {
    /// Id for spawn.wait and spawn.cancel, in this script and later ones of the session.
    id: String,
}

/// Arguments of the tools that wait for a task or cancel it.
#[derive(Debug, Deserialize, JsonSchema)]
struct TaskIdArgs {
    /// Id of the task.
    id: String,
}

impl TaskIdArgs {
    fn query(&self, call: &CallContext) -> TaskQuery {
        TaskQuery {
            id: self.id.clone(),
            scope_id: call.scope_id.clone(),
        }
    }
}

/// Runs the call of a task. In the ledger it is a run of its own.
async fn run_task(context: &TaskContext, scope: &Scope, request: CallRequest) -> TaskResult {
    let failed = |message: String| Err(CallFailure::new(ErrorCode::HarnessInternalError, message));
    let TaskContext {
        orchestrator,
        directory,
        session,
        ..
    } = context;
    let ledger = orchestrator.ledger().cloned();
    if let Some(ledger) = &ledger {
        let args = match &request.args {
            CallArguments::Object(args) => args.to_string(),
            _ => String::new(),
        };
        let source = format!("return await tools.{}({args})", request.tool);
        let start = RunStart {
            id: &scope.id,
            source: &source,
            directory,
            session,
            seed: "",
            resumes: None,
            saved_config: "",
        };
        if let Err(error) = scope.wait_for_write(ledger.record_run_start(start)).await {
            return failed(format!(
                "the task did not run, because it could not be recorded: {error}"
            ));
        }
    }
    let (reports, mut received) = mpsc::unbounded_channel();
    run_or_stop_on_request(
        ledger.as_ref(),
        scope,
        pin!(orchestrator.run_batch(scope, vec![request], reports)),
    )
    .await;
    scope.end();
    let mut outcome = None;
    while let Ok(report) = received.try_recv() {
        if let BatchReport::Finished(finished) = report {
            outcome = Some(finished);
        }
    }
    let Some(outcome) = outcome else {
        return failed("the task ended without a result".to_owned());
    };
    let output = task_output(&scope.id, &outcome);
    if let Some(ledger) = &ledger {
        // A failure is ignored: the outcome of the call is already recorded.
        let _ = scope
            .wait_for_write(ledger.record_run_end(&output, None))
            .await;
    }
    outcome.result.map(|output| output.value)
}

/// Returns the output of a task's run, as it is recorded.
fn task_output(id: &str, outcome: &CallOutcome) -> ScriptToolCallOutput {
    let error = outcome.result.as_ref().err().map(|failure| {
        ScriptError::new(
            failure.code,
            selvedge_protocol::Phase::Executing,
            failure.message.clone(),
        )
    });
    let value = outcome
        .result
        .as_ref()
        .ok()
        .map(|output| output.value.to_string());
    ScriptToolCallOutput {
        id: id.to_owned(),
        call_id: new_id("call"),
        status: if error.is_some() {
            RunStatus::Error
        } else {
            RunStatus::Completed
        },
        output_json: value,
        error,
        summary: None,
        output: Vec::new(),
        calls: vec![outcome.record.clone()],
        logs: Vec::new(),
        warnings: Vec::new(),
        metadata: RunMetadata {
            tool_calls_made: 1,
            duration_ms: outcome.record.duration_ms,
            ..RunMetadata::default()
        },
    }
}
