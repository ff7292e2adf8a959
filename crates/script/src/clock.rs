//! The time limit of a script.

use std::time::{Duration, Instant};

/// Time a script may wait for models, as a multiple of the longest time limit. Calls of models have
/// their own time limits.
const MODEL_WAIT_FACTOR: u32 = 2;

/// Counts down a script's time limit. It is paused while every pending call waits for a person.
/// While every pending call waits for a model, a second, longer limit counts down instead.
#[derive(Debug)]
pub(crate) struct Clock {
    left: Duration,
    model_limit: Duration,
    model_left: Duration,
    mode: Mode,
}

/// Which limit counts down, and since when.
#[derive(Debug, Clone, Copy)]
enum Mode {
    Paused,
    Script(Instant),
    Models(Instant),
}

impl Clock {
    /// Starts a clock with this much time left. `longest` is the longest time limit that a script
    /// may have.
    pub(crate) fn start(left: Duration, longest: Duration) -> Self {
        let model_limit = longest * MODEL_WAIT_FACTOR;
        Self {
            left,
            model_limit,
            model_left: model_limit,
            mode: Mode::Script(Instant::now()),
        }
    }

    /// Restarts the clock with this much time left.
    pub(crate) fn restart(&mut self, left: Duration) {
        self.left = left;
        self.model_left = self.model_limit;
        self.mode = Mode::Script(Instant::now());
    }

    /// Counts down the script's time limit.
    pub(crate) fn run(&mut self) {
        if !matches!(self.mode, Mode::Script(_)) {
            self.pause();
            self.mode = Mode::Script(Instant::now());
        }
    }

    /// Counts down the time limit for models.
    pub(crate) fn wait_for_models(&mut self) {
        if !matches!(self.mode, Mode::Models(_)) {
            self.pause();
            self.mode = Mode::Models(Instant::now());
        }
    }

    pub(crate) fn pause(&mut self) {
        match std::mem::replace(&mut self.mode, Mode::Paused) {
            Mode::Paused => {}
            Mode::Script(since) => self.left = self.left.saturating_sub(since.elapsed()),
            Mode::Models(since) => {
                self.model_left = self.model_left.saturating_sub(since.elapsed());
            }
        }
    }

    /// Returns what is left of the script's time limit.
    pub(crate) fn left(&self) -> Duration {
        match self.mode {
            Mode::Script(since) => self.left.saturating_sub(since.elapsed()),
            Mode::Paused | Mode::Models(_) => self.left,
        }
    }

    /// Returns when the limit that counts down is reached. `None` if the clock is paused.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.mode {
            Mode::Paused => None,
            Mode::Script(since) => Some(since + self.left),
            Mode::Models(since) => Some(since + self.model_left),
        }
    }

    /// Returns the limit that counts down. `timeout` is the script's own.
    pub(crate) fn limit(&self, timeout: Duration) -> Duration {
        match self.mode {
            Mode::Models(_) => self.model_limit,
            Mode::Paused | Mode::Script(_) => timeout,
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
        let mut clock = Clock::start(Duration::from_secs(5), Duration::from_secs(25));
        clock.pause();
        assert_eq!(clock.deadline(), None);
        clock.wait_for_models();
        assert!(
            clock
                .deadline()
                .is_some_and(|deadline| deadline > Instant::now() + Duration::from_secs(40))
        );
        clock.run();
        assert!(
            clock
                .deadline()
                .is_some_and(|deadline| deadline > Instant::now() + Duration::from_secs(4))
        );
    }
}
