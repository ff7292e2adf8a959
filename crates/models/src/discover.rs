//! Model servers on this machine.

use std::time::Duration;

use futures_util::future::join_all;

use crate::{Client, Provider};

/// How long a server on this machine may take to list its models.
const PATIENCE: Duration = Duration::from_millis(500);

/// A server that answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Where it is.
    pub provider: Provider,
    /// Its models, in its own order.
    pub models: Vec<String>,
}

/// Asks each of these servers for its models, all at once, and gives those that have any, in the order they were named.
/// Servers elsewhere are left alone.
pub async fn discover(candidates: impl IntoIterator<Item = Provider>) -> Vec<Found> {
    let local = candidates.into_iter().filter(Provider::is_local);
    let asked = local.map(|provider| async {
        let client = Client::new(provider).ok()?;
        let models = tokio::time::timeout(PATIENCE, client.models()).await;
        let models = models.ok()?.ok()?;
        let provider = client.provider().clone();
        (!models.is_empty()).then_some(Found { provider, models })
    });
    join_all(asked).await.into_iter().flatten().collect()
}
