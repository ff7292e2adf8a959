//! The mock model server of the agent's tests, and an agent that uses it with the built-in tools.

#[allow(dead_code)]
#[path = "../../crates/agent/tests/support/answer_encoding.rs"]
pub(crate) mod answer_encoding;

#[allow(dead_code, clippy::unwrap_used, clippy::expect_used)]
#[path = "../../crates/agent/tests/support/server.rs"]
pub(crate) mod server;

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use selvedge_agent::{Agent, AgentOptions};
use selvedge_journal::Journal;
use selvedge_models::{Model, ModelClient, Provider};
use selvedge_protocol::{Limits, SandboxPolicy, WireApi};
use selvedge_script::Harness;
use selvedge_toolbox::{Toolbox, ToolsConfig, Workspace};
use selvedge_tools::{Orchestrator, Registry};

/// Creates an agent with the folder `work` as its workspace.
pub(crate) fn mock_agent(
    server: &server::Server,
    work: &Path,
    journal: &Arc<Journal>,
    settings: AgentOptions,
) -> Result<Agent> {
    let mut registry = Registry::new();
    let workspace = Workspace::open_with_writable(work, SandboxPolicy::WorkspaceWrite, &[], &[])?;
    Toolbox::new(workspace).register(&mut registry)?;
    let orchestrator = Orchestrator::new(registry).with_ledger(journal.clone());
    // No queue, so that calls that a script makes at once also start at once.
    let limits = Limits {
        max_concurrent_tool_calls: 1000,
        max_tool_calls: 1000,
        ..Limits::default()
    };
    let harness = Harness::new(orchestrator)?.with_limits(limits);
    let client = ModelClient::new(Provider::new("mock", &server.url, WireApi::Chat))?;
    let settings = AgentOptions {
        directory: work.display().to_string(),
        ..settings
    };
    let agent = Agent::new(client, Model::from_table("gpt-4o"), harness, settings);
    Ok(agent.with_offer(|registry, _, _| ToolsConfig::default().offer(registry)))
}
