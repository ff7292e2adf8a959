//! The items of a session that clients of the agent server read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use selvedge_agent::SessionPages;
use selvedge_journal::Journal;
use selvedge_server::{HostError, HostedItems};
use serde_json::json;

use crate::serve_errors::agent_failure;

/// Most sessions whose turns stay counted.
const MAX_COUNTED_SESSIONS: usize = 1000;

/// The counted turns of the sessions whose items clients read.
#[derive(Default)]
pub(crate) struct ItemPages(Mutex<HashMap<String, Arc<Mutex<SessionPages>>>>);

impl ItemPages {
    /// Returns at most `limit` items of a session after the first `after`. `journal` is a handle
    /// without claims.
    pub(crate) async fn read(
        &self,
        journal: &Arc<Journal>,
        session: &str,
        after: u64,
        limit: usize,
    ) -> Result<HostedItems, HostError> {
        let (pages, id) = (self.of_session(session), session.to_owned());
        let read = move |journal: &Journal| {
            let mut pages = pages.lock().unwrap_or_else(PoisonError::into_inner);
            pages.read(journal, &id, after, limit)
        };
        let page = journal.spawn_blocking(read).await;
        let page = page.map_err(|error| agent_failure(&error))?;
        let items = page.items.into_iter();
        let items = items.map(|(turn, item)| (turn, json!(item.without_native())));
        Ok(HostedItems {
            items: items.collect(),
            total: page.total,
        })
    }

    fn of_session(&self, session: &str) -> Arc<Mutex<SessionPages>> {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.len() >= MAX_COUNTED_SESSIONS && !counted.contains_key(session) {
            // They are counted again when a client reads them.
            counted.clear();
        }
        counted.entry(session.to_owned()).or_default().clone()
    }
}
