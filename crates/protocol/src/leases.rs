//! Leases: which of several servers on one database runs which session.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use crate::ServerStoreError;

/// Learns until when the lease of a process lasts, on a clock of its own, and stops at that time
/// what must not outlive the lease.
pub trait LeaseObserver: Debug + Send + Sync {
    /// Returns the time of the clock.
    fn now(&self) -> Duration;
    /// Says that the lease lasts at least until a time of the clock.
    fn extend_to(&self, end: Duration);
}

/// The lease of a server on a database that several servers share. It promises:
///
/// - At any time at most one server can write to a session, whatever the clocks of the machines say
///   and however long a server was stopped: writes of another one fail with
///   [`ServerStoreError::TakenOver`].
/// - The sessions of a server that is dead are free after the duration of a lease. After a restart
///   of the database, all servers have this time to renew their leases.
#[async_trait]
pub trait ServerLeaseStore: Send + Sync {
    /// Returns the id of this server as the owner of sessions.
    fn owner(&self) -> &str;
    /// Declares the workspaces whose sessions this server runs, instead of those before.
    async fn declare_workspaces(&self, workspaces: Vec<String>) -> Result<(), ServerStoreError>;
    /// Waits until the lease of this server has ended before it was renewed more often than `seen`
    /// times, so that others may have taken over its sessions. Sets `seen`, which begins with 0.
    async fn lapse(&self, seen: &mut u64);
    /// Returns those of these sessions that this server had claimed and another one took over.
    async fn lost_sessions(&self, sessions: Vec<String>) -> Result<Vec<String>, ServerStoreError>;
}
