//! The tools with which scripts start tasks, wait for them and cancel them.

use schemars::JsonSchema;
use selvedge_protocol::{CallReach, CallTimeout, SPAWN_TOOL, ToolSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{TaskQuery, TaskSet};
use crate::{
    CallContext, CallFuture, Registry, RegistryError, Tool, ToolError, spec_of, typed_call,
};

impl TaskSet {
    /// Registers the tools that start tasks, wait for them and cancel them.
    pub fn register(&self, registry: &mut Registry) -> Result<(), RegistryError> {
        registry.register(SpawnExec(format!("const task = {}", self.example())))?;
        registry.register(SpawnWait(self.clone()))?;
        registry.register(SpawnCancel(self.clone()))
    }
}

/// Arguments of `spawn`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct SpawnArgs {
    /// Name of the tool. Defaults to the tool that runs commands.
    pub(super) tool: Option<String>,
    /// Arguments of the tool. They may also be given directly, beside `tool`.
    pub(super) args: Option<Map<String, Value>>,
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
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

/// The tool that starts a task, with an example of a call. Scripts start tasks through
/// [`TaskSet::start_from_script`]; every other call fails.
struct SpawnExec(String);

impl Tool for SpawnExec {
    fn spec(&self) -> ToolSpec {
        let description = format!(
            "Starts a call of another tool in the background and returns at once. The task \
             continues after the script ends, until the session ends.\nIn scripts: {}; \
             later `await task.done`, `await task.cancel()`, or in another script \
             tools.spawn.wait({{ id }}).",
            self.0
        );
        spec_of::<SpawnArgs, SpawnOutput>(SPAWN_TOOL, &description)
            .with_positional(&["tool", "args"])
            .with_reach(CallReach::Command)
    }

    fn is_script_only(&self) -> bool {
        true
    }

    fn call(&self, _: Value, _: CallContext) -> CallFuture<'_> {
        let error = ToolError::new("tasks can only be started by a script").suggest(&self.0);
        Box::pin(std::future::ready(Err(error)))
    }
}

/// The tool `spawn.wait`.
struct SpawnWait(TaskSet);

impl Tool for SpawnWait {
    fn spec(&self) -> ToolSpec {
        let description = "Waits for a task and returns its result.";
        let spec = spec_of::<TaskIdArgs, Value>("spawn.wait", description);
        spec.as_read_only()
            .with_positional(&["id"])
            .with_reach(CallReach::Local)
            // The task may be anything, an agent too.
            .with_timeout(CallTimeout::new(CallReach::Agent.default_timeout()))
    }

    fn is_script_only(&self) -> bool {
        true
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let run = async move |args: TaskIdArgs| {
            let query = args.query(&call);
            self.0.wait(&query, &call).await
        };
        typed_call(args, run, |_: &Value| None)
    }
}

/// The tool `spawn.cancel`.
struct SpawnCancel(TaskSet);

impl Tool for SpawnCancel {
    fn spec(&self) -> ToolSpec {
        let description = "Cancels a task. Returns false if it had already ended.";
        spec_of::<TaskIdArgs, bool>("spawn.cancel", description)
            .with_positional(&["id"])
            .with_reach(CallReach::Local)
    }

    fn is_script_only(&self) -> bool {
        true
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let run = async move |args: TaskIdArgs| self.0.cancel(&args.query(&call)).await;
        typed_call(args, run, |_: &bool| None)
    }
}
