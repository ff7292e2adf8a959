//! A snapshot of a script: the pages of its memory that differ from those every script begins with.
//!
//! Between two pumps the guest's stack is empty, so its linear memory is all there is. An image only means something to
//! the build that made it. It is not trusted either: whatever it holds is put behind the same wall.

use std::sync::OnceLock;

use crate::runtime::Fault;

/// Which build of the guest this is.
pub(crate) const BUILD: &str = env!("SELVEDGE_GUEST");

/// Bytes compared and kept as one.
const PAGE: usize = 4096;

/// Where in the memory a page stands, before its bytes.
const HEAD: usize = 4;

/// A script at an await.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The build of the engine it belongs to.
    pub build: String,
    /// The size of the memory in pages, then each page with its number in front.
    pub bytes: Vec<u8>,
}

impl Image {
    /// What of `memory` is not as in a `fresh` one.
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

    /// Whether it is whole: nothing is missing at its end.
    pub(crate) fn is_whole(&self) -> bool {
        self.bytes
            .len()
            .checked_sub(HEAD)
            .is_some_and(|pages| pages.is_multiple_of(HEAD + PAGE))
    }

    /// Size of the whole memory, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.bytes
            .first_chunk()
            .map_or(0, |pages| u64::from(u32::from_le_bytes(*pages)))
            * PAGE as u64
    }

    /// Each page and where it begins.
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

/// The memory every script begins with, once somebody needs it.
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
