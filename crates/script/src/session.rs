//! What scripts of one session leave for each other with `store` and `load`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes one session may store.
const MAX_BYTES: usize = 16 << 20;

/// Values by key, as JSON. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Session {
    values: Arc<Mutex<BTreeMap<String, String>>>,
}

/// What one script sees and writes: its own writes at once, the session's when it is over.
#[derive(Debug)]
pub(crate) struct SessionView {
    session: Session,
    written: BTreeMap<String, String>,
}

impl Session {
    /// The value stored under `key`, as JSON.
    pub fn get(&self, key: &str) -> Option<String> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    pub(crate) fn view(&self) -> SessionView {
        SessionView { session: self.clone(), written: BTreeMap::new() }
    }

    fn bytes(&self) -> usize {
        self.values
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum()
    }
}

impl SessionView {
    pub(crate) fn load(&self, key: &str) -> Option<String> {
        self.written.get(key).cloned().or_else(|| self.session.get(key))
    }

    /// Stores a value, unless there is no room.
    pub(crate) fn store(&mut self, key: &str, json: &str) -> Result<(), String> {
        let written: usize = self.written.iter().map(|(key, value)| key.len() + value.len()).sum();
        if self.session.bytes() + written + key.len() + json.len() > MAX_BYTES {
            return Err(format!("store({key:?}): a session holds at most {} MB", MAX_BYTES >> 20));
        }
        self.written.insert(key.to_owned(), json.to_owned());
        Ok(())
    }

    /// Hands the writes to the session. Done when a script ends by itself, also with an error.
    pub(crate) fn commit(&mut self) {
        let mut values = self.session.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.append(&mut self.written);
    }
}
