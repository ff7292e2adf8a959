//! Limits the sessions of the HTTP server. A new session beyond the limit replaces the one that was
//! unused for the longest time; its client gets 404 and starts a new one, as MCP specifies.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::WorkerTransport;
use rmcp::transport::streamable_http_server::SessionManager;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, LocalSessionWorker,
};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId};

/// Maximum number of sessions at the same time.
const MAX_SESSIONS: usize = 256;
/// Time without a message after which a session ends.
const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The sessions of the HTTP server. Delegates to rmcp's own manager, which has no limit.
pub(crate) struct HttpSessionManager {
    local: LocalSessionManager,
    usage: Mutex<HashMap<SessionId, SessionUsage>>,
}

struct SessionUsage {
    last_used: Instant,
    /// Each open response stream of the session holds a clone.
    streams: Arc<()>,
}

/// Failure of a session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpSessionError {
    #[error("{MAX_SESSIONS} sessions are in use, which is the limit")]
    TooManySessions,
    #[error(transparent)]
    Local(#[from] LocalSessionManagerError),
}

impl HttpSessionManager {
    pub(crate) fn new() -> Self {
        let mut local = LocalSessionManager::default();
        local.session_config.keep_alive = Some(SESSION_IDLE_TIMEOUT);
        Self {
            local,
            usage: Mutex::default(),
        }
    }

    /// Records that the session is used now. Returns what a response stream holds while it is open.
    fn record_use(&self, id: &SessionId) -> Option<Arc<()>> {
        let mut usage = self.lock_usage();
        let session = usage.get_mut(id)?;
        session.last_used = Instant::now();
        Some(session.streams.clone())
    }

    /// Returns the session to close before another one is created; `None` if there is room.
    fn session_to_replace(&self) -> Result<Option<SessionId>, HttpSessionError> {
        let mut usage = self.lock_usage();
        if usage.len() < MAX_SESSIONS {
            return Ok(None);
        }
        let unused = usage
            .iter()
            .filter(|(_, session)| Arc::strong_count(&session.streams) == 1);
        let oldest = unused.min_by_key(|(_, session)| session.last_used);
        let id = oldest.map(|(id, _)| id.clone());
        let id = id.ok_or(HttpSessionError::TooManySessions)?;
        usage.remove(&id);
        Ok(Some(id))
    }

    fn lock_usage(&self) -> MutexGuard<'_, HashMap<SessionId, SessionUsage>> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps `in_use` as long as the stream is open.
fn hold<S: Stream>(stream: S, in_use: Option<Arc<()>>) -> impl Stream<Item = S::Item> + use<S> {
    stream.map(move |message| {
        let _ = &in_use;
        message
    })
}

impl SessionManager for HttpSessionManager {
    type Error = HttpSessionError;
    type Transport = WorkerTransport<LocalSessionWorker>;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        if let Some(id) = self.session_to_replace()? {
            self.local.close_session(&id).await?;
        }
        let (id, transport) = self.local.create_session().await?;
        let usage = SessionUsage {
            last_used: Instant::now(),
            streams: Arc::default(),
        };
        self.lock_usage().insert(id.clone(), usage);
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        Ok(self.local.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        Ok(self.local.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.lock_usage().remove(id);
        Ok(self.local.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let in_use = self.record_use(id);
        Ok(hold(self.local.create_stream(id, message).await?, in_use))
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), Self::Error> {
        self.record_use(id);
        Ok(self.local.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let in_use = self.record_use(id);
        Ok(hold(self.local.create_standalone_stream(id).await?, in_use))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let in_use = self.record_use(id);
        Ok(hold(self.local.resume(id, last_event_id).await?, in_use))
    }
}
