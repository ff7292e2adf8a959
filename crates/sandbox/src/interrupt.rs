//! Stops a running script: a movable deadline and a cancellation that is final.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Deadline and cancellation flag of one script, shared by its owner and the engine that runs it.
#[derive(Debug)]
pub struct InterruptHandle {
    created_at: Instant,
    /// In microseconds after `created_at`.
    deadline_micros: AtomicU64,
    cancelled: AtomicBool,
}

/// Whether a script may continue at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterruptState {
    Continue,
    DeadlinePassed,
    Cancelled,
}

impl InterruptHandle {
    /// Creates a handle whose deadline is `length` from now.
    pub fn new(length: Duration) -> Self {
        Self {
            created_at: Instant::now(),
            deadline_micros: AtomicU64::new(as_micros_u64(length)),
            cancelled: AtomicBool::new(false),
        }
    }

    /// Moves the deadline.
    pub fn set_deadline(&self, deadline: Instant) {
        self.deadline_micros.store(
            as_micros_u64(deadline.saturating_duration_since(self.created_at)),
            Ordering::Relaxed,
        );
    }

    /// Cancels the script. A computing script notices at the next tick.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn state(&self) -> InterruptState {
        if self.cancelled.load(Ordering::Relaxed) {
            InterruptState::Cancelled
        } else if as_micros_u64(self.created_at.elapsed())
            >= self.deadline_micros.load(Ordering::Relaxed)
        {
            InterruptState::DeadlinePassed
        } else {
            InterruptState::Continue
        }
    }
}

fn as_micros_u64(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
