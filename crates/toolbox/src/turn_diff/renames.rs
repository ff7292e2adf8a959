//! Detects renames: pairs a deleted and an added file with the same or similar content, as git
//! does. Symbolic links are not paired, because git cannot apply a diff in which a link was renamed
//! and a folder took its place.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;

use super::changes::{FileChange, RenameOrigin};
use super::file::{FileStat, TrackedFile, TrackedFileKind};

/// Minimum percentage of the larger file that must be in the other file.
const MIN_SIMILARITY_PERCENT: u64 = 50;

/// Limits on the pairs of files that are compared, and on all chunks compared. Above these limits,
/// only identical files are paired.
const MAX_COMPARED_PAIRS: usize = 1_000_000;
const MAX_COMPARED_CHUNKS: usize = 50_000_000;

/// Turns pairs of a deletion and an addition into renames.
pub(super) fn detect_renames(changes: &mut Vec<FileChange>) {
    let (mut deleted, mut added) = (Vec::new(), Vec::new());
    for (index, change) in changes.iter().enumerate() {
        match (&change.before, &change.after) {
            (Some(held), None) if can_be_renamed(held) => deleted.push(index),
            (None, Some(held)) if can_be_renamed(held) => added.push(index),
            _ => {}
        }
    }
    let mut pairs = pair_identical(changes, &mut deleted, &mut added);
    pairs.extend(pair_similar(changes, &deleted, &added));
    let mut is_paired = vec![false; changes.len()];
    for RenamePair {
        deleted,
        added,
        similarity,
    } in pairs
    {
        let from = changes[deleted].path.clone();
        let before = changes[deleted].before.take();
        changes[added].before = before;
        changes[added].rename_origin = Some(RenameOrigin { from, similarity });
        is_paired[deleted] = true;
    }
    let mut is_paired = is_paired.into_iter();
    changes.retain(|_| !is_paired.next().unwrap_or_default());
}

/// Whether a file can take part in a rename. Empty files cannot, because all of them are equal.
fn can_be_renamed(held: &TrackedFile) -> bool {
    held.stat.kind == TrackedFileKind::File && held.stat.size > 0
}

/// A deleted and an added file that are one renamed file, as indices into the changes.
struct RenamePair {
    deleted: usize,
    added: usize,
    similarity: u8,
}

/// The identity of a file for exact matches: its content, or its metadata if the content is
/// unknown.
#[derive(PartialEq, Eq, Hash)]
enum FileIdentity<'a> {
    Content(&'a [u8]),
    File {
        device: u64,
        inode: u64,
        size: u64,
        modified: (i64, i64),
    },
}

impl<'a> FileIdentity<'a> {
    fn of(held: &'a TrackedFile) -> Self {
        match held.content.bytes() {
            Some(bytes) => Self::Content(bytes),
            None => Self::from_stat(held),
        }
    }

    fn from_stat(held: &TrackedFile) -> Self {
        let FileStat {
            device,
            inode,
            size,
            modified,
            ..
        } = held.stat;
        Self::File {
            device,
            inode,
            size,
            modified,
        }
    }
}

/// Pairs identical files, and removes them from `deleted` and `added`.
fn pair_identical(
    changes: &[FileChange],
    deleted: &mut Vec<usize>,
    added: &mut Vec<usize>,
) -> Vec<RenamePair> {
    let mut sources: HashMap<FileIdentity<'_>, Vec<usize>> = HashMap::new();
    for &index in deleted.iter() {
        if let Some(held) = changes[index].before.as_deref() {
            sources
                .entry(FileIdentity::of(held))
                .or_default()
                .push(index);
        }
    }
    let mut pairs = Vec::new();
    for &index in added.iter() {
        let Some(held) = &changes[index].after else {
            continue;
        };
        // Among several identical files, prefers the one with the same file name.
        let same_name = |source: &usize| file_name(&changes[*source]) == file_name(&changes[index]);
        for identity in [FileIdentity::of(held), FileIdentity::from_stat(held)] {
            let sources = sources
                .get_mut(&identity)
                .filter(|sources| !sources.is_empty());
            if let Some(sources) = sources {
                let at = sources.iter().position(same_name).unwrap_or(0);
                pairs.push(RenamePair {
                    deleted: sources.remove(at),
                    added: index,
                    similarity: 100,
                });
                break;
            }
        }
    }
    let paired: HashSet<usize> = pairs
        .iter()
        .flat_map(|pair| [pair.deleted, pair.added])
        .collect();
    deleted.retain(|index| !paired.contains(index));
    added.retain(|index| !paired.contains(index));
    pairs
}

