//! Routes of runs: list and show, with secrets redacted.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiPath, ApiQuery, Caller};
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
    /// The runs, the newest first, as `selvedge runs list --json` prints them, each with the title
    /// of its session (`title`), the first line of its script (`script`), its first call
    /// (`first_call`), the number of its commands that ended with another exit code than 0
    /// (`failed_commands`) and the name of the error with which it ended (`error`).
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
    let mut titles = HashMap::new();
    let mut listed = Vec::new();
    for mut run in runs {
        let session = run.body["session"].as_str().unwrap_or_default().to_owned();
        let title = match titles.get(&session) {
            Some(title) => Value::clone(title),
            None => {
                let title = session_title(&state, &caller, &session).await;
                titles.insert(session, title.clone());
                title
            }
        };
        run.body["title"] = title;
        listed.push(run.body);
    }
    Ok(Json(RunList { runs: listed }))
}

/// Returns the title of a session; null if the token cannot reach it, or it has none.
async fn session_title(state: &SharedState, caller: &Caller, session: &str) -> Value {
    match state.session(caller, session).await {
        Ok(session) => json!(session.title),
        Err(_) => Value::Null,
    }
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
    let mut body = state.run_of(&caller, &id).await?.body;
    let session = body["run"]["session"].as_str().unwrap_or_default();
    body["run"]["title"] = session_title(&state, &caller, session).await;
    Ok(Json(body))
}
