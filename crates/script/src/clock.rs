//! The two time limits of a run: that of the script, and that of the whole run.

use std::time::{Duration, Instant};

use selvedge_protocol::LimitKind;

/// Counts down the time limits of a run. Each call has a limit of its own, which the orchestrator
/// enforces.
#[derive(Debug)]
pub(crate) struct RunClock {
    /// Counts while the script computes or waits without a running call.
    script: Countdown,
    /// Counts unless the run waits only for people.
    run: Countdown,
}

/// What a run does, which decides which of its limits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunActivity {
    /// The script computes, or waits for a timer or a write: both limits count.
    Script,
    /// A tool runs, within the limit of its call: the limit of the run counts.
    Calls,
    /// Everything waits for a person: no limit counts.
    Person,
}

/// What remains of the limits of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemainingTime {
    pub(crate) script: Duration,
    pub(crate) run: Duration,
}

impl RunClock {
    /// Starts a clock with this much time remaining.
    pub(crate) fn start(remaining: RemainingTime) -> Self {
        let mut clock = Self {
            script: Countdown::paused(remaining.script),
            run: Countdown::paused(remaining.run),
        };
        clock.set_activity(RunActivity::Script);
        clock
    }

    /// Sets what the run does from now on.
    pub(crate) fn set_activity(&mut self, activity: RunActivity) {
        self.script.set_counting(activity == RunActivity::Script);
        self.run.set_counting(activity != RunActivity::Person);
    }

    /// Returns what remains of the limits.
    pub(crate) fn remaining(&self) -> RemainingTime {
        RemainingTime {
            script: self.script.remaining(),
            run: self.run.remaining(),
        }
    }

    /// Returns when the first limit that counts is reached. `None` if none counts.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.script.deadline(), self.run.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the limit that the deadline belongs to.
    pub(crate) fn next_limit(&self) -> LimitKind {
        match (self.script.deadline(), self.run.deadline()) {
            (Some(script), Some(run)) if script <= run => LimitKind::Timeout,
            (Some(_), None) => LimitKind::Timeout,
            _ => LimitKind::RunTimeout,
        }
    }
}

/// A limit that counts down, or is paused.
#[derive(Debug)]
struct Countdown {
    remaining: Duration,
    counting_since: Option<Instant>,
}

impl Countdown {
    fn paused(remaining: Duration) -> Self {
        Self {
            remaining,
            counting_since: None,
        }
    }

    fn set_counting(&mut self, counting: bool) {
        if counting != self.counting_since.is_some() {
            self.remaining = self.remaining();
            self.counting_since = counting.then(Instant::now);
        }
    }

    fn remaining(&self) -> Duration {
        let counted = self.counting_since.map(|since| since.elapsed());
        self.remaining.saturating_sub(counted.unwrap_or_default())
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.counting_since? + self.remaining)
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
    fn what_the_run_does_decides_which_limit_counts() {
        let seconds = Duration::from_secs;
        let mut clock = RunClock::start(RemainingTime {
            script: seconds(50),
            run: seconds(500),
        });
        for (activity, limit, at_most) in [
            (RunActivity::Calls, LimitKind::RunTimeout, Some(500)),
            (RunActivity::Person, LimitKind::RunTimeout, None),
            (RunActivity::Script, LimitKind::Timeout, Some(50)),
        ] {
            clock.set_activity(activity);
            let left = clock.deadline().map(|at| at - Instant::now());
            assert_eq!(left.is_some(), at_most.is_some(), "{activity:?}");
            assert!(left <= at_most.map(seconds), "{activity:?}");
            assert_eq!(clock.next_limit(), limit, "{activity:?}");
        }
        assert!(clock.remaining().script > seconds(40) && clock.remaining().run > seconds(400));
    }

    #[test]
    fn a_script_with_more_time_than_the_run_ends_with_the_run() {
        let clock = RunClock::start(RemainingTime {
            script: Duration::from_secs(9),
            run: Duration::from_secs(3),
        });
        assert_eq!(clock.next_limit(), LimitKind::RunTimeout);
    }
}
