//! Sealing what is remembered: texts, names and vectors are sealed, terms of the index are marked, numbers stay.
//!
//! The index keeps a keyed digest of each stemmed word instead of the word, so that search finds and ranks as it always
//! does. What the file still tells: names of sessions, roles, times, how long turns are, which digests a turn has.

use rusqlite::params;

use crate::{Memory, MemoryError};

/// What is sealed, table by table.
const SEALED: [(&str, &str); 10] = [
    ("memory_turns", "key speaker raw"),
    ("memory_levels", "smoothed compressed tiny"),
    ("memory_parts", "label"),
    ("memory_speakers", "name"),
    ("memory_eras", "text"),
    ("memory_gradients", "text"),
    ("memory_lessons", "title topics keywords content"),
    ("memory_topics", "name"),
    ("memory_board", "text"),
    ("memory_vectors", "data"),
];

impl Memory {
    /// Seals what was written in the clear, all or nothing, and notes with which key.
    pub(crate) fn seal_everything(&self, proof: &[u8]) -> Result<(), MemoryError> {
        {
            let mut connection = self.writer();
            let transaction =
                connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            let there: i64 =
                transaction.query_row("SELECT count(*) FROM memory_seal", [], |row| row.get(0))?;
            if there == 0 {
                for (table, columns) in SEALED {
                    let seal = |column| format!("{column} = sealed({column})");
                    let each: Vec<String> = columns.split(' ').map(seal).collect();
                    transaction.execute(&format!("UPDATE {table} SET {}", each.join(", ")), [])?;
                }
                transaction.execute("UPDATE memory_postings SET term = marked(term)", [])?;
                transaction.execute("INSERT INTO memory_seal VALUES (?1)", params![proof])?;
            }
            transaction.commit()?;
        }
        // Pages that were freed are overwritten. Where others read, the log keeps the past until they are done.
        match self.empty_log() {
            Err(MemoryError::StillRead) => Ok(()),
            done => done,
        }
    }
}
