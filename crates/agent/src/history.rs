//! [`HistoryStrategy`]: which earlier turns a prompt contains.

use selvedge_protocol::ConversationItem;

use crate::session_record::SessionStep;

/// Chooses which items of earlier turns a request contains. The current turn is always complete.
pub trait HistoryStrategy: Send + Sync {
    /// Returns the items that precede the current turn. Equal input must give equal output, so that
    /// prompt caches remain valid.
    fn earlier_items(&self, past: &PastTurns<'_>) -> Vec<ConversationItem>;
}

/// The earlier turns of a session.
#[derive(Debug, Clone, Copy)]
pub struct PastTurns<'a> {
    /// The id of the session.
    pub session: &'a str,
    /// The number of the current turn.
    pub turn: u32,
    /// The steps of earlier turns, from the last compaction on.
    pub steps: &'a [SessionStep],
    /// The size of the model's context, in tokens.
    pub context_window: u64,
}

/// All earlier turns, unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub struct RegularHistory;

impl HistoryStrategy for RegularHistory {
    fn earlier_items(&self, past: &PastTurns<'_>) -> Vec<ConversationItem> {
        past.steps
            .iter()
            .flat_map(|step| step.request_items.iter().cloned())
            .collect()
    }
}

/// No earlier turns.
#[derive(Debug, Clone, Copy, Default)]
pub struct OneShotHistory;

impl HistoryStrategy for OneShotHistory {
    fn earlier_items(&self, _: &PastTurns<'_>) -> Vec<ConversationItem> {
        Vec::new()
    }
}
