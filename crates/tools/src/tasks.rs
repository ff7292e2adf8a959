//! Tasks: calls that run in the background and continue after their script has ended. A set of
//! tasks belongs to a session, or to all sessions of `mcp serve`, and ends with it.
//!
//! A task is a batch of one call for the same orchestrator, in a scope of its own.

mod spawn_call;
mod spawn_tools;
mod task_result;

use std::any::Any;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use selvedge_protocol::{CallError, CallReach, ErrorCode, EventSink, RunStart, SPAWN_TOOL, new_id};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::external_cancel::run_until_cancel_requested;
use crate::prior::PriorLookup;
use crate::{
    BatchReport, CallArguments, CallContext, CallFailure, CallRequest, Orchestrator, Scope,
    ScopeLimits, ToolError, parse_args,
};
use spawn_call::{SpawnCall, TaskOrigin};
use spawn_tools::SpawnArgs;
use task_result::{TaskResult, task_error, task_output};

/// Maximum number of running tasks of a set.
const MAX_RUNNING_TASKS: usize = 8;
/// How long tasks may take to stop when their set ends.
const TASK_STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which the end of a task in another process is checked.
const RECORDED_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Number of ended tasks whose results can still be requested.
const MAX_ENDED_TASKS: usize = 64;

/// A set of tasks. It belongs to a session, or to all sessions of `mcp serve`. Clones share it.
#[derive(Clone, Default)]
pub struct TaskSet(Arc<TaskSetInner>);

#[derive(Default)]
struct TaskSetInner {
    tasks: Mutex<VecDeque<BackgroundTask>>,
    cancel: CancellationToken,
    recorded_lookup: OnceLock<Box<RecordedTaskLookup>>,
    access: OnceLock<Box<TaskAccess>>,
    start_hook: OnceLock<Box<TaskStartHook>>,
    /// Tool that a task calls if the script names none, and example arguments of `spawn`.
    default_task: Option<(String, String)>,
}

/// Looks up a task of another session in the ledger. Returns `None` if there is none, or if it may
/// not be used.
type RecordedTaskLookup =
    dyn Fn(TaskQuery) -> BoxFuture<'static, Option<RecordedTask>> + Send + Sync;

/// Decides whether the run with the first id may use a task of the session with the second id.
type TaskAccess = dyn Fn(&str, &str) -> bool + Send + Sync;

/// Called with the id of a run and that of the task it starts. The returned value is dropped when
/// the task has ended.
type TaskStartHook = dyn Fn(&str, &str) -> Box<dyn Any + Send> + Send + Sync;

/// A call that waits for a task or cancels it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskQuery {
    /// Id of the task.
    pub id: String,
    /// Id of the run that makes the call.
    pub scope_id: String,
}

