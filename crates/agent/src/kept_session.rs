//! [`KeptSession`]: what a session contains, kept in memory between two turns.

use selvedge_journal::Journal;

use crate::AgentError;
use crate::session_record::{SessionReader, SessionStep};

/// The content of a session that this process has given up. It is current as long as no other
/// process claims the session, and nothing of it is deleted.
#[derive(Debug)]
pub struct KeptSession {
    pub(crate) content: SessionReader,
    pub(crate) last_row_number: u32,
    /// The fencing number of the claim under which the content was read or written.
    pub(crate) claim: i64,
    pub(crate) measured: MeasuredSteps,
}

impl KeptSession {
    /// Returns about how many bytes of memory the content takes.
    pub fn size(&self) -> usize {
        self.measured.bytes
    }

    /// Returns whether the journal has the same content. This process must have claimed the
    /// session.
    pub(crate) fn is_current(&self, journal: &Journal, id: &str) -> Result<bool, AgentError> {
        // The number is the same if the last claim was not released, and else greater by one.
        let claims = self.claim..=self.claim + 1;
        if !journal
            .claim_number(id)
            .is_some_and(|claim| claims.contains(&claim))
        {
            return Ok(false);
        }
        let (_, last) = journal.count_items_before(id, 0)?;
        Ok(last == self.last_row_number)
    }
}

/// The size of the first steps of a session.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MeasuredSteps {
    count: usize,
    bytes: usize,
}

impl MeasuredSteps {
    /// Returns the size of all steps. Measures those that were added.
    pub(crate) fn with(self, steps: &[SessionStep]) -> Self {
        let added = steps.get(self.count..).unwrap_or_default();
        let size = |step: &SessionStep| {
            let items = serde_json::to_vec(&step.items).map_or(0, |json| json.len());
            let sent = serde_json::to_vec(&step.request_items).map_or(0, |json| json.len());
            items + sent
        };
        Self {
            count: steps.len(),
            bytes: self.bytes + added.iter().map(size).sum::<usize>(),
        }
    }
}
