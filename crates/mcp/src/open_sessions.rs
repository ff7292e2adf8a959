//! The sessions of a server that have not ended, which decide who may use a run.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ids of the sessions that have not ended. Clones share them.
///
/// A run belongs to the session that started it. When that session has ended, the other sessions of
/// the server may use the run, too: they have the same token or, over standard input and output,
/// the same user.
#[derive(Clone, Default)]
pub struct OpenSessions(Arc<Mutex<HashSet<String>>>);

impl OpenSessions {
    /// Whether the session `requesting_session` may use a run that the session `owner` started.
    pub fn session_may_use(&self, requesting_session: &str, owner: &str) -> bool {
        requesting_session == owner || !self.lock().contains(owner)
    }

    /// Adds a session until the returned guard is dropped.
    pub(crate) fn add(&self, id: &str) -> OpenSessionGuard {
        self.lock().insert(id.to_owned());
        OpenSessionGuard {
            sessions: self.clone(),
            id: id.to_owned(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a session when it is dropped.
pub(crate) struct OpenSessionGuard {
    sessions: OpenSessions,
    id: String,
}

impl Drop for OpenSessionGuard {
    fn drop(&mut self) {
        self.sessions.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_private_to_its_session_until_the_session_ends() {
        let sessions = OpenSessions::default();
        let a = sessions.add("a");
        let _b = sessions.add("b");
        assert!(sessions.session_may_use("a", "a") && !sessions.session_may_use("b", "a"));
        drop(a);
        assert!(sessions.session_may_use("b", "a") && !sessions.session_may_use("c", "b"));
    }
}
