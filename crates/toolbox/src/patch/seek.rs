//! Where a hunk belongs: as it stands, then ever more tolerantly.

use super::text::TextLine;
use super::{Hunk, Line, Role, Style};

/// Lines of context that a hunk of a unified diff may lose at either end, as with patch(1).
const MAX_DROPPED: usize = 2;

/// How alike lines must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Likeness {
    /// The same bytes, ending included.
    Exact,
    /// The same text, however it ends.
    Text,
    /// The same but for white space at the end.
    TrailingSpace,
    /// The same but for white space around it.
    Space,
    /// The same but for typographic dashes, quotes and spaces, and bytes that are no text.
    Punctuation,
}

/// Where a hunk fits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// First line of the file that it covers.
    pub(crate) at: usize,
    pub(crate) likeness: Likeness,
    /// Lines of the hunk left out at its head and its tail.
    pub(crate) dropped: (usize, usize),
}

/// What earlier hunks of the file have left behind.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Where the last hunk began.
    pub(crate) began: usize,
    /// Where it ended; the next should follow.
    pub(crate) ended: usize,
    /// How far from their hints the hunks were found.
    pub(crate) drift: isize,
}

/// Why a hunk has no place.
#[derive(Debug)]
pub(crate) enum Lost {
    /// A line that should stand above it is not there.
    Above(String),
    /// Its own lines are not there.
    Lines,
}

impl Likeness {
    const ALL: [Self; 5] = [
        Self::Exact,
        Self::Text,
        Self::TrailingSpace,
        Self::Space,
        Self::Punctuation,
    ];

    pub(crate) fn same(self, file: &TextLine<'_>, patch: &Line) -> bool {
        let (a, b) = (file.text, patch.text.as_bytes());
        match self {
            Self::Exact => a == b && file.ending == patch.ending,
            Self::Text => a == b,
            Self::TrailingSpace => a.trim_ascii_end() == b.trim_ascii_end(),
            Self::Space => a.trim_ascii() == b.trim_ascii(),
            Self::Punctuation => String::from_utf8_lossy(a)
                .trim()
                .chars()
                .map(plain)
                .eq(patch.text.trim().chars().map(plain)),
        }
    }
}

