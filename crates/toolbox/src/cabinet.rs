//! An in-memory File Cabinet, used when there is no journal, and helpers shared by the tools that
//! read and write documents.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use selvedge_protocol::{
    Cabinet, DOCUMENTS_KEPT, Document, DocumentKind, Entry, Event, LedgerError, NewDocument,
    new_file_key, now_ms,
};
use selvedge_tools::{Call, ToolError};

/// Limit on the bytes of all documents together; the oldest documents are removed first.
const MAX_BYTES: usize = 64 << 20;

/// Limit on the number of documents.
const MOST: usize = 4096;

/// Documents in memory, the newest last. They are lost when the process ends.
#[derive(Default)]
pub(crate) struct InMemory(Mutex<VecDeque<Document>>);

impl Cabinet for InMemory {
    fn keep(&self, document: &NewDocument<'_>) -> Result<Entry, LedgerError> {
        let bytes = document.content.len();
        if bytes > MAX_BYTES {
            return Err(LedgerError::Failed(format!(
                "document is larger than {} MB",
                MAX_BYTES >> 20
            )));
        }
        let entry = Entry {
            key: new_file_key(),
            kind: document.kind,
            title: document.title.to_owned(),
            source: document.source.to_owned(),
            media_type: document.media_type.to_owned(),
            bytes: bytes as u64,
            saved_ms: now_ms(),
        };
        let mut all = self.all();
        while all.len() >= MOST
            || all
                .iter()
                .map(|document| document.content.len())
                .sum::<usize>()
                + bytes
                > MAX_BYTES
        {
            all.pop_front();
        }
        all.push_back(Document {
            entry: entry.clone(),
            content: document.content.to_vec(),
        });
        Ok(entry)
    }

    fn get(&self, key: &str) -> Result<Option<Document>, LedgerError> {
        let key = key.trim().to_uppercase();
        Ok(self.newest_that(|entry| entry.key == key, DOCUMENTS_KEPT))
    }

    fn newest(
        &self,
        kind: DocumentKind,
        source: &str,
        within: Duration,
    ) -> Result<Option<Document>, LedgerError> {
        Ok(self.newest_that(|entry| entry.kind == kind && entry.source == source, within))
    }

    fn recent(&self, kind: DocumentKind, limit: usize) -> Result<Vec<Entry>, LedgerError> {
        let all = self.all();
        let entries = all
            .iter()
            .rev()
            .map(|document| &document.entry)
            .filter(|entry| entry.kind == kind);
        Ok(entries.take(limit).cloned().collect())
    }
}

impl InMemory {
    fn all(&self) -> std::sync::MutexGuard<'_, VecDeque<Document>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn newest_that(&self, matches: impl Fn(&Entry) -> bool, within: Duration) -> Option<Document> {
        let oldest = now_ms() - within.as_millis() as i64;
        let all = self.all();
        all.iter()
            .rev()
            .find(|document| document.entry.saved_ms > oldest && matches(&document.entry))
            .cloned()
    }
}

/// Returns the document with this key, or an error with a suggestion.
pub(crate) fn open(cabinet: &Arc<dyn Cabinet>, key: &str) -> Result<Document, ToolError> {
    let found = cabinet
        .get(key)
        .map_err(|error| ToolError::new(format!("cannot access the File Cabinet: {error}")))?;
    found.ok_or_else(|| {
        let key: String = key.chars().take(40).collect();
        ToolError::new(format!(
            "no document in the File Cabinet has the key `{key}`"
        ))
        .suggest("use a fileKey that saveToFc or fetchUrl returned in the last 30 days")
    })
}

/// Stores a document in the cabinet.
pub(crate) fn keep(
    cabinet: &Arc<dyn Cabinet>,
    document: &NewDocument<'_>,
) -> Result<Entry, ToolError> {
    cabinet
        .keep(document)
        .map_err(|error| ToolError::new(format!("cannot access the File Cabinet: {error}")))
}

/// Emits the event that a document was stored or read.
pub(crate) fn tell(call: &Call, document: &Entry) {
    call.events.emit(Event::DocumentKept {
        parent_id: call.scope_id.clone(),
        call_id: call.id.clone(),
        document: document.clone(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_documents_are_removed_at_the_size_limit() {
        let cabinet = InMemory::default();
        let keep = |content: &[u8]| {
            let (kind, title, source) = (DocumentKind::Page, "t", "s");
            cabinet.keep(&NewDocument {
                kind,
                title,
                source,
                media_type: "text/plain",
                content,
            })
        };
        let first = keep(b"first").unwrap();
        let half = vec![1; MAX_BYTES / 2];
        let (second, third) = (keep(&half).unwrap(), keep(&half).unwrap());
        assert!(
            cabinet.get(&first.key).unwrap().is_none()
                && cabinet.get(&second.key).unwrap().is_some()
        );
        let newest = cabinet
            .newest(DocumentKind::Page, "s", DOCUMENTS_KEPT)
            .unwrap()
            .unwrap();
        assert_eq!(newest.entry, third);
        assert!(keep(&vec![0; MAX_BYTES + 1]).is_err());
        assert_eq!(cabinet.recent(DocumentKind::Page, 9).unwrap().len(), 2);
        assert_eq!(cabinet.recent(DocumentKind::Prompt, 9).unwrap().len(), 0);
    }
}
