//! Applies hunks to the lines of a file, one after the other.

use super::seek::{Likeness, Place, Progress, find};
use super::text::{Ending, TextLine, ending_near, join, split};
use super::{Hunk, Role, Style, report};

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
        None => apply_to(content, hunks),
        // Readers do not see the mark, so a patch without it does not mean to remove it.
        Some(rest) => match apply_to(rest, hunks)? {
            empty if empty.is_empty() => Ok(empty),
            rest => Ok([BYTE_ORDER_MARK.as_bytes(), &rest].concat()),
        },
    }
}

fn apply_to(content: &[u8], hunks: &[Hunk]) -> Result<Vec<u8>, String> {
    let mut file = split(content);
    let mut progress = Progress::default();
    for (index, hunk) in hunks.iter().enumerate() {
        let place = find(&file, hunk, progress)
            .map_err(|lost| report::lost(&file, hunk, &lost, progress, (index + 1, hunks.len())))?;
        progress = put(&mut file, hunk, place, progress);
    }
    finish(&mut file, hunks);
    Ok(join(&file))
}

/// Applies a hunk at a position. Returns the progress for the next hunk.
fn put<'a>(
    file: &mut Vec<TextLine<'a>>,
    hunk: &'a Hunk,
    place: Place,
    before: Progress,
) -> Progress {
    let (head, tail) = place.dropped;
    let lines = &hunk.lines[head..hunk.lines.len() - tail];
    let literal = endings_are_said(file, hunk, place);
    let mut here = place.at;
    let mut new = Vec::new();
    for line in lines {
        match line.role {
            // Context lines keep the bytes of the file, even if they matched inexactly.
            Role::Keep => {
                new.push(file[here]);
                here += 1;
            }
            Role::Remove => here += 1,
            Role::Add => {
                let ending = match line.ending {
                    Ending::None => Ending::None,
                    ending if literal => ending,
                    _ => neighbour(file, place.at, here),
                };
                new.push(TextLine {
                    text: line.text.as_bytes(),
                    ending,
                });
            }
        }
    }
    keep_lack(&mut new, file, here, hunk);
    let grown = new.len() as isize - (here - place.at) as isize;
    // In a unified diff, the last context lines of one hunk may be the first of the next.
    let shared = lines
        .iter()
        .rev()
        .take_while(|line| line.role == Role::Keep)
        .count();
    let shared = if matches!(hunk.style, Style::Unified { .. }) {
        shared
    } else {
        0
    };
    let ended = place.at + new.len() - shared;
    let was_searched = here > place.at
        || matches!(&hunk.style, Style::Envelope { above, .. } if !above.is_empty());
    let hint = match hunk.style {
        Style::Envelope { hint, .. } | Style::Unified { hint, .. } => hint,
    };
    file.splice(place.at..here, new);
    let drift = match hint {
        Some(hint) => place.at as isize - head as isize - hint as isize + grown,
        None => before.drift,
    };
    // Lines appended without a hint do not limit the position of the next hunk.
    let (began, ended) = if was_searched || hint.is_some() {
        (place.at, ended)
    } else {
        (before.began, before.ended)
    };
    Progress {
        began,
        ended,
        drift,
    }
}

/// Whether added lines use the line endings of the patch: it shows endings, and those of its
/// context match the file.
fn endings_are_said(file: &[TextLine<'_>], hunk: &Hunk, place: Place) -> bool {
    match hunk.style {
        Style::Envelope { .. } => false,
        Style::Unified { shows_cr, .. } if hunk.old().next().is_none() => {
            shows_cr || file.is_empty()
        }
        Style::Unified { .. } => place.likeness == Likeness::Exact,
    }
}

/// Returns the line ending for an added line if the patch does not show one: that of the line above
/// in the hunk, else of the lines around the hunk.
fn neighbour(file: &[TextLine<'_>], at: usize, here: usize) -> Ending {
    let has_ending = |line: &&TextLine<'_>| line.ending != Ending::None;
    let above = file[at..here].iter().rev().find(has_ending);
    let below = || file.get(here).filter(has_ending);
    above
        .or_else(below)
        .map_or_else(|| ending_near(file, at), |line| line.ending)
}

/// Keeps the missing newline at the end of a file if the patch does not mention it.
fn keep_lack(new: &mut [TextLine<'_>], file: &[TextLine<'_>], here: usize, hunk: &Hunk) {
    let newline_is_missing =
        here == file.len() && file.last().is_some_and(|line| line.ending == Ending::None);
    let patch_mentions_it = hunk.lines.iter().any(|line| line.ending == Ending::None);
    let ends_with_added_line = hunk.lines.last().is_some_and(|line| line.role == Role::Add);
    let applies = newline_is_missing && ends_with_added_line && !patch_mentions_it;
    if let Some(last) = new.last_mut().filter(|_| applies) {
        last.ending = Ending::None;
    }
}

/// Adds missing newlines to all lines but the last. After an envelope, which cannot express a
/// missing newline, the last line gets one, too.
fn finish(file: &mut [TextLine<'_>], hunks: &[Hunk]) {
    let envelope = hunks
        .iter()
        .any(|hunk| matches!(hunk.style, Style::Envelope { .. }));
    let last = file.len().saturating_sub(1);
    for at in 0..file.len() {
        if file[at].ending == Ending::None && (at < last || envelope) {
            file[at].ending = ending_near(file, at);
        }
    }
}
