//! Routes of the files that a session changed: show, apply, discard and revert.

use std::sync::LazyLock;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiJson, ApiPath, ApiQuery, Caller};
use crate::host::{HostError, HostedChangedTurn, HostedDiff};
use crate::keyed_semaphores::KeyedSemaphores;
use crate::state::SharedState;

/// One diff or merge of a token at a time: git may read many files for it.
static DIFFS_OF_TOKENS: LazyLock<KeyedSemaphores> = LazyLock::new(|| KeyedSemaphores::new(1));

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(get_diff))
        .routes(routes!(list_changed_turns))
        .routes(routes!(apply_changes))
        .routes(routes!(discard_changes))
        .routes(routes!(revert_turn))
}

/// Does something for a token when its earlier diffs and merges have ended. If the client
/// disconnects, git still runs, so the task goes on and keeps the permit.
async fn one_at_a_time<T: Send + 'static>(
    caller: &Caller,
    work: impl Future<Output = Result<T, HostError>> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = DIFFS_OF_TOKENS.acquire(&caller.token.id).await;
    let task = tokio::spawn(async move {
        let _permit = permit;
        work.await
    });
    let done = task
        .await
        .map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(done?)
}

/// Which changes to show.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ShowDiff {
    /// Number of a turn. Without it, all changes in the worktree of the session are shown; if it
    /// has none, those of the last turn that changed files.
    turn: Option<u32>,
}

/// Show what a session or a turn changed
#[utoipa::path(
    get, path = "/sessions/{id}/diff", tag = "sessions",
    params(("id" = String, Path), ShowDiff),
    responses((status = 200, body = HostedDiff), (status = "4XX", body = ErrorBody)),
)]
async fn get_diff(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
    ApiQuery(query): ApiQuery<ShowDiff>,
) -> Result<Json<HostedDiff>, ApiError> {
    let session = state.session(&caller, &id).await?;
    let host = state.host.clone();
    let diff = async move { host.session_diff(&session.id, query.turn).await };
    Ok(Json(one_at_a_time(&caller, diff).await?))
}

/// The turns that changed files.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChangedTurns {
    /// The turns, in order, as far as their changes are stored.
    turns: Vec<HostedChangedTurn>,
}

/// List the turns of a session that changed files
#[utoipa::path(
    get, path = "/sessions/{id}/changed-turns", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, body = ChangedTurns), (status = "4XX", body = ErrorBody)),
)]
async fn list_changed_turns(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
) -> Result<Json<ChangedTurns>, ApiError> {
    let session = state.session(&caller, &id).await?;
    let turns = state.host.changed_turns(&session.id).await?;
    Ok(Json(ChangedTurns { turns }))
}

/// Files that were changed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChangedFiles {
    /// Paths relative to the folder of the session.
    changed: Vec<String>,
}

/// Merge the changes in the worktree of a session into its folder
///
/// All files are merged or none: a conflict is an error.
#[utoipa::path(
    post, path = "/sessions/{id}/apply", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, body = ChangedFiles), (status = "4XX", body = ErrorBody)),
)]
async fn apply_changes(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
) -> Result<Json<ChangedFiles>, ApiError> {
    let session = state.session(&caller, &id).await?;
    let host = state.host.clone();
    let apply = async move { host.apply_changes(&session.id).await };
    let changed = one_at_a_time(&caller, apply).await?;
    Ok(Json(ChangedFiles { changed }))
}

/// What was deleted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DiscardedChanges {
    /// Id of the session whose worktree was deleted.
    session: String,
}

/// Delete the worktree of a session with its changes
#[utoipa::path(
    post, path = "/sessions/{id}/discard", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, body = DiscardedChanges), (status = "4XX", body = ErrorBody)),
)]
async fn discard_changes(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
) -> Result<Json<DiscardedChanges>, ApiError> {
    let session = state.session(&caller, &id).await?;
    state.host.discard_changes(&session.id).await?;
    Ok(Json(DiscardedChanges {
        session: session.id,
    }))
}

/// Which turn to revert.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RevertTurn {
    /// Number of the turn. Defaults to the last one that changed files.
    turn: Option<u32>,
}

/// Files of a reverted turn.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RevertedTurn {
    /// Number of the turn.
    turn: u32,
    /// The restored files. Empty if the turn was reverted before.
    reverted: Vec<String>,
}

/// Undo the file changes of a turn, if the files have not changed since
#[utoipa::path(
    post, path = "/sessions/{id}/revert", tag = "sessions", params(("id" = String, Path)),
    request_body = RevertTurn,
    responses((status = 200, body = RevertedTurn), (status = "4XX", body = ErrorBody)),
)]
async fn revert_turn(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
    ApiJson(request): ApiJson<RevertTurn>,
) -> Result<Json<RevertedTurn>, ApiError> {
    let session = state.session(&caller, &id).await?;
    let (turn, reverted) = state.host.revert_turn(&session.id, request.turn).await?;
    Ok(Json(RevertedTurn { turn, reverted }))
}
