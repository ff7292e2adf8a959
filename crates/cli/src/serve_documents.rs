//! Requests of clients of the agent server for documents: which files they reach, and their calls.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use selvedge_journal::Journal;
use selvedge_protocol::{
    CallStatus, ErrorCode, EventSink, Ledger, LimitSurface, RunStart, RunStatus,
    ScriptToolCallOutput, new_id,
};
use selvedge_server::{HostError, HostErrorKind};
use selvedge_tools::{
    NoApprover, OfferedTool, Orchestrator, Scope, StructuredCall, StructuredOutput, ToolRouter,
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::args::ScriptLimitArgs;
use crate::instructions::is_instructions_file;
use crate::problem::Problem;
use crate::programs::refresh_served_workspaces;
use crate::serve_errors::{WithoutServerPaths, failed};
use crate::setup::CliSetup;
use crate::workspace_parts::{WorkspaceCache, WorkspaceParts};

/// Fails if a path leads out of the workspace, also through a link. Scripts may read other files,
/// but a token is for its workspaces only.
fn check_inside(workspace: &Path, path: &str) -> Result<(), HostError> {
    let outside = || HostError {
        kind: HostErrorKind::Denied,
        message: format!("`{path}` is not in the workspace"),
        hint: Some("pass a path relative to the workspace".to_owned()),
    };
    let relative = Path::new(path);
    let is_plain = relative
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !is_plain {
        return Err(outside());
    }
    // The last existing folder decides where a new file would be.
    let full = workspace.join(relative);
    let existing = full.ancestors().find_map(|path| path.canonicalize().ok());
    let root = workspace.canonicalize().map_err(|_| outside())?;
    match existing.is_some_and(|existing| existing.starts_with(&root)) {
        true => Ok(()),
        false => Err(outside()),
    }
}

/// Fails if a path is no document. Scripts may read and write other files with these tools, but the
/// scope `documents` is for documents only, and not for the instructions of agents.
fn check_document(setup: &CliSetup, tool: &str, path: &str) -> Result<(), HostError> {
    let normal = Path::new(path)
        .components()
        .filter(|part| matches!(part, Component::Normal(_)));
    let normal: PathBuf = normal.collect();
    let index = setup.toolbox.documents.index();
    let is_selected = index.globs().is_match(&normal);
    // A file that is ignored, protected or a link is not in the index.
    let may_exist = || {
        let is_listed = index.paths().iter().any(|path| Path::new(path) == normal);
        is_listed || is_selected && is_missing(&setup.directory.join(&normal))
    };
    let is_document = match tool {
        "workspace.read" => may_exist(),
        "workspace.write" => {
            let is_link = leads_through_link(&setup.directory, &normal);
            is_selected && !is_instructions_file(&normal) && !is_link && may_exist()
        }
        // The path of a query is a glob, which selects among the documents.
        _ => true,
    };
    if is_document {
        return Ok(());
    }
    Err(HostError {
        kind: HostErrorKind::Denied,
        message: format!("`{path}` is not a document of the workspace"),
        hint: Some(format!(
            "documents of this folder are {}; `workspace.documents` in config.toml selects them",
            document_patterns(setup).join(", ")
        )),
    })
}

fn is_missing(path: &Path) -> bool {
    let metadata = path.symlink_metadata();
    let is_missing = |error: std::io::Error| {
        matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
    };
    metadata.is_err_and(is_missing)
}

/// Returns globs of the files of a workspace that can be documents.
pub(crate) fn document_patterns(setup: &CliSetup) -> Vec<String> {
    match setup.config.workspace.documents.as_slice() {
        [] => vec!["**/*.md".to_owned()],
        globs => globs.to_vec(),
    }
}

/// Returns the file of a document as it is. Reads it as `workspace.read` does, never through a
/// link. Fails with [`HostErrorKind::NotFound`] only if there is no file.
pub(crate) async fn document_source(
    shared: Arc<WorkspaceParts>,
    path: &str,
) -> Result<String, HostError> {
    let folder = shared.setup.directory.clone();
    check_inside(&folder, path)?;
    check_document(&shared.setup, "workspace.read", path)?;
    let sent = path.to_owned();
    let read = move || {
        let toolbox = &shared.setup.toolbox;
        toolbox.documents.read_text(&toolbox.workspace, &sent)
    };
    let text = tokio::task::spawn_blocking(read).await;
    let text = text.map_err(HostError::failed)?;
    text.map_err(|error| {
        let error = HostError {
            kind: match is_missing(&folder.join(path)) {
                true => HostErrorKind::NotFound,
                false => HostErrorKind::Invalid,
            },
            message: error.message,
            hint: error.suggestions.into_iter().next(),
        };
        error.without_server_paths(&folder.display().to_string(), path)
    })
}

/// Whether a file of a folder, or a folder on the way to it, is a link, which may lead to a file
/// with another name.
fn leads_through_link(folder: &Path, path: &Path) -> bool {
    let mut full = folder.to_owned();
    path.components().any(|part| {
        full.push(part);
        full.is_symlink()
    })
}

/// Calls a tool about a document of a workspace, for a client of the server. Fails if the path of
/// the arguments is no document.
pub(crate) async fn call_in_workspace(
    workspaces: &WorkspaceCache,
    requests: &Arc<Journal>,
    workspace: &str,
    tool: &str,
    args: Value,
) -> Result<Value, HostError> {
    let refreshed = refresh_served_workspaces().await;
    refreshed.map_err(HostError::failed)?;
    let workspace = Path::new(workspace);
    let path = args["path"].as_str().unwrap_or_default().to_owned();
    if let Some(path) = args["path"].as_str() {
        check_inside(workspace, path)?;
    }
    let shared = workspaces.get(workspace, None);
    let setup = &shared.as_ref().map_err(failed)?.setup;
    if let Some(path) = args["path"].as_str() {
        check_document(setup, tool, path)?;
    }
    let output = call_tool(setup, requests, tool, args)
        .await
        .map_err(|error| failed(&error))?;
    let refusal = output
        .records
        .last()
        .and_then(|record| record.error.as_ref());
    match output.value {
        Some(value) => Ok(value),
        None => Err(HostError {
            kind: match refusal.map(|error| error.code) {
                Some(ErrorCode::ApprovalDeniedError) => HostErrorKind::Denied,
                _ => HostErrorKind::Invalid,
            },
            message: refusal.map_or(output.content, |error| error.message.clone()),
            hint: None,
        }
        .without_server_paths(&workspace.display().to_string(), &path)),
    }
}

/// Runs one call of a built-in tool outside of a session. A call that may change something is
/// recorded as a run of its own.
async fn call_tool(
    setup: &CliSetup,
    ledger: &Arc<Journal>,
    tool: &str,
    args: Value,
) -> Result<StructuredOutput> {
    let approver = NoApprover {
        reason: "requests for documents never ask for approval".to_owned(),
    };
    let limits = ScriptLimitArgs::default();
    let harness = setup
        .harness(&limits, Some(Arc::new(approver)))
        .with_surface(LimitSurface::Exec);
    let registry = setup.built_in_tools()?;
    let found = registry.get(tool);
    let found = found.ok_or_else(|| Problem::new(format!("{tool} is not offered here")))?;
    let (is_read_only, offered) = (found.spec.read_only, OfferedTool::unmodified(found));
    let ledger = (!is_read_only).then_some(ledger);
    let orchestrator = match ledger {
        None => Orchestrator::new(registry).with_policy(setup.config.approval_policy),
        Some(ledger) => {
            let orchestrator = harness.orchestrator().clone().with_registry(registry);
            orchestrator.with_ledger(ledger.clone())
        }
    };
    let router = ToolRouter::new(orchestrator, vec![offered]);
    let scope = Scope::new(
        new_id("trn"),
        harness.scope_limits(),
        &CancellationToken::new(),
        EventSink::silent(),
    );
    if let Some(ledger) = ledger {
        let directory = setup.directory.display().to_string();
        let start = ledger.record_run_start(RunStart {
            id: &scope.id,
            source: "// request of a client of `selvedge serve`",
            directory: &directory,
            session: "",
            seed: "0",
            resumes: None,
            saved_config: "",
        });
        start.await?;
    }
    let call = StructuredCall {
        call_id: "tool_1".to_owned(),
        name: tool.to_owned(),
        arguments: args.to_string(),
    };
    let output = router.route(&scope, vec![call]).await.pop();
    scope.end();
    let output = output.ok_or_else(|| Problem::new("the call was not run"))?;
    if let Some(ledger) = ledger {
        let mut ended = ScriptToolCallOutput::new(&scope.id, "");
        let is_done = output.records.last().map(|call| call.status) == Some(CallStatus::Done);
        ended.status = match is_done {
            true => RunStatus::Completed,
            false => RunStatus::Error,
        };
        ended.calls.clone_from(&output.records);
        ledger.record_run_end(&ended, None).await?;
    }
    Ok(output)
}
