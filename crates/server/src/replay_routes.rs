//! Route that replays a recorded run, also with a call that fails.

use std::sync::LazyLock;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tokio::sync::Semaphore;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiJson, ApiPath, Caller};
use crate::hosted_memory::HostedReplay;
use crate::keyed_semaphores::KeyedSemaphores;
use crate::state::SharedState;

/// Replays that run at once. Others wait.
const MAX_CONCURRENT_REPLAYS: usize = 2;

static REPLAYS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(MAX_CONCURRENT_REPLAYS));
/// One replay of a token at a time, so that it leaves a place to others.
static REPLAYS_OF_TOKENS: LazyLock<KeyedSemaphores> = LazyLock::new(|| KeyedSemaphores::new(1));

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new().routes(routes!(replay_run))
}

/// How to replay a run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplayRun {
    /// Id of a call that fails in the replay, such as `tool_3`.
    fail: Option<String>,
}

/// Replay a recorded run without its tools
///
/// The script gets the recorded results of its calls. Nothing outside of it is changed.
#[utoipa::path(
    post, path = "/runs/{id}/replay", tag = "runs", params(("id" = String, Path)),
    request_body = ReplayRun,
    responses((status = 200, body = HostedReplay), (status = "4XX", body = ErrorBody)),
)]
async fn replay_run(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
    ApiJson(request): ApiJson<ReplayRun>,
) -> Result<Json<HostedReplay>, ApiError> {
    state.run_of(&caller, &id).await?;
    let _own = REPLAYS_OF_TOKENS.acquire(&caller.token.id).await;
    let permit = REPLAYS.acquire().await;
    let _permit = permit.map_err(|error| ApiError::internal(error.to_string()))?;
    let replay = state.host.replay_run(&id, request.fail.as_deref()).await?;
    Ok(Json(replay))
}
