//! A file that is gone and one that came may be the same: pairs are found the way git finds them, by content.
//! Links are left alone: git cannot apply that one was renamed and a folder took its place.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;

use super::changes::{Change, Renamed};
use super::file::{Held, Kind, Stat};

/// Percent of the larger file that must be found in the other.
const SIMILAR: u64 = 50;

/// Pairs that are compared, and pieces of them in all; beyond that, only equal files are paired.
const MAX_PAIRS: usize = 1_000_000;
const MAX_PIECES: usize = 50_000_000;

/// Turns pairs of a deletion and an addition into renames.
pub(super) fn pair(changes: &mut Vec<Change>) {
    let (mut gone, mut came) = (Vec::new(), Vec::new());
    for (index, change) in changes.iter().enumerate() {
        match (&change.before, &change.after) {
            (Some(held), None) if may_move(held) => gone.push(index),
            (None, Some(held)) if may_move(held) => came.push(index),
            _ => {}
        }
    }
    let mut pairs = equal(changes, &mut gone, &mut came);
    pairs.extend(similar(changes, &gone, &came));
    let mut taken = vec![false; changes.len()];
    for Pair {
        gone,
        came,
        similarity,
    } in pairs
    {
        let from = changes[gone].path.clone();
        let before = changes[gone].before.take();
        changes[came].before = before;
        changes[came].renamed = Some(Renamed { from, similarity });
        taken[gone] = true;
    }
    let mut taken = taken.into_iter();
    changes.retain(|_| !taken.next().unwrap_or_default());
}

/// All empty files are equal, and that says nothing.
fn may_move(held: &Held) -> bool {
    held.stat.kind == Kind::File && held.stat.size > 0
}

/// Two changes that are one.
struct Pair {
    gone: usize,
    came: usize,
    similarity: u8,
}

/// What tells that two files are the same one: their content, or, where that is not known, that the system says so.
#[derive(PartialEq, Eq, Hash)]
enum Identity<'a> {
    Content(&'a [u8]),
    File {
        device: u64,
        inode: u64,
        size: u64,
        modified: (i64, i64),
    },
}

impl<'a> Identity<'a> {
    fn of(held: &'a Held) -> Self {
        match held.content.bytes() {
            Some(bytes) => Self::Content(bytes),
            None => Self::by_system(held),
        }
    }

    fn by_system(held: &Held) -> Self {
        let Stat {
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

/// Pairs of equal files, which are taken out of `gone` and `came`.
fn equal(changes: &[Change], gone: &mut Vec<usize>, came: &mut Vec<usize>) -> Vec<Pair> {
    let mut sources: HashMap<Identity<'_>, Vec<usize>> = HashMap::new();
    for &index in gone.iter() {
        if let Some(held) = changes[index].before.as_deref() {
            sources.entry(Identity::of(held)).or_default().push(index);
        }
    }
    let mut pairs = Vec::new();
    for &index in came.iter() {
        let Some(held) = &changes[index].after else {
            continue;
        };
        // Of several, the one with the same name.
        let same_name = |source: &usize| file_name(&changes[*source]) == file_name(&changes[index]);
        for identity in [Identity::of(held), Identity::by_system(held)] {
            let sources = sources
                .get_mut(&identity)
                .filter(|sources| !sources.is_empty());
            if let Some(sources) = sources {
                let at = sources.iter().position(same_name).unwrap_or(0);
                pairs.push(Pair {
                    gone: sources.remove(at),
                    came: index,
                    similarity: 100,
                });
                break;
            }
        }
    }
    let paired: HashSet<usize> = pairs
        .iter()
        .flat_map(|pair| [pair.gone, pair.came])
        .collect();
    gone.retain(|index| !paired.contains(index));
    came.retain(|index| !paired.contains(index));
    pairs
}

/// Pairs of files that have most in common, the best first.
fn similar(changes: &[Change], gone: &[usize], came: &[usize]) -> Vec<Pair> {
    if gone.is_empty() || came.is_empty() || gone.len() * came.len() > MAX_PAIRS {
        return Vec::new();
    }
    let gone: Vec<_> = gone
        .iter()
        .filter_map(|&at| Some((at, Pieces::of(changes[at].before.as_deref()?)?)))
        .collect();
    let came: Vec<_> = came
        .iter()
        .filter_map(|&at| Some((at, Pieces::of(changes[at].after.as_ref()?)?)))
        .collect();
    let count = |files: &[(usize, Pieces)]| {
        files
            .iter()
            .map(|(_, pieces)| pieces.sizes.len())
            .sum::<usize>()
    };
    if count(&gone) * came.len() + count(&came) * gone.len() > MAX_PIECES {
        return Vec::new();
    }
    let mut candidates = Vec::new();
    for (came, after) in &came {
        for (gone, before) in &gone {
            let similarity = before.similarity(after);
            if similarity >= SIMILAR {
                let same_name = file_name(&changes[*gone]) == file_name(&changes[*came]);
                candidates.push((Reverse((similarity, same_name)), *came, *gone));
            }
        }
    }
    candidates.sort_unstable();
    let (mut pairs, mut paired) = (Vec::new(), HashSet::new());
    for (Reverse((similarity, _)), came, gone) in candidates {
        if !paired.contains(&came) && !paired.contains(&gone) {
            paired.extend([came, gone]);
            // Equal ones have been found before: the same lines in another order are not that.
            pairs.push(Pair {
                gone,
                came,
                similarity: similarity.min(99) as u8,
            });
        }
    }
    pairs
}

fn file_name(change: &Change) -> Option<&OsStr> {
    Path::new(&change.path).file_name()
}

/// The longest piece of a line.
const MAX_PIECE: usize = 64;

/// A file cut in lines, long ones in pieces.
struct Pieces {
    size: u64,
    /// How many bytes of the file are in pieces of this hash, ordered by hash.
    sizes: Vec<(u64, u64)>,
}

impl Pieces {
    fn of(held: &Held) -> Option<Self> {
        let bytes = held.content.bytes().filter(|bytes| !bytes.is_empty())?;
        let mut sizes: Vec<(u64, u64)> = bytes
            .split_inclusive(|byte| *byte == b'\n')
            .flat_map(|line| line.chunks(MAX_PIECE))
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
            sizes,
        })
    }

    /// Percent of the larger one that is in both.
    fn similarity(&self, other: &Self) -> u64 {
        let larger = self.size.max(other.size);
        if self.size.min(other.size) * 100 < larger * SIMILAR {
            return 0;
        }
        let mut common = 0;
        let mut theirs = other.sizes.iter().peekable();
        for (hash, size) in &self.sizes {
            while theirs.next_if(|(other, _)| other < hash).is_some() {}
            common += theirs
                .next_if(|(other, _)| other == hash)
                .map_or(0, |(_, other)| (*size).min(*other));
        }
        common * 100 / larger
    }
}
