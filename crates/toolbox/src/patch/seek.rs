//! Finds the position of a hunk in a file: first by exact match, then with increasing tolerance.

use super::text::TextLine;
use super::{Hunk, HunkFormat, HunkLine, HunkLineRole};

/// Context lines at each end of a unified hunk that need not match, as in patch(1).
const MAX_DROPPED_CONTEXT_LINES: usize = 2;

/// How exactly lines must match, from strict to tolerant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineMatchLevel {
    /// Equal bytes, including the line ending.
    Exact,
    /// Equal text; the line endings may differ.
    Text,
    /// Equal except for trailing whitespace.
    TrailingSpace,
    /// Equal except for leading and trailing whitespace.
    Space,
    /// Equal except for whitespace, typographic dashes, quotes and spaces, and invalid UTF-8.
    Punctuation,
}

/// The position of a hunk in a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HunkPosition {
    /// Index of the first line that the hunk covers.
    pub(crate) line: usize,
    pub(crate) match_level: LineMatchLevel,
    /// Number of context lines ignored at the start and at the end of the hunk.
    pub(crate) dropped_context: (usize, usize),
}

/// Positions of the hunks already applied to a file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HunkProgress {
    /// First line of the previous hunk.
    pub(crate) previous_start: usize,
    /// Line after the previous hunk; the next hunk should start here or below.
    pub(crate) previous_end: usize,
    /// Distance between the previous hunk's hint and its position.
    pub(crate) offset: isize,
}

/// Why a hunk was not found.
#[derive(Debug)]
pub(crate) enum HunkMismatch {
    /// A line named by `@@` is missing.
    MissingAnchor(String),
    /// The lines of the hunk are missing.
    MissingLines,
}

impl LineMatchLevel {
    const ALL: [Self; 5] = [
        Self::Exact,
        Self::Text,
        Self::TrailingSpace,
        Self::Space,
        Self::Punctuation,
    ];

    pub(crate) fn matches(self, file: &TextLine<'_>, patch: &HunkLine) -> bool {
        let (a, b) = (file.text, patch.text.as_bytes());
        match self {
            Self::Exact => a == b && file.ending == patch.ending,
            Self::Text => a == b,
            Self::TrailingSpace => a.trim_ascii_end() == b.trim_ascii_end(),
            Self::Space => a.trim_ascii() == b.trim_ascii(),
            Self::Punctuation => String::from_utf8_lossy(a)
                .trim()
                .chars()
                .map(fold_typography)
                .eq(patch.text.trim().chars().map(fold_typography)),
        }
    }
}

