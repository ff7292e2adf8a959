//! Collects the documents that a turn saved to the File Cabinet or read from it, for the turn hook.

use std::sync::{Arc, Mutex, PoisonError};

use selvedge_protocol::{DocumentInfo, EventSink, RuntimeEvent};

/// The maximum number of documents of one turn. The oldest are dropped.
const MAX_TURN_DOCUMENTS: usize = 20;

/// The documents of a turn so far. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct TurnDocuments(Arc<Mutex<Vec<DocumentInfo>>>);

impl TurnDocuments {
    /// Returns a sink that collects the documents of the events it forwards to `events`.
    pub(crate) fn observe(&self, events: EventSink) -> EventSink {
        let documents = self.0.clone();
        EventSink::new(move |event| {
            if let RuntimeEvent::DocumentStored { document, .. } = &event {
                let mut documents = documents.lock().unwrap_or_else(PoisonError::into_inner);
                documents.retain(|earlier| earlier.key != document.key);
                documents.push(document.clone());
                if documents.len() > MAX_TURN_DOCUMENTS {
                    documents.remove(0);
                }
            }
            events.emit(event);
        })
    }

    /// Removes and returns the documents, the newest last.
    pub(crate) fn take(&self) -> Vec<DocumentInfo> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
