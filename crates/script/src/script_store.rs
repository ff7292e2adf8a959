//! Values that the scripts of one session share with `store` and `load`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use selvedge_protocol::{LedgerError, ScriptStoreBackend};
use serde::{Deserialize, Serialize};

/// Maximum number of bytes that a session may store.
const MAX_STORE_BYTES: usize = 16 << 20;

/// Maximum number of bytes that the sessions of one process may store together in memory.
const MAX_SHARED_STORE_BYTES: usize = 64 << 20;

/// How much the sessions of a process store in memory. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct StoreBudget(Arc<AtomicUsize>);

impl StoreBudget {
    fn used_bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The stored values of a session, as JSON by key. Clones share them.
#[derive(Clone)]
pub struct ScriptStore {
    backend: Arc<dyn ScriptStoreBackend>,
    /// What the values are taken from if they are in memory.
    budget: Option<StoreBudget>,
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
        Self {
            backend,
            budget: None,
        }
    }

    /// Creates a store in memory, which is lost with the process and shares the budget with other
    /// sessions.
    pub fn in_memory(budget: &StoreBudget) -> Self {
        Self {
            backend: Arc::new(InMemoryScriptStore {
                values: Mutex::default(),
                budget: budget.clone(),
            }),
            budget: Some(budget.clone()),
        }
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
    /// Creates a store in memory with a budget of its own.
    fn default() -> Self {
        Self::in_memory(&StoreBudget::default())
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
    /// if the session would exceed its limit, or all sessions theirs.
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
        let used = self
            .store
            .budget
            .as_ref()
            .map_or(0, StoreBudget::used_bytes);
        if used + written + key.len() + json.len() > MAX_SHARED_STORE_BYTES {
            return Err(format!(
                "store({key:?}): the sessions of this server hold at most {} MB together",
                MAX_SHARED_STORE_BYTES >> 20
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
#[derive(Debug)]
struct InMemoryScriptStore {
    values: Mutex<BTreeMap<String, String>>,
    budget: StoreBudget,
}

impl Drop for InMemoryScriptStore {
    fn drop(&mut self) {
        let values = self
            .values
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        self.budget
            .0
            .fetch_sub(size_of_values(values), Ordering::Relaxed);
    }
}

/// Returns the size of values with their keys, in bytes.
fn size_of_values(values: &BTreeMap<String, String>) -> usize {
    values
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum()
}

#[async_trait]
impl ScriptStoreBackend for InMemoryScriptStore {
    async fn get(&self, key: &str) -> Result<Option<String>, LedgerError> {
        Ok(self
            .values
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .cloned())
    }

    async fn put(&self, values: BTreeMap<String, String>) -> Result<(), LedgerError> {
        let mut all = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let before = size_of_values(&all);
        all.extend(values);
        self.budget
            .0
            .fetch_add(size_of_values(&all), Ordering::Relaxed);
        self.budget.0.fetch_sub(before, Ordering::Relaxed);
        Ok(())
    }

    async fn total_bytes(&self) -> Result<usize, LedgerError> {
        let all = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(size_of_values(&all))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sessions_share_a_budget_in_memory() {
        let (budget, large) = (StoreBudget::default(), "x".repeat(15 << 20));
        let mut sessions = Vec::new();
        for _ in 0..4 {
            let session = ScriptStore::in_memory(&budget);
            let mut view = session.view();
            view.store("a", &large, 0).unwrap();
            view.commit().await.unwrap();
            sessions.push(session);
        }
        let mut fifth = ScriptStore::in_memory(&budget).view();
        let error = fifth.store("a", &large, 0).unwrap_err();
        assert!(error.contains("at most 64 MB together"), "{error}");
        // What replaces a value takes no more room, and a session that ends gives its room back.
        let mut view = sessions[0].view();
        view.store("a", "1", 0).unwrap();
        view.commit().await.unwrap();
        sessions.truncate(1);
        assert_eq!(budget.used_bytes(), 2);
        fifth.store("a", &large, 0).unwrap();
    }
}
