//! The interface to the numbered events of sessions.

use async_trait::async_trait;
use serde_json::Value;

use crate::ServerStoreError;

/// Most events that one read returns.
pub const MAX_EVENT_READ: u32 = 500;
/// Size of the events of one read, in bytes, after which it returns no further event.
pub const MAX_EVENT_READ_BYTES: usize = 1 << 20;

/// A stored event of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionEvent {
    /// Position among the events of the session, counted from 1 without gaps.
    pub number: u64,
    /// The event, as `exec --json` prints it.
    pub body: Value,
}

/// Stores the events of sessions. It promises:
///
/// - Gapless: the events of a session have the numbers 1, 2, 3 and so on, whichever server appends.
/// - In order: after a reader has seen an event, no event with a lower number appears. So a reader
///   continues after the last number that it has seen, at any server.
/// - All or none: events that are appended together are stored together and once, also if the
///   connection to the storage is lost meanwhile.
/// - Fenced: a server that lost its claim of a session cannot append to it
///   ([`ServerStoreError::TakenOver`]).
/// - What a future that returned `Ok` has stored survives a crash of this process.
#[async_trait]
pub trait SessionEventStore: Send + Sync {
    /// Appends events, all or none, and returns the number of the first one. Fails with
    /// [`ServerStoreError::TakenOver`] if this process lost its claim on the session.
    async fn append_events(
        &self,
        session: &str,
        bodies: Vec<Value>,
    ) -> Result<u64, ServerStoreError>;
    /// Waits until another process may have appended events of a session, and sets `seen`, which
    /// begins with 0. It may miss some or never return, so that callers also poll.
    async fn events_changed(&self, _session: &str, _seen: &mut u64) {
        std::future::pending().await
    }
    /// Returns up to `limit` events after a number, in order: at least one if there is one, and
    /// fewer if they have more than [`MAX_EVENT_READ_BYTES`].
    async fn events_after(
        &self,
        session: &str,
        after: u64,
        limit: u32,
    ) -> Result<Vec<SessionEvent>, ServerStoreError>;
    /// Returns up to `limit` events of these types after a number, in order: at least one if there
    /// is one, and fewer if they have more than [`MAX_EVENT_READ_BYTES`].
    async fn events_of_kinds(
        &self,
        session: &str,
        kinds: &[&str],
        after: u64,
        limit: u32,
    ) -> Result<Vec<SessionEvent>, ServerStoreError>;
    /// Returns the newest event of a type.
    async fn latest_event(
        &self,
        session: &str,
        kind: &str,
    ) -> Result<Option<SessionEvent>, ServerStoreError> {
        // Numbers of SQL are signed.
        self.event_before(session, kind, i64::MAX.unsigned_abs())
            .await
    }
    /// Returns the newest event of a type before a number.
    async fn event_before(
        &self,
        session: &str,
        kind: &str,
        before: u64,
    ) -> Result<Option<SessionEvent>, ServerStoreError>;
}
