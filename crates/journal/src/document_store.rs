//! The File Cabinet: documents stored under short random keys, which expire after thirty days.

use std::time::Duration;

use rusqlite::{Connection, Row, params};
use selvedge_protocol::{
    DOCUMENT_RETENTION, Document, DocumentInfo, DocumentKind, DocumentStore, LedgerError,
    NewDocument, new_document_key,
};
use serde::{Deserialize, Serialize};

use crate::connection::{execute, query_first};
use crate::crypto::KeyedHash;
use crate::time::now_ms;
use crate::{Journal, JournalError};

/// The size of the largest document that is accepted.
const MAX_DOCUMENT_BYTES: usize = 64 << 20;
/// The total size of all documents. The oldest web pages are removed to make room.
const MAX_TOTAL_BYTES: i64 = 512 << 20;
/// How many random keys are tried before saving fails. A collision is practically impossible.
const MAX_KEY_ATTEMPTS: usize = 8;

/// The description of a document, stored as a payload so that it is encrypted like the content.
#[derive(Serialize, Deserialize)]
struct DocumentDescription {
    title: String,
    source: String,
    media_type: String,
}

impl DocumentStore for Journal {
    fn save(&self, document: &NewDocument<'_>) -> Result<DocumentInfo, LedgerError> {
        let keys = std::iter::repeat_with(new_document_key).take(MAX_KEY_ATTEMPTS);
        self.save_under_first_free(keys, document)
    }

    fn save_as(&self, key: &str, document: &NewDocument<'_>) -> Result<DocumentInfo, LedgerError> {
        self.save_under_first_free(std::iter::once(key.to_owned()), document)
    }

    fn get(&self, key: &str) -> Result<Option<Document>, LedgerError> {
        let which = "key = ?1 AND saved_ms > ?2";
        Ok(self.find_document(
            which,
            &[&key.trim().to_uppercase(), &cutoff_ms(DOCUMENT_RETENTION)],
        )?)
    }

    fn find_latest(
        &self,
        kind: DocumentKind,
        source: &str,
        within: Duration,
    ) -> Result<Option<Document>, LedgerError> {
        let which = "origin = ?1 AND saved_ms > ?2 ORDER BY saved_ms DESC";
        Ok(self.find_document(
            which,
            &[
                &self.source_hash(kind, source),
                &cutoff_ms(within.min(DOCUMENT_RETENTION)),
            ],
        )?)
    }

    fn list_recent(
        &self,
        kind: DocumentKind,
        limit: usize,
    ) -> Result<Vec<DocumentInfo>, LedgerError> {
        Ok(self.list_documents(kind, limit)?)
    }
}

