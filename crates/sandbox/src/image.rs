//! A snapshot of a script: the pages of its memory that differ from a fresh guest's memory.
//!
//! While a script awaits something the guest's stack is empty, so its linear memory is its
//! whole state. A snapshot can only be restored by the build of the engine that made it. It is not
//! trusted: whatever it contains runs inside the same sandbox.

use std::sync::OnceLock;

use crate::runtime::Fault;

/// Identifies the build of the guest: a fingerprint of its initial memory.
pub(crate) const BUILD: &str = env!("SELVEDGE_GUEST");

/// Size of the blocks in which memory is compared and stored.
const PAGE: usize = 4096;

/// Bytes of a page number, which precedes each page, and of the page count at the start.
const HEAD: usize = 4;

/// The memory of a script that awaits something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The build of the engine that made the snapshot.
    pub build: String,
    /// The size of the memory in pages, then each changed page, preceded by its number.
    pub bytes: Vec<u8>,
}

impl Image {
    /// Takes the pages of `memory` that differ from a `fresh` guest's memory.
    pub(crate) fn of(memory: &[u8], fresh: &[u8]) -> Self {
        let mut bytes = u32::to_le_bytes((memory.len() / PAGE) as u32).to_vec();
        for (number, page) in memory.chunks_exact(PAGE).enumerate() {
            let same = match fresh.get(number * PAGE..(number + 1) * PAGE) {
                Some(before) => before == page,
                None => page.iter().all(|byte| *byte == 0),
            };
            if !same {
                bytes.extend_from_slice(&(number as u32).to_le_bytes());
                bytes.extend_from_slice(page);
            }
        }
        Self {
            build: BUILD.to_owned(),
            bytes,
        }
    }

    /// Whether the bytes consist of whole pages. False for a truncated snapshot.
    pub(crate) fn is_whole(&self) -> bool {
        self.bytes
            .len()
            .checked_sub(HEAD)
            .is_some_and(|pages| pages.is_multiple_of(HEAD + PAGE))
    }

    /// Returns the size of the guest's memory, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.bytes
            .first_chunk()
            .map_or(0, |pages| u64::from(u32::from_le_bytes(*pages)))
            * PAGE as u64
    }

    /// Returns each stored page with the offset at which it begins.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let pages = self
            .bytes
            .get(HEAD..)
            .unwrap_or_default()
            .chunks_exact(HEAD + PAGE);
        pages.filter_map(|entry| {
            let (number, page) = entry.split_first_chunk::<HEAD>()?;
            Some((u32::from_le_bytes(*number) as usize * PAGE, page))
        })
    }
}

/// The memory of a fresh guest, read when the first snapshot is taken.
#[derive(Debug, Default)]
pub(crate) struct Pristine(OnceLock<Vec<u8>>);

impl Pristine {
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
