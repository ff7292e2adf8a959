//! Decides which requests reach a handler: checks `Host`, `Origin` and the token, bounds the body,
//! answers repeated requests, and writes the access log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::{Body, to_bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use selvedge_http::{
    AllowedHosts, HostRefusal, HttpConnection, TooManyConnections, TrustedProxies, bearer_token,
};
use selvedge_protocol::{new_id, since_epoch};

use crate::api_error::ApiError;
use crate::caller::Caller;
use crate::idempotency::{answer_once, idempotency_key};
use crate::login_routes::{LOGIN_PATH, RequestScheme, check_same_origin, cookie_token};
use crate::page::is_page_path;
use crate::secrets::hash_of;
use crate::state::{ApiState, SharedState};

/// How long a client may take to send the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// After this time the token of a request is checked again before the response.
const LONG_REQUEST: Duration = Duration::from_millis(250);
/// Names a request in its response, in the access log, and in the log of failures.
const REQUEST_ID_HEADER: &str = "x-request-id";
/// Paths that need no token: they tell nothing about sessions.
const PUBLIC_PATHS: [&str; 3] = ["/healthz", "/readyz", LOGIN_PATH];

/// What admission needs.
#[derive(Clone)]
pub(crate) struct RequestAdmission {
    pub(crate) state: SharedState,
    pub(crate) hosts: Arc<AllowedHosts>,
    pub(crate) proxies: Arc<TrustedProxies>,
}

/// Admits a request and logs its response.
pub(crate) async fn admit(
    State(admission): State<RequestAdmission>,
    Extension(connection): Extension<HttpConnection>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let request_id = new_id("req");
    let peer = connection.peer_address();
    let origin = admission.proxies.resolve(peer, request.headers_mut());
    request.extensions_mut().insert(origin);
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
    let mut response = ApiError::log_detail(response, &request_id);
    if let Ok(id) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert(REQUEST_ID_HEADER, id);
    }
    let (elapsed, status) = (started.elapsed(), response.status().as_u16());
    let metrics = &admission.state.metrics;
    metrics.count_response(status);
    metrics.request_microseconds.add(elapsed.as_micros() as u64);
    tracing::info!(
        target: "selvedge_server::access",
        request = request_id,
        method = method.as_str(),
        path,
        route = route.as_ref().map(MatchedPath::as_str),
        status,
        token,
        client = %origin.client,
        duration_ms = elapsed.as_secs_f64() * 1000.0,
        "request"
    );
    response
}

/// Runs the handler. A POST with an idempotency key runs once. A request that is still open when
/// its token is revoked or expires gets status 401, and a stream ends.
async fn handle(
    state: &Arc<ApiState>,
    caller: Option<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let Some(caller) = caller else {
        return next.run(request).await;
    };
    let started = Instant::now();
    let until_invalid = || state.token_watch.until_invalid(caller.token.id.clone());
    let handled = async {
        match caller.idempotency_key {
            Some(_) => answer_once(state, &caller, request, next).await,
            None => next.run(request).await,
        }
    };
    let response = tokio::select! {
        biased;
        response = handled => response,
        () = until_invalid() => return ApiError::unauthorized().into_response(),
    };
    let is_long = started.elapsed() > LONG_REQUEST;
    if is_long && !state.token_watch.is_valid(&caller.token.id).await {
        return ApiError::unauthorized().into_response();
    }
    let kind = response.headers().get(header::CONTENT_TYPE);
    match kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
        true => {
            let ended = Box::pin(until_invalid());
            response.map(|body| Body::from_stream(body.into_data_stream().take_until(ended)))
        }
        false => response,
    }
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
        let scheme = self.state.scheme(&parts);
        parts.extensions.insert(scheme);
        let path = parts.uri.path();
        if PUBLIC_PATHS.contains(&path) || is_page_path(path) {
            return Ok((Request::from_parts(parts, Body::empty()), None));
        }
        let mut caller = self.authenticate(&parts, scheme).await?;
        let accepted = connection.accept_from(&caller.token.id);
        accepted.map_err(|refusal| match refusal {
            TooManyConnections::OfServer => ApiError::unavailable("too many connections"),
            TooManyConnections::OfClient => {
                ApiError::over_limit("this token has too many connections")
                    .hint("close some, or set `serve.max_connections` in config.toml")
            }
        })?;
        if parts.method == Method::POST {
            caller.idempotency_key = idempotency_key(&parts.headers)?;
        }
        let limit = self.state.limits.request_bytes;
        let body = tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, limit)).await;
        let body = body.map_err(|_| ApiError::request_timeout())?;
        let body = body.map_err(|_| ApiError::too_large(limit))?;
        if !body.is_empty() {
            // The token may have been revoked while the body arrived.
            self.authenticate(&parts, scheme).await?;
        }
        parts.extensions.insert(caller.clone());
        Ok((Request::from_parts(parts, Body::from(body)), Some(caller)))
    }

    /// Returns the caller that the token of a request names: in `Authorization`, else in the cookie
    /// of the page. The token of a login counts only in the cookie, and others only in
    /// `Authorization`: servers on other ports of the host receive the cookie.
    async fn authenticate(&self, parts: &Parts, scheme: RequestScheme) -> Result<Caller, ApiError> {
        let uses_cookie = !parts.headers.contains_key(header::AUTHORIZATION);
        let secret = match uses_cookie {
            false => bearer_token(&parts.headers),
            true => cookie_token(&parts.headers, scheme),
        };
        let secret = secret.ok_or_else(ApiError::unauthorized)?;
        if uses_cookie {
            check_same_origin(parts, scheme)?;
        }
        let found = self
            .state
            .stores
            .tokens
            .token_by_hash(hash_of(secret))
            .await?;
        let now = since_epoch().as_millis() as i64;
        let token = found.filter(|token| token.is_valid_at(now) && token.is_login() == uses_cookie);
        let token = token.ok_or_else(ApiError::unauthorized)?;
        let mut workspaces = token.workspaces.iter();
        let refusal = |workspace: &String| self.state.host.refusal_of_workspace(workspace);
        if let Some(reason) = workspaces.find_map(refusal) {
            return Err(ApiError::forbidden(reason));
        }
        Ok(Caller {
            token: Arc::new(token),
            idempotency_key: None,
        })
    }
}