/// A task of another session, as the ledger recorded it.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordedTask {
    /// The task is running.
    Running,
    /// The task has ended.
    Ended {
        /// Value or error of its call.
        result: Result<Value, CallError>,
        /// Warnings of its call, with the name of the tool.
        warnings: Vec<String>,
    },
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

    /// Sets the lookup for tasks of other sessions: a script that is restored or resumed in another
    /// process may wait for a task it started before. Later calls have no effect.
    pub fn set_recorded_lookup<F>(&self, lookup: impl Fn(TaskQuery) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Option<RecordedTask>> + Send + 'static,
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

    /// Sets the function to call before a task starts, with the id of the run that starts it and
    /// that of the task. Its result is dropped when the task has ended. Later calls have no effect.
    pub fn set_start_hook<G: Send + 'static>(
        &self,
        hook: impl Fn(&str, &str) -> G + Send + Sync + 'static,
    ) {
        let hook = move |run: &str, task: &str| Box::new(hook(run, task)) as Box<dyn Any + Send>;
        let _ = self.0.start_hook.set(Box::new(hook));
    }

    /// Returns the number of running tasks.
    pub fn running_count(&self) -> usize {
        self.lock_tasks()
            .iter()
            .filter(|task| task.result.borrow().is_none())
            .count()
    }

    /// Cancels all tasks, waits a limited time until they stop, and refuses new ones. Returns the
    /// number of tasks that were running.
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
        scope.reserve_call(CallReach::Command)?;
        let (tool, args) = self.parse_spawn_args(list)?;
        let spawn = SpawnCall::new(&context.orchestrator, scope, &tool, &args);
        let id = new_id("tsk");
        let (prior_call, idempotency_key) = match spawn.look_up(&id) {
            PriorLookup::Run => (None, None),
            PriorLookup::Repeat {
                prior_call,
                idempotency_key,
            } => (Some(prior_call), idempotency_key),
            PriorLookup::Undecided => {
                let undecided = scope
                    .prior_calls
                    .as_ref()
                    .map(|prior| prior.undecided_failure(SPAWN_TOOL));
                return Err(
                    undecided.unwrap_or_else(|| crate::failure::aborted_failure(SPAWN_TOOL))
                );
            }
            // The task's own run is recorded as well: waiting for the task returns its result.
            PriorLookup::Reuse { prior_call, .. } => {
                spawn.record(&prior_call, TaskOrigin::Reused).await?;
                return Ok(prior_call);
            }
            PriorLookup::Skip { value } => {
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
        let origin = TaskOrigin::Started {
            repeats: prior_call,
        };
        let started = self.start(new, context, spawn, origin).await;
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
        let (_, result) = watch::channel(Some(Ok(value).into()));
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
        origin: TaskOrigin,
    ) -> Result<String, CallFailure> {
        let found = context.orchestrator.registry().get(&tool);
        if found.is_some_and(|found| found.spec.name == SPAWN_TOOL) {
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
            max_file_calls: 1,
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
        let hook = self.0.start_hook.get();
        let hook_guard = hook.map(|hook| hook(spawn.run_id(), &scope.id));
        // The task starts once it is recorded, also if the script is cancelled meanwhile.
        runtime.spawn(async move {
            // A task that is not recorded must not start.
            let recorded = spawn.record(&scope.id, origin).await;
            let _ = record_sender.send(recorded.clone());
            let result = match recorded {
                Ok(()) => run_task(&context, &scope, request).await,
                Err(failure) => Err(failure).into(),
            };
            drop(hook_guard);
            sender.send_replace(Some(result));
        });
        let dropped = |_| Err(ToolError::new("the task was dropped before it started").into());
        recorded.await.unwrap_or_else(dropped).map(|()| id)
    }

    /// Waits for the end of a task. Its warnings become warnings of the call that waits.
    async fn wait(&self, query: &TaskQuery, call: &CallContext) -> Result<Value, ToolError> {
        let result = tokio::select! {
            () = call.cancel.cancelled() => {
                return Err(ToolError::new("the wait was cancelled; the task is still running"));
            }
            result = self.result(query) => result?,
        };
        for warning in result.warnings {
            call.warn(warning);
        }
        result.value.map_err(task_error)
    }

    /// Waits for the end of a task, which another process may run. Fails if there is no such task.
    async fn result(&self, query: &TaskQuery) -> Result<TaskResult, ToolError> {
        let mut receiver = match self.find(query, |task| task.result.clone()) {
            Ok(receiver) => receiver,
            Err(not_found) => loop {
                match self.recorded_task(query).await {
                    None => return Err(not_found),
                    Some(RecordedTask::Running) => {
                        tokio::time::sleep(RECORDED_POLL_INTERVAL).await;
                    }
                    Some(RecordedTask::Ended { result, warnings }) => {
                        let failure =
                            |error: CallError| CallFailure::new(error.code, error.message);
                        return Ok(TaskResult {
                            value: result.map_err(failure),
                            warnings,
                        });
                    }
                }
            },
        };
        let result = receiver.wait_for(Option::is_some).await;
        let result = result.map(|result| result.clone()).unwrap_or_default();
        result.ok_or_else(|| {
            let message = format!("task {} ended without a result", query.id);
            ToolError::new(message)
        })
    }

    /// Looks up a task of another session.
    async fn recorded_task(&self, query: &TaskQuery) -> Option<RecordedTask> {
        self.0.recorded_lookup.get()?(query.clone()).await
    }

    async fn cancel(&self, query: &TaskQuery) -> Result<bool, ToolError> {
        let running = self.find(query, |task| {
            let running = task.result.borrow().is_none();
            task.cancel.cancel();
            running
        });
        let Err(not_found) = running else {
            return running;
        };
        match self.recorded_task(query).await {
            None => Err(not_found),
            Some(RecordedTask::Ended { .. }) => Ok(false),
            Some(RecordedTask::Running) => {
                let id = &query.id;
                let message = format!("task {id} runs in another session");
                let hint = format!("run `selvedge runs cancel {id}`");
                Err(ToolError::new(message).suggest(hint))
            }
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

/// Runs the call of a task. In the ledger it is a run of its own.
async fn run_task(context: &TaskContext, scope: &Scope, request: CallRequest) -> TaskResult {
    let failed = |message: String| -> TaskResult {
        Err(CallFailure::new(ErrorCode::HarnessInternalError, message)).into()
    };
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
    run_until_cancel_requested(
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
    TaskResult {
        value: outcome.result.map(|output| output.value),
        warnings: output.warnings,
    }
}
