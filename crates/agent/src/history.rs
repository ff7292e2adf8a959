//! What of the past a model is told: strategies behind one trait.

use selvedge_protocol::Item;

use crate::record::Step;

/// Chooses what a request says of earlier turns. The turn itself is always told whole.
pub trait Strategy: Send + Sync {
    /// What goes before the newest message. The same past must give the same items, so that caches hold.
    fn before(&self, past: &Past<'_>) -> Vec<Item>;
}

/// What there is to choose from.
#[derive(Debug, Clone, Copy)]
pub struct Past<'a> {
    /// The session.
    pub session: &'a str,
    /// The turn that is under way.
    pub turn: u32,
    /// The steps of earlier turns, from the last compaction on.
    pub steps: &'a [Step],
    /// Tokens there is room for, about.
    pub room: u64,
}

/// Everything that was said, as it was said.
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

/// Nothing: every turn stands alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct OneShot;

impl Strategy for OneShot {
    fn before(&self, _: &Past<'_>) -> Vec<Item> {
        Vec::new()
    }
}
