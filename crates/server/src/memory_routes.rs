//! Routes of the memory: search the turns of the token's workspaces.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiQuery, Caller};
use crate::host::HostedMemoryHit;
use crate::state::SharedState;

/// Most turns that one request returns.
const MAX_FOUND_TURNS: usize = 50;
/// Turns that a request returns without `limit`.
const DEFAULT_FOUND_TURNS: usize = 10;

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new().routes(routes!(search_memory))
}

/// What to search for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SearchMemory {
    /// Words or a question.
    query: String,
    /// Maximum number of turns, up to 50.
    limit: Option<usize>,
}

/// A remembered turn.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MemoryTurnView {
    /// Id of the session.
    session: String,
    /// Title of the session.
    title: Option<String>,
    /// Number of the turn.
    turn: u32,
    /// Relevance, comparable within one search only.
    score: f64,
    /// Short form of the turn, with secrets redacted.
    text: String,
}

impl MemoryTurnView {
    fn new(hit: HostedMemoryHit, title: Option<String>) -> Self {
        Self {
            title,
            session: hit.session,
            turn: hit.turn,
            score: hit.score,
            text: hit.text,
        }
    }
}

/// Remembered turns that match.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MemoryResponse {
    /// The turns, the best first.
    turns: Vec<MemoryTurnView>,
}

/// Search the memory of sessions in the workspaces of the token
#[utoipa::path(
    get, path = "/memory/search", tag = "memory", params(SearchMemory),
    responses((status = 200, body = MemoryResponse), (status = "4XX", body = ErrorBody)),
)]
async fn search_memory(
    State(state): State<SharedState>,
    caller: Caller,
    ApiQuery(query): ApiQuery<SearchMemory>,
) -> Result<Json<MemoryResponse>, ApiError> {
    let limit = query
        .limit
        .unwrap_or(DEFAULT_FOUND_TURNS)
        .min(MAX_FOUND_TURNS);
    let workspaces = &caller.token.workspaces;
    let search = state.host.search_memory(workspaces, &query.query, limit);
    let mut turns = Vec::new();
    for hit in search.await? {
        let session = state.session(&caller, &hit.session).await;
        let title = session.ok().and_then(|session| session.title);
        turns.push(MemoryTurnView::new(hit, title));
    }
    Ok(Json(MemoryResponse { turns }))
}
