//! The File Cabinet's port: documents under short keys, so that content moves without passing through a model.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::LedgerError;

/// How long a document is kept.
pub const DOCUMENTS_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Keeps documents for a while, under keys of its own making. May block.
pub trait Cabinet: Send + Sync {
    /// Keeps a document.
    fn keep(&self, document: &NewDocument<'_>) -> Result<Entry, LedgerError>;
    /// The document of a key, if it is still there.
    fn get(&self, key: &str) -> Result<Option<Document>, LedgerError>;
    /// The newest document of a kind that came from this source and is no older than that.
    fn newest(
        &self,
        kind: DocumentKind,
        source: &str,
        within: Duration,
    ) -> Result<Option<Document>, LedgerError>;
    /// What was kept last, the newest first.
    fn recent(&self, kind: DocumentKind, limit: usize) -> Result<Vec<Entry>, LedgerError>;
}

/// What a document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DocumentKind {
    /// Somebody saved it.
    Saved,
    /// It was fetched from the web.
    Page,
    /// A prompt for a model.
    Prompt,
    /// What an agent or a task in the background came to.
    Result,
}

impl DocumentKind {
    /// Its name, as it is serialised.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Saved => "saved",
            Self::Page => "page",
            Self::Prompt => "prompt",
            Self::Result => "result",
        }
    }
}

/// A document to be kept.
#[derive(Debug, Clone, Copy)]
pub struct NewDocument<'a> {
    /// What it is.
    pub kind: DocumentKind,
    /// What people and models know it by.
    pub title: &'a str,
    /// Where it came from, such as an address.
    pub source: &'a str,
    /// Such as `text/markdown`.
    pub media_type: &'a str,
    /// Its bytes.
    pub content: &'a [u8],
}

/// What is known of a document without opening it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// What it is.
    pub kind: DocumentKind,
    /// What people and models know it by.
    pub title: String,
    /// Where it came from.
    pub source: String,
    /// Such as `text/markdown`.
    pub media_type: String,
    /// How large it is.
    pub bytes: u64,
    /// When it was kept, in milliseconds since 1970.
    pub saved_ms: i64,
}

/// A document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// What is known of it.
    pub entry: Entry,
    /// Its bytes.
    pub content: Vec<u8>,
}
