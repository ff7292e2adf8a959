//! A cache of what is known about folders. Clients choose the folders, so their number is bounded.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Values by folder. The value that was used least recently is dropped first.
pub(crate) struct BoundedCache<V> {
    state: Mutex<CacheState<V>>,
    max_entries: usize,
}

struct CacheState<V> {
    /// Each value with the time of its last use.
    values: HashMap<PathBuf, (u64, V)>,
    /// Number of uses so far, which is the time of the next use.
    time: u64,
}

impl<V: Clone> BoundedCache<V> {
    pub(crate) fn new(max_entries: usize) -> Self {
        Self {
            state: Mutex::new(CacheState {
                values: HashMap::new(),
                time: 0,
            }),
            max_entries,
        }
    }

    pub(crate) fn get(&self, folder: &Path) -> Option<V> {
        let state = &mut *self.lock();
        state.time += 1;
        let (used, value) = state.values.get_mut(folder)?;
        *used = state.time;
        Some(value.clone())
    }

    pub(crate) fn insert(&self, folder: &Path, value: V) {
        let state = &mut *self.lock();
        state.time += 1;
        let entry = (state.time, value);
        state.values.insert(folder.to_owned(), entry);
        while state.values.len() > self.max_entries {
            let oldest = state.values.iter().min_by_key(|(_, (used, _))| *used);
            let Some(folder) = oldest.map(|(folder, _)| folder.clone()) else {
                break;
            };
            state.values.remove(&folder);
        }
    }

    pub(crate) fn clear(&self) {
        self.lock().values.clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, CacheState<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_that_was_used_least_recently_is_dropped() {
        let cache = BoundedCache::new(2);
        let folder = |name: &str| PathBuf::from(name);
        cache.insert(&folder("a"), 1);
        cache.insert(&folder("b"), 2);
        assert_eq!(cache.get(&folder("a")), Some(1));
        cache.insert(&folder("c"), 3);
        let known = ["a", "b", "c"].map(|name| cache.get(&folder(name)));
        assert_eq!(known, [Some(1), None, Some(3)]);
        cache.clear();
        assert_eq!(cache.get(&folder("a")), None);
    }
}
