//! [`MessageEnds`]: wakes requests that wait for the end of a message.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// What tells requests that a message of a session may have ended, as long as they wait.
#[derive(Debug, Default)]
pub(crate) struct MessageEnds(Mutex<HashMap<String, Arc<Notify>>>);

impl MessageEnds {
    /// Returns what is notified when a message of a session may have ended. A request creates the
    /// future that waits before it reads the message, so that it misses no end.
    pub(crate) fn of_session(&self, session: &str) -> Arc<Notify> {
        let mut waiting = self.lock();
        // Sessions without a request that waits need no entry.
        waiting.retain(|_, ended| Arc::strong_count(ended) > 1);
        waiting.entry(session.to_owned()).or_default().clone()
    }

    /// Wakes the requests that wait for messages of a session.
    pub(crate) fn notify(&self, session: &str) {
        if let Some(ended) = self.lock().get(session) {
            ended.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn an_end_wakes_the_requests_of_its_session() {
        let ends = MessageEnds::default();
        let (one, other) = (ends.of_session("one"), ends.of_session("other"));
        let same = ends.of_session("one");
        let waiting = [&one, &same, &other].map(|ended| ended.notified());
        ends.notify("one");
        let woken = waiting.map(|waiting| waiting.now_or_never().is_some());
        assert_eq!(woken, [true, true, false]);
    }

    #[test]
    fn sessions_without_requests_are_forgotten() {
        let ends = MessageEnds::default();
        for number in 0..100 {
            drop(ends.of_session(&number.to_string()));
        }
        assert_eq!(ends.lock().len(), 1);
    }
}
