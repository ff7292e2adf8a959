//! Decides which requests reach a handler: checks `Host`, `Origin` and the token, bounds the body,
//! answers repeated requests, and writes the access log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::{Body, to_bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use selvedge_http::{AllowedHosts, HostRefusal, HttpConnection, bearer_token};
use selvedge_protocol::{ApiToken, since_epoch};

use crate::api_error::ApiError;
use crate::caller::Caller;
use crate::idempotency::{answer_once, idempotency_key};
use crate::secrets::hash_of;
use crate::state::{ApiState, SharedState};

/// How long a client may take to send the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the token of an open stream is checked.
const TOKEN_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Paths that need no token: they tell nothing about sessions.
const PUBLIC_PATHS: [&str; 2] = ["/healthz", "/readyz"];

/// What admission needs.
#[derive(Clone)]
pub(crate) struct RequestAdmission {
    pub(crate) state: SharedState,
    pub(crate) hosts: Arc<AllowedHosts>,
}

/// Admits a request and logs its response.
pub(crate) async fn admit(
    State(admission): State<RequestAdmission>,
    Extension(connection): Extension<HttpConnection>,
    request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    // Identifiers in the path are part of the log, the query is not.
    let path = request.uri().path().to_owned();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let (response, token) = match admission.check(&connection, request).await {
        Ok((request, caller)) => {
            let token = caller.as_ref().map(|caller| caller.token.name.clone());
            let handled = handle(&admission.state, caller, request, next);
            (handled.await, token)
        }
        Err(error) => (error.into_response(), None),
    };
    let (elapsed, status) = (started.elapsed(), response.status().as_u16());
    let metrics = &admission.state.metrics;
    metrics.count_response(status);
    metrics.request_microseconds.add(elapsed.as_micros() as u64);
    tracing::info!(
        target: "selvedge_server::access",
        method = method.as_str(),
        path,
        route = route.as_ref().map(MatchedPath::as_str),
        status,
        token,
        duration_ms = elapsed.as_secs_f64() * 1000.0,
        "request"
    );
    response
}

/// Runs the handler. A POST with an idempotency key runs once.
async fn handle(
    state: &Arc<ApiState>,
    caller: Option<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let Some(caller) = caller else {
        return next.run(request).await;
    };
    let response = match caller.idempotency_key {
        Some(_) => answer_once(state, &caller, request, next).await,
        None => next.run(request).await,
    };
    let kind = response.headers().get(header::CONTENT_TYPE);
    match kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
        true => end_with_token(state.clone(), caller, response),
        false => response,
    }
}

/// Ends a stream when its token is revoked or expires.
fn end_with_token(state: SharedState, caller: Caller, response: Response) -> Response {
    let expired = async move {
        loop {
            tokio::time::sleep(TOKEN_CHECK_INTERVAL).await;
            let tokens = state.stores.tokens.tokens().await;
            let now = since_epoch().as_millis() as i64;
            let is_valid = |token: &ApiToken| token.id == caller.token.id && token.is_valid_at(now);
            // If the journal cannot be read, the token stays as it was.
            if tokens.is_ok_and(|tokens| !tokens.iter().any(is_valid)) {
                return;
            }
        }
    };
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(expired))))
}

impl RequestAdmission {
    /// Checks a request, and reads its body. Returns it with its caller, `None` on public paths.
    async fn check(
        &self,
        connection: &HttpConnection,
        request: Request,
    ) -> Result<(Request, Option<Caller>), ApiError> {
        let (mut parts, body) = request.into_parts();
        self.hosts.check(&mut parts).map_err(|refusal| {
            let message = refusal.to_string();
            match refusal {
                HostRefusal::Malformed => ApiError::invalid(message),
                HostRefusal::ForeignHost | HostRefusal::ForeignOrigin => {
                    ApiError::forbidden(message).hint("set `serve.public_url` in config.toml")
                }
            }
        })?;
        if PUBLIC_PATHS.contains(&parts.uri.path()) {
            return Ok((Request::from_parts(parts, Body::empty()), None));
        }
        let mut caller = self.authenticate(&parts.headers).await?;
        let too_many = |_| ApiError::unavailable("too many connections");
        connection.accept().map_err(too_many)?;
        if parts.method == Method::POST {
            caller.idempotency_key = idempotency_key(&parts.headers)?;
        }
        let limit = self.state.limits.request_bytes;
        let body = tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, limit)).await;
        let body = body.map_err(|_| ApiError::request_timeout())?;
        let body = body.map_err(|_| ApiError::too_large(limit))?;
        parts.extensions.insert(caller.clone());
        Ok((Request::from_parts(parts, Body::from(body)), Some(caller)))
    }

    /// Returns the caller that the token of a request names.
    async fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let secret = bearer_token(headers).ok_or_else(ApiError::unauthorized)?;
        let found = self
            .state
            .stores
            .tokens
            .token_by_hash(hash_of(secret))
            .await?;
        let now = since_epoch().as_millis() as i64;
        let token = found.filter(|token| token.is_valid_at(now));
        let token = token.ok_or_else(ApiError::unauthorized)?;
        Ok(Caller {
            token: Arc::new(token),
            idempotency_key: None,
        })
    }
}
