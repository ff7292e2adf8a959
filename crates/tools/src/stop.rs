//! Stops a run at the request of another process, which leaves the request in the ledger.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use selvedge_protocol::Ledger;

use crate::Scope;

/// Age of a run at the first check. Most runs end sooner and are never checked.
const FIRST_CHECK_DELAY: Duration = Duration::from_secs(1);
/// Time between later checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Whether another process requested that a run stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExternalStop {
    /// No request was found.
    NotRequested,
    /// A stop was requested, and the scope was cancelled.
    Requested,
}

/// Awaits a run of this scope. If another process requests a stop, cancels the scope and awaits the
/// end of the run.
pub async fn run_or_stop_on_request<T>(
    ledger: Option<&Arc<dyn Ledger>>,
    scope: &Scope,
    mut run: Pin<&mut impl Future<Output = T>>,
) -> (T, ExternalStop) {
    let Some(ledger) = ledger else {
        return (run.await, ExternalStop::NotRequested);
    };
    let stop_requested = async {
        tokio::time::sleep(FIRST_CHECK_DELAY).await;
        while !ledger.is_stop_requested(&scope.id).await {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    tokio::select! {
        biased;
        ended = &mut run => return (ended, ExternalStop::NotRequested),
        () = stop_requested => scope.cancel.cancel(),
    }
    (run.await, ExternalStop::Requested)
}
