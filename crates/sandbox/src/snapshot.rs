//! A snapshot of a script: the pages of its memory that differ from a fresh guest's memory.
//!
//! While a script awaits something the guest's stack is empty, so its linear memory is its
//! whole state. A snapshot can only be restored by the build of the engine that made it. It is not
//! trusted: whatever it contains runs inside the same sandbox.

use std::sync::OnceLock;

use crate::runtime::Fault;

/// Identifies the build of the guest: a fingerprint of its initial memory.
pub(crate) const GUEST_BUILD_ID: &str = env!("SELVEDGE_GUEST");

/// Size of the blocks in which memory is compared and stored.
const PAGE_BYTES: usize = 4096;

/// Bytes of a page number, which precedes each page, and of the page count at the start.
const PAGE_NUMBER_BYTES: usize = 4;

/// The memory of a script that awaits something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestSnapshot {
    /// The build of the engine that made the snapshot.
    pub build_id: String,
    /// The size of the memory in pages, then each changed page, preceded by its number.
    pub bytes: Vec<u8>,
}

impl GuestSnapshot {
    /// Takes the pages of `memory` that differ from a `fresh` guest's memory.
    pub(crate) fn from_memory(memory: &[u8], fresh: &[u8]) -> Self {
        let mut bytes = u32::to_le_bytes((memory.len() / PAGE_BYTES) as u32).to_vec();
        for (number, page) in memory.chunks_exact(PAGE_BYTES).enumerate() {
            let same = match fresh.get(number * PAGE_BYTES..(number + 1) * PAGE_BYTES) {
                Some(before) => before == page,
                None => page.iter().all(|byte| *byte == 0),
            };
            if !same {
                bytes.extend_from_slice(&(number as u32).to_le_bytes());
                bytes.extend_from_slice(page);
            }
        }
        Self {
            build_id: GUEST_BUILD_ID.to_owned(),
            bytes,
        }
    }

    /// Whether the bytes consist of whole pages. False for a truncated snapshot.
    pub(crate) fn is_complete(&self) -> bool {
        self.bytes
            .len()
            .checked_sub(PAGE_NUMBER_BYTES)
            .is_some_and(|pages| pages.is_multiple_of(PAGE_NUMBER_BYTES + PAGE_BYTES))
    }

    /// Returns the size of the guest's memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes
            .first_chunk()
            .map_or(0, |pages| u64::from(u32::from_le_bytes(*pages)))
            * PAGE_BYTES as u64
    }

    /// Returns each stored page with the offset at which it begins.
    pub(crate) fn changed_pages(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let pages = self
            .bytes
            .get(PAGE_NUMBER_BYTES..)
            .unwrap_or_default()
            .chunks_exact(PAGE_NUMBER_BYTES + PAGE_BYTES);
        pages.filter_map(|entry| {
            let (number, page) = entry.split_first_chunk::<PAGE_NUMBER_BYTES>()?;
            Some((u32::from_le_bytes(*number) as usize * PAGE_BYTES, page))
        })
    }
}

/// The memory of a fresh guest, read when the first snapshot is taken.
#[derive(Debug, Default)]
pub(crate) struct FreshMemory(OnceLock<Vec<u8>>);

impl FreshMemory {
    pub(crate) fn get_or_read(
        &self,
        read: impl FnOnce() -> wasmtime::Result<Vec<u8>>,
    ) -> Result<&[u8], Fault> {
        if let Some(memory) = self.0.get() {
            return Ok(memory);
        }
        let memory = read().map_err(|error| Fault::Engine(format!("{error:#}")))?;
        Ok(self.0.get_or_init(|| memory))
    }
}
