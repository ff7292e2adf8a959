//! Cancels a run at the request of another process, which leaves the request in the ledger.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use selvedge_protocol::Ledger;

use crate::Scope;

/// Age of a run at the first check. Most runs end sooner and are never checked.
const FIRST_CHECK_DELAY: Duration = Duration::from_secs(1);
/// Time between later checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Whether another process requested that a run is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExternalCancel {
    /// No request was found.
    NotRequested,
    /// A request was found, and the scope was cancelled.
    Requested,
}

/// Awaits a run of this scope. If another process requests that it is cancelled, cancels the
/// scope and awaits the end of the run.
pub async fn run_until_cancel_requested<T>(
    ledger: Option<&Arc<dyn Ledger>>,
    scope: &Scope,
    mut run: Pin<&mut impl Future<Output = T>>,
) -> (T, ExternalCancel) {
    tokio::select! {
        biased;
        ended = &mut run => return (ended, ExternalCancel::NotRequested),
        () = until_cancel_requested(ledger, &scope.id) => scope.cancel.cancel(),
    }
    (run.await, ExternalCancel::Requested)
}

/// Completes when another process requests that the run with this id is cancelled. Never completes
/// without a ledger.
pub async fn until_cancel_requested(ledger: Option<&Arc<dyn Ledger>>, id: &str) {
    let Some(ledger) = ledger else {
        return std::future::pending().await;
    };
    tokio::time::sleep(FIRST_CHECK_DELAY).await;
    while !ledger.is_cancel_requested(id).await {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}
