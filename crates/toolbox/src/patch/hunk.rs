//! Applies hunks to the lines of a file, one after the other.

use super::seek::{HunkPosition, HunkProgress, LineMatchLevel, find_hunk};
use super::text::{LineEnding, TextLine, ending_near, join_lines, split_lines};
use super::{Hunk, HunkFormat, HunkLineRole, report};

/// Byte order mark, which some editors write at the start of a file.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Returns the content of a file after applying hunks. The error explains which hunk does not
/// match, and why.
pub(crate) fn apply(content: &[u8], hunks: &[Hunk]) -> Result<Vec<u8>, String> {
    let is_in_patch = || {
        hunks
            .iter()
            .flat_map(|hunk| &hunk.lines)
            .any(|line| line.text.starts_with(BYTE_ORDER_MARK))
    };
    match content
        .strip_prefix(BYTE_ORDER_MARK.as_bytes())
        .filter(|_| !is_in_patch())
    {
        None => apply_without_bom(content, hunks),
        // Readers do not see the mark, so a patch without it does not mean to remove it.
        Some(rest) => match apply_without_bom(rest, hunks)? {
            empty if empty.is_empty() => Ok(empty),
            rest => Ok([BYTE_ORDER_MARK.as_bytes(), &rest].concat()),
        },
    }
}

fn apply_without_bom(content: &[u8], hunks: &[Hunk]) -> Result<Vec<u8>, String> {
    let mut file = split_lines(content);
    let mut progress = HunkProgress::default();
    for (index, hunk) in hunks.iter().enumerate() {
        let position = find_hunk(&file, hunk, progress).map_err(|mismatch| {
            report::describe_mismatch(&file, hunk, &mismatch, progress, (index + 1, hunks.len()))
        })?;
        progress = apply_hunk(&mut file, hunk, position, progress);
    }
    add_missing_newlines(&mut file, hunks);
    Ok(join_lines(&file))
}

/// Applies a hunk at a position. Returns the progress for the next hunk.
fn apply_hunk<'a>(
    file: &mut Vec<TextLine<'a>>,
    hunk: &'a Hunk,
    position: HunkPosition,
    before: HunkProgress,
) -> HunkProgress {
    let (head, tail) = position.dropped_context;
    let lines = &hunk.lines[head..hunk.lines.len() - tail];
    let literal = uses_patch_endings(file, hunk, position);
    let mut here = position.line;
    let mut new = Vec::new();
    for line in lines {
        match line.role {
            // Context lines keep the bytes of the file, even if they matched inexactly.
            HunkLineRole::Keep => {
                new.push(file[here]);
                here += 1;
            }
            HunkLineRole::Remove => here += 1,
            HunkLineRole::Add => {
                let ending = match line.ending {
                    LineEnding::Missing => LineEnding::Missing,
                    ending if literal => ending,
                    _ => neighbour_ending(file, position.line, here),
                };
                new.push(TextLine {
                    text: line.text.as_bytes(),
                    ending,
                });
            }
        }
    }
    keep_missing_newline(&mut new, file, here, hunk);
    let grown = new.len() as isize - (here - position.line) as isize;
    // In a unified diff, the last context lines of one hunk may be the first of the next.
    let shared = lines
        .iter()
        .rev()
        .take_while(|line| line.role == HunkLineRole::Keep)
        .count();
    let shared = if matches!(hunk.format, HunkFormat::Unified { .. }) {
        shared
    } else {
        0
    };
    let ended = position.line + new.len() - shared;
    let was_searched = here > position.line
        || matches!(&hunk.format, HunkFormat::Envelope { anchors, .. } if !anchors.is_empty());
    let hint = match hunk.format {
        HunkFormat::Envelope { hint, .. } | HunkFormat::Unified { hint, .. } => hint,
    };
    file.splice(position.line..here, new);
    let offset = match hint {
        Some(hint) => position.line as isize - head as isize - hint as isize + grown,
        None => before.offset,
    };
    // Lines appended without a hint do not limit the position of the next hunk.
    let (began, ended) = if was_searched || hint.is_some() {
        (position.line, ended)
    } else {
        (before.previous_start, before.previous_end)
    };
    HunkProgress {
        previous_start: began,
        previous_end: ended,
        offset,
    }
}

/// Whether added lines use the line endings of the patch: it shows endings, and those of its
/// context match the file.
fn uses_patch_endings(file: &[TextLine<'_>], hunk: &Hunk, position: HunkPosition) -> bool {
    match hunk.format {
        HunkFormat::Envelope { .. } => false,
        HunkFormat::Unified { shows_cr, .. } if hunk.old_lines().next().is_none() => {
            shows_cr || file.is_empty()
        }
        HunkFormat::Unified { .. } => position.match_level == LineMatchLevel::Exact,
    }
}

/// Returns the line ending for an added line if the patch does not show one: that of the line above
/// in the hunk, else of the lines around the hunk.
fn neighbour_ending(file: &[TextLine<'_>], at: usize, here: usize) -> LineEnding {
    let has_ending = |line: &&TextLine<'_>| line.ending != LineEnding::Missing;
    let above = file[at..here].iter().rev().find(has_ending);
    let below = || file.get(here).filter(has_ending);
    above
        .or_else(below)
        .map_or_else(|| ending_near(file, at), |line| line.ending)
}

/// Keeps the missing newline at the end of a file if the patch does not mention it.
fn keep_missing_newline(new: &mut [TextLine<'_>], file: &[TextLine<'_>], here: usize, hunk: &Hunk) {
    let newline_is_missing = here == file.len()
        && file
            .last()
            .is_some_and(|line| line.ending == LineEnding::Missing);
    let patch_mentions_it = hunk
        .lines
        .iter()
        .any(|line| line.ending == LineEnding::Missing);
    let ends_with_added_line = hunk
        .lines
        .last()
        .is_some_and(|line| line.role == HunkLineRole::Add);
    let applies = newline_is_missing && ends_with_added_line && !patch_mentions_it;
    if let Some(last) = new.last_mut().filter(|_| applies) {
        last.ending = LineEnding::Missing;
    }
}

/// Adds missing newlines to all lines but the last. After an envelope, which cannot express a
/// missing newline, the last line gets one, too.
fn add_missing_newlines(file: &mut [TextLine<'_>], hunks: &[Hunk]) {
    let envelope = hunks
        .iter()
        .any(|hunk| matches!(hunk.format, HunkFormat::Envelope { .. }));
    let last = file.len().saturating_sub(1);
    for at in 0..file.len() {
        if file[at].ending == LineEnding::Missing && (at < last || envelope) {
            file[at].ending = ending_near(file, at);
        }
    }
}
