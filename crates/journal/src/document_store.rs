//! The File Cabinet: documents stored under short random keys, which expire after thirty days.
//!
//! A document may belong to an owner, such as the clients with one token. It is then stored under
//! its key and a hash of the owner, so that it is found with both only.

use std::sync::Arc;
use std::time::Duration;

use selvedge_database::{Connection, Params, Row, params};
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
/// The total size of the documents of one owner. Its oldest web pages are removed to make room.
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
        self.save_document(document, &DocumentOwner::default())
    }

    fn save_as(&self, key: &str, document: &NewDocument<'_>) -> Result<DocumentInfo, LedgerError> {
        self.save_document_as(key, document, &DocumentOwner::default())
    }

    fn get(&self, key: &str) -> Result<Option<Document>, LedgerError> {
        self.get_document(key, &DocumentOwner::default())
    }

    fn find_latest(
        &self,
        kind: DocumentKind,
        source: &str,
        within: Duration,
    ) -> Result<Option<Document>, LedgerError> {
        self.find_latest_document(kind, source, within, &DocumentOwner::default())
    }

    fn list_recent(
        &self,
        kind: DocumentKind,
        limit: usize,
    ) -> Result<Vec<DocumentInfo>, LedgerError> {
        Ok(self.list_documents(kind, limit, &DocumentOwner::default())?)
    }
}

/// Stands between the key and the owner of a stored document. No key contains it.
pub(crate) const OWNER_SEPARATOR: char = '@';

/// The end of the stored keys of an owner's documents. Empty for those of the user.
#[derive(Debug, Clone, Default)]
struct DocumentOwner(String);

/// The documents of one owner. Keys that it does not have are looked up among those of `also`.
struct OwnedDocuments {
    journal: Arc<Journal>,
    owner: DocumentOwner,
    also: Option<DocumentOwner>,
}

impl DocumentStore for OwnedDocuments {
    fn save(&self, document: &NewDocument<'_>) -> Result<DocumentInfo, LedgerError> {
        self.journal.save_document(document, &self.owner)
    }

    fn save_as(&self, key: &str, document: &NewDocument<'_>) -> Result<DocumentInfo, LedgerError> {
        self.journal.save_document_as(key, document, &self.owner)
    }

    fn get(&self, key: &str) -> Result<Option<Document>, LedgerError> {
        let own = self.journal.get_document(key, &self.owner)?;
        match (own, &self.also) {
            (None, Some(also)) => self.journal.get_document(key, also),
            (own, _) => Ok(own),
        }
    }

    fn find_latest(
        &self,
        kind: DocumentKind,
        source: &str,
        within: Duration,
    ) -> Result<Option<Document>, LedgerError> {
        let owner = &self.owner;
        self.journal
            .find_latest_document(kind, source, within, owner)
    }

    fn list_recent(
        &self,
        kind: DocumentKind,
        limit: usize,
    ) -> Result<Vec<DocumentInfo>, LedgerError> {
        Ok(self.journal.list_documents(kind, limit, &self.owner)?)
    }
}

impl Journal {
    /// Returns a store with the documents of one owner only. Others cannot read them.
    pub fn documents_of(self: &Arc<Self>, owner: &str) -> Arc<dyn DocumentStore> {
        Arc::new(OwnedDocuments {
            journal: self.clone(),
            owner: DocumentOwner(self.owner_suffix(owner)),
            also: None,
        })
    }

    /// Returns the store of the user in a folder: its own documents, and for reading those that the
    /// agent server's sessions in this folder saved.
    pub fn user_documents_in(self: &Arc<Self>, folder: &str) -> Arc<dyn DocumentStore> {
        Arc::new(OwnedDocuments {
            journal: self.clone(),
            owner: DocumentOwner::default(),
            also: Some(DocumentOwner(self.owner_suffix(folder))),
        })
    }

    /// Returns what the stored keys of an owner's documents, and the names of its channels, end
    /// with.
    pub(crate) fn owner_suffix(&self, owner: &str) -> String {
        let hash = KeyedHash::new(&self.digest_key, "owners of documents");
        let hash = hash.hash(&[owner.as_bytes()]);
        format!("{OWNER_SEPARATOR}{}", selvedge_text::hex(&hash))
    }

    fn save_document(
        &self,
        document: &NewDocument<'_>,
        owner: &DocumentOwner,
    ) -> Result<DocumentInfo, LedgerError> {
        let keys = std::iter::repeat_with(new_document_key).take(MAX_KEY_ATTEMPTS);
        self.save_under_first_free(keys, document, owner)
    }

    fn save_document_as(
        &self,
        key: &str,
        document: &NewDocument<'_>,
        owner: &DocumentOwner,
    ) -> Result<DocumentInfo, LedgerError> {
        self.save_under_first_free(std::iter::once(key.to_owned()), document, owner)
    }

