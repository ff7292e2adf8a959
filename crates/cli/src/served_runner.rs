//! Turns that a turn of the agent server waits for: the server itself runs them.

use std::sync::Arc;
use std::time::Duration;

use selvedge_agent::SubAgents;
use selvedge_journal::Journal;
use selvedge_protocol::{
    ApiTokenStore, InboxMessage, QueuedTurnFuture, QueuedTurnRunner, ServerStoreError,
    SessionError, SessionEventStore, SessionFuture, SessionRunner, SessionStore, since_epoch,
};
use selvedge_server::{SessionWaker, TurnPermit};
use serde_json::Value;

use crate::session_runner::POLL_INTERVAL;

/// First pause of a call that waits for a turn of the server. Each further one is twice as long, up
/// to [`POLL_INTERVAL`].
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// What a turn gets from the agent server.
#[derive(Clone)]
pub(crate) struct ServedTurn {
    /// Given back while the turn waits for the turn of another session.
    pub(crate) permit: TurnPermit,
    /// Starts turns of messages that the turn sends.
    pub(crate) waker: SessionWaker,
}

/// Waits for turns that the agent server of this process runs, so that its clients see them.
pub(crate) struct ServedRunner {
    pub(crate) journal: Arc<Journal>,
    pub(crate) served: ServedTurn,
    /// Sub-agents of the turn whose budget pays; `None` outside of a turn.
    pub(crate) agents: Option<SubAgents>,
}

impl SessionRunner for ServedRunner {
    fn run_until_answered(&self, session: String, number: u32, run: String) -> SessionFuture<'_> {
        Box::pin(async move {
            if !self.is_served(&session).await? {
                let why = "no token of the server has the folder of the session as a workspace";
                return Err(SessionError::NotRun(why.to_owned()));
            }
            self.served.waker.wake(&session);
            let answered = self.answered(&session, number);
            let message = self.served.permit.wait_without(answered).await?;
            self.add_usage(&message, &run).await;
            Ok(message)
        })
    }

    fn message_queued(&self, session: String) -> QueuedTurnFuture<'_> {
        Box::pin(async move {
            match self.is_served(&session).await {
                Ok(true) => {
                    self.served.waker.wake(&session);
                    QueuedTurnRunner::Server
                }
                _ => QueuedTurnRunner::NextProcess,
            }
        })
    }
}

impl ServedRunner {
    /// Waits until a message is answered.
    async fn answered(&self, session: &str, number: u32) -> Result<InboxMessage, SessionError> {
        let mut poll_interval = FIRST_POLL_INTERVAL;
        loop {
            let message = self.journal.message(session, number).await?;
            if !message.state.is_open() {
                return Ok(message);
            }
            tokio::time::sleep(poll_interval).await;
            poll_interval = (poll_interval * 2).min(POLL_INTERVAL);
        }
    }

    /// Returns whether the server runs turns of a session: its folder is a workspace of a valid
    /// token.
    async fn is_served(&self, session: &str) -> Result<bool, SessionError> {
        let info = SessionStore::get(&*self.journal, session).await?;
        let tokens = self.journal.tokens().await;
        let tokens = tokens.map_err(|error| SessionError::NotRun(error.to_string()))?;
        let now = since_epoch().as_millis() as i64;
        let mut valid = tokens.iter().filter(|token| token.is_valid_at(now));
        Ok(valid.any(|token| token.works_in(&info.directory)))
    }

    /// Charges the budget of a run with what the turn of a message used.
    async fn add_usage(&self, message: &InboxMessage, run: &str) {
        let (Some(agents), Some(turn)) = (&self.agents, message.turn) else {
            return;
        };
        for kind in ["turn.completed", "turn.failed"] {
            let Ok(Some(end)) = turn_event(&*self.journal, &message.session, kind, turn).await
            else {
                continue;
            };
            let usage = serde_json::from_value(end["usage"].clone());
            agents.add_usage(run, usage.unwrap_or_default(), end["cost"].as_f64());
        }
    }
}

/// Returns the newest event of a type that belongs to a turn. Later turns may have such events as
/// well.
async fn turn_event(
    store: &dyn SessionEventStore,
    session: &str,
    kind: &str,
    turn: u32,
) -> Result<Option<Value>, ServerStoreError> {
    let mut event = store.latest_event(session, kind).await?;
    while let Some(found) = event {
        match found.body["turn"].as_u64() {
            Some(number) if number == u64::from(turn) => return Ok(Some(found.body)),
            Some(number) if number < u64::from(turn) => return Ok(None),
            _ => event = store.event_before(session, kind, found.number).await?,
        }
    }
    Ok(None)
}
