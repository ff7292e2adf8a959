//! [`SessionPages`]: pages of the items of a stored session, without reading all of it each time.

use selvedge_journal::Journal;
use selvedge_protocol::TurnItem;

use crate::AgentError;
use crate::session::{history_of, parse_rows};

/// The last number that a stored row can have.
const LAST_ROW: u32 = i32::MAX as u32;

/// How many items the turns of a session have, as far as they were counted. The last turn, which
/// may grow, is counted each time.
#[derive(Debug, Default)]
pub struct SessionPages {
    /// The turns that were counted, the oldest first.
    turns: Vec<CountedTurn>,
    /// The number of the first row after these turns.
    next_row: u32,
    /// The number of rows of these turns.
    rows: u32,
}

#[derive(Debug, Clone, Copy)]
struct CountedTurn {
    number: u32,
    first_row: u32,
    last_row: u32,
    /// Number of items of the turns before.
    before: u64,
    items: u64,
}

/// A part of the items of a session.
#[derive(Debug, PartialEq)]
pub struct SessionPage {
    /// The items with the numbers of their turns.
    pub items: Vec<(u32, TurnItem)>,
    /// The number of all items of the session.
    pub total: u64,
}

impl SessionPages {
    /// Reads at most `limit` items after the first `after` ones, in the order of
    /// [`Session::history`](crate::Session::history). Blocks while it reads.
    pub fn read(
        &mut self,
        journal: &Journal,
        session: &str,
        after: u64,
        limit: usize,
    ) -> Result<SessionPage, AgentError> {
        let (rows, _) = journal.count_items_before(session, self.next_row)?;
        if rows != self.rows {
            // A part of the session was deleted.
            *self = Self::default();
        }
        let counted = self.items();
        let fresh = journal.items_between(session, self.next_row..=LAST_ROW)?;
        let places: Vec<(u32, u32)> = fresh.iter().map(|row| (row.turn, row.number)).collect();
        let fresh = history_of(&parse_rows(fresh)?.steps);
        let total = counted + fresh.len() as u64;
        let mut items = self.counted_items(journal, session, after, limit)?;
        let skipped = usize::try_from(after.saturating_sub(counted)).unwrap_or(usize::MAX);
        let rest = limit - items.len();
        self.count(&places, &fresh);
        items.extend(fresh.into_iter().skip(skipped).take(rest));
        Ok(SessionPage { items, total })
    }

    /// Returns the number of counted items.
    fn items(&self) -> u64 {
        self.turns.last().map_or(0, |turn| turn.before + turn.items)
    }

    /// Reads the part of a page that lies in counted turns.
    fn counted_items(
        &self,
        journal: &Journal,
        session: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<(u32, TurnItem)>, AgentError> {
        let end = after.saturating_add(limit as u64);
        let from = self
            .turns
            .partition_point(|turn| turn.before + turn.items <= after);
        let to = self.turns.partition_point(|turn| turn.before < end);
        let (Some(first), Some(last)) = (self.turns.get(from), self.turns[..to].last()) else {
            return Ok(Vec::new());
        };
        if first.number > last.number {
            return Ok(Vec::new());
        }
        let rows = journal.items_between(session, first.first_row..=last.last_row)?;
        let items = history_of(&parse_rows(rows)?.steps).into_iter();
        let skipped = usize::try_from(after - first.before).unwrap_or(usize::MAX);
        Ok(items.skip(skipped).take(limit).collect())
    }

    /// Counts the turns of these rows, except the last one. A place is a turn and a row.
    fn count(&mut self, places: &[(u32, u32)], items: &[(u32, TurnItem)]) {
        let mut turns = places.chunk_by(|one, next| one.0 == next.0).peekable();
        let mut rest = items;
        while let Some(turn) = turns.next()
            && turns.peek().is_some()
            && let (Some((number, first_row)), Some((_, last_row))) = (turn.first(), turn.last())
        {
            let own = rest.partition_point(|(turn, _)| turn == number);
            rest = &rest[own..];
            self.turns.push(CountedTurn {
                number: *number,
                first_row: *first_row,
                last_row: *last_row,
                before: self.items(),
                items: own as u64,
            });
            self.rows += turn.len() as u32;
            self.next_row = last_row + 1;
        }
    }
}