impl Journal {
    /// Stores a document under the first of these keys that no document has.
    fn save_under_first_free(
        &self,
        keys: impl Iterator<Item = String>,
        document: &NewDocument<'_>,
    ) -> Result<DocumentInfo, LedgerError> {
        if document.content.len() > MAX_DOCUMENT_BYTES {
            return Err(LedgerError::Failed(format!(
                "a document can have at most {} MB",
                MAX_DOCUMENT_BYTES >> 20
            )));
        }
        let about = DocumentDescription {
            title: document.title.to_owned(),
            source: document.source.to_owned(),
            media_type: document.media_type.to_owned(),
        };
        let bytes = document.content.len() as i64;
        let (key, saved_ms) = self.write(|connection| {
            make_room(connection, bytes)?;
            let (about, content) = (
                self.payloads.put_json(connection, &about)?,
                self.payloads.put(connection, document.content)?,
            );
            let saved_ms = now_ms();
            let mut insert = connection.prepare_cached(
                "INSERT OR IGNORE INTO cabinet (key, kind, origin, about, content, bytes, saved_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?;
            let origin = self.source_hash(document.kind, document.source);
            for key in keys {
                let kind = document.kind.as_str();
                if insert.execute(params![key, kind, origin, about, content, bytes, saved_ms])? == 1
                {
                    return Ok((key, saved_ms));
                }
            }
            Err(JournalError::Damaged(
                "every document key that was tried is already used".into(),
            ))
        })?;
        let DocumentDescription {
            title,
            source,
            media_type,
        } = about;
        Ok(DocumentInfo {
            key,
            kind: document.kind,
            title,
            source,
            media_type,
            bytes: bytes as u64,
            saved_ms,
        })
    }

    /// Removes expired documents and returns how many there were.
    pub(crate) fn remove_expired_documents(&self) -> Result<usize, JournalError> {
        self.write(|connection| {
            Ok(connection.execute(
                "DELETE FROM cabinet WHERE saved_ms <= ?1",
                params![cutoff_ms(DOCUMENT_RETENTION)],
            )?)
        })
    }

    /// Returns the keyed hash of kind and source, by which documents of a source are looked up.
    fn source_hash(&self, kind: DocumentKind, source: &str) -> Vec<u8> {
        let hash = KeyedHash::new(&self.digest_key, "origins of documents");
        hash.hash(&[kind.as_str().as_bytes(), &[0], source.as_bytes()])
            .to_vec()
    }

    /// Returns the first document that the SQL condition `which` selects.
    fn find_document(
        &self,
        which: &str,
        values: &[&dyn rusqlite::ToSql],
    ) -> Result<Option<Document>, JournalError> {
        let connection = self.flushed_connection();
        let sql = format!(
            "SELECT key, kind, about, bytes, saved_ms, content FROM cabinet WHERE {which} LIMIT 1"
        );
        let mut read = connection.prepare_cached(&sql)?;
        let mut rows = read.query(values)?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let content = self.payloads.require_bytes(&connection, row.get_ref(5)?)?;
        Ok(Some(Document {
            info: self.read_document_info(&connection, row)?,
            content,
        }))
    }

    fn list_documents(
        &self,
        kind: DocumentKind,
        limit: usize,
    ) -> Result<Vec<DocumentInfo>, JournalError> {
        let connection = self.flushed_connection();
        let mut read = connection.prepare_cached(
            "SELECT key, kind, about, bytes, saved_ms FROM cabinet
             WHERE kind = ?1 AND saved_ms > ?2 ORDER BY saved_ms DESC, key LIMIT ?3",
        )?;
        let mut rows = read.query(params![
            kind.as_str(),
            cutoff_ms(DOCUMENT_RETENTION),
            limit as i64
        ])?;
        let mut entries = Vec::new();
        while let Some(row) = rows.next()? {
            entries.push(self.read_document_info(&connection, row)?);
        }
        Ok(entries)
    }

    fn read_document_info(
        &self,
        connection: &Connection,
        row: &Row<'_>,
    ) -> Result<DocumentInfo, JournalError> {
        let kind: String = row.get(1)?;
        let DocumentDescription {
            title,
            source,
            media_type,
        } = self.payloads.require_json(connection, row.get_ref(2)?)?;
        let bytes: i64 = row.get(3)?;
        Ok(DocumentInfo {
            key: row.get(0)?,
            kind: serde_json::from_value(kind.into())?,
            title,
            source,
            media_type,
            bytes: bytes.max(0) as u64,
            saved_ms: row.get(4)?,
        })
    }
}

/// Returns the time `age` ago, in milliseconds since 1970.
fn cutoff_ms(age: Duration) -> i64 {
    now_ms() - age.as_millis() as i64
}

/// Removes the oldest web pages, which can be fetched again, until `bytes` more bytes fit.
fn make_room(connection: &Connection, bytes: i64) -> Result<(), JournalError> {
    let sum = |connection: &Connection| -> Result<i64, JournalError> {
        let mut read = connection.prepare_cached("SELECT ifnull(sum(bytes), 0) FROM cabinet")?;
        Ok(read.query_row([], |row| row.get(0))?)
    };
    while sum(connection)? + bytes > MAX_TOTAL_BYTES {
        let oldest = "SELECT key FROM cabinet WHERE kind = 'page' ORDER BY saved_ms, key LIMIT 1";
        let Some(key) = query_first::<String>(connection, oldest, [])? else {
            return Err(JournalError::DocumentStoreFull {
                megabytes: (MAX_TOTAL_BYTES >> 20) as u64,
            });
        };
        execute(
            connection,
            "DELETE FROM cabinet WHERE key = ?1",
            params![key],
        )?;
    }
    Ok(())
}
