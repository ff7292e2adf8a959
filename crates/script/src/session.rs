//! What scripts of one session leave for each other with `store` and `load`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use selvedge_protocol::{LedgerError, Shelf};
use serde::{Deserialize, Serialize};

/// Bytes one session may store.
const MAX_BYTES: usize = 16 << 20;

/// Values by key, as JSON. Clones share them.
#[derive(Clone)]
pub struct Session {
    shelf: Arc<dyn Shelf>,
}

/// What one script sees and writes: its own writes at once, the session's when it is over.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SessionView {
    #[serde(skip)]
    session: Session,
    written: BTreeMap<String, String>,
}

impl Session {
    /// A session whose values stand on this shelf.
    pub fn on(shelf: Arc<dyn Shelf>) -> Self {
        Self { shelf }
    }

    /// The value stored under `key`, as JSON.
    pub fn get(&self, key: &str) -> Result<Option<String>, LedgerError> {
        self.shelf.get(key)
    }

    pub(crate) fn view(&self) -> SessionView {
        SessionView {
            session: self.clone(),
            written: BTreeMap::new(),
        }
    }
}

impl Default for Session {
    /// A session that ends with the process.
    fn default() -> Self {
        Self::on(Arc::new(InMemory::default()))
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

impl SessionView {
    /// The same writes, on this session.
    pub(crate) fn move_to(&mut self, session: &Session) {
        self.session = session.clone();
    }

    pub(crate) fn load(&self, key: &str) -> Result<Option<String>, String> {
        match self.written.get(key) {
            Some(value) => Ok(Some(value.clone())),
            None => self
                .session
                .get(key)
                .map_err(|error| format!("load({key:?}): {error}")),
        }
    }

    /// Stores a value, unless there is no room.
    pub(crate) fn store(&mut self, key: &str, json: &str) -> Result<(), String> {
        let written: usize = self
            .written
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        let there = self
            .session
            .shelf
            .bytes()
            .map_err(|error| format!("store({key:?}): {error}"))?;
        if there + written + key.len() + json.len() > MAX_BYTES {
            return Err(format!(
                "store({key:?}): a session holds at most {} MB",
                MAX_BYTES >> 20
            ));
        }
        self.written.insert(key.to_owned(), json.to_owned());
        Ok(())
    }

    /// Hands the writes to the session. Done when a script ends by itself, also with an error.
    pub(crate) fn commit(&mut self) -> Result<(), LedgerError> {
        if self.written.is_empty() {
            return Ok(());
        }
        self.session.shelf.put(&std::mem::take(&mut self.written))
    }
}

/// A shelf that is gone with the process.
#[derive(Debug, Default)]
struct InMemory(Mutex<BTreeMap<String, String>>);

impl Shelf for InMemory {
    fn get(&self, key: &str) -> Result<Option<String>, LedgerError> {
        Ok(self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .cloned())
    }

    fn put(&self, values: &BTreeMap<String, String>) -> Result<(), LedgerError> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(
            values
                .iter()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
        Ok(())
    }

    fn bytes(&self) -> Result<usize, LedgerError> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(all.iter().map(|(key, value)| key.len() + value.len()).sum())
    }
}
