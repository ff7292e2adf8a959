//! Stops turns of sessions, in whatever process they run: a request is stored in the journal, and
//! the process that runs the turn polls it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use selvedge_journal::{Journal, JournalError};
use selvedge_protocol::{
    InboxMessage, InboxState, MAX_CREATED_SESSIONS, SessionError, SessionFilter, SessionState,
    SessionStore,
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
    let mut asked = Vec::new();
    for id in sessions {
        if let Some(turn) = running_turn(journal, &id).await? {
            let session = id.clone();
            let request = move |journal: &Journal| journal.request_stop(&session, turn);
            journal.spawn_blocking(request).await?;
            asked.push(id);
        }
    }
    Ok(asked)
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
            if running_turn(journal, &id).await?.is_some() {
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

/// Whether a turn of a session runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnActivity {
    /// No turn runs.
    Idle,
    /// A turn runs, or begins.
    Running,
}

/// Claims a session with a journal handle of its own, so that no turn begins until the handle is
/// closed. Claims nothing if a turn runs, or if a chat has the session open between two turns.
pub async fn claim_between_turns(
    journal: &Arc<Journal>,
    session: &str,
) -> Result<TurnActivity, SessionError> {
    let id = session.to_owned();
    let claim = move |journal: &Journal| journal.claim_session(&id);
    match journal.spawn_blocking(claim).await {
        Ok(()) => return Ok(TurnActivity::Idle),
        Err(JournalError::SessionInUse(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let queue = journal.queue(session).await?;
    let is_claimed = |message: &InboxMessage| message.state == InboxState::Claimed;
    let runs = queue.iter().any(is_claimed) || running_turn(journal, session).await?.is_some();
    Ok(match runs {
        true => TurnActivity::Running,
        false => TurnActivity::Idle,
    })
}

/// Returns the number of the turn of a session that a running process executes.
async fn running_turn(journal: &Arc<Journal>, session: &str) -> Result<Option<u32>, SessionError> {
    if journal.get(session).await?.state != SessionState::Busy {
        return Ok(None);
    }
    let opened = {
        let (journal, id) = (journal.clone(), session.to_owned());
        tokio::task::spawn_blocking(move || Session::open_read_only(&journal, &id))
    };
    match opened.await {
        Ok(Ok(session)) => Ok(session.has_open_turn().then(|| session.turn_number())),
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

/// Completes when another process requests that the open turn of a session is stopped, and removes
/// the request. Never completes without a journal.
pub(crate) fn until_stop_requested(
    session: &Session,
) -> impl Future<Output = ()> + Send + 'static + use<> {
    let (journal, id) = (session.journal().cloned(), session.id().to_owned());
    let turn = session.turn_number();
    async move {
        let Some(journal) = journal else {
            return std::future::pending().await;
        };
        tokio::time::sleep(FIRST_POLL_DELAY).await;
        while !journal.is_stop_requested(&id, turn).await {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        // The turn does not wait until the request is removed.
        drop(journal.spawn_blocking(move |journal| journal.withdraw_cancel_request(&id)));
    }
}
