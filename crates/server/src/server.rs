//! [`AgentServer`]: a bound address that serves the API and runs the queues of sessions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use selvedge_http::{AllowedHosts, HttpBindError, HttpConnectionLimits, HttpListener, TlsSettings};

use crate::host::SessionHost;
use crate::router::router;
use crate::state::{ApiState, ServerLimits, ServerStores, SharedState};

/// Connections of clients, most of which follow events.
const CONNECTION_LIMITS: HttpConnectionLimits = HttpConnectionLimits {
    max_pending: 1024,
    max_accepted: 16_384,
};

/// An agent server that is bound to an address.
pub struct AgentServer {
    listener: HttpListener,
    state: SharedState,
    allowed_hosts: Vec<String>,
}

impl AgentServer {
    /// Binds an address. `allowed_hosts` are names that requests may use, besides the loopback
    /// names and the bound address.
    pub async fn bind(
        address: &str,
        allowed_hosts: Vec<String>,
        stores: ServerStores,
        host: Arc<dyn SessionHost>,
        limits: ServerLimits,
    ) -> Result<Self, HttpBindError> {
        Ok(Self {
            listener: HttpListener::bind(address, CONNECTION_LIMITS).await?,
            state: ApiState::new(stores, host, limits),
            allowed_hosts,
        })
    }

    /// Serves TLS only.
    pub fn with_tls(self, tls: TlsSettings) -> Self {
        Self {
            listener: self.listener.with_tls(tls),
            ..self
        }
    }

    /// The bound address.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Serves until `shutdown` resolves. Then no further turn starts, and running turns may end
    /// within `drain_timeout` or until `stop_now` resolves; requests are still served. Turns that
    /// run after that stop where they are; the next server continues them. Returns when all events
    /// are stored.
    pub async fn run(
        self,
        shutdown: impl Future<Output = ()>,
        drain_timeout: Duration,
        stop_now: impl Future<Output = ()>,
    ) {
        let Self {
            listener,
            state,
            allowed_hosts,
        } = self;
        let shutdown = async {
            shutdown.await;
            tokio::select! {
                () = state.workers.drain(drain_timeout) => {}
                () = stop_now => {}
            }
        };
        let hosts = AllowedHosts::new(listener.local_addr(), allowed_hosts);
        let polling = tokio::spawn(state.workers.clone().poll_queues());
        let stopping = state.stopping.clone();
        // Turns stop while open responses end.
        let stop_turns = async {
            stopping.cancelled().await;
            state.workers.stop().await;
            state.feeds.flush().await;
        };
        let router = router(state.clone(), hosts);
        let serving = listener.serve(router, stopping.clone(), shutdown);
        tokio::join!(serving, stop_turns);
        polling.abort();
    }
}
