//! What all handlers share.

use std::sync::Arc;

use axum::http::header;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use selvedge_http::RequestOrigin;
use selvedge_protocol::{
    ApiTokenStore, ApprovalDeciderStore, ChannelStore, IdempotencyStore, ServerLeaseStore,
    SessionEventStore, SessionInfo, SessionQueueStore, SessionStore, SharedApprovalStore,
};
use tokio_util::sync::CancellationToken;

use crate::api_error::ApiError;
use crate::approvals::PendingApprovals;
use crate::caller::{Caller, no_workspace};
use crate::client_tools::ClientTools;
use crate::feed::SessionFeeds;
use crate::health_routes::JournalReadiness;
use crate::host::{HostErrorKind, HostedRun, SessionHost};
use crate::login_routes::RequestScheme;
use crate::metrics::ServerMetrics;
use crate::resumed_scripts::ResumedScripts;
use crate::shared_approvals::SharedApprovals;
use crate::token_watch::TokenWatch;
use crate::workers::SessionWorkers;

/// The storage of a server, one interface per domain.
#[derive(Clone)]
pub struct ServerStores {
    /// Sessions and the messages to them.
    pub sessions: Arc<dyn SessionStore>,
    /// Sessions with messages that are not answered.
    pub queues: Arc<dyn SessionQueueStore>,
    /// Events of sessions.
    pub events: Arc<dyn SessionEventStore>,
    /// The channels of the user.
    pub channels: Arc<dyn ChannelStore>,
    /// Tokens of clients.
    pub tokens: Arc<dyn ApiTokenStore>,
    /// Answers to repeated requests.
    pub replies: Arc<dyn IdempotencyStore>,
    /// Who decided about approvals.
    pub deciders: Arc<dyn ApprovalDeciderStore>,
    /// The lease of this server, if several servers share the database.
    pub leases: Option<Arc<dyn ServerLeaseStore>>,
    /// The approval requests of all servers, if several share the database.
    pub approvals: Option<Arc<dyn SharedApprovalStore>>,
}

/// Limits of each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerLimits {
    /// Most turns at once that a token pays for. Further ones wait.
    pub concurrent_turns: usize,
    /// Most messages that are not answered and that a token pays for. Further ones are refused.
    pub queued_turns: u32,
    /// Most sessions that the clients of a token create.
    pub sessions: u32,
    /// Most connections at once.
    pub connections: usize,
    /// Largest body of a request, in bytes.
    pub request_bytes: usize,
}

/// When clients reach the server over TLS, besides what trusted proxies say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsUse {
    /// Whether the server itself serves TLS.
    pub(crate) is_served: bool,
    /// Host of the public URL, if its scheme is `https`.
    pub(crate) public_host: Option<String>,
}

/// The state of a server.
pub(crate) struct ApiState {
    pub(crate) stores: ServerStores,
    pub(crate) host: Arc<dyn SessionHost>,
    pub(crate) limits: ServerLimits,
    pub(crate) tls: TlsUse,
    pub(crate) feeds: Arc<SessionFeeds>,
    pub(crate) approvals: Arc<PendingApprovals>,
    pub(crate) workers: Arc<SessionWorkers>,
    pub(crate) resumed_scripts: Arc<ResumedScripts>,
    pub(crate) client_tools: Arc<ClientTools>,
    pub(crate) metrics: Arc<ServerMetrics>,
    pub(crate) token_watch: Arc<TokenWatch>,
    pub(crate) readiness: JournalReadiness,
    /// Locked while a fork is made and counted against the limit of its token.
    pub(crate) forking: tokio::sync::Mutex<()>,
    /// Cancelled when the server stops, which ends event streams.
    pub(crate) stopping: CancellationToken,
}

/// The state, as handlers extract it.
pub(crate) type SharedState = Arc<ApiState>;

