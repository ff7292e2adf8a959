//! What a turn put into the File Cabinet, or looked up there: told to whoever rides along when the turn is over.

use std::sync::{Arc, Mutex, PoisonError};

use selvedge_protocol::{Entry, Event, EventSink};

/// Documents of one turn that are told, at most; the oldest make room.
const MOST: usize = 20;

/// The documents of a turn so far. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<Vec<Entry>>>);

impl Kept {
    /// Hears of documents among events on their way to somebody else.
    pub(crate) fn listening(&self, events: EventSink) -> EventSink {
        let all = self.0.clone();
        EventSink::new(move |event| {
            if let Event::DocumentKept { document, .. } = &event {
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                all.retain(|earlier| earlier.key != document.key);
                all.push(document.clone());
                if all.len() > MOST {
                    all.remove(0);
                }
            }
            events.emit(event);
        })
    }

    /// The documents, the newest last.
    pub(crate) fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
