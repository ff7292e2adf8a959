//! A memory limit shared by all live scripts of a process. Each script reserves memory when it
//! grows and releases it when it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// A limit on the total linear memory of all live scripts.
#[derive(Debug)]
pub struct MemoryBudget {
    max_bytes: u64,
    used_bytes: AtomicU64,
    freed: Notify,
}

/// Memory that one script has reserved. Dropping it releases the memory.
#[derive(Debug)]
pub(crate) struct MemoryShare {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl MemoryBudget {
    /// Creates a budget of `cap` bytes.
    pub fn new(cap: u64) -> Self {
        Self {
            max_bytes: cap,
            used_bytes: AtomicU64::new(0),
            freed: Notify::new(),
        }
    }

    /// Returns the bytes reserved by all live scripts.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Waits until `bytes` can be reserved. More than the whole budget counts as the whole budget.
    pub(crate) async fn reserve(self: &Arc<Self>, bytes: u64) -> MemoryShare {
        let bytes = bytes.min(self.max_bytes);
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Registered before the attempt, so that no release in between is missed.
            freed.as_mut().enable();
            if self.try_reserve(bytes) {
                return MemoryShare {
                    budget: self.clone(),
                    bytes,
                };
            }
            freed.await;
        }
    }

    fn try_reserve(&self, bytes: u64) -> bool {
        self.used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= self.max_bytes)
            })
            .is_ok()
    }
}

impl MemoryShare {
    /// Reserves more memory; returns false if the budget does not have it now.
    pub(crate) fn try_grow(&mut self, bytes: u64) -> bool {
        let fits = self.budget.try_reserve(bytes);
        if fits {
            self.bytes += bytes;
        }
        fits
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.budget
            .used_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
        self.budget.freed.notify_waiters();
    }
}

/// Returns the memory of this machine in bytes, or the limit of this process's control group if
/// that is lower. `None` where neither can be read.
pub fn total_memory_bytes() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let total = read("/proc/meminfo").and_then(|text| {
        let line = text
            .lines()
            .find(|line| line.starts_with("MemTotal:"))?
            .to_owned();
        line.split_whitespace()
            .nth(1)?
            .parse::<u64>()
            .ok()
            .map(|kib| kib * 1024)
    });
    let group = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse::<u64>().ok());
    total.into_iter().chain(group).min()
}
