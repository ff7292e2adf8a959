//! Limits how many turns run at once, for each sender.
//!
//! A turn that waits for the turn of another session gives its permit back meanwhile. Otherwise
//! turns that wait could hold all permits, and the turns that they wait for could not begin. A turn
//! that stops waiting is the next one that gets a permit, before turns that begin later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::keyed_semaphores::KeyedSemaphores;

/// The permits of all senders.
pub(crate) struct TurnPermits {
    semaphores: KeyedSemaphores,
}

impl TurnPermits {
    pub(crate) fn new(per_sender: usize) -> Self {
        Self {
            semaphores: KeyedSemaphores::new(per_sender),
        }
    }

    /// Waits until another turn of this sender may run.
    pub(crate) async fn acquire(&self, sender: &str) -> PermittedTurn {
        let permit = TurnPermit {
            semaphore: self.semaphores.get(sender),
            held: Arc::default(),
            acquiring: Arc::default(),
        };
        permit.hold().await;
        PermittedTurn { permit }
    }
}

/// A turn that may run. Its permit is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct PermittedTurn {
    permit: TurnPermit,
}

impl PermittedTurn {
    pub(crate) fn permit(&self) -> TurnPermit {
        self.permit.clone()
    }
}

impl Drop for PermittedTurn {
    fn drop(&mut self) {
        let mut held = lock(&self.permit.held);
        (held.permit, held.has_ended) = (None, true);
    }
}

/// The permit of a running turn.
#[derive(Debug, Clone)]
pub struct TurnPermit {
    semaphore: Arc<Semaphore>,
    held: Arc<Mutex<HeldPermit>>,
    /// Locked by the one task of the turn that waits for its permit.
    acquiring: Arc<tokio::sync::Mutex<()>>,
}

/// The permit, unless calls of the turn wait for other turns.
#[derive(Debug, Default)]
struct HeldPermit {
    permit: Option<OwnedSemaphorePermit>,
    waiting: usize,
    has_ended: bool,
}

impl TurnPermit {
    /// Waits for the turn of another session, and holds no permit meanwhile. If the wait is
    /// cancelled, the turn continues and gets the next permit.
    pub async fn wait_without<T>(&self, other_turn: impl Future<Output = T>) -> T {
        let waiting = WaitingCall::begin(self);
        let done = other_turn.await;
        drop(waiting);
        self.hold().await;
        done
    }

    fn needs_permit(&self) -> bool {
        let held = lock(&self.held);
        held.waiting == 0 && !held.has_ended && held.permit.is_none()
    }

    /// Waits for a permit, unless the turn has one or a call of it waits for another turn.
    pub async fn hold(&self) {
        if !self.needs_permit() {
            return;
        }
        let _acquiring = self.acquiring.lock().await;
        if !self.needs_permit() {
            return;
        }
        // The semaphore is never closed.
        let Ok(permit) = self.semaphore.clone().acquire_owned().await else {
            return;
        };
        let mut held = lock(&self.held);
        if held.waiting == 0 && !held.has_ended {
            held.permit = Some(permit);
        }
    }
}

/// A call that waits for another turn.
struct WaitingCall<'a>(&'a TurnPermit);

impl<'a> WaitingCall<'a> {
    fn begin(permit: &'a TurnPermit) -> Self {
        let mut held = lock(&permit.held);
        held.waiting += 1;
        held.permit = None;
        Self(permit)
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        lock(&self.0.held).waiting -= 1;
        let permit = self.0.clone();
        if permit.needs_permit()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // A cancelled call cannot wait for it.
            runtime.spawn(async move { permit.hold().await });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn a_turn_that_waits_gives_its_permit_to_another() {
        let permits = TurnPermits::new(1);
        let first = permits.acquire("ci").await;
        assert!(permits.acquire("ci").now_or_never().is_none());
        assert!(permits.acquire("other").now_or_never().is_some());
        let second = first.permit.wait_without(permits.acquire("ci"));
        // The second turn runs, so the first one waits for its permit.
        let mut second = std::pin::pin!(second);
        assert!((&mut second).now_or_never().is_none());
        assert!(permits.acquire("ci").now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_permit_is_taken_again_after_the_last_wait() {
        let permits = TurnPermits::new(1);
        let turn = permits.acquire("ci").await;
        let mut long = std::pin::pin!(turn.permit.wait_without(std::future::pending::<()>()));
        assert!((&mut long).now_or_never().is_none());
        // A shorter wait of the same turn takes no permit while the longer one lasts.
        turn.permit.wait_without(async {}).await;
        assert!(permits.acquire("ci").now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_turn_whose_wait_was_cancelled_gets_the_next_permit() {
        let permits = TurnPermits::new(1);
        let first = permits.acquire("ci").await;
        let mut wait = Box::pin(first.permit.wait_without(std::future::pending::<()>()));
        assert!((&mut wait).now_or_never().is_none());
        let second = permits.acquire("ci").await;
        drop(wait);
        assert!(first.permit.hold().now_or_never().is_none());
        // The task that was spawned stands in the queue before a turn that begins later.
        tokio::task::yield_now().await;
        let mut third = Box::pin(permits.acquire("ci"));
        assert!((&mut third).now_or_never().is_none());
        drop(second);
        first.permit.hold().await;
        assert!((&mut third).now_or_never().is_none());
        // A second call takes no second permit.
        assert!(first.permit.hold().now_or_never().is_some());
        drop(first);
        third.await;
    }

    #[tokio::test]
    async fn turns_that_stop_waiting_again_and_again_start_no_further_turns() {
        let permits = TurnPermits::new(2);
        let turns = [permits.acquire("ci").await, permits.acquire("ci").await];
        let mut begun = Vec::new();
        for turn in turns.iter().cycle().take(20) {
            let wait = turn.permit.wait_without(std::future::pending::<()>());
            assert!(wait.now_or_never().is_none());
            tokio::task::yield_now().await;
            begun.extend(permits.acquire("ci").now_or_never());
        }
        assert!(begun.is_empty(), "{} turns began", begun.len());
        // A turn that ended while it waited for its permit leaves it to others.
        let [first, second] = turns;
        let mut wait = Box::pin(first.permit.wait_without(std::future::pending::<()>()));
        assert!((&mut wait).now_or_never().is_none());
        let third = permits.acquire("ci").await;
        drop(wait);
        tokio::task::yield_now().await;
        drop(first);
        drop(third);
        tokio::task::yield_now().await;
        assert!(permits.acquire("ci").now_or_never().is_some());
        drop(second);
    }
}
