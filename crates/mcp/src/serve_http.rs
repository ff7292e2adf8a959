//! Serves MCP clients over streamable HTTP, each with a session of its own.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::script_server::{ScriptServerConfig, ScriptServerSession};

/// Largest body of a request, in bytes.
const MAX_REQUEST_BYTES: usize = 4 << 20;

/// Which HTTP requests are accepted.
#[derive(Debug, Clone, Default)]
pub struct HttpAccess {
    /// Bearer token that every request must have. `None` is allowed on loopback addresses only.
    pub token: Option<String>,
    /// Host names that requests may use, besides the loopback names and the bound address.
    pub allowed_hosts: Vec<String>,
}

/// Failure of the MCP server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address is not a loopback address, and no token is set.
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
    /// The HTTP server failed while it was running.
    #[error("cannot serve: {0}")]
    Io(std::io::Error),
    /// The client did not complete the handshake.
    #[error("{0}")]
    NotInitialized(String),
    /// The earlier run that a client names cannot be resumed.
    #[error("{0}")]
    NotResumable(String),
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
    ) -> Result<Self, ServeError> {
        let failed = |error| ServeError::Bind {
            address: address.to_owned(),
            error,
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        if !bound.ip().is_loopback() && access.token.is_none() {
            return Err(ServeError::TokenRequired(bound));
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
        let sessions = Arc::new(LocalSessionManager::default());
        let service = StreamableHttpService::new(
            move || Ok(ScriptServerSession::new(config.clone())),
            sessions,
            http_config,
        );
        let mut router = Router::new().route_service("/mcp", service);
        if let Some(token) = access.token {
            router = router.layer(axum::middleware::from_fn_with_state(
                Arc::<str>::from(token),
                require_token,
            ));
        }
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
    pub async fn run(
        self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), ServeError> {
        let cancel = self.cancel;
        let shutdown = async move {
            shutdown.await;
            cancel.cancel();
        };
        axum::serve(self.listener, self.router)
            .with_graceful_shutdown(shutdown)
            .await
            .map_err(ServeError::Io)
    }
}

/// Rejects requests without the bearer token.
async fn require_token(State(token): State<Arc<str>>, request: Request, next: Next) -> Response {
    let sent = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let sent = sent
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    if sent.is_some_and(|(_, sent)| constant_time_eq(sent.trim().as_bytes(), token.as_bytes())) {
        return next.run(request).await;
    }
    (
        StatusCode::UNAUTHORIZED,
        [(header::WWW_AUTHENTICATE, "Bearer")],
        "a bearer token is required\n",
    )
        .into_response()
}

/// Compares in a time that does not depend on how much of the token is right.
fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    use sha2::{Digest, Sha256};
    let (a, b) = (Sha256::digest(a), Sha256::digest(b));
    a.iter()
        .zip(b.iter())
        .fold(0, |difference, (a, b)| difference | (a ^ b))
        == 0
}
