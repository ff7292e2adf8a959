//! Serves MCP clients over streamable HTTP, each with a session of its own.
//!
//! Every request needs the token, before anything of its body is read and before a session exists.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::http_connections::{HttpConnection, HttpConnections, ObservedStream};
use crate::http_sessions::HttpSessionManager;
use crate::script_server::ScriptServerSession;
use crate::script_server_config::ScriptServerConfig;

/// Largest body of a request, in bytes.
const MAX_REQUEST_BYTES: usize = 4 << 20;
/// Largest size of the headers of a request, in bytes.
const MAX_HEADER_BYTES: usize = 32 << 10;
/// How long a client may take to send the headers of its first or next request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a client may take to send the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long responses may take to end when the server stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after the system cannot accept a connection, for example because of too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Which HTTP requests are accepted.
#[derive(Debug, Clone)]
pub struct HttpAccess {
    /// What a request must have.
    pub authentication: HttpAuthentication,
    /// Host names that requests may use, besides the loopback names and the bound address.
    pub allowed_hosts: Vec<String>,
}

/// What a request must have to be accepted.
#[derive(Clone, PartialEq, Eq)]
pub enum HttpAuthentication {
    /// This bearer token.
    Token(String),
    /// Nothing. Allowed on loopback addresses only.
    None,
}

impl HttpAuthentication {
    /// Returns a name for the clients that are accepted: equal names mean the same token.
    pub fn client_name(&self) -> String {
        match self {
            Self::Token(token) => {
                let digest = Sha256::digest(format!("selvedge mcp client\n{token}"));
                format!("http token {}", selvedge_text::hex(&digest[..16]))
            }
            Self::None => "http".to_owned(),
        }
    }

    /// Whether the headers of a request have the token. Exactly one `Authorization` is accepted.
    fn accepts(&self, headers: &HeaderMap) -> bool {
        let Self::Token(token) = self else {
            return true;
        };
        let mut sent = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(sent), None) = (sent.next(), sent.next()) else {
            return false;
        };
        let sent = sent.to_str().ok().and_then(|value| value.split_once(' '));
        sent.is_some_and(|(scheme, sent)| {
            scheme.eq_ignore_ascii_case("bearer")
                && constant_time_eq(sent.trim().as_bytes(), token.as_bytes())
        })
    }
}

impl std::fmt::Debug for HttpAuthentication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Token(_) => "Token(…)",
            Self::None => "None",
        })
    }
}

/// Failure of the MCP server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptServerError {
    /// The address is not a loopback address, and no token is required.
    #[error("{0} can be reached from other machines, which requires a token")]
    TokenRequired(SocketAddr),
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// The address that was requested.
        address: String,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// The client did not complete the handshake.
    #[error("{0}")]
    NotInitialized(String),
}

/// An MCP server that is bound to an address.
pub struct ScriptHttpServer {
    listener: TcpListener,
    local_addr: SocketAddr,
    router: Router,
    cancel: CancellationToken,
}

