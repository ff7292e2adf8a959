//! Stops a running script: a movable deadline and a cancellation that is final.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Deadline and cancellation flag of one script, shared by its owner and the engine that runs it.
#[derive(Debug)]
pub struct Leash {
    origin: Instant,
    /// In microseconds after `origin`.
    deadline: AtomicU64,
    cut: AtomicBool,
}

/// Whether a script may continue at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Run,
    Late,
    Cut,
}

impl Leash {
    /// Creates a handle whose deadline is `length` from now.
    pub fn new(length: Duration) -> Self {
        Self {
            origin: Instant::now(),
            deadline: AtomicU64::new(micros(length)),
            cut: AtomicBool::new(false),
        }
    }

    /// Moves the deadline.
    pub fn stop_at(&self, deadline: Instant) {
        self.deadline.store(
            micros(deadline.saturating_duration_since(self.origin)),
            Ordering::Relaxed,
        );
    }

    /// Cancels the script. A computing script notices at the next tick.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    pub(crate) fn verdict(&self) -> Verdict {
        if self.cut.load(Ordering::Relaxed) {
            Verdict::Cut
        } else if micros(self.origin.elapsed()) >= self.deadline.load(Ordering::Relaxed) {
            Verdict::Late
        } else {
            Verdict::Run
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
