//! [`AgentServer`]: a bound address that serves the API and runs the queues of sessions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use selvedge_http::{
    AllowedHosts, HttpBindError, HttpConnectionLimits, HttpListener, TlsSettings, TrustedProxies,
};

use crate::host::SessionHost;
use crate::router::router;
use crate::state::{ApiState, ServerLimits, ServerStores, TlsUse};

/// Connections of clients, most of which follow events.
const CONNECTION_LIMITS: HttpConnectionLimits = HttpConnectionLimits {
    max_pending: 1024,
    max_accepted: 16_384,
    max_per_client: usize::MAX,
};

/// An agent server that is bound to an address.
pub struct AgentServer {
    listener: HttpListener,
    stores: ServerStores,
    host: Arc<dyn SessionHost>,
    limits: ServerLimits,
    network: ServerNetwork,
    serves_tls: bool,
}

/// How clients reach a server.
#[derive(Debug, Clone, Default)]
pub struct ServerNetwork {
    /// Names that requests may use in `Host` and `Origin`, besides the loopback names and the bound
    /// address.
    pub allowed_hosts: Vec<String>,
    /// Host of the public URL, if clients reach it over TLS through a proxy.
    pub public_tls_host: Option<String>,
    /// Proxies whose headers about clients are believed.
    pub trusted_proxies: TrustedProxies,
}

impl AgentServer {
    /// Binds an address.
    pub async fn bind(
        address: &str,
        network: ServerNetwork,
        stores: ServerStores,
        host: Arc<dyn SessionHost>,
        limits: ServerLimits,
    ) -> Result<Self, HttpBindError> {
        let connection_limits = HttpConnectionLimits {
            max_per_client: limits.connections,
            ..CONNECTION_LIMITS
        };
        Ok(Self {
            listener: HttpListener::bind(address, connection_limits).await?,
            stores,
            host,
            limits,
            network,
            serves_tls: false,
        })
    }

    /// Serves TLS only.
    pub fn with_tls(self, tls: TlsSettings) -> Self {
        Self {
            listener: self.listener.with_tls(tls),
            serves_tls: true,
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
            stores,
            host,
            limits,
            network,
            serves_tls,
        } = self;
        let tls = TlsUse {
            is_served: serves_tls,
            public_host: network.public_tls_host,
        };
        let state = ApiState::new(stores, host, limits, tls);
        let hosts = AllowedHosts::new(listener.local_addr(), network.allowed_hosts);
        let watching = tokio::spawn(state.token_watch.clone().run(state.stopping.clone()));
        let workers = state.workers.clone();
        let shutdown = async move {
            shutdown.await;
            tokio::select! {
                () = workers.drain(drain_timeout) => {}
                () = stop_now => {}
            }
        };
        let polling = tokio::spawn(state.workers.clone().poll_queues());
        let scripts = state.resumed_scripts.clone();
        let leasing = tokio::spawn(state.workers.clone().watch_lease(scripts));
        let stopping = state.stopping.clone();
        // Turns stop while open responses end.
        let stop_turns = async {
            stopping.cancelled().await;
            state.workers.stop().await;
            state.feeds.flush().await;
        };
        let router = router(state.clone(), hosts, network.trusted_proxies);
        let serving = listener.serve(router, stopping.clone(), shutdown);
        tokio::join!(serving, stop_turns);
        polling.abort();
        leasing.abort();
        watching.abort();
    }
}
