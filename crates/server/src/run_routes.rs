//! Routes of runs: list and show, with secrets redacted.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiPath, ApiQuery, Caller};
use crate::host::HostErrorKind;
use crate::state::SharedState;

/// Most runs that one request lists.
const MAX_LISTED_RUNS: u32 = 500;
/// Runs that a request lists without `limit`.
const DEFAULT_LISTED_RUNS: u32 = 50;

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(list_runs))
        .routes(routes!(get_run))
}

/// A list of runs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunList {
    /// The runs, the newest first, as `selvedge runs list --json` prints them.
    #[schema(value_type = Vec<Object>)]
    runs: Vec<Value>,
}

/// Which runs to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListRuns {
    /// List the runs after this one, the last of an earlier response.
    after: Option<String>,
    /// Maximum number of runs, up to 500. Defaults to 50.
    limit: Option<u32>,
}

/// List runs of scripts in the workspaces of the token
#[utoipa::path(
    get, path = "/runs", tag = "runs", params(ListRuns),
    responses((status = 200, body = RunList), (status = "4XX", body = ErrorBody)),
)]
async fn list_runs(
    State(state): State<SharedState>,
    caller: Caller,
    ApiQuery(query): ApiQuery<ListRuns>,
) -> Result<Json<RunList>, ApiError> {
    let limit = query
        .limit
        .unwrap_or(DEFAULT_LISTED_RUNS)
        .min(MAX_LISTED_RUNS);
    let (workspaces, after) = (&caller.token.workspaces, query.after.as_deref());
    let runs = state.host.runs(workspaces, after, limit).await?;
    Ok(Json(RunList {
        runs: runs.into_iter().map(|run| run.body).collect(),
    }))
}

/// Show a run with its calls
#[utoipa::path(
    get, path = "/runs/{id}", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = Object), (status = "4XX", body = ErrorBody)),
)]
async fn get_run(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
) -> Result<Json<Value>, ApiError> {
    // The answer is the same for a run that does not exist and one of another workspace.
    let missing = || ApiError::not_found(format!("run `{id}`"));
    let run = match state.host.run(&id).await {
        Err(error) if error.kind == HostErrorKind::NotFound => return Err(missing()),
        run => run?,
    };
    match caller.token.allows_directory(&run.directory) {
        true => Ok(Json(run.body)),
        false => Err(missing()),
    }
}
