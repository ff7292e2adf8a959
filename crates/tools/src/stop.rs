//! Stops a run at the request of another process, which leaves the request in the ledger.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use selvedge_protocol::Ledger;

use crate::Scope;

/// Age of a run at the first check. Most runs end sooner and are never checked.
const FIRST: Duration = Duration::from_secs(1);
/// Time between later checks.
const AGAIN: Duration = Duration::from_millis(500);

/// Whether another process requested that a run stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// No request was found.
    NotFromOutside,
    /// A stop was requested, and the scope was cancelled.
    FromOutside,
}

/// Awaits a run of this scope. If another process requests a stop, cancels the scope and awaits the
/// end of the run.
pub async fn heeding<T>(
    ledger: Option<&Arc<dyn Ledger>>,
    scope: &Scope,
    mut run: Pin<&mut impl Future<Output = T>>,
) -> (T, Stopped) {
    let Some(ledger) = ledger else {
        return (run.await, Stopped::NotFromOutside);
    };
    let stop_requested = async {
        tokio::time::sleep(FIRST).await;
        while !ledger.is_to_stop(&scope.id).await {
            tokio::time::sleep(AGAIN).await;
        }
    };
    tokio::select! {
        biased;
        ended = &mut run => return (ended, Stopped::NotFromOutside),
        () = stop_requested => scope.cancel.cancel(),
    }
    (run.await, Stopped::FromOutside)
}
