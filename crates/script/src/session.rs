//! What scripts of one session leave for each other with `store` and `load`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
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

    /// What the script itself has stored under `key`.
    pub(crate) fn written(&self, key: &str) -> Option<String> {
        self.written.get(key).cloned()
    }

    /// Where the session has its values.
    pub(crate) fn shelf(&self) -> Arc<dyn Shelf> {
        self.session.shelf.clone()
    }

    /// Stores a value, unless there is no room beside what is `there` in the session.
    pub(crate) fn store(&mut self, key: &str, json: &str, there: usize) -> Result<(), String> {
        let written: usize = self
            .written
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
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

/// A shelf that is gone with the process.
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
