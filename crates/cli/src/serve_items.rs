//! The items of a session that clients of the agent server read.

use std::sync::Arc;

use selvedge_agent::{AgentError, Session};
use selvedge_journal::Journal;
use selvedge_server::{HostError, HostedItems};
use serde_json::json;

use crate::serve_errors::agent_failure;

/// Returns at most `limit` items of a session after the first `after`. `journal` is a handle
/// without claims, because a session that is opened and dropped releases its claim.
pub(crate) async fn read_items(
    journal: &Arc<Journal>,
    session: &str,
    after: u64,
    limit: usize,
) -> Result<HostedItems, HostError> {
    let (reader, id) = (journal.clone(), session.to_owned());
    let after = usize::try_from(after).unwrap_or(usize::MAX);
    let read = move |_: &Journal| {
        let session = Session::open_read_only(&reader, &id)?;
        let history = session.history();
        let total = history.len() as u64;
        let page = history.into_iter().skip(after).take(limit);
        let items = page.map(|(turn, item)| (turn, json!(item.without_native())));
        let items = items.collect();
        Ok::<_, AgentError>(HostedItems { items, total })
    };
    let items = journal.spawn_blocking(read).await;
    items.map_err(|error| agent_failure(&error))
}
