//! Values that the scripts of one session share with `store` and `load`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use selvedge_protocol::{LedgerError, ScriptStoreBackend};
use serde::{Deserialize, Serialize};

/// Maximum number of bytes that a session may store.
const MAX_STORE_BYTES: usize = 16 << 20;

/// The stored values of a session, as JSON by key. Clones share them.
#[derive(Clone)]
pub struct ScriptStore {
    backend: Arc<dyn ScriptStoreBackend>,
}

/// The stored values as one script sees them: with its own writes, which other scripts see when it
/// has ended.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ScriptStoreView {
    #[serde(skip)]
    store: ScriptStore,
    written: BTreeMap<String, String>,
}

impl ScriptStore {
    /// Creates a store with this backend.
    pub fn new(backend: Arc<dyn ScriptStoreBackend>) -> Self {
        Self { backend }
    }

    /// Returns the value stored under `key`, as JSON.
    pub async fn get(&self, key: &str) -> Result<Option<String>, LedgerError> {
        self.backend.get(key).await
    }

    pub(crate) fn view(&self) -> ScriptStoreView {
        ScriptStoreView {
            store: self.clone(),
            written: BTreeMap::new(),
        }
    }
}

impl Default for ScriptStore {
    /// Creates a store in memory, which is lost with the process.
    fn default() -> Self {
        Self::new(Arc::new(InMemoryScriptStore::default()))
    }
}

impl std::fmt::Debug for ScriptStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ScriptStore")
    }
}

impl ScriptStoreView {
    /// Moves the writes of a restored run to this store.
    pub(crate) fn set_store(&mut self, store: &ScriptStore) {
        self.store = store.clone();
    }

    /// Returns the value that the script itself has stored under `key`.
    pub(crate) fn written(&self, key: &str) -> Option<String> {
        self.written.get(key).cloned()
    }

    /// Returns the store of the session's values.
    pub(crate) fn backend(&self) -> Arc<dyn ScriptStoreBackend> {
        self.store.backend.clone()
    }

    /// Stores a value. `stored` is the size of the session's values, in bytes. Fails with a message
    /// if the session would exceed its limit.
    pub(crate) fn store(&mut self, key: &str, json: &str, stored: usize) -> Result<(), String> {
        let written: usize = self
            .written
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        if stored + written + key.len() + json.len() > MAX_STORE_BYTES {
            return Err(format!(
                "store({key:?}): a session holds at most {} MB",
                MAX_STORE_BYTES >> 20
            ));
        }
        self.written.insert(key.to_owned(), json.to_owned());
        Ok(())
    }

    /// Writes the script's values to the session. Called when a script returns or fails, but not
    /// when it is cancelled or suspended.
    pub(crate) fn commit(&mut self) -> impl Future<Output = Result<(), LedgerError>> + use<> {
        let (backend, written) = (self.backend(), std::mem::take(&mut self.written));
        async move {
            match written.is_empty() {
                true => Ok(()),
                false => backend.put(written).await,
            }
        }
    }
}

/// Values in memory, which are lost with the process.
#[derive(Debug, Default)]
struct InMemoryScriptStore(Mutex<BTreeMap<String, String>>);

#[async_trait]
impl ScriptStoreBackend for InMemoryScriptStore {
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

    async fn total_bytes(&self) -> Result<usize, LedgerError> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(all.iter().map(|(key, value)| key.len() + value.len()).sum())
    }
}
