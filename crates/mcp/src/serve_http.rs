//! Serves MCP clients over streamable HTTP, each with a session of its own.
//!
//! Every request needs the token, before anything of its body is read and before a session exists.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use selvedge_http::{
    AllowedHosts, HttpBindError, HttpConnection, HttpConnectionLimits, HttpListener, bearer_token,
    constant_time_eq,
};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::http_sessions::HttpSessionManager;
use crate::script_server::ScriptServerSession;
use crate::script_server_config::ScriptServerConfig;

/// Largest body of a request, in bytes.
const MAX_REQUEST_BYTES: usize = 4 << 20;
/// How long a client may take to send the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
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
        bearer_token(headers)
            .is_some_and(|sent| constant_time_eq(sent.as_bytes(), token.as_bytes()))
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
    #[error(transparent)]
    Bind(#[from] HttpBindError),
    /// The client did not complete the handshake.
    #[error("{0}")]
    NotInitialized(String),
}

/// An MCP server that is bound to an address.
pub struct ScriptHttpServer {
    listener: HttpListener,
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
        let listener = HttpListener::bind(address, HttpConnectionLimits::default()).await?;
        let bound = listener.local_addr();
        if !bound.ip().is_loopback() && access.authentication == HttpAuthentication::None {
            return Err(ScriptServerError::TokenRequired(bound));
        }
        let cancel = CancellationToken::new();
        let hosts = AllowedHosts::new(bound, access.allowed_hosts);
        let http_config = StreamableHttpServerConfig::default()
            .with_allowed_hosts(hosts.names().to_vec())
            .with_allowed_origins(hosts.origins())
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
            router,
            cancel,
        })
    }

    /// The bound address.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Serves until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        self.listener
            .serve(self.router, self.cancel, shutdown)
            .await;
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
    // The service checks only the first of each header, and only the part after a user name.
    if let Err(refusal) = AllowedHosts::use_target_host(&mut parts) {
        return (StatusCode::BAD_REQUEST, format!("{refusal}\n")).into_response();
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

fn unauthorized() -> Response {
    (
        StatusCode::UNAUTHORIZED,
        [(header::WWW_AUTHENTICATE, "Bearer")],
        "a bearer token is required\n",
    )
        .into_response()
}
