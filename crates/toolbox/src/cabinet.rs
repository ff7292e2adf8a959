//! An in-memory File Cabinet, used when there is no journal, and helpers shared by the tools that
//! read and write documents.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use selvedge_protocol::{
    DOCUMENT_RETENTION, Document, DocumentInfo, DocumentKind, DocumentStore, LedgerError,
    NewDocument, RuntimeEvent, new_document_key, now_ms,
};
use selvedge_tools::{CallContext, ToolError};

/// Limit on the bytes of all documents together; the oldest documents are removed first.
const MAX_TOTAL_BYTES: usize = 64 << 20;

/// Limit on the number of documents.
const MAX_DOCUMENTS: usize = 4096;

/// Documents in memory, the newest last. They are lost when the process ends.
#[derive(Default)]
pub(crate) struct InMemoryCabinet(Mutex<VecDeque<Document>>);

impl DocumentStore for InMemoryCabinet {
    fn save(&self, document: &NewDocument<'_>) -> Result<DocumentInfo, LedgerError> {
        self.save_as(&new_document_key(), document)
    }

    fn save_as(&self, key: &str, document: &NewDocument<'_>) -> Result<DocumentInfo, LedgerError> {
        let bytes = document.content.len();
        if bytes > MAX_TOTAL_BYTES {
            return Err(LedgerError::Failed(format!(
                "document is larger than {} MB",
                MAX_TOTAL_BYTES >> 20
            )));
        }
        let entry = DocumentInfo {
            key: key.to_owned(),
            kind: document.kind,
            title: document.title.to_owned(),
            source: document.source.to_owned(),
            media_type: document.media_type.to_owned(),
            bytes: bytes as u64,
            saved_ms: now_ms(),
        };
        let mut all = self.lock_documents();
        if all.iter().any(|document| document.info.key == key) {
            return Err(LedgerError::Failed(format!("a document has the key {key}")));
        }
        while all.len() >= MAX_DOCUMENTS
            || all
                .iter()
                .map(|document| document.content.len())
                .sum::<usize>()
                + bytes
                > MAX_TOTAL_BYTES
        {
            all.pop_front();
        }
        all.push_back(Document {
            info: entry.clone(),
            content: document.content.to_vec(),
        });
        Ok(entry)
    }

    fn get(&self, key: &str) -> Result<Option<Document>, LedgerError> {
        let key = key.trim().to_uppercase();
        Ok(self.newest_matching(|entry| entry.key == key, DOCUMENT_RETENTION))
    }

    fn find_latest(
        &self,
        kind: DocumentKind,
        source: &str,
        within: Duration,
    ) -> Result<Option<Document>, LedgerError> {
        Ok(self.newest_matching(|entry| entry.kind == kind && entry.source == source, within))
    }

    fn list_recent(
        &self,
        kind: DocumentKind,
        limit: usize,
    ) -> Result<Vec<DocumentInfo>, LedgerError> {
        let all = self.lock_documents();
        let entries = all
            .iter()
            .rev()
            .map(|document| &document.info)
            .filter(|entry| entry.kind == kind);
        Ok(entries.take(limit).cloned().collect())
    }
}

impl InMemoryCabinet {
    fn lock_documents(&self) -> std::sync::MutexGuard<'_, VecDeque<Document>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn newest_matching(
        &self,
        matches: impl Fn(&DocumentInfo) -> bool,
        within: Duration,
    ) -> Option<Document> {
        let oldest = now_ms() - within.as_millis() as i64;
        let all = self.lock_documents();
        all.iter()
            .rev()
            .find(|document| document.info.saved_ms > oldest && matches(&document.info))
            .cloned()
    }
}

/// Returns the document with this key, or an error with a suggestion.
pub(crate) fn get_document(
    cabinet: &Arc<dyn DocumentStore>,
    key: &str,
) -> Result<Document, ToolError> {
    let found = cabinet
        .get(key)
        .map_err(|error| ToolError::new(format!("cannot access the File Cabinet: {error}")))?;
    found.ok_or_else(|| {
        let key: String = key.chars().take(40).collect();
        ToolError::new(format!(
            "no document in the File Cabinet has the key `{key}`"
        ))
        .suggest("use a fileKey that saveToFc or fetchUrl returned in the last 30 days")
        .suggest("the fileKey of agents.launch.async exists when its agent has ended")
    })
}

/// Stores a document in the cabinet.
pub(crate) fn store_document(
    cabinet: &Arc<dyn DocumentStore>,
    document: &NewDocument<'_>,
) -> Result<DocumentInfo, ToolError> {
    cabinet
        .save(document)
        .map_err(|error| ToolError::new(format!("cannot access the File Cabinet: {error}")))
}

/// Emits the event that a document was stored or read.
pub(crate) fn emit_document_event(call: &CallContext, document: &DocumentInfo) {
    call.events.emit(RuntimeEvent::DocumentStored {
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
        let cabinet = InMemoryCabinet::default();
        let keep = |content: &[u8]| {
            let (kind, title, source) = (DocumentKind::Page, "t", "s");
            cabinet.save(&NewDocument {
                kind,
                title,
                source,
                media_type: "text/plain",
                content,
            })
        };
        let first = keep(b"first").unwrap();
        let half = vec![1; MAX_TOTAL_BYTES / 2];
        let (second, third) = (keep(&half).unwrap(), keep(&half).unwrap());
        assert!(
            cabinet.get(&first.key).unwrap().is_none()
                && cabinet.get(&second.key).unwrap().is_some()
        );
        let newest = cabinet
            .find_latest(DocumentKind::Page, "s", DOCUMENT_RETENTION)
            .unwrap()
            .unwrap();
        assert_eq!(newest.info, third);
        assert!(keep(&vec![0; MAX_TOTAL_BYTES + 1]).is_err());
        assert_eq!(cabinet.list_recent(DocumentKind::Page, 9).unwrap().len(), 2);
        assert_eq!(
            cabinet.list_recent(DocumentKind::Prompt, 9).unwrap().len(),
            0
        );
    }
}
