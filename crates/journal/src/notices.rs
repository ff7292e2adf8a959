//! Notices that another process has written. They only shorten the time until the next poll.

use std::sync::OnceLock;

use selvedge_database::{Connection, NoticeListener, PostgresUrl};

/// The topic of new messages to sessions.
pub(crate) const QUEUES_TOPIC: &str = "queues";

/// Returns the topic of new events of a session.
pub(crate) fn events_topic(session: &str) -> String {
    format!("events {session}")
}

/// The notices of a journal. The first one that waits for a notice makes a connection for them.
#[derive(Debug)]
pub(crate) struct JournalNotices {
    /// `None` if the journal is a file, which has no notices.
    database: Option<PostgresUrl>,
    listener: OnceLock<Option<NoticeListener>>,
}

impl JournalNotices {
    pub(crate) fn new(connection: &Connection) -> Self {
        Self {
            database: connection.address().cloned(),
            listener: OnceLock::new(),
        }
    }

    /// Waits until there is a notice about a topic after the first `seen` notices, and sets `seen`.
    /// Waits forever if there are no notices.
    pub(crate) async fn changed(&self, topic: &str, seen: &mut u64) {
        let start = || NoticeListener::start(self.database.as_ref()?).ok();
        match self.listener.get_or_init(start) {
            Some(listener) => listener.changed(topic, seen).await,
            None => std::future::pending().await,
        }
    }
}
