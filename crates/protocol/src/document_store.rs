//! Storage of the File Cabinet: documents under short keys, so that content can move between calls
//! without passing through a model.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::LedgerError;

/// How long a document is stored.
pub const DOCUMENT_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);

/// Stores documents under keys that it assigns. It promises:
///
/// - A document never changes: a key names the same content until it expires, and afterwards
///   nothing.
/// - A document is kept for [`DOCUMENT_RETENTION`], unless there is no room for newer ones.
/// - What a method that returned `Ok` has stored survives a crash of this process.
///
/// Methods may block.
pub trait DocumentStore: Send + Sync {
    /// Stores a document and returns its metadata with the new key.
    fn save(&self, document: &NewDocument<'_>) -> Result<DocumentInfo, LedgerError>;
    /// Stores a document under a key that [`new_document_key`](crate::new_document_key) made
    /// earlier, and returns its metadata. Fails if a document has this key.
    fn save_as(&self, key: &str, document: &NewDocument<'_>) -> Result<DocumentInfo, LedgerError>;
    /// Returns the document with this key, or `None` if it does not exist or has expired.
    fn get(&self, key: &str) -> Result<Option<Document>, LedgerError>;
    /// Returns the newest document of this kind and source that is not older than `max_age`.
    fn find_latest(
        &self,
        kind: DocumentKind,
        source: &str,
        max_age: Duration,
    ) -> Result<Option<Document>, LedgerError>;
    /// Returns up to `limit` documents of this kind, newest first.
    fn list_recent(
        &self,
        kind: DocumentKind,
        limit: usize,
    ) -> Result<Vec<DocumentInfo>, LedgerError>;
}

/// Kind of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DocumentKind {
    /// Saved by a script or a model.
    Saved,
    /// Fetched from the web.
    Page,
    /// Prompt for a model.
    Prompt,
    /// Result of a sub-agent or a task.
    Result,
}

impl DocumentKind {
    /// Returns the name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Saved => "saved",
            Self::Page => "page",
            Self::Prompt => "prompt",
            Self::Result => "result",
        }
    }
}

/// A document to store.
#[derive(Debug, Clone, Copy)]
pub struct NewDocument<'a> {
    /// Kind of the document.
    pub kind: DocumentKind,
    /// Title, for people and models.
    pub title: &'a str,
    /// Where the document came from, such as a URL.
    pub source: &'a str,
    /// Media type, such as `text/markdown`.
    pub media_type: &'a str,
    /// Content of the document.
    pub content: &'a [u8],
}

/// Metadata of a stored document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentInfo {
    /// Key of the document, such as `F7K2M9Q4`.
    pub key: String,
    /// Kind of the document.
    pub kind: DocumentKind,
    /// Title, for people and models.
    pub title: String,
    /// Where the document came from, such as a URL.
    pub source: String,
    /// Media type, such as `text/markdown`.
    pub media_type: String,
    /// Size of the content in bytes.
    pub bytes: u64,
    /// When the document was stored, as Unix time in milliseconds.
    pub saved_ms: i64,
}

/// A stored document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Metadata of the document.
    pub info: DocumentInfo,
    /// Content of the document.
    pub content: Vec<u8>,
}
