//! When a running script must stop: a deadline that can be moved and a cut that cannot be undone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shared between whoever owns a script and the engine that runs it.
#[derive(Debug)]
pub struct Leash {
    origin: Instant,
    /// Microseconds after `origin`.
    deadline: AtomicU64,
    cut: AtomicBool,
}

/// What a leash says at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Run,
    Late,
    Cut,
}

impl Leash {
    /// A leash that ends `length` from now.
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

    /// Stops the script at once, wherever it is.
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
