//! Tells open requests when their token is revoked or expires.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use selvedge_protocol::{ApiToken, ApiTokenStore, since_epoch};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often the tokens of open requests are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The ids of tokens that were revoked or have expired.
pub(crate) struct TokenWatch {
    invalid: watch::Sender<HashSet<String>>,
    tokens: Arc<dyn ApiTokenStore>,
}

impl TokenWatch {
    pub(crate) fn new(tokens: Arc<dyn ApiTokenStore>) -> Arc<Self> {
        Arc::new(Self {
            invalid: watch::Sender::default(),
            tokens,
        })
    }

    /// Checks the tokens while requests are open, until the server stops.
    pub(crate) async fn run(self: Arc<Self>, stopping: CancellationToken) {
        while !stopping.is_cancelled() {
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = stopping.cancelled() => return,
            }
            if self.invalid.receiver_count() == 0 {
                continue;
            }
            let now = since_epoch().as_millis() as i64;
            match self.tokens.tokens().await {
                Ok(tokens) => {
                    let invalid = tokens.into_iter().filter(|token| !token.is_valid_at(now));
                    let invalid = invalid.map(|token| token.id).collect();
                    self.invalid.send_if_modified(|known| {
                        let is_new = *known != invalid;
                        *known = invalid;
                        is_new
                    });
                }
                // The tokens stay as they were.
                Err(error) => tracing::error!(%error, "cannot read the tokens"),
            }
        }
    }

    /// Returns whether a token is valid now. If the tokens cannot be read, it stays as it was.
    pub(crate) async fn is_valid(&self, token: &str) -> bool {
        let now = since_epoch().as_millis() as i64;
        let tokens = self.tokens.tokens().await;
        let is_valid = |other: &ApiToken| other.id == token && other.is_valid_at(now);
        tokens.map_or(true, |tokens| tokens.iter().any(is_valid))
    }

    /// Waits until a token is not valid any more.
    pub(crate) fn until_invalid(&self, token: String) -> impl Future<Output = ()> + use<> {
        let mut invalid = self.invalid.subscribe();
        async move {
            let ended = invalid.wait_for(|invalid| invalid.contains(&token));
            let is_stopping = ended.await.is_err();
            if is_stopping {
                // The server stops, and ends its responses itself.
                std::future::pending::<()>().await;
            }
        }
    }
}
