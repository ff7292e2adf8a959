//! The time limit of a running call.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Counts down the time limit of a call. Paused while the call waits for a person. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct CallClock(Arc<CallClockInner>);

#[derive(Debug)]
struct CallClockInner {
    state: Mutex<CallClockState>,
    /// Notified when the clock is paused or continues.
    changed: Notify,
}

#[derive(Debug)]
struct CallClockState {
    remaining: Duration,
    /// When the clock last continued. Meaningless while it is paused.
    counting_since: Instant,
    /// Number of waits for a person.
    pauses: u32,
}

impl CallClock {
    /// Starts a clock with this limit.
    pub(crate) fn start(limit: Duration) -> Self {
        Self(Arc::new(CallClockInner {
            state: Mutex::new(CallClockState {
                remaining: limit,
                counting_since: Instant::now(),
                pauses: 0,
            }),
            changed: Notify::new(),
        }))
    }

    /// Pauses the clock until the returned guard is dropped.
    pub(crate) fn pause(&self) -> CallClockPause {
        {
            let mut state = self.lock();
            if state.pauses == 0 {
                let counted = state.counting_since.elapsed();
                state.remaining = state.remaining.saturating_sub(counted);
            }
            state.pauses += 1;
        }
        self.0.changed.notify_waiters();
        CallClockPause(self.clone())
    }

    fn resume(&self) {
        {
            let mut state = self.lock();
            state.pauses -= 1;
            if state.pauses == 0 {
                state.counting_since = Instant::now();
            }
        }
        self.0.changed.notify_waiters();
    }

    /// Waits until the limit is reached.
    pub(crate) async fn expired(&self) {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            // Registered before the state is read: a change in between is not missed.
            changed.as_mut().enable();
            let deadline = {
                let state = self.lock();
                // A limit beyond what the clock can represent never ends.
                let end = state.counting_since.checked_add(state.remaining);
                end.filter(|_| state.pauses == 0)
            };
            match deadline {
                None => changed.await,
                Some(deadline) if deadline <= Instant::now() => return,
                Some(deadline) => tokio::select! {
                    () = tokio::time::sleep_until(deadline.into()) => {}
                    () = changed => {}
                },
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, CallClockState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pause of a call's clock, until it is dropped.
#[derive(Debug)]
pub(crate) struct CallClockPause(CallClock);

impl Drop for CallClockPause {
    fn drop(&mut self) {
        self.0.resume();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_paused_clock_does_not_expire() {
        let clock = CallClock::start(Duration::ZERO);
        let (first, second) = (clock.pause(), clock.pause());
        assert!(clock.expired().now_or_never().is_none());
        drop(first);
        assert!(clock.expired().now_or_never().is_none());
        drop(second);
        clock.expired().await;
    }

    #[test]
    fn a_pause_keeps_what_remains() {
        let clock = CallClock::start(Duration::from_secs(3600));
        drop(clock.pause());
        let remaining = clock.lock().remaining;
        assert!(remaining > Duration::from_secs(3500) && remaining <= Duration::from_secs(3600));
    }

    #[tokio::test]
    async fn a_clock_without_time_expires_at_once() {
        CallClock::start(Duration::ZERO).expired().await;
    }
}
