//! Semaphores by name: each name has its own number of permits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One semaphore per name, as long as it is used.
#[derive(Debug)]
pub(crate) struct KeyedSemaphores {
    semaphores: Mutex<HashMap<String, Arc<Semaphore>>>,
    permits: usize,
}

impl KeyedSemaphores {
    /// Creates semaphores with this many permits each, at least one.
    pub(crate) fn new(permits: usize) -> Self {
        Self {
            semaphores: Mutex::default(),
            permits: permits.max(1),
        }
    }

    /// Returns the semaphore of a name.
    pub(crate) fn get(&self, name: &str) -> Arc<Semaphore> {
        let semaphores = self.semaphores.lock();
        let mut semaphores = semaphores.unwrap_or_else(PoisonError::into_inner);
        // Names without a user need no entry.
        semaphores.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
        let new = || Arc::new(Semaphore::new(self.permits));
        semaphores
            .entry(name.to_owned())
            .or_insert_with(new)
            .clone()
    }

    /// Waits for a permit of a name. The semaphores are never closed.
    pub(crate) async fn acquire(&self, name: &str) -> Option<OwnedSemaphorePermit> {
        self.get(name).acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn a_name_waits_for_its_own_permits_only() {
        let semaphores = KeyedSemaphores::new(1);
        let held = semaphores.acquire("a").await;
        assert!(semaphores.acquire("a").now_or_never().is_none());
        assert!(semaphores.acquire("b").now_or_never().is_some());
        drop(held);
        assert!(semaphores.acquire("a").now_or_never().is_some());
    }

    #[tokio::test]
    async fn unused_names_are_forgotten() {
        let semaphores = KeyedSemaphores::new(1);
        for number in 0..100 {
            drop(semaphores.acquire(&number.to_string()).await);
        }
        assert_eq!(semaphores.semaphores.lock().unwrap().len(), 1);
    }
}
