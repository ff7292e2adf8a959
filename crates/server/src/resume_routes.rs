//! Routes of the editor of scripts: the tools that a script can call, and a script that resumes a
//! run.

use std::sync::LazyLock;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiJson, ApiPath, ApiQuery, Caller};
use crate::host::{HostedTool, ResumedRun, RunResume};
use crate::keyed_semaphores::KeyedSemaphores;
use crate::state::SharedState;

/// Resumed scripts of a token that run at once.
const MAX_RESUMED_RUNS: usize = 2;

static RESUMED_RUNS: LazyLock<KeyedSemaphores> =
    LazyLock::new(|| KeyedSemaphores::new(MAX_RESUMED_RUNS));

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(list_tools))
        .routes(routes!(resume_run))
}

/// Whose tools to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListTools {
    /// Workspace, one of the token's. Defaults to the first one.
    workspace: Option<String>,
}

/// Tools of a workspace.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolList {
    /// The tools, by name.
    tools: Vec<HostedTool>,
}

/// List the tools that scripts of a workspace can call, with their types
///
/// Starts no MCP server: the tools of one that was never started are missing.
#[utoipa::path(
    get, path = "/tools", tag = "runs", params(ListTools),
    responses((status = 200, body = ToolList), (status = "4XX", body = ErrorBody)),
)]
async fn list_tools(
    State(state): State<SharedState>,
    caller: Caller,
    ApiQuery(query): ApiQuery<ListTools>,
) -> Result<Json<ToolList>, ApiError> {
    let workspace = state.workspace(&caller, query.workspace.as_deref())?;
    let tools = state.host.script_tools(&workspace).await?;
    Ok(Json(ToolList { tools }))
}

/// A script that resumes a run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResumeRun {
    /// The script. Calls that the run has completed return their recorded results.
    source: String,
}

/// The run that resumes another one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResumedRunView {
    /// Id of the new run.
    id: String,
}

/// Resume a run of a session with a script, which may be edited
///
/// Completed calls return their recorded results. Calls that need approval ask as those of the
/// session's turns do. The new run can be read from its first call on. No turn of the session runs
/// at the same time. What stops the session stops the script, and so does revoking the token.
#[utoipa::path(
    post, path = "/runs/{id}/resume", tag = "runs", params(("id" = String, Path)),
    request_body = ResumeRun,
    responses((status = 202, body = ResumedRunView), (status = "4XX", body = ErrorBody)),
)]
async fn resume_run(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
    ApiJson(request): ApiJson<ResumeRun>,
) -> Result<(StatusCode, Json<ResumedRunView>), ApiError> {
    let run = state.run_of(&caller, &id).await?;
    let session = run.body["run"]["session"].as_str().unwrap_or_default();
    if session.is_empty() {
        return Err(
            ApiError::invalid("the run belongs to no session").hint(format!(
                "run `selvedge run --resume {id} FILE` in its folder"
            )),
        );
    }
    let session = state.session(&caller, session).await?;
    let slots = RESUMED_RUNS.get(&caller.token.id);
    let slot = slots.try_acquire_owned().map_err(|_| {
        let message = format!("{MAX_RESUMED_RUNS} resumed scripts of the token run already");
        ApiError::conflict(message).hint("wait until one has ended")
    })?;
    let cancel = state.stopping.child_token();
    let script = state.resumed_scripts.enter(&session.id, cancel.clone());
    let revoked = state.token_watch.until_invalid(caller.token.id.clone());
    let resumed = state.host.resume_run(RunResume {
        run: id.clone(),
        approver: state.approvals.approver(&session.id),
        session: session.id,
        source: request.source,
        cancel: cancel.clone(),
    });
    let ResumedRun { id, mut work } = resumed.await?;
    state.workers.spawn(async move {
        tokio::select! {
            () = &mut work => {}
            () = revoked => {
                cancel.cancel();
                work.await;
            }
        }
        drop((script, slot));
    });
    Ok((StatusCode::ACCEPTED, Json(ResumedRunView { id })))
}
