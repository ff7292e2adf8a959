//! What all handlers share.

use std::sync::Arc;

use selvedge_protocol::{
    ApiTokenStore, ApprovalDeciderStore, ChannelStore, IdempotencyStore, SessionEventStore,
    SessionInfo, SessionQueueStore, SessionStore,
};
use tokio_util::sync::CancellationToken;

use crate::api_error::ApiError;
use crate::approvals::PendingApprovals;
use crate::caller::Caller;
use crate::client_tools::ClientTools;
use crate::feed::SessionFeeds;
use crate::host::SessionHost;
use crate::metrics::ServerMetrics;
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
}

/// Limits of each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerLimits {
    /// Most turns of a token's messages that run at once. Further ones wait.
    pub concurrent_turns: usize,
    /// Most messages of a token that are not answered. Further ones are refused.
    pub queued_turns: u32,
    /// Largest body of a request, in bytes.
    pub request_bytes: usize,
}

/// The state of a server.
pub(crate) struct ApiState {
    pub(crate) stores: ServerStores,
    pub(crate) host: Arc<dyn SessionHost>,
    pub(crate) limits: ServerLimits,
    pub(crate) feeds: Arc<SessionFeeds>,
    pub(crate) approvals: Arc<PendingApprovals>,
    pub(crate) workers: Arc<SessionWorkers>,
    pub(crate) client_tools: Arc<ClientTools>,
    pub(crate) metrics: Arc<ServerMetrics>,
    /// Locked while a message is counted against the limit of its token and stored.
    pub(crate) queueing: tokio::sync::Mutex<()>,
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
    ) -> SharedState {
        let metrics = Arc::<ServerMetrics>::default();
        let feeds = Arc::new(SessionFeeds::new(stores.events.clone(), metrics.clone()));
        let approvals = PendingApprovals::new(metrics.clone());
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
            stores,
            host,
            limits,
            feeds,
            approvals,
            workers,
            client_tools,
            metrics,
            queueing: tokio::sync::Mutex::default(),
            stopping: CancellationToken::new(),
        })
    }

    /// Returns the workspace of a request, without links. Fails if the token cannot reach it.
    pub(crate) async fn workspace(
        &self,
        caller: &Caller,
        named: Option<&str>,
    ) -> Result<String, ApiError> {
        let workspace = caller.workspace(named)?;
        // A link in a workspace may lead out of it.
        let place = self.host.session_place(&workspace, None, None).await?;
        match caller.token.allows_directory(&place.directory) {
            true => Ok(place.directory),
            false => Err(ApiError::not_found("such workspace")),
        }
    }

    /// Stops the running turn of a session, in this process or another. Returns whether one runs.
    pub(crate) async fn stop_turn(&self, session: &str) -> Result<bool, ApiError> {
        Ok(self.workers.interrupt(session) || self.host.request_stop(session).await?)
    }

    /// Returns a session that the caller can reach. Others do not exist for it.
    pub(crate) async fn session(&self, caller: &Caller, id: &str) -> Result<SessionInfo, ApiError> {
        let session = self.stores.sessions.get(id).await?;
        match caller.token.allows_directory(&session.directory) {
            true => Ok(session),
            false => Err(ApiError::not_found(format!("session `{id}`"))),
        }
    }
}
