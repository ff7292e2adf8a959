//! Sessions that the agent server keeps in memory between their turns, so that a turn does not read
//! all turns before it from the journal.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use selvedge_agent::KeptSession;

/// Most bytes that all kept sessions take.
const MAX_KEPT_BYTES: usize = 32 << 20;
/// How long a session without a turn is kept.
const MAX_IDLE_TIME: Duration = Duration::from_secs(10 * 60);

/// The sessions whose turns ended last, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct KeptSessions(Mutex<VecDeque<KeptEntry>>);

#[derive(Debug)]
struct KeptEntry {
    id: String,
    since: Instant,
    session: KeptSession,
}

impl KeptSessions {
    /// Takes a session, for its next turn.
    pub(crate) fn take(&self, id: &str) -> Option<KeptSession> {
        let mut kept = self.lock();
        let at = kept.iter().position(|entry| entry.id == id)?;
        kept.remove(at).map(|entry| entry.session)
    }

    /// Keeps a session, and drops the oldest ones beyond the limit.
    pub(crate) fn put(&self, id: &str, session: Option<KeptSession>) {
        let Some(session) = session else {
            return;
        };
        let mut kept = self.lock();
        kept.retain(|entry| entry.id != id);
        kept.push_back(KeptEntry {
            id: id.to_owned(),
            since: Instant::now(),
            session,
        });
        let mut bytes: usize = kept.iter().map(|entry| entry.session.size()).sum();
        while bytes > MAX_KEPT_BYTES
            && let Some(oldest) = kept.pop_front()
        {
            bytes -= oldest.session.size();
        }
    }

    /// Drops the sessions without a turn for some time.
    pub(crate) fn drop_idle(&self) {
        self.lock()
            .retain(|entry| entry.since.elapsed() < MAX_IDLE_TIME);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<KeptEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
