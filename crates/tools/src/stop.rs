//! Stopping a run from outside its process: whoever wants it says so to the ledger, which is asked now and then.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use selvedge_protocol::Ledger;

use crate::Scope;

/// A run that ends sooner is never asked about.
const FIRST: Duration = Duration::from_secs(1);
/// Then it is, this often.
const AGAIN: Duration = Duration::from_millis(500);

/// Why a run stopped, as far as it did not by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// Nobody outside has said anything.
    NotFromOutside,
    /// Somebody outside wanted it.
    FromOutside,
}

/// Lets a run of this scope come to its end, and cancels the scope when somebody outside wants it to stop.
pub async fn heeding<T>(
    ledger: Option<&Arc<dyn Ledger>>,
    scope: &Scope,
    mut run: Pin<&mut impl Future<Output = T>>,
) -> (T, Stopped) {
    let Some(ledger) = ledger else {
        return (run.await, Stopped::NotFromOutside);
    };
    let asked = async {
        tokio::time::sleep(FIRST).await;
        while !ledger.is_to_stop(&scope.id).await {
            tokio::time::sleep(AGAIN).await;
        }
    };
    tokio::select! {
        biased;
        ended = &mut run => return (ended, Stopped::NotFromOutside),
        () = asked => scope.cancel.cancel(),
    }
    (run.await, Stopped::FromOutside)
}
