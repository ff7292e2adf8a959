//! Scripts of clients of the agent server: the tools that they can call, and scripts that resume a
//! run of a session.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use selvedge_journal::Journal;
use selvedge_protocol::{EventSink, LimitSurface, SessionFolder, SessionStore, ToolSpec, new_id};
use selvedge_script::{RunOptions, callable_name};
use selvedge_server::{HostedTool, HostedToolField, ResumedRun, RunResume};
use selvedge_tools::{RegisteredTool, Registry, signature};

use crate::args::ScriptLimitArgs;
use crate::problem::Problem;
use crate::saved_config::SavedRunConfig;
use crate::session_runner::setup_for_session;
use crate::workspace_parts::WorkspaceCache;

/// Tools that a resumed script cannot call, or namespaces of such tools: they would start turns,
/// which a token pays for, or read results of other sessions.
const EXCLUDED_TOOLS: [&str; 3] = ["channels", "recall", "sessions"];

fn is_offered(spec: &ToolSpec) -> bool {
    let namespace = spec.js_name.split('.').next().unwrap_or_default();
    !EXCLUDED_TOOLS.contains(&namespace)
}

/// Returns the tools that scripts of a folder can call. Starts no MCP server.
pub(crate) fn script_tools(workspaces: &WorkspaceCache, folder: &str) -> Result<Vec<HostedTool>> {
    let shared = workspaces.get(Path::new(folder), None)?;
    let tools = shared.setup.built_in_tools()?;
    let registry = match shared.open_connections() {
        Some(connections) => connections.servers.script_registry(&tools),
        None => shared
            .setup
            .servers(Default::default())?
            .script_registry(&tools),
    };
    let offered = registry.iter().filter(|tool| is_offered(&tool.spec));
    let mut tools: Vec<HostedTool> = offered.map(|tool| tool_view(tool)).collect();
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tools)
}

fn tool_view(tool: &RegisteredTool) -> HostedTool {
    let schema = &tool.spec.input_schema;
    let required = schema["required"].as_array();
    let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|n| n == name));
    let fields = schema["properties"].as_object().into_iter().flatten();
    let fields = fields.map(|(name, field)| HostedToolField {
        name: name.clone(),
        required: is_required(name),
        about: field["description"].as_str().map(str::to_owned),
    });
    HostedTool {
        name: callable_name(&tool.spec.js_name),
        signature: signature(tool),
        about: tool.spec.summary().to_owned(),
        fields: fields.collect(),
    }
}

/// Prepares a script that resumes a run of a session, with the settings and permissions of the
/// session. Fails if the run cannot be resumed here.
pub(crate) async fn resume_run(
    workspaces: &WorkspaceCache,
    journal: &Arc<Journal>,
    resume: RunResume,
) -> Result<ResumedRun> {
    let info = SessionStore::get(&**journal, &resume.session).await?;
    if info.folder == SessionFolder::Worktree {
        let message = "the session of the run works in a worktree";
        return Err(Problem::new(message)
            .hint("send a message to the session")
            .into());
    }
    let shared = workspaces.get(Path::new(&info.directory), info.environment.as_deref())?;
    let permissions: Vec<_> = info.permissions.iter().collect();
    let mut setup = setup_for_session(&shared, None, &permissions, journal)?;
    setup.sub_agents = None;
    setup.toolbox.cabinet = journal.documents_of(&info.directory);
    let setup = setup.with_session(&info.id);
    let prior = setup.resume_input_by_id(&resume.run)?;
    let limits = ScriptLimitArgs::default();
    // A turn that a script started never asks either.
    let approver = Some(resume.approver).filter(|_| permissions.is_empty());
    let harness = setup
        .harness(&limits, approver)
        .with_surface(LimitSurface::Exec);
    let servers = shared.connections().await?.servers.clone();
    let servers = servers.with_filter(setup.tool_filter()?);
    let tools = setup.built_in_tools()?;
    let saved_config = SavedRunConfig::from_setup(&setup, &limits, Vec::new());
    let id = new_id("scr");
    let options = RunOptions {
        id: Some(id.clone()),
        resume: Some(prior),
        cancel: resume.cancel,
        events: EventSink::silent(),
        context: saved_config.script_context(&setup),
        store: setup.script_store(),
        saved_config: serde_json::to_string(&saved_config)?,
        ..RunOptions::default()
    };
    let source = resume.source.into_bytes();
    let work = async move {
        let _ = servers
            .ensure_catalogues_for_script(&harness, &source)
            .await;
        let registry: Registry = servers.script_registry(&tools).filtered(is_offered);
        // The journal has how the run ended.
        let _ = harness
            .with_tools(registry)
            .run_with(&source, options)
            .await;
        drop((setup, shared));
    };
    Ok(ResumedRun {
        id,
        work: Box::pin(work),
    })
}
