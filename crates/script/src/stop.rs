//! Stopping a run from outside its process: whoever wants it says so to the ledger, which is asked now and then.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use selvedge_protocol::{ErrorCode, Ledger, ScriptError};
use selvedge_tools::Scope;

/// A run that ends sooner is never asked about.
const FIRST: Duration = Duration::from_secs(1);
/// Then it is, this often.
const AGAIN: Duration = Duration::from_millis(500);

/// Why a run stopped, as far as it did not by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// Nobody outside has said anything.
    NotFromOutside,
    /// Somebody outside wanted it.
    FromOutside,
}

/// Lets a run of this scope come to its end, and cancels the scope when somebody outside wants it to stop.
pub(crate) async fn heeding<T>(
    ledger: Option<&Arc<dyn Ledger>>,
    scope: &Scope,
    mut run: Pin<&mut impl Future<Output = T>>,
) -> (T, Stopped) {
    let Some(ledger) = ledger else { return (run.await, Stopped::NotFromOutside) };
    let asked = async {
        tokio::time::sleep(FIRST).await;
        while !ledger.is_to_stop(&scope.id) {
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

impl Stopped {
    /// Says so in the error of a run that was cancelled.
    pub(crate) fn tell(self, error: &mut ScriptError) {
        if self == Self::FromOutside && error.code == ErrorCode::ScriptCancelledError {
            error.message = "the script was cancelled with `selvedge runs cancel`".to_owned();
        }
    }
}
