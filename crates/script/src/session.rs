//! Values that the scripts of one session share with `store` and `load`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use selvedge_protocol::{LedgerError, Shelf};
use serde::{Deserialize, Serialize};

/// Maximum number of bytes that a session may store.
const MAX_BYTES: usize = 16 << 20;

/// The stored values of a session, as JSON by key. Clones share them.
#[derive(Clone)]
pub struct Session {
    shelf: Arc<dyn Shelf>,
}

/// The stored values as one script sees them: with its own writes, which other scripts see when it
/// has ended.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SessionView {
    #[serde(skip)]
    session: Session,
    written: BTreeMap<String, String>,
}

impl Session {
    /// Creates a session whose values are stored there.
    pub fn on(shelf: Arc<dyn Shelf>) -> Self {
        Self { shelf }
    }

    /// Returns the value stored under `key`, as JSON.
    pub async fn get(&self, key: &str) -> Result<Option<String>, LedgerError> {
        self.shelf.get(key).await
    }

    pub(crate) fn view(&self) -> SessionView {
        SessionView {
            session: self.clone(),
            written: BTreeMap::new(),
        }
    }
}

impl Default for Session {
    /// Creates a session whose values are lost with the process.
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
    /// Moves the writes of a restored run to this session.
    pub(crate) fn move_to(&mut self, session: &Session) {
        self.session = session.clone();
    }

    /// Returns the value that the script itself has stored under `key`.
    pub(crate) fn written(&self, key: &str) -> Option<String> {
        self.written.get(key).cloned()
    }

    /// Returns the store of the session's values.
    pub(crate) fn shelf(&self) -> Arc<dyn Shelf> {
        self.session.shelf.clone()
    }

    /// Stores a value. `stored` is the size of the session's values, in bytes. Fails with a message
    /// if the session would exceed its limit.
    pub(crate) fn store(&mut self, key: &str, json: &str, stored: usize) -> Result<(), String> {
        let written: usize = self
            .written
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        if stored + written + key.len() + json.len() > MAX_BYTES {
            return Err(format!(
                "store({key:?}): a session holds at most {} MB",
                MAX_BYTES >> 20
            ));
        }
        self.written.insert(key.to_owned(), json.to_owned());
        Ok(())
    }

    /// Writes the script's values to the session. Called when a script returns or fails, but not
    /// when it is cancelled or suspended.
    pub(crate) fn commit(&mut self) -> impl Future<Output = Result<(), LedgerError>> + use<> {
        let (shelf, written) = (self.shelf(), std::mem::take(&mut self.written));
        async move {
            match written.is_empty() {
                true => Ok(()),
                false => shelf.put(written).await,
            }
        }
    }
}

/// Values in memory, which are lost with the process.
#[derive(Debug, Default)]
struct InMemory(Mutex<BTreeMap<String, String>>);

#[async_trait]
impl Shelf for InMemory {
    async fn get(&self, key: &str) -> Result<Option<String>, LedgerError> {
        Ok(self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .cloned())
    }

    async fn put(&self, values: BTreeMap<String, String>) -> Result<(), LedgerError> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(values);
        Ok(())
    }

    async fn bytes(&self) -> Result<usize, LedgerError> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(all.iter().map(|(key, value)| key.len() + value.len()).sum())
    }
}