/// Finds the place of a hunk that expects lines or names lines above it; the others have theirs without looking.
pub(crate) fn find(file: &[TextLine<'_>], hunk: &Hunk, progress: Progress) -> Result<Place, Lost> {
    let old: Vec<&Line> = hunk.old().collect();
    match &hunk.style {
        Style::Unified { hint, .. } => {
            unified(file, hunk, &old, *hint, progress).ok_or(Lost::Lines)
        }
        Style::Envelope {
            above,
            hint,
            at_end,
        } => {
            let mut from = progress.ended;
            let mut below = from;
            for line in above {
                let found =
                    line_like(file, line, below).ok_or_else(|| Lost::Above(line.clone()))?;
                // Many repeat the line as the first of the hunk.
                (from, below) = (found, found + 1);
            }
            if old.is_empty() {
                let at = match (above.is_empty() || *at_end, hint) {
                    (false, _) => below,
                    (true, Some(hint)) if !at_end => insertion(*hint, progress, file.len()),
                    (true, _) => file.len(),
                };
                return Ok(Place {
                    at,
                    likeness: Likeness::Text,
                    dropped: (0, 0),
                });
            }
            let start = hint.map_or(from, |hint| shifted(hint, progress.drift));
            envelope(file, hunk, &old, from, start, *at_end).ok_or(Lost::Lines)
        }
    }
}

fn unified(
    file: &[TextLine<'_>],
    hunk: &Hunk,
    old: &[&Line],
    hint: Option<usize>,
    progress: Progress,
) -> Option<Place> {
    if old.is_empty() {
        let at = hint.map_or(file.len(), |hint| insertion(hint, progress, file.len()));
        return Some(Place {
            at,
            likeness: Likeness::Text,
            dropped: (0, 0),
        });
    }
    let start = hint.map_or(progress.ended, |hint| shifted(hint, progress.drift));
    let place = |at, likeness| Place {
        at,
        likeness,
        dropped: (0, 0),
    };
    for likeness in Likeness::ALL {
        if let Some(at) = outward(file, old, progress.ended, start, likeness) {
            return Some(place(at, likeness));
        }
    }
    // A hunk that is out of order: above the one before it.
    for likeness in Likeness::ALL {
        if let Some(at) = outward(&file[..progress.began], old, 0, start, likeness) {
            return Some(place(at, likeness));
        }
    }
    let kept = |lines: &mut dyn Iterator<Item = &Line>| {
        lines.take_while(|line| line.role == Role::Keep).count()
    };
    let head = kept(&mut hunk.lines.iter()).min(MAX_DROPPED);
    let tail = kept(&mut hunk.lines.iter().rev()).min(MAX_DROPPED);
    let mut drops: Vec<(usize, usize)> = (0..=head)
        .flat_map(|a| (0..=tail).map(move |b| (a, b)))
        .skip(1)
        .collect();
    drops.sort_by_key(|(head, tail)| head + tail);
    for (head, tail) in drops {
        if head + tail >= old.len() || !says_something(&old[head..old.len() - tail]) {
            continue;
        }
        for likeness in &Likeness::ALL[1..] {
            if let Some(at) = outward(
                file,
                &old[head..old.len() - tail],
                progress.ended,
                start + head,
                *likeness,
            ) {
                return Some(Place {
                    at,
                    likeness: *likeness,
                    dropped: (head, tail),
                });
            }
        }
    }
    None
}

fn envelope(
    file: &[TextLine<'_>],
    hunk: &Hunk,
    old: &[&Line],
    from: usize,
    start: usize,
    at_end: bool,
) -> Option<Place> {
    // A blank line before the next `@@` may be part of the hunk, or only set it off.
    let blank = hunk
        .lines
        .iter()
        .rev()
        .take_while(|line| line.role == Role::Keep && line.text.is_empty())
        .count();
    for tail in 0..=blank.min(old.len() - 1) {
        let old = &old[..old.len() - tail];
        let place = |at, likeness| Place {
            at,
            likeness,
            dropped: (0, tail),
        };
        let end = file
            .len()
            .checked_sub(old.len())
            .filter(|at| at_end && *at >= from);
        let at_end = end.and_then(|at| {
            Likeness::ALL
                .iter()
                .find(|likeness| fits(file, old, at, **likeness))
                .zip(end)
        });
        if let Some((likeness, at)) = at_end {
            return Some(place(at, *likeness));
        }
        for likeness in Likeness::ALL {
            if let Some(at) = outward(file, old, from, start, likeness) {
                return Some(place(at, likeness));
            }
        }
    }
    None
}

/// The match nearest to `start`, not above `from`; of two as near, the lower.
fn outward(
    file: &[TextLine<'_>],
    old: &[&Line],
    from: usize,
    start: usize,
    likeness: Likeness,
) -> Option<usize> {
    let last = file
        .len()
        .checked_sub(old.len())
        .filter(|last| *last >= from)?;
    let start = start.clamp(from, last);
    let hit = |at: usize| fits(file, old, at, likeness);
    (0..=(last - start).max(start - from)).find_map(|distance| {
        let below = Some(start + distance).filter(|at| *at <= last && hit(*at));
        below.or_else(|| {
            start
                .checked_sub(distance)
                .filter(|at| distance > 0 && *at >= from && hit(*at))
        })
    })
}

fn fits(file: &[TextLine<'_>], old: &[&Line], at: usize, likeness: Likeness) -> bool {
    file[at..]
        .iter()
        .zip(old)
        .all(|(file, patch)| likeness.same(file, patch))
}

/// The line that `@@ …` names: as a whole, else by how it begins.
fn line_like(file: &[TextLine<'_>], line: &str, from: usize) -> Option<usize> {
    let wanted = Line {
        role: Role::Keep,
        text: line.to_owned(),
        ending: super::Ending::Lf,
    };
    let rest = file.get(from..)?;
    let whole = Likeness::ALL[1..]
        .iter()
        .find_map(|likeness| rest.iter().position(|file| likeness.same(file, &wanted)));
    let begins = |file: &TextLine<'_>| {
        let text = String::from_utf8_lossy(file.text);
        let rest = text.trim().strip_prefix(line.trim());
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    whole
        .or_else(|| rest.iter().position(begins))
        .map(|at| from + at)
}

/// Whether lines are enough to know a place by: more than brackets and blanks.
fn says_something(lines: &[&Line]) -> bool {
    lines
        .iter()
        .any(|line| line.text.contains(char::is_alphanumeric))
}

fn insertion(hint: usize, progress: Progress, len: usize) -> usize {
    shifted(hint, progress.drift).min(len)
}

fn shifted(hint: usize, drift: isize) -> usize {
    hint.saturating_add_signed(drift)
}

/// What a plain keyboard has for a typographic sign.
fn plain(c: char) -> char {
    match c {
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        '\u{a0}' | '\u{2002}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        other => other,
    }
}