/// Pairs similar files, most similar first. Returns none if there are too many to compare.
fn pair_similar(changes: &[FileChange], deleted: &[usize], added: &[usize]) -> Vec<RenamePair> {
    if deleted.is_empty() || added.is_empty() || deleted.len() * added.len() > MAX_COMPARED_PAIRS {
        return Vec::new();
    }
    let deleted: Vec<_> = deleted
        .iter()
        .filter_map(|&at| Some((at, ChunkHashes::of(changes[at].before.as_deref()?)?)))
        .collect();
    let added: Vec<_> = added
        .iter()
        .filter_map(|&at| Some((at, ChunkHashes::of(changes[at].after.as_ref()?)?)))
        .collect();
    let count = |files: &[(usize, ChunkHashes)]| {
        files
            .iter()
            .map(|(_, pieces)| pieces.bytes_by_hash.len())
            .sum::<usize>()
    };
    if count(&deleted) * added.len() + count(&added) * deleted.len() > MAX_COMPARED_CHUNKS {
        return Vec::new();
    }
    let mut candidates = Vec::new();
    for (added, after) in &added {
        for (deleted, before) in &deleted {
            let similarity = before.similarity(after);
            if similarity >= MIN_SIMILARITY_PERCENT {
                let same_name = file_name(&changes[*deleted]) == file_name(&changes[*added]);
                candidates.push((Reverse((similarity, same_name)), *added, *deleted));
            }
        }
    }
    candidates.sort_unstable();
    let (mut pairs, mut paired) = (Vec::new(), HashSet::new());
    for (Reverse((similarity, _)), added, deleted) in candidates {
        if !paired.contains(&added) && !paired.contains(&deleted) {
            paired.extend([added, deleted]);
            // At most 99: identical files are already paired, so files with the same lines differ
            // in their order.
            pairs.push(RenamePair {
                deleted,
                added,
                similarity: similarity.min(99) as u8,
            });
        }
    }
    pairs
}

fn file_name(change: &FileChange) -> Option<&OsStr> {
    Path::new(&change.path).file_name()
}

/// Lines are split into chunks of at most this many bytes.
const MAX_CHUNK_BYTES: usize = 64;

/// The hashed lines of a file; long lines are split into chunks.
struct ChunkHashes {
    size: u64,
    /// Pairs of a hash and the bytes of all chunks with that hash, ordered by hash.
    bytes_by_hash: Vec<(u64, u64)>,
}

impl ChunkHashes {
    fn of(held: &TrackedFile) -> Option<Self> {
        let bytes = held.content.bytes().filter(|bytes| !bytes.is_empty())?;
        let mut sizes: Vec<(u64, u64)> = bytes
            .split_inclusive(|byte| *byte == b'\n')
            .flat_map(|line| line.chunks(MAX_CHUNK_BYTES))
            .map(|piece| {
                let mut hasher = DefaultHasher::new();
                hasher.write(piece);
                (hasher.finish(), piece.len() as u64)
            })
            .collect();
        sizes.sort_unstable();
        sizes.dedup_by(|next, first| {
            let same = next.0 == first.0;
            first.1 += if same { next.1 } else { 0 };
            same
        });
        Some(Self {
            size: bytes.len() as u64,
            bytes_by_hash: sizes,
        })
    }

    /// Returns the percentage of the larger file that both files have in common.
    fn similarity(&self, other: &Self) -> u64 {
        let larger = self.size.max(other.size);
        if self.size.min(other.size) * 100 < larger * MIN_SIMILARITY_PERCENT {
            return 0;
        }
        let mut common = 0;
        let mut other_sizes = other.bytes_by_hash.iter().peekable();
        for (hash, size) in &self.bytes_by_hash {
            while other_sizes.next_if(|(other, _)| other < hash).is_some() {}
            common += other_sizes
                .next_if(|(other, _)| other == hash)
                .map_or(0, |(_, other)| (*size).min(*other));
        }
        common * 100 / larger
    }
}