impl ScriptHttpServer {
    /// Binds the address. An address that is not a loopback address requires a token.
    pub async fn bind(
        address: &str,
        access: HttpAccess,
        config: Arc<ScriptServerConfig>,
    ) -> Result<Self, ScriptServerError> {
        let failed = |error| ScriptServerError::Bind {
            address: address.to_owned(),
            error,
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        if !bound.ip().is_loopback() && access.authentication == HttpAuthentication::None {
            return Err(ScriptServerError::TokenRequired(bound));
        }
        let cancel = CancellationToken::new();
        let mut hosts: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
        if !bound.ip().is_loopback() && !bound.ip().is_unspecified() {
            hosts.push(bound.ip().to_string());
        }
        hosts.extend(access.allowed_hosts.iter().cloned());
        let origins = hosts.iter().flat_map(|host| {
            let host = if host.contains(':') && !host.starts_with('[') {
                format!("[{host}]")
            } else {
                host.clone()
            };
            [format!("http://{host}:*"), format!("https://{host}:*")]
        });
        let http_config = StreamableHttpServerConfig::default()
            .with_allowed_hosts(hosts.clone())
            .with_allowed_origins(origins)
            .enforce_origin_validation()
            .with_max_request_body_bytes(MAX_REQUEST_BYTES)
            .with_cancellation_token(cancel.clone());
        let service = StreamableHttpService::new(
            move || Ok(ScriptServerSession::new(config.clone())),
            Arc::new(HttpSessionManager::new()),
            http_config,
        );
        let router = Router::new().route_service("/mcp", service);
        let router = router.layer(axum::middleware::from_fn_with_state(
            Arc::new(access.authentication),
            accept_request,
        ));
        Ok(Self {
            listener,
            local_addr: bound,
            router,
            cancel,
        })
    }

    /// The bound address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Serves until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let mut http = http1::Builder::new();
        // Also ends a connection that is idle between two requests.
        http.timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(MAX_HEADER_BYTES);
        let connections = HttpConnections::new();
        let mut open = JoinSet::new();
        tokio::pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                Some(_) = open.join_next() => continue,
                () = &mut shutdown => break,
            };
            let Ok((stream, address)) = accepted else {
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            };
            let connection = connections.add(address.ip());
            let router = self.router.clone().layer(Extension(connection.clone()));
            let router = TowerToHyperService::new(router);
            let stream = ObservedStream::new(stream, connection.clone());
            let serving = http.serve_connection(TokioIo::new(stream), router);
            let stopped = self.cancel.clone();
            open.spawn(async move {
                tokio::pin!(serving);
                tokio::select! {
                    // A client that breaks the connection is not an error of the server.
                    _ = &mut serving => return,
                    () = connection.wait_until_replaced() => return,
                    () = stopped.cancelled() => serving.as_mut().graceful_shutdown(),
                }
                let _ = serving.await;
            });
        }
        self.cancel.cancel();
        let all_ended = async { while open.join_next().await.is_some() {} };
        // Connections that are still open then end with the server.
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, all_ended).await;
    }
}

/// Rejects requests without the token. Reads the body of the others.
async fn accept_request(
    State(authentication): State<Arc<HttpAuthentication>>,
    Extension(connection): Extension<HttpConnection>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    if !names_one_host(&parts) {
        let message = "a request must have one Host and at most one Origin, without a user name\n";
        return (StatusCode::BAD_REQUEST, message).into_response();
    }
    // The host in the target has precedence over `Host`, which the service checks.
    let target_host = parts
        .uri
        .authority()
        .map(|host| HeaderValue::from_str(host.as_str()));
    if let Some(Ok(host)) = target_host {
        parts.headers.insert(header::HOST, host);
    }
    if !authentication.accepts(&parts.headers) {
        // Without a token, only `Host` and `Origin` are checked, so that a wrong one is reported as
        // 403. The request is sent on as `OPTIONS` without a body, which the service never
        // executes.
        parts.method = Method::OPTIONS;
        let checked = next.run(Request::from_parts(parts, Body::empty())).await;
        return match checked.status() {
            StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => checked,
            _ => unauthorized(),
        };
    }
    if connection.accept().is_err() {
        let message = "too many connections\n";
        return (StatusCode::SERVICE_UNAVAILABLE, message).into_response();
    }
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_REQUEST_BYTES)).await {
        Ok(Ok(body)) => next.run(Request::from_parts(parts, Body::from(body))).await,
        Ok(Err(_)) => {
            let message = format!("the body is larger than {MAX_REQUEST_BYTES} bytes\n");
            (StatusCode::PAYLOAD_TOO_LARGE, message).into_response()
        }
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}

/// Returns whether a request has at most one `Host` and one `Origin`, both without a user name: the
/// service checks only the first of each, and only the part after the name.
fn names_one_host(parts: &Parts) -> bool {
    let is_plain = |name| {
        let mut values = parts.headers.get_all(name).iter();
        let first = values.next().is_none_or(|value| !value.as_bytes().contains(&b'@'));
        first && values.next().is_none()
    };
    let authority = parts.uri.authority();
    let has_user = authority.is_some_and(|authority| authority.as_str().contains('@'));
    is_plain(header::HOST) && is_plain(header::ORIGIN) && !has_user
}

fn unauthorized() -> Response {
    (
        StatusCode::UNAUTHORIZED,
        [(header::WWW_AUTHENTICATE, "Bearer")],
        "a bearer token is required\n",
    )
        .into_response()
}

/// Compares in a time that does not depend on how much of the token is right.
fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    let (a, b) = (Sha256::digest(a), Sha256::digest(b));
    a.iter()
        .zip(b.iter())
        .fold(0, |difference, (a, b)| difference | (a ^ b))
        == 0
}
