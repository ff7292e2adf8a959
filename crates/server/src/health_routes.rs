//! Routes about the server itself: health, readiness and metrics.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::state::SharedState;

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(healthz))
        .routes(routes!(readyz))
        .routes(routes!(metrics))
}

/// Check that the process answers. Needs no token
#[utoipa::path(get, path = "/healthz", tag = "server", security(()), responses((status = 200, body = String)))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// Check that the server takes requests: the journal can be read, and it is not stopping
///
/// Needs no token.
#[utoipa::path(
    get, path = "/readyz", tag = "server", security(()),
    responses((status = 200, body = String), (status = 503, body = ErrorBody)),
)]
async fn readyz(State(state): State<SharedState>) -> Result<&'static str, ApiError> {
    if state.workers.is_draining() {
        return Err(ApiError::unavailable("the server is stopping"));
    }
    match state.stores.tokens.tokens().await {
        Ok(_) => Ok("ready\n"),
        Err(_) => Err(ApiError::unavailable("the journal cannot be read")),
    }
}

/// Read counters in the text format of Prometheus
#[utoipa::path(
    get, path = "/metrics", tag = "server",
    responses((status = 200, body = String, content_type = "text/plain")),
)]
async fn metrics(State(state): State<SharedState>) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], state.metrics.to_text()).into_response()
}
