//! Finds the position of a hunk in a file: first by exact match, then with increasing tolerance.

use super::text::TextLine;
use super::{Hunk, Line, Role, Style};

/// Context lines at each end of a unified hunk that need not match, as in patch(1).
const MAX_DROPPED: usize = 2;

/// How exactly lines must match, from strict to tolerant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Likeness {
    /// Equal bytes, including the line ending.
    Exact,
    /// Equal text; the line endings may differ.
    Text,
    /// Equal except for trailing white space.
    TrailingSpace,
    /// Equal except for leading and trailing white space.
    Space,
    /// Equal except for white space, typographic dashes, quotes and spaces, and invalid UTF-8.
    Punctuation,
}

/// The position of a hunk in a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Index of the first line that the hunk covers.
    pub(crate) at: usize,
    pub(crate) likeness: Likeness,
    /// Number of context lines ignored at the start and at the end of the hunk.
    pub(crate) dropped: (usize, usize),
}

/// Positions of the hunks already applied to a file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    /// First line of the previous hunk.
    pub(crate) began: usize,
    /// Line after the previous hunk; the next hunk should start here or below.
    pub(crate) ended: usize,
    /// Distance between the previous hunk's hint and its position.
    pub(crate) drift: isize,
}

/// Why a hunk was not found.
#[derive(Debug)]
pub(crate) enum Lost {
    /// A line named by `@@` is missing.
    Above(String),
    /// The lines of the hunk are missing.
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

/// Finds the position of a hunk. A hunk that only adds lines and names no line above it is placed
/// by its hint, or at the end of the file.
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
                // Models often repeat the `@@` line as the first line of the hunk.
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
    // The hunk may be out of order, above the previous one.
    for likeness in Likeness::ALL {
        if let Some(at) = outward(&file[..progress.began], old, 0, start, likeness) {
            return Some(place(at, likeness));
        }
    }
    let count_context = |lines: &mut dyn Iterator<Item = &Line>| {
        lines.take_while(|line| line.role == Role::Keep).count()
    };
    let head = count_context(&mut hunk.lines.iter()).min(MAX_DROPPED);
    let tail = count_context(&mut hunk.lines.iter().rev()).min(MAX_DROPPED);
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
    // Blank lines before the next `@@` may be context or only separate the hunks.
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

/// Returns the match nearest to `start`, at or below `from`. If two are equally near, returns the
/// one further down in the file.
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
    let matches = |at: usize| fits(file, old, at, likeness);
    (0..=(last - start).max(start - from)).find_map(|distance| {
        let below = Some(start + distance).filter(|at| *at <= last && matches(*at));
        below.or_else(|| {
            start
                .checked_sub(distance)
                .filter(|at| distance > 0 && *at >= from && matches(*at))
        })
    })
}

/// Whether the lines of the hunk match the file at a position.
fn fits(file: &[TextLine<'_>], old: &[&Line], at: usize, likeness: Likeness) -> bool {
    file[at..]
        .iter()
        .zip(old)
        .all(|(file, patch)| likeness.same(file, patch))
}

/// Finds the line that `@@ …` names: the whole line, else a line that starts with it.
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

/// Whether lines identify a position: at least one has a letter or digit, not only brackets and
/// blanks.
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

/// Maps typographic characters to their ASCII equivalents.
fn plain(c: char) -> char {
    match c {
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        '\u{a0}' | '\u{2002}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        other => other,
    }
}
