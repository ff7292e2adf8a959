//! Routes about the server itself: health, readiness and metrics.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use selvedge_protocol::ApiTokenStore;
use tokio::sync::Mutex;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::state::SharedState;

/// How long it is known whether the journal can be read.
const READINESS_AGE: Duration = Duration::from_secs(1);

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

/// Check that the server takes requests: the journal can be used, and it is not stopping
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
    match state.readiness.can_read(&*state.stores.tokens).await {
        true => Ok("ready\n"),
        false => Err(ApiError::unavailable("the journal cannot be read")),
    }
}

/// Whether the journal can be read, as it was less than [`READINESS_AGE`] ago: clients need no
/// token to ask.
#[derive(Default)]
pub(crate) struct JournalReadiness(Mutex<Option<(Instant, bool)>>);

impl JournalReadiness {
    /// Reads the tokens, unless that was done just before. Requests at the same time wait for one
    /// result.
    async fn can_read(&self, tokens: &dyn ApiTokenStore) -> bool {
        let mut known = self.0.lock().await;
        if let Some((at, can_read)) = *known
            && at.elapsed() < READINESS_AGE
        {
            return can_read;
        }
        let can_read = tokens.is_available().await;
        *known = Some((Instant::now(), can_read));
        can_read
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use selvedge_protocol::{ApiToken, NewApiToken, ServerStoreError};

    use super::*;

    /// Counts how often the store is checked.
    #[derive(Default)]
    struct CountedTokens(AtomicUsize);

    #[async_trait]
    impl ApiTokenStore for CountedTokens {
        async fn create_token(&self, _: NewApiToken) -> Result<ApiToken, ServerStoreError> {
            unimplemented!()
        }

        async fn tokens(&self) -> Result<Vec<ApiToken>, ServerStoreError> {
            unimplemented!()
        }

        async fn is_available(&self) -> bool {
            self.0.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            true
        }

        async fn token_by_hash(&self, _: [u8; 32]) -> Result<Option<ApiToken>, ServerStoreError> {
            unimplemented!()
        }

        async fn revoke_token(&self, _: &str) -> Result<ApiToken, ServerStoreError> {
            unimplemented!()
        }

        async fn create_login(&self, _: [u8; 32], _: i64) -> Result<(), ServerStoreError> {
            unimplemented!()
        }

        async fn take_login(&self, _: [u8; 32]) -> Result<bool, ServerStoreError> {
            unimplemented!()
        }
    }

    #[tokio::test]
    async fn many_requests_read_the_journal_once() {
        let (tokens, readiness) = (CountedTokens::default(), JournalReadiness::default());
        let asked = (0..100).map(|_| readiness.can_read(&tokens));
        let answers = futures_util::future::join_all(asked).await;
        assert_eq!(answers, [true; 100]);
        assert_eq!(tokens.0.load(Ordering::SeqCst), 1);
    }
}
