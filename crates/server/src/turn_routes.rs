//! Routes that a client needs to follow a session from its latest turn, and to create one.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiPath, ApiQuery, Caller};
use crate::state::SharedState;

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(get_latest_turn))
        .routes(routes!(list_environments))
}

/// The latest turn of a session that a server ran.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LatestTurn {
    /// Number of the turn. Missing if no server ran one.
    turn: Option<u64>,
    /// Pass it as `after` to `GET /sessions/{id}/events` to get the events of this turn.
    after: u64,
    /// The latest event `usage.updated`: tokens and cost of a turn, and of the model's context.
    #[schema(value_type = Option<Object>)]
    usage: Option<Value>,
}

/// Show the latest turn of a session: where its events begin, and its usage
#[utoipa::path(
    get, path = "/sessions/{id}/latest-turn", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, body = LatestTurn), (status = "4XX", body = ErrorBody)),
)]
async fn get_latest_turn(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
) -> Result<Json<LatestTurn>, ApiError> {
    let session = state.session(&caller, &id).await?;
    let events = &state.stores.events;
    let usage = events.latest_event(&session.id, "usage.updated").await?;
    let mut started = events.latest_event(&session.id, "turn.started").await?;
    let turn = started
        .as_ref()
        .and_then(|event| event.body["turn"].as_u64());
    // A turn that was continued after a crash has started several times.
    while let Some(event) = &started {
        let earlier = events.event_before(&session.id, "turn.started", event.number);
        match earlier.await? {
            Some(earlier) if earlier.body["turn"].as_u64() == turn => started = Some(earlier),
            _ => break,
        }
    }
    Ok(Json(LatestTurn {
        turn,
        after: started.map_or(0, |event| event.number.saturating_sub(1)),
        usage: usage.map(|event| event.body),
    }))
}

/// Whose environments to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListEnvironments {
    /// Workspace, one of the token's. Defaults to the first one.
    workspace: Option<String>,
}

/// The environments of a workspace.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EnvironmentNames {
    /// Names of the environments, as `POST /sessions` takes them.
    environments: Vec<String>,
}

/// List the environments of a workspace
#[utoipa::path(
    get, path = "/environments", tag = "sessions", params(ListEnvironments),
    responses((status = 200, body = EnvironmentNames), (status = "4XX", body = ErrorBody)),
)]
async fn list_environments(
    State(state): State<SharedState>,
    caller: Caller,
    ApiQuery(query): ApiQuery<ListEnvironments>,
) -> Result<Json<EnvironmentNames>, ApiError> {
    let workspace = state.workspace(&caller, query.workspace.as_deref())?;
    let environments = state.host.environments(&workspace).await?;
    Ok(Json(EnvironmentNames { environments }))
}
