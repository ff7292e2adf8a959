//! Rebuilds what is derived from turns: the index of words, the vectors, and the plan of the
//! gradient.

use std::collections::BTreeMap;

use selvedge_database::{Connection, params};

use crate::level_writer::read_level_text;
use crate::postings::PostingWriter;
use crate::store::{
    MemorySessionRow, execute, load_turn, lock_session, query_first, require_session, turn_id,
};
use crate::words::for_each_term;
use crate::{
    AssembledHistory, GradientOptions, Level, Memory, MemoryError, PlanStorage, turn_pieces,
};

/// Turns whose words are collected before they are written.
const TURNS_PER_WRITE: u32 = 2_000;

impl Memory {
    /// Builds the index of words of a session again, and deletes its vectors, which
    /// [`Memory::write_vectors`] computes again. Returns the number of indexed turns. Searches see
    /// the old index until the new one is complete.
    pub fn reindex(&self, session: &str) -> Result<u32, MemoryError> {
        self.write_missing_levels(session)?;
        self.write(|connection| {
            let found = lock_session(connection, session)?;
            let sql = "DELETE FROM memory_postings WHERE session = ?1";
            execute(connection, sql, params![found.id])?;
            let sql = "DELETE FROM memory_vectors WHERE id >= ?1 AND id < ?2";
            execute(
                connection,
                sql,
                params![found.id << 32, (found.id + 1) << 32],
            )?;
            let sql = "DELETE FROM memory_encoders WHERE session = ?1";
            execute(connection, sql, params![found.id])?;
            let mut indexed = 0;
            for first in (1..=found.turn_count).step_by(TURNS_PER_WRITE as usize) {
                let last = found.turn_count.min(first + TURNS_PER_WRITE - 1);
                let mut postings = PostingWriter::default();
                for number in first..=last {
                    indexed += self.index_turn(connection, &found, number, &mut postings)?;
                }
                postings.finish(connection)?;
            }
            Ok(indexed)
        })
    }

    /// Adds the words of a turn to the index, and returns 1; 0 if it was forgotten.
    fn index_turn(
        &self,
        connection: &Connection,
        session: &MemorySessionRow,
        number: u32,
        postings: &mut PostingWriter,
    ) -> Result<u32, MemoryError> {
        let Some(turn) = load_turn(connection, session.id, number)? else {
            return Ok(0);
        };
        let text = turn_pieces::searchable_text(turn.format, &turn.raw);
        let text = self.redact(&text);
        postings.add(session.id, number, &text);
        let sql = "SELECT made_by FROM memory_levels WHERE id = ?1";
        let id = params![turn_id(session.id, number)];
        let made_by: Option<String> = query_first(connection, sql, id, |row| row.get(0))?;
        if made_by.as_deref() == Some("model") {
            // New words of a model's summary find the turn, too.
            let mut terms = BTreeMap::new();
            for level in [Level::Smoothed, Level::Compressed, Level::Tiny] {
                let summary = read_level_text(connection, session.id, number, level)?;
                for_each_term(&summary.unwrap_or_default(), |term| {
                    _ = terms.insert(term.to_owned(), 1);
                });
            }
            for_each_term(&text, |term| _ = terms.remove(term));
            postings.add_terms(session.id, number, terms);
        }
        Ok(1)
    }

    /// Plans the gradient of a session again, also if the stored plan is still valid, and returns
    /// what a prompt contains. Plans for other budgets are made again when they are needed.
    pub fn replan(
        &self,
        session: &str,
        gradient: GradientOptions,
    ) -> Result<AssembledHistory, MemoryError> {
        self.write(|connection| {
            let found = require_session(connection, session)?;
            let sql = "DELETE FROM memory_gradients WHERE session = ?1";
            execute(connection, sql, params![found.id])
        })?;
        self.assemble(session, gradient, PlanStorage::Store)
    }
}
