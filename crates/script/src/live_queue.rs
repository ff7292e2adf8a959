//! The queue of live runs: scripts beyond the limits wait until others have ended.

use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::live::{LiveRunEntry, LiveRunLists, LiveRunSummary, LiveRunsShared};

/// Limits of live runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRunLimits {
    /// Maximum number of runs at the same time. Further runs are queued.
    pub max_running: usize,
    /// Maximum number of runs of one session at the same time. Further runs are queued.
    pub max_running_per_session: usize,
    /// Maximum number of queued runs. Further runs are rejected.
    pub max_queued: usize,
    /// Maximum number of ended runs whose output can still be read.
    pub max_ended: usize,
    /// Time that a run has to end after its time limit. Then it is aborted.
    pub grace: Duration,
}

impl Default for LiveRunLimits {
    fn default() -> Self {
        Self {
            max_running: 32,
            max_running_per_session: 8,
            max_queued: 64,
            max_ended: 32,
            grace: Duration::from_secs(10),
        }
    }
}

/// A script cannot be started because the queue of live runs is full.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{running} scripts are running and {queued} are queued, which is the limit: the oldest, {}",
    describe(.oldest)
)]
pub struct TooManyRuns {
    /// Number of running scripts.
    pub running: usize,
    /// Number of queued scripts.
    pub queued: usize,
    /// The oldest run, which the caller can wait for or cancel.
    pub oldest: Box<LiveRunSummary>,
}

fn describe(run: &LiveRunSummary) -> String {
    let name = run.name.as_ref().map(|name| format!(" ({name})"));
    let name = name.unwrap_or_default();
    format!("{}{name}, has run for {} s", run.id, run.age.as_secs())
}

/// The message for a client whose script is queued.
pub(crate) const QUEUED_MESSAGE: &str =
    "queued: the script starts when one of the running scripts ends";

/// Whether a new run starts at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Started,
    Queued,
}

impl LiveRunsShared {
    /// Adds a run to the list. It starts at once if the limits allow it.
    pub(crate) fn admit(&self, entry: &Arc<LiveRunEntry>) -> Result<Admission, TooManyRuns> {
        let mut runs = self.lock_lists();
        runs.running.push(entry.clone());
        if self.start_if_next(&runs, entry) {
            return Ok(Admission::Started);
        }
        let queued = runs.running.iter().filter(|run| run.is_queued()).count() - 1;
        if queued < self.limits.max_queued {
            return Ok(Admission::Queued);
        }
        runs.running.pop();
        let oldest = runs.running.first().unwrap_or(entry);
        Err(TooManyRuns {
            running: runs.running.len() - queued,
            queued,
            oldest: Box::new(oldest.summary()),
        })
    }

    /// Waits until the run may start. Returns false if it is cancelled first.
    pub(crate) async fn wait_in_queue(shared: &Weak<Self>, entry: &Arc<LiveRunEntry>) -> bool {
        while entry.is_queued() {
            let Some(runs) = shared.upgrade() else {
                return false;
            };
            let queue_changed = runs.queue_changed.clone();
            let changed = queue_changed.notified();
            tokio::pin!(changed);
            // Registered before the check, so that no change in between is missed.
            changed.as_mut().enable();
            if runs.start_if_next(&runs.lock_lists(), entry) {
                // There may be room for the next one, too.
                queue_changed.notify_waiters();
                return true;
            }
            // Held while it waits, the runs would never be dropped and cancelled.
            drop(runs);
            tokio::select! {
                biased;
                () = entry.cancel.cancelled() => return false,
                () = changed => {}
            }
        }
        true
    }

    fn lock_lists(&self) -> MutexGuard<'_, LiveRunLists> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a queued run if the limits allow it and no older run may start instead.
    fn start_if_next(&self, runs: &LiveRunLists, entry: &Arc<LiveRunEntry>) -> bool {
        let started = |run: &&Arc<LiveRunEntry>| !run.is_queued();
        if runs.running.iter().filter(started).count() >= self.limits.max_running {
            return false;
        }
        let has_room = |session: &str| {
            let own = runs.running.iter().filter(|run| run.session == session);
            own.filter(started).count() < self.limits.max_running_per_session
        };
        let mut queued = runs.running.iter().filter(|run| run.is_queued());
        let next = queued.find(|run| !run.cancel.is_cancelled() && has_room(&run.session));
        next.is_some_and(|next| Arc::ptr_eq(next, entry))
            && entry.started_at.set(Instant::now()).is_ok()
    }
}
