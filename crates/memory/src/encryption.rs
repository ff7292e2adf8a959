//! Encrypts an existing memory: texts, names and vectors are encrypted (`encrypt` in SQL), terms of
//! the index are replaced by keyed digests (`keyed_digest` in SQL).
//!
//! Search works with the digest of each stemmed word as it does with the word. Not encrypted are:
//! names and folders of sessions, roles, times, the lengths of turns, and which digests a turn has.

use selvedge_database::{ColumnContent, ColumnFunction, EncodedColumn, NamedLockMode, params};

use crate::{Memory, MemoryError};

/// The encrypted columns of each table. Those named in [`BYTE_COLUMNS`] have bytes, the others
/// texts.
const ENCRYPTED_COLUMNS: [(&str, &str); 15] = [
    ("memory_turns", "key speaker raw"),
    ("memory_levels", "smoothed compressed tiny topics"),
    ("memory_parts", "label"),
    ("memory_speakers", "name"),
    ("memory_eras", "text"),
    ("memory_gradients", "text"),
    (
        "memory_lessons",
        "title topics keywords content note vector",
    ),
    ("memory_topics", "name category"),
    ("memory_topic_weeks", "name"),
    ("memory_areas", "name note"),
    ("memory_requests", "answer"),
    ("memory_board", "text"),
    ("memory_briefs", "text"),
    ("memory_documents", "title"),
    ("memory_vectors", "data"),
];

const BYTE_COLUMNS: [&str; 3] = ["raw", "data", "vector"];

/// The lock of transactions that write (shared) and of the one that encrypts what they wrote
/// (exclusive).
pub(crate) const ENCRYPTION_LOCK: &str = "memory_encryption";

impl Memory {
    /// Encrypts all existing data in one transaction, and stores the fingerprint of the key. Does
    /// nothing if another process has done so.
    pub(crate) fn encrypt_existing_data(&self, key_fingerprint: &[u8]) -> Result<(), MemoryError> {
        {
            let connection = self.writer();
            let transaction = connection.begin_write()?;
            transaction.lock_name(ENCRYPTION_LOCK, NamedLockMode::Exclusive);
            let key_count: i64 = transaction.query_row(
                "SELECT count(*) FROM memory_encryption",
                params![],
                |row| row.get(0),
            )?;
            if key_count == 0 {
                for (table, columns) in ENCRYPTED_COLUMNS {
                    let encrypted = |name: &'static str| EncodedColumn {
                        name,
                        function: ColumnFunction::Encrypt,
                        content: match BYTE_COLUMNS.contains(&name) {
                            true => ColumnContent::Bytes,
                            false => ColumnContent::Text,
                        },
                    };
                    let columns: Vec<_> = columns.split(' ').map(encrypted).collect();
                    transaction.encode_columns(table, &columns)?;
                }
                let term = EncodedColumn {
                    name: "term",
                    function: ColumnFunction::KeyedDigest,
                    content: ColumnContent::Text,
                };
                transaction.encode_columns("memory_postings", &[term])?;
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::schema::MEMORY_TABLES;

    #[test]
    fn all_coded_columns_of_the_schema_are_encrypted() {
        let mut declared = BTreeSet::new();
        let migrations = MEMORY_TABLES.migrations.iter();
        let schema: String = migrations.map(|migration| migration.sql()).collect();
        for statement in schema.split(';') {
            let words: Vec<&str> = statement.split_whitespace().collect();
            let after = |word: &str| words.iter().position(|other| *other == word);
            let Some(table) = after("TABLE").and_then(|at| words.get(at + 1)) else {
                continue;
            };
            for window in words.windows(3) {
                if window[1] == "CODED" {
                    declared.insert((*table, window[0].trim_start_matches('(')));
                }
            }
        }
        let texts = ENCRYPTED_COLUMNS.iter().flat_map(|(table, columns)| {
            let columns = columns.split(' ').map(move |column| (*table, column));
            columns.filter(|(_, column)| !BYTE_COLUMNS.contains(column))
        });
        let encrypted: BTreeSet<_> = texts.chain([("memory_postings", "term")]).collect();
        assert_eq!(encrypted, declared);
    }
}
