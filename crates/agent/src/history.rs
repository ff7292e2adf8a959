//! [`HistoryStrategy`](Strategy): which earlier turns a prompt contains.

use selvedge_protocol::Item;

use crate::record::Step;

/// Chooses which items of earlier turns a request contains. The current turn is always complete.
pub trait Strategy: Send + Sync {
    /// Returns the items that precede the current turn. Equal input must give equal output, so that
    /// prompt caches remain valid.
    fn before(&self, past: &Past<'_>) -> Vec<Item>;
}

/// The earlier turns of a session.
#[derive(Debug, Clone, Copy)]
pub struct Past<'a> {
    /// The id of the session.
    pub session: &'a str,
    /// The number of the current turn.
    pub turn: u32,
    /// The steps of earlier turns, from the last compaction on.
    pub steps: &'a [Step],
    /// The size of the model's context, in tokens.
    pub room: u64,
}

/// All earlier turns, unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub struct Regular;

impl Strategy for Regular {
    fn before(&self, past: &Past<'_>) -> Vec<Item> {
        past.steps
            .iter()
            .flat_map(|step| step.wire.iter().cloned())
            .collect()
    }
}

/// No earlier turns.
#[derive(Debug, Clone, Copy, Default)]
pub struct OneShot;

impl Strategy for OneShot {
    fn before(&self, _: &Past<'_>) -> Vec<Item> {
        Vec::new()
    }
}
