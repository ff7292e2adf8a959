//! Drops guests in the background: the ticker thread, which is awake anyway, resets their memory,
//! so that the caller does not wait for it.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::execution::Guest;
use crate::runtime::{Execution, Fault, GuestStep, Host, Position, Settlement};
use crate::snapshot::GuestSnapshot;

/// A guest that is dropped on the ticker thread. `None` only while it is being dropped.
pub(crate) struct DeferredDropGuest(Option<Guest>);

impl DeferredDropGuest {
    pub(crate) fn new(guest: Guest) -> Self {
        Self(Some(guest))
    }
}

impl Execution for DeferredDropGuest {
    fn settle<'a>(
        &'a mut self,
        id: u32,
        settlement: Settlement<'a>,
    ) -> BoxFuture<'a, Result<GuestStep, Fault>> {
        match &mut self.0 {
            Some(guest) => guest.settle(id, settlement),
            None => Box::pin(std::future::ready(Err(dropped_error()))),
        }
    }

    fn snapshot(&mut self) -> Result<GuestSnapshot, Fault> {
        self.0
            .as_mut()
            .map_or_else(|| Err(dropped_error()), Execution::snapshot)
    }

    fn heap_peak(&self) -> u64 {
        self.0.as_ref().map_or(0, Execution::heap_peak)
    }
}

impl Drop for DeferredDropGuest {
    fn drop(&mut self) {
        if let Some(guest) = self.0.take() {
            guest.drop_in_background();
        }
    }
}

fn dropped_error() -> Fault {
    Fault::Engine("the guest was already dropped".into())
}

/// Replaces the host of a guest that waits to be dropped: the real host belongs to the caller and
/// is dropped at once.
pub(crate) struct NullHost;

impl Host for NullHost {
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
