//! The time limit of a script.

use std::time::{Duration, Instant};

/// Time a script may wait for models, as a multiple of the largest time limit. Calls of models have
/// their own time limits.
const MODEL_WAIT_FACTOR: u32 = 2;

/// Counts down a script's time limit. It is paused while every pending call waits for a person.
/// While every pending call waits for a model, a second, longer limit counts down instead.
#[derive(Debug)]
pub(crate) struct ScriptClock {
    remaining: Duration,
    model_limit: Duration,
    model_remaining: Duration,
    mode: ClockMode,
}

/// Which limit counts down, and since when.
#[derive(Debug, Clone, Copy)]
enum ClockMode {
    Paused,
    Script(Instant),
    Models(Instant),
}

impl ScriptClock {
    /// Starts a clock with this much time remaining. `max_timeout` is the largest time limit that a
    /// script may have.
    pub(crate) fn start(remaining: Duration, max_timeout: Duration) -> Self {
        let model_limit = max_timeout * MODEL_WAIT_FACTOR;
        Self {
            remaining,
            model_limit,
            model_remaining: model_limit,
            mode: ClockMode::Script(Instant::now()),
        }
    }

    /// Restarts the clock with this much time remaining.
    pub(crate) fn restart(&mut self, remaining: Duration) {
        self.remaining = remaining;
        self.model_remaining = self.model_limit;
        self.mode = ClockMode::Script(Instant::now());
    }

    /// Counts down the script's time limit.
    pub(crate) fn count_script_time(&mut self) {
        if !matches!(self.mode, ClockMode::Script(_)) {
            self.pause();
            self.mode = ClockMode::Script(Instant::now());
        }
    }

    /// Counts down the time limit for models.
    pub(crate) fn count_model_time(&mut self) {
        if !matches!(self.mode, ClockMode::Models(_)) {
            self.pause();
            self.mode = ClockMode::Models(Instant::now());
        }
    }

    pub(crate) fn pause(&mut self) {
        match std::mem::replace(&mut self.mode, ClockMode::Paused) {
            ClockMode::Paused => {}
            ClockMode::Script(since) => {
                self.remaining = self.remaining.saturating_sub(since.elapsed())
            }
            ClockMode::Models(since) => {
                self.model_remaining = self.model_remaining.saturating_sub(since.elapsed());
            }
        }
    }

    /// Returns what remains of the script's time limit.
    pub(crate) fn remaining(&self) -> Duration {
        match self.mode {
            ClockMode::Script(since) => self.remaining.saturating_sub(since.elapsed()),
            ClockMode::Paused | ClockMode::Models(_) => self.remaining,
        }
    }

    /// Returns when the limit that counts down is reached. `None` if the clock is paused.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.mode {
            ClockMode::Paused => None,
            ClockMode::Script(since) => Some(since + self.remaining),
            ClockMode::Models(since) => Some(since + self.model_remaining),
        }
    }

    /// Returns the limit that counts down. `timeout` is the script's own.
    pub(crate) fn active_limit(&self, timeout: Duration) -> Duration {
        match self.mode {
            ClockMode::Models(_) => self.model_limit,
            ClockMode::Paused | ClockMode::Script(_) => timeout,
        }
    }
}

/// Sleeps until this instant; forever if it is `None`.
pub(crate) async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_clock_has_no_deadline() {
        let mut clock = ScriptClock::start(Duration::from_secs(5), Duration::from_secs(25));
        clock.pause();
        assert_eq!(clock.deadline(), None);
        clock.count_model_time();
        assert!(
            clock
                .deadline()
                .is_some_and(|deadline| deadline > Instant::now() + Duration::from_secs(40))
        );
        clock.count_script_time();
        assert!(
            clock
                .deadline()
                .is_some_and(|deadline| deadline > Instant::now() + Duration::from_secs(4))
        );
    }
}