    /// Stores a document under the first of these keys that no document of the owner has.
    fn save_under_first_free(
        &self,
        keys: impl IntoIterator<Item = String>,
        document: &NewDocument<'_>,
        owner: &DocumentOwner,
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
        let keys: Vec<String> = keys.into_iter().collect();
        let (key, saved_ms) = self.write(|connection| {
            make_room(connection, bytes, owner)?;
            let (about, content) = (
                self.payloads.put_json(connection, &about)?,
                self.payloads.put(connection, document.content)?,
            );
            let saved_ms = now_ms();
            let mut insert = connection.prepare_cached(
                "INSERT INTO cabinet (key, kind, origin, about, content, bytes, saved_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
            )?;
            let origin = self.source_hash(document.kind, document.source, owner);
            for key in &keys {
                let kind = document.kind.as_str();
                let stored = format!("{key}{}", owner.0);
                let row = params![stored, kind, origin, about, content, bytes, saved_ms];
                if insert.execute(row)? == 1 {
                    return Ok((key.clone(), saved_ms));
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

    fn get_document(
        &self,
        key: &str,
        owner: &DocumentOwner,
    ) -> Result<Option<Document>, LedgerError> {
        let key = key.trim().to_uppercase();
        if key.contains(OWNER_SEPARATOR) {
            return Ok(None);
        }
        let which = "key = ?1 AND saved_ms > ?2";
        let stored = format!("{key}{}", owner.0);
        Ok(self.find_document(which, params![stored, cutoff_ms(DOCUMENT_RETENTION)])?)
    }

    fn find_latest_document(
        &self,
        kind: DocumentKind,
        source: &str,
        within: Duration,
        owner: &DocumentOwner,
    ) -> Result<Option<Document>, LedgerError> {
        let which = "origin = ?1 AND saved_ms > ?2 ORDER BY saved_ms DESC";
        Ok(self.find_document(
            which,
            params![
                self.source_hash(kind, source, owner),
                cutoff_ms(within.min(DOCUMENT_RETENTION)),
            ],
        )?)
    }
}

impl Journal {
    /// Removes expired documents and returns how many there were.
    pub(crate) fn remove_expired_documents(&self) -> Result<usize, JournalError> {
        self.write(|connection| {
            Ok(connection.execute(
                "DELETE FROM cabinet WHERE saved_ms <= ?1",
                params![cutoff_ms(DOCUMENT_RETENTION)],
            )?)
        })
    }

    /// Returns the keyed hash of kind, source and owner, by which documents of a source are looked
    /// up.
    fn source_hash(&self, kind: DocumentKind, source: &str, owner: &DocumentOwner) -> Vec<u8> {
        let hash = KeyedHash::new(&self.digest_key, "origins of documents");
        let kind = format!("{}{}", kind.as_str(), owner.0);
        hash.hash(&[kind.as_bytes(), &[0], source.as_bytes()])
            .to_vec()
    }

    /// Returns the first document that the SQL condition `which` selects.
    fn find_document(
        &self,
        which: &str,
        values: Params<'_>,
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
        owner: &DocumentOwner,
    ) -> Result<Vec<DocumentInfo>, JournalError> {
        let connection = self.flushed_connection();
        let mut read = connection.prepare_cached(&format!(
            "SELECT key, kind, about, bytes, saved_ms FROM cabinet
             WHERE kind = ?1 AND saved_ms > ?2 AND {}
             ORDER BY saved_ms DESC, key LIMIT ?3",
            owned_condition("?4")
        ))?;
        let mut rows = read.query(params![
            kind.as_str(),
            cutoff_ms(DOCUMENT_RETENTION),
            limit as i64,
            owner.0
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
        row: Row<'_>,
    ) -> Result<DocumentInfo, JournalError> {
        let (stored, kind): (String, String) = (row.get(0)?, row.get(1)?);
        let key = stored.split(OWNER_SEPARATOR).next().unwrap_or_default();
        let DocumentDescription {
            title,
            source,
            media_type,
        } = self.payloads.require_json(connection, row.get_ref(2)?)?;
        let bytes: i64 = row.get(3)?;
        Ok(DocumentInfo {
            key: key.to_owned(),
            kind: serde_json::from_value(kind.into())?,
            title,
            source,
            media_type,
            bytes: bytes.max(0) as u64,
            saved_ms: row.get(4)?,
        })
    }
}

/// Returns the SQL condition for the documents of the owner in a parameter.
fn owned_condition(owner: &str) -> String {
    format!(
        "(({owner} = '' AND key NOT LIKE '%{OWNER_SEPARATOR}%')
          OR ({owner} <> '' AND key LIKE '%' || {owner}))"
    )
}

/// Returns the time `age` ago, in milliseconds since 1970.
fn cutoff_ms(age: Duration) -> i64 {
    now_ms() - age.as_millis() as i64
}

/// Removes the oldest web pages of an owner, which can be fetched again, until `bytes` more bytes
/// fit.
fn make_room(
    connection: &Connection,
    bytes: i64,
    owner: &DocumentOwner,
) -> Result<(), JournalError> {
    let is_owned = owned_condition("?1");
    let sum =
        format!("SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM cabinet WHERE {is_owned}");
    let oldest = format!(
        "SELECT key FROM cabinet WHERE kind = 'page' AND {is_owned}
         ORDER BY saved_ms, key LIMIT 1"
    );
    let used = || query_first::<i64>(connection, &sum, params![owner.0]);
    while used()?.unwrap_or_default() + bytes > MAX_TOTAL_BYTES {
        let Some(key) = query_first::<String>(connection, &oldest, params![owner.0])? else {
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
