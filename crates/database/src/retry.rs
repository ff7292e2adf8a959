//! Repeats transactions that another one was in the way of, or whose connection was lost.

use std::time::{Duration, Instant};

use crate::{Connection, DatabaseError, DatabaseErrorKind};

/// How long a transaction is repeated while the database cannot be reached. A restart of the
/// database takes less.
const UNAVAILABLE_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a transaction is repeated because of other transactions.
const MAX_CONFLICTS: u32 = 20;
const MIN_PAUSE: Duration = Duration::from_millis(2);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Decides whether a failed transaction is repeated, and waits before.
///
/// A transaction is repeated only if nothing of it was written: it failed before its commit, or the
/// database answered that the commit failed.
#[derive(Debug)]
pub struct TransactionRetry {
    is_remote: bool,
    started: Instant,
    conflicts: u32,
    pause: Duration,
}

impl TransactionRetry {
    /// Begins with the first attempt.
    pub fn new(connection: &Connection) -> Self {
        Self {
            is_remote: connection.is_remote(),
            started: Instant::now(),
            conflicts: 0,
            pause: MIN_PAUSE,
        }
    }

    /// Returns whether the transaction that failed with this error is to be repeated now. Waits
    /// before it returns `true`.
    pub fn should_repeat(&mut self, error: &DatabaseError) -> bool {
        // SQLite lets one transaction write at a time.
        if !self.is_remote {
            return false;
        }
        let repeats = match error.kind() {
            DatabaseErrorKind::Unavailable => self.started.elapsed() < UNAVAILABLE_TIMEOUT,
            // Another transaction has inserted the row that this one found missing.
            DatabaseErrorKind::Conflict | DatabaseErrorKind::UniqueViolation => {
                self.conflicts += 1;
                self.conflicts <= MAX_CONFLICTS
            }
            _ => false,
        };
        if repeats {
            std::thread::sleep(self.pause);
            self.pause = (self.pause * 2).min(MAX_PAUSE);
        }
        repeats
    }
}
