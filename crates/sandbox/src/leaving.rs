//! A guest on its way out: its memory is cleared by the ticker's thread, which is awake anyway. Whoever ran it does not
//! wait for that.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::execution::Guest;
use crate::image::Image;
use crate::runtime::{Execution, Fault, Host, Outcome, Position, Pump};

/// A guest until it leaves.
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
        outcome: Outcome<'a>,
    ) -> BoxFuture<'a, Result<Pump, Fault>> {
        match &mut self.0 {
            Some(guest) => guest.settle(id, outcome),
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
    Fault::Engine("the guest has left".into())
}

/// Stands in for the host, which goes at once: it belongs to whoever ran the script.
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