/// Finds the position of a hunk. A hunk that only adds lines and names no line above it is placed
/// by its hint, or at the end of the file.
pub(crate) fn find_hunk(
    file: &[TextLine<'_>],
    hunk: &Hunk,
    progress: HunkProgress,
) -> Result<HunkPosition, HunkMismatch> {
    let old: Vec<&HunkLine> = hunk.old_lines().collect();
    match &hunk.format {
        HunkFormat::Unified { hint, .. } => {
            find_unified(file, hunk, &old, *hint, progress).ok_or(HunkMismatch::MissingLines)
        }
        HunkFormat::Envelope {
            anchors: above,
            hint,
            at_end,
        } => {
            let mut from = progress.previous_end;
            let mut below = from;
            for line in above {
                let found = find_anchor(file, line, below)
                    .ok_or_else(|| HunkMismatch::MissingAnchor(line.clone()))?;
                // Models often repeat the `@@` line as the first line of the hunk.
                (from, below) = (found, found + 1);
            }
            if old.is_empty() {
                let at = match (above.is_empty() || *at_end, hint) {
                    (false, _) => below,
                    (true, Some(hint)) if !at_end => insertion_line(*hint, progress, file.len()),
                    (true, _) => file.len(),
                };
                return Ok(HunkPosition {
                    line: at,
                    match_level: LineMatchLevel::Text,
                    dropped_context: (0, 0),
                });
            }
            let start = hint.map_or(from, |hint| apply_offset(hint, progress.offset));
            find_envelope(file, hunk, &old, from, start, *at_end).ok_or(HunkMismatch::MissingLines)
        }
    }
}

fn find_unified(
    file: &[TextLine<'_>],
    hunk: &Hunk,
    old: &[&HunkLine],
    hint: Option<usize>,
    progress: HunkProgress,
) -> Option<HunkPosition> {
    if old.is_empty() {
        let at = hint.map_or(file.len(), |hint| {
            insertion_line(hint, progress, file.len())
        });
        return Some(HunkPosition {
            line: at,
            match_level: LineMatchLevel::Text,
            dropped_context: (0, 0),
        });
    }
    let start = hint.map_or(progress.previous_end, |hint| {
        apply_offset(hint, progress.offset)
    });
    let position = |at, level| HunkPosition {
        line: at,
        match_level: level,
        dropped_context: (0, 0),
    };
    for level in LineMatchLevel::ALL {
        if let Some(at) = search_outward(file, old, progress.previous_end, start, level) {
            return Some(position(at, level));
        }
    }
    // The hunk may be out of order, above the previous one.
    for level in LineMatchLevel::ALL {
        if let Some(at) = search_outward(&file[..progress.previous_start], old, 0, start, level) {
            return Some(position(at, level));
        }
    }
    let count_context = |lines: &mut dyn Iterator<Item = &HunkLine>| {
        lines
            .take_while(|line| line.role == HunkLineRole::Keep)
            .count()
    };
    let head = count_context(&mut hunk.lines.iter()).min(MAX_DROPPED_CONTEXT_LINES);
    let tail = count_context(&mut hunk.lines.iter().rev()).min(MAX_DROPPED_CONTEXT_LINES);
    let mut drops: Vec<(usize, usize)> = (0..=head)
        .flat_map(|a| (0..=tail).map(move |b| (a, b)))
        .skip(1)
        .collect();
    drops.sort_by_key(|(head, tail)| head + tail);
    for (head, tail) in drops {
        if head + tail >= old.len() || !is_distinctive(&old[head..old.len() - tail]) {
            continue;
        }
        for level in &LineMatchLevel::ALL[1..] {
            if let Some(at) = search_outward(
                file,
                &old[head..old.len() - tail],
                progress.previous_end,
                start + head,
                *level,
            ) {
                return Some(HunkPosition {
                    line: at,
                    match_level: *level,
                    dropped_context: (head, tail),
                });
            }
        }
    }
    None
}

fn find_envelope(
    file: &[TextLine<'_>],
    hunk: &Hunk,
    old: &[&HunkLine],
    from: usize,
    start: usize,
    at_end: bool,
) -> Option<HunkPosition> {
    // Blank lines before the next `@@` may be context or only separate the hunks.
    let blank = hunk
        .lines
        .iter()
        .rev()
        .take_while(|line| line.role == HunkLineRole::Keep && line.text.is_empty())
        .count();
    for tail in 0..=blank.min(old.len() - 1) {
        let old = &old[..old.len() - tail];
        let position = |at, level| HunkPosition {
            line: at,
            match_level: level,
            dropped_context: (0, tail),
        };
        let end = file
            .len()
            .checked_sub(old.len())
            .filter(|at| at_end && *at >= from);
        let at_end = end.and_then(|at| {
            LineMatchLevel::ALL
                .iter()
                .find(|level| matches_at(file, old, at, **level))
                .zip(end)
        });
        if let Some((level, at)) = at_end {
            return Some(position(at, *level));
        }
        for level in LineMatchLevel::ALL {
            if let Some(at) = search_outward(file, old, from, start, level) {
                return Some(position(at, level));
            }
        }
    }
    None
}

/// Returns the match nearest to `start`, at or below `from`. If two are equally near, returns the
/// one further down in the file.
fn search_outward(
    file: &[TextLine<'_>],
    old: &[&HunkLine],
    from: usize,
    start: usize,
    level: LineMatchLevel,
) -> Option<usize> {
    let last = file
        .len()
        .checked_sub(old.len())
        .filter(|last| *last >= from)?;
    let start = start.clamp(from, last);
    let matches = |at: usize| matches_at(file, old, at, level);
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
fn matches_at(file: &[TextLine<'_>], old: &[&HunkLine], at: usize, level: LineMatchLevel) -> bool {
    file[at..]
        .iter()
        .zip(old)
        .all(|(file, patch)| level.matches(file, patch))
}

/// Finds the line that `@@ …` names: the whole line, else a line that starts with it.
fn find_anchor(file: &[TextLine<'_>], line: &str, from: usize) -> Option<usize> {
    let wanted = HunkLine {
        role: HunkLineRole::Keep,
        text: line.to_owned(),
        ending: super::LineEnding::Lf,
    };
    let rest = file.get(from..)?;
    let whole = LineMatchLevel::ALL[1..]
        .iter()
        .find_map(|level| rest.iter().position(|file| level.matches(file, &wanted)));
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
fn is_distinctive(lines: &[&HunkLine]) -> bool {
    lines
        .iter()
        .any(|line| line.text.contains(char::is_alphanumeric))
}

fn insertion_line(hint: usize, progress: HunkProgress, len: usize) -> usize {
    apply_offset(hint, progress.offset).min(len)
}

fn apply_offset(hint: usize, offset: isize) -> usize {
    hint.saturating_add_signed(offset)
}

/// Maps typographic characters to their ASCII equivalents.
fn fold_typography(c: char) -> char {
    match c {
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        '\u{a0}' | '\u{2002}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        other => other,
    }
}
