//! Encrypts an existing memory: texts, names and vectors are encrypted (`encrypt` in SQL), terms of
//! the index are replaced by keyed digests (`keyed_digest` in SQL).
//!
//! Search works with the digest of each stemmed word as it does with the word. Not encrypted are:
//! names and folders of sessions, roles, times, the lengths of turns, and which digests a turn has.

use selvedge_database::params;

use crate::{Memory, MemoryError};

/// The encrypted columns of each table.
const ENCRYPTED_COLUMNS: [(&str, &str); 15] = [
    ("memory_turns", "key speaker raw"),
    ("memory_levels", "smoothed compressed tiny"),
    ("memory_parts", "label"),
    ("memory_speakers", "name"),
    ("memory_eras", "text"),
    ("memory_gradients", "text"),
    ("memory_lessons", "title topics keywords content note"),
    ("memory_topics", "name category"),
    ("memory_topic_weeks", "name"),
    ("memory_areas", "name note"),
    ("memory_requests", "answer"),
    ("memory_board", "text"),
    ("memory_briefs", "text"),
    ("memory_documents", "title"),
    ("memory_vectors", "data"),
];

impl Memory {
    /// Encrypts all existing data in one transaction, and stores the fingerprint of the key. Does
    /// nothing if another process has done so.
    pub(crate) fn encrypt_existing_data(&self, key_fingerprint: &[u8]) -> Result<(), MemoryError> {
        {
            let connection = self.writer();
            let transaction = connection.begin_write()?;
            let seals: i64 = transaction.query_row(
                "SELECT count(*) FROM memory_encryption",
                params![],
                |row| row.get(0),
            )?;
            if seals == 0 {
                for (table, columns) in ENCRYPTED_COLUMNS {
                    let encrypted = |column| format!("{column} = encrypt({column})");
                    let columns: Vec<String> = columns.split(' ').map(encrypted).collect();
                    let sql = format!("UPDATE {table} SET {}", columns.join(", "));
                    transaction.execute(&sql, params![])?;
                }
                transaction.execute(
                    "UPDATE memory_postings SET term = keyed_digest(term)",
                    params![],
                )?;
                transaction.execute(
                    "INSERT INTO memory_encryption (key_fingerprint) VALUES (?1)",
                    params![key_fingerprint],
                )?;
            }
            transaction.commit()?;
        }
        // While another process reads, the write-ahead log keeps the plain text until it is done.
        match self.truncate_log() {
            Err(MemoryError::LogInUse) => Ok(()),
            done => done,
        }
    }
}