impl ApiState {
    pub(crate) fn new(
        stores: ServerStores,
        host: Arc<dyn SessionHost>,
        limits: ServerLimits,
        tls: TlsUse,
    ) -> SharedState {
        let metrics = Arc::<ServerMetrics>::default();
        let feeds = Arc::new(SessionFeeds::new(stores.events.clone(), metrics.clone()));
        let shared = stores.approvals.clone().map(|store| SharedApprovals {
            store,
            deciders: stores.deciders.clone(),
        });
        let approvals = PendingApprovals::new(metrics.clone(), shared);
        let client_tools = Arc::<ClientTools>::default();
        let workers = SessionWorkers::new(
            stores.clone(),
            host.clone(),
            feeds.clone(),
            approvals.clone(),
            client_tools.clone(),
            limits,
            metrics.clone(),
        );
        Arc::new(Self {
            token_watch: TokenWatch::new(stores.tokens.clone()),
            stores,
            host,
            limits,
            tls,
            feeds,
            approvals,
            workers,
            resumed_scripts: Arc::default(),
            client_tools,
            metrics,
            readiness: JournalReadiness::default(),
            forking: tokio::sync::Mutex::default(),
            stopping: CancellationToken::new(),
        })
    }

    /// Returns how a client reached the server with a request, whose `Host` is checked.
    pub(crate) fn scheme(&self, parts: &Parts) -> RequestScheme {
        let origin = parts.extensions.get::<RequestOrigin>();
        let host = parts.headers.get(header::HOST);
        let host = host.and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
        let public = self.tls.public_host.as_deref().zip(host);
        let is_public =
            public.is_some_and(|(public, host)| public.eq_ignore_ascii_case(host.host()));
        let is_tls = origin.is_some_and(|origin| origin.is_tls);
        match is_tls || self.tls.is_served || is_public {
            true => RequestScheme::Https,
            false => RequestScheme::Http,
        }
    }

    /// Returns the workspace of a request that uses its files. Fails if it is none of the token,
    /// its folder is gone or a link now, or this server does not serve it.
    pub(crate) fn workspace(
        &self,
        caller: &Caller,
        named: Option<&str>,
    ) -> Result<String, ApiError> {
        let workspace = self.session_workspace(caller, named)?;
        match self.host.serves(&workspace) {
            true => Ok(workspace),
            false => Err(ApiError::not_served()),
        }
    }

    /// Like [`Self::workspace`], for a request about sessions, whose turns another server may run.
    pub(crate) fn session_workspace(
        &self,
        caller: &Caller,
        named: Option<&str>,
    ) -> Result<String, ApiError> {
        let workspace = caller.workspace(named)?;
        match self.host.is_folder(&workspace) {
            true => Ok(workspace),
            false => Err(no_workspace()),
        }
    }

    /// Stops the running turn of a session, in this process or another, and its resumed scripts.
    /// Returns whether one runs.
    pub(crate) async fn stop_turn(&self, session: &str) -> Result<bool, ApiError> {
        let stops_script = self.resumed_scripts.stop(session);
        let stops_turn = self.workers.interrupt(session) || self.host.request_stop(session).await?;
        Ok(stops_turn || stops_script)
    }

    /// Returns a run that the caller can reach. Others do not exist for it.
    pub(crate) async fn run_of(&self, caller: &Caller, id: &str) -> Result<HostedRun, ApiError> {
        let missing = || ApiError::not_found(format!("run `{id}`"));
        let run = match self.host.run(id).await {
            Err(error) if error.kind == HostErrorKind::NotFound => return Err(missing()),
            run => run?,
        };
        match caller.token.allows_directory(&run.directory) {
            true => Ok(run),
            false => Err(missing()),
        }
    }

    /// Returns a session that the caller can reach. Others do not exist for it.
    pub(crate) async fn session(&self, caller: &Caller, id: &str) -> Result<SessionInfo, ApiError> {
        let session = self.stores.sessions.get(id).await?;
        match caller.token.works_in(&session.directory) {
            true => Ok(session),
            false => Err(ApiError::not_found(format!("session `{id}`"))),
        }
    }
}
