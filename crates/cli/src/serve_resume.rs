//! Scripts of clients of the agent server: the tools that they can call, and scripts that resume a
//! run of a session.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Weak};

use anyhow::Result;
use selvedge_journal::{Journal, JournalError};
use selvedge_protocol::{
    EventSink, LimitSurface, ServerLeaseStore, SessionStore, ToolSpec, new_id,
};
use selvedge_script::{RunOptions, callable_name};
use selvedge_server::{
    HostError, HostErrorKind, HostedTool, HostedToolField, ResumedRun, RunResume,
};
use selvedge_tools::{RegisteredTool, Registry, signature};

use crate::args::ScriptLimitArgs;
use crate::programs::refresh_served_workspaces;
use crate::saved_config::SavedRunConfig;
use crate::serve_errors::journal_failure;
use crate::session_runner::{session_worktree, setup_for_session};
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

/// The sessions in which resumed scripts run. A journal handle of its own claims each of them, so
/// that no turn begins meanwhile.
#[derive(Default)]
pub(crate) struct ScriptClaims(tokio::sync::Mutex<HashMap<String, Weak<Journal>>>);

impl ScriptClaims {
    /// Claims a session until the result and all others for it are dropped. Fails while another
    /// process has it, or a turn of it runs.
    pub(crate) async fn claim(&self, session: &str) -> Result<Arc<Journal>, HostError> {
        let refreshed = refresh_served_workspaces().await;
        refreshed.map_err(HostError::failed)?;
        let mut claims = self.0.lock().await;
        claims.retain(|_, claim| claim.strong_count() > 0);
        if let Some(claim) = claims.get(session).and_then(Weak::upgrade) {
            return Ok(claim);
        }
        let opened = tokio::task::spawn_blocking(crate::runs::open_user_journal).await;
        let opened = opened.map_err(HostError::failed)?;
        let claim = opened.map_err(HostError::failed)?;
        let id = session.to_owned();
        let claimed = claim.spawn_blocking(move |journal| journal.claim_session(&id));
        match claimed.await {
            Ok(()) => {
                claims.insert(session.to_owned(), Arc::downgrade(&claim));
                Ok(claim)
            }
            Err(JournalError::SessionInUse(_)) => Err(turn_is_running(session)),
            Err(error) => Err(journal_failure(&error)),
        }
    }

    /// Returns the sessions whose scripts run here and that another server has taken over.
    pub(crate) async fn lost(&self) -> Result<Vec<String>, HostError> {
        let claims = self.0.lock().await;
        let claims = claims.iter();
        let claims =
            claims.filter_map(|(session, claim)| Some((session.clone(), claim.upgrade()?)));
        let claims: Vec<_> = claims.collect();
        let mut lost = Vec::new();
        for (session, claim) in claims {
            let sessions = claim.lost_sessions(vec![session]).await;
            lost.extend(sessions.map_err(HostError::failed)?);
        }
        Ok(lost)
    }
}

/// The error of a request that needs a session without a running turn.
pub(crate) fn turn_is_running(session: &str) -> HostError {
    HostError {
        kind: HostErrorKind::Busy,
        message: format!("a turn or a script of session {session} is running, or a chat has it"),
        hint: Some("POST /api/v1/sessions/{id}/stop stops it".to_owned()),
    }
}

/// Prepares a script that resumes a run of a session, with the settings and permissions of the
/// session. Fails if the run cannot be resumed here. `claim` claims the session until the script
/// has ended, and records the script: its writes carry the fencing number of the claim.
pub(crate) async fn resume_run(
    workspaces: &WorkspaceCache,
    claim: Arc<Journal>,
    resume: RunResume,
) -> Result<ResumedRun> {
    let info = SessionStore::get(&*claim, &resume.session).await?;
    let worktree = session_worktree(&info).await?;
    let shared = workspaces.get(Path::new(&info.directory), info.environment.as_deref())?;
    let permissions: Vec<_> = info.permissions.iter().collect();
    let mut setup = setup_for_session(&shared, worktree, &permissions, &claim)?;
    setup.sub_agents = None;
    setup.toolbox.cabinet = claim.documents_of(&info.directory);
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
        drop((setup, shared, claim));
    };
    Ok(ResumedRun {
        id,
        work: Box::pin(work),
    })
}
