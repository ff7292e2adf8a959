//! Finds model servers on this machine.

use std::time::Duration;

use futures_util::future::join_all;

use crate::port_owner::port_owner;
use crate::{ModelClient, Provider};

/// How long a local server may take to list its models.
const DISCOVERY_TIMEOUT: Duration = Duration::from_millis(500);

/// A model server that is running.
#[derive(Debug, Clone, PartialEq)]
pub struct DiscoveredServer {
    /// The server as a provider.
    pub provider: Provider,
    /// Names of its models, in its order. There is at least one.
    pub models: Vec<String>,
    /// Id of the user whose process listens at its address; `None` if that is unknown.
    pub user: Option<u32>,
}

/// Asks local servers for their models, concurrently. The caller decides whether to use one: any
/// user of the machine may have started it.
///
/// Returns the servers that have at least one model, in the order of `candidates`. Providers that
/// are not on this machine are skipped.
pub async fn discover_servers(
    candidates: impl IntoIterator<Item = Provider>,
) -> Vec<DiscoveredServer> {
    let local = candidates.into_iter().filter(Provider::is_local);
    let requests = local.map(|provider| async {
        let client = ModelClient::new(provider).ok()?;
        let models = tokio::time::timeout(DISCOVERY_TIMEOUT, client.list_models()).await;
        let models = models.ok()?.ok()?;
        let provider = client.provider().clone();
        (!models.is_empty()).then(|| DiscoveredServer {
            user: provider.port().and_then(port_owner),
            provider,
            models,
        })
    });
    join_all(requests).await.into_iter().flatten().collect()
}
