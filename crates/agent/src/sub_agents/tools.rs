//! The tools that launch sub-agents. They hold a weak reference, because the agents hold the tools.

use std::sync::{Arc, Weak};

use selvedge_protocol::{CallReach, ResumeAs, ToolSpec};
use selvedge_tools::{
    CallContext, CallFuture, Registry, RegistryError, Tool, ToolError, spec_of, typed_call,
};
use serde_json::Value;

use super::arguments::{
    LaunchAgentArgs, LaunchAgentOutput, LaunchedAgent, LlmChatArgs, LlmChatOutput, WaitForAgentArgs,
};
use super::{SubAgents, SubAgentsInner};

impl SubAgents {
    /// Adds the tools `agents.*` to the registry.
    pub fn register(&self, registry: &mut Registry) -> Result<(), RegistryError> {
        let shared = || WeakSubAgents(Arc::downgrade(&self.0));
        registry.register(LlmChat(shared()))?;
        registry.register(LaunchAgent(shared()))?;
        registry.register(LaunchAgentInBackground(shared()))?;
        registry.register(WaitForAgent(shared()))
    }
}

struct WeakSubAgents(Weak<SubAgentsInner>);

impl WeakSubAgents {
    fn upgrade(&self) -> Result<Arc<SubAgentsInner>, ToolError> {
        let shared = self.0.upgrade();
        shared.ok_or_else(|| {
            ToolError::new("agents cannot be launched any more: the session has ended")
        })
    }
}

/// The tool `agents.llm.chat`.
struct LlmChat(WeakSubAgents);

impl Tool for LlmChat {
    fn spec(&self) -> ToolSpec {
        let description = "Asks a model one question, without tools or history.";
        spec_of::<LlmChatArgs, LlmChatOutput>("agents.llm.chat", description)
            .with_positional(&["prompt"])
            .with_reach(CallReach::Agent)
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let run = async move |args| self.0.upgrade()?.chat(args, &call).await;
        typed_call(args, run, |_| None)
    }
}

/// The tool `agents.launch.sync`.
struct LaunchAgent(WeakSubAgents);

impl Tool for LaunchAgent {
    fn spec(&self) -> ToolSpec {
        let description = "Launches an agent with its own task and waits for its result.";
        spec_of::<LaunchAgentArgs, LaunchAgentOutput>("agents.launch.sync", description)
            .with_positional(&["prompt"])
            .with_reach(CallReach::Agent)
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let run = async move |args| {
            let launch = self.0.upgrade()?.prepare_launch(args, &call).await?;
            launch.run(call.cancel.clone(), call.events.clone()).await
        };
        typed_call(args, run, |_| None)
    }
}

/// The tool `agents.launch.async`.
struct LaunchAgentInBackground(WeakSubAgents);

impl Tool for LaunchAgentInBackground {
    fn spec(&self) -> ToolSpec {
        let description = "Launches an agent in the background and returns at once. \
            agents.wait(agentId) returns its result, which is also stored under fileKey.";
        spec_of::<LaunchAgentArgs, LaunchedAgent>("agents.launch.async", description)
            .with_positional(&["prompt"])
            .with_reach(CallReach::Agent)
    }

    /// What the agent changes is not recorded with this call.
    fn resume_as(&self, _: &Value) -> ResumeAs {
        ResumeAs::Undecided
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let run = async move |args| self.0.upgrade()?.launch_in_background(args, &call).await;
        typed_call(args, run, |_| None)
    }
}

/// The tool `agents.wait`.
struct WaitForAgent(WeakSubAgents);

impl Tool for WaitForAgent {
    fn spec(&self) -> ToolSpec {
        let description = "Waits for a background agent, and returns its result.";
        let spec = spec_of::<WaitForAgentArgs, LaunchAgentOutput>("agents.wait", description);
        spec.as_read_only()
            .with_positional(&["agent_id"])
            .with_reach(CallReach::Agent)
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let run =
            async move |args: WaitForAgentArgs| self.0.upgrade()?.wait(&args.agent_id, &call).await;
        typed_call(args, run, |_| None)
    }
}
