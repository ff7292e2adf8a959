//! Stops turns of sessions, in whatever process they run: a request is stored in the journal, and
//! the process that runs the turn polls it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use selvedge_journal::Journal;
use selvedge_protocol::{
    MAX_CREATED_SESSIONS, SessionError, SessionFilter, SessionState, SessionStore, now_ms,
};

use crate::{AgentError, Session};

/// Age of a turn at the first poll. Shorter turns are never polled.
const FIRST_POLL_DELAY: Duration = Duration::from_secs(1);
/// Time between two polls of a running turn.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time between two checks whether a turn has stopped.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// What happens to the turns of sessions that a stopped session created, directly or through
/// others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildSessions {
    /// They continue to run.
    KeepRunning,
    /// They are stopped, too.
    Stop,
}

/// Requests that the running turn of a session is stopped. Returns the sessions whose turns were
/// asked to stop; empty if none runs.
pub async fn request_stop(
    journal: &Arc<Journal>,
    session: &str,
    children: ChildSessions,
) -> Result<Vec<String>, SessionError> {
    let mut sessions = vec![session.to_owned()];
    if children == ChildSessions::Stop {
        sessions.extend(created_sessions(journal, session).await?);
    }
    let mut running = Vec::new();
    for id in sessions {
        if is_turn_running(journal, &id).await? {
            running.push(id);
        }
    }
    let asked = running.clone();
    journal
        .spawn_blocking(move |journal| {
            asked
                .iter()
                .try_for_each(|id| journal.request_cancel(id))
                .map_err(SessionError::from)
        })
        .await?;
    Ok(running)
}

/// Waits until the turns of these sessions have stopped, and withdraws the requests. Returns the
/// sessions whose turns still run after the time limit.
pub async fn wait_until_stopped(
    journal: &Arc<Journal>,
    sessions: &[String],
    timeout: Duration,
) -> Result<Vec<String>, SessionError> {
    let deadline = Instant::now() + timeout;
    let mut running = sessions.to_vec();
    loop {
        let mut left = Vec::new();
        for id in running {
            if is_turn_running(journal, &id).await? {
                left.push(id);
                continue;
            }
            let withdraw = move |journal: &Journal| journal.withdraw_cancel_request(&id);
            journal.spawn_blocking(withdraw).await?;
        }
        if left.is_empty() || Instant::now() > deadline {
            return Ok(left);
        }
        running = left;
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Whether a running process executes a turn of a session.
pub async fn is_turn_running(journal: &Arc<Journal>, session: &str) -> Result<bool, SessionError> {
    if journal.get(session).await?.state == SessionState::Idle {
        return Ok(false);
    }
    let opened = {
        let (journal, id) = (journal.clone(), session.to_owned());
        tokio::task::spawn_blocking(move || Session::open_read_only(&journal, &id))
    };
    match opened.await {
        Ok(Ok(session)) => Ok(session.has_open_turn()),
        Ok(Err(AgentError::Journal(error))) => Err(error.into()),
        Ok(Err(error)) => Err(SessionError::NotRun(error.to_string())),
        Err(error) => Err(SessionError::NotRun(error.to_string())),
    }
}

/// Returns the sessions that a session created, directly or through others.
async fn created_sessions(
    journal: &Arc<Journal>,
    session: &str,
) -> Result<Vec<String>, SessionError> {
    let (mut found, mut creators) = (Vec::new(), vec![session.to_owned()]);
    while let Some(creator) = creators.pop() {
        let filter = SessionFilter {
            creator: Some(creator),
            limit: MAX_CREATED_SESSIONS,
            ..SessionFilter::default()
        };
        let created = SessionStore::list(&**journal, filter).await?;
        for id in created.into_iter().map(|session| session.id) {
            if !found.contains(&id) {
                found.push(id.clone());
                creators.push(id);
            }
        }
    }
    Ok(found)
}

/// Completes when another process requests that the turn of a session is stopped, which begins
/// now. Never completes without a journal.
pub(crate) fn until_stop_requested(
    session: &Session,
) -> impl Future<Output = ()> + Send + 'static + use<> {
    let (journal, id) = (session.journal().cloned(), session.id().to_owned());
    let since_ms = now_ms();
    async move {
        let Some(journal) = journal else {
            return std::future::pending().await;
        };
        tokio::time::sleep(FIRST_POLL_DELAY).await;
        while !journal.is_stop_requested(&id, since_ms).await {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}
