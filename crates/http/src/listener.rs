//! [`HttpListener`]: accepts connections and serves a router on them.

use std::net::SocketAddr;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::connections::{HttpConnection, HttpConnectionLimits, HttpConnections, ObservedStream};
use crate::tls::TlsSettings;

/// Largest size of the headers of a request, in bytes.
const MAX_HEADER_BYTES: usize = 32 << 10;
/// How long a client may take to send the headers of its first or next request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a client may take for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may receive nothing of a response before it is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long responses may take to end when the server stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after the system cannot accept a connection, for example because of too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// A bound address. Each request of a served router has an [`HttpConnection`] as extension, whose
/// [`accept`](HttpConnection::accept) the caller calls when the request is authorised.
pub struct HttpListener {
    listener: TcpListener,
    local_addr: SocketAddr,
    limits: HttpConnectionLimits,
    tls: Option<TlsSettings>,
}

/// The address cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
pub struct HttpBindError {
    /// The address that was requested.
    pub address: String,
    /// Error of the operating system.
    pub error: std::io::Error,
}

impl HttpListener {
    /// Binds an address.
    pub async fn bind(address: &str, limits: HttpConnectionLimits) -> Result<Self, HttpBindError> {
        let failed = |error| HttpBindError {
            address: address.to_owned(),
            error,
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let local_addr = listener.local_addr().map_err(failed)?;
        Ok(Self {
            listener,
            local_addr,
            limits,
            tls: None,
        })
    }

    /// Serves TLS only.
    pub fn with_tls(self, tls: TlsSettings) -> Self {
        Self {
            tls: Some(tls),
            ..self
        }
    }

    /// The bound address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Serves the router until `shutdown` resolves, then cancels `stopping` and waits a few seconds
    /// for open responses.
    pub async fn serve(
        self,
        router: Router,
        stopping: CancellationToken,
        shutdown: impl Future<Output = ()>,
    ) {
        let connections = HttpConnections::new(self.limits);
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
            // Events are small and must not wait for one another.
            let _ = stream.set_nodelay(true);
            let connection = connections.add(address.ip());
            let router = router.clone().layer(Extension(connection.clone()));
            let stream = ObservedStream::new(stream, connection.clone(), WRITE_TIMEOUT);
            let (tls, stopping) = (self.tls.clone(), stopping.clone());
            open.spawn(async move {
                let Some(tls) = tls else {
                    return serve_connection(stream, router, connection, stopping).await;
                };
                let accepting = tls.acceptor().accept(stream);
                let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, accepting);
                tokio::select! {
                    // A client that breaks the connection is not an error of the server.
                    done = handshake => if let Ok(Ok(stream)) = done {
                        serve_connection(stream, router, connection, stopping).await;
                    },
                    () = connection.wait_until_replaced() => {}
                }
            });
        }
        stopping.cancel();
        let all_ended = async { while open.join_next().await.is_some() {} };
        // Connections that are still open then end with the server.
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, all_ended).await;
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    connection: HttpConnection,
    stopping: CancellationToken,
) {
    let mut http = http1::Builder::new();
    // Also ends a connection that is idle between two requests.
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES);
    let serving = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(serving);
    tokio::select! {
        // A client that breaks the connection is not an error of the server.
        _ = &mut serving => return,
        () = connection.wait_until_replaced() => return,
        () = stopping.cancelled() => serving.as_mut().graceful_shutdown(),
    }
    let _ = serving.await;
}
