//! Drops guests in the background: the ticker thread, which is awake anyway, resets their memory,
//! so that the caller does not wait for it.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::execution::Guest;
use crate::image::Image;
use crate::runtime::{Execution, Fault, Host, Outcome, Position, Pump};

/// A guest that is dropped on the ticker thread. `None` only while it is being dropped.
pub(crate) struct Leaving(Option<Guest>);

impl Leaving {
    pub(crate) fn new(guest: Guest) -> Self {
        Self(Some(guest))
    }
}

impl Execution for Leaving {
    fn settle<'a>(
        &'a mut self,
        id: u32,
        settlement: Outcome<'a>,
    ) -> BoxFuture<'a, Result<Pump, Fault>> {
        match &mut self.0 {
            Some(guest) => guest.settle(id, settlement),
            None => Box::pin(std::future::ready(Err(gone()))),
        }
    }

    fn snapshot(&mut self) -> Result<Image, Fault> {
        self.0
            .as_mut()
            .map_or_else(|| Err(gone()), Execution::snapshot)
    }

    fn heap_peak(&self) -> u64 {
        self.0.as_ref().map_or(0, Execution::heap_peak)
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(guest) = self.0.take() {
            guest.leave();
        }
    }
}

fn gone() -> Fault {
    Fault::Engine("the guest was already dropped".into())
}

/// Replaces the host of a guest that waits to be dropped: the real host belongs to the caller and
/// is dropped at once.
pub(crate) struct Nobody;

impl Host for Nobody {
    fn now(&mut self) -> f64 {
        0.0
    }

    fn message<'a>(&'a mut self, _: &'a str, _: &'a str) -> BoxFuture<'a, Option<String>> {
        std::future::ready(None).boxed()
    }

    fn locate(&mut self, _: Position) -> Option<Position> {
        None
    }
}
