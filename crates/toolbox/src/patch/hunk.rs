//! Hunks put to a file's lines, one after the other.

use super::seek::{Likeness, Place, Progress, find};
use super::text::{Ending, TextLine, ending_near, join, split};
use super::{Hunk, Role, Style, report};

/// What some editors put before the first line.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// The file after its hunks. An error says why one has no place, in lines for whoever wrote it.
pub(crate) fn apply(content: &[u8], hunks: &[Hunk]) -> Result<Vec<u8>, String> {
    let shown = || {
        hunks
            .iter()
            .flat_map(|hunk| &hunk.lines)
            .any(|line| line.text.starts_with(BYTE_ORDER_MARK))
    };
    match content
        .strip_prefix(BYTE_ORDER_MARK.as_bytes())
        .filter(|_| !shown())
    {
        None => apply_to(content, hunks),
        // Nobody sees it, and nobody means to take it away.
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

/// Puts a hunk in its place, and returns what the next one starts from.
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
            // What stays, stays as it is, however tolerantly it was found.
            Role::Keep => {
                new.push(file[here]);
                here += 1;
            }
            Role::Remove => here += 1,
            Role::Add => {
                let ending = match line.ending {
                    Ending::None => Ending::None,
                    said if literal => said,
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
    // In a unified diff the last lines of one hunk may be the first of the next.
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
    let looked_for = here > place.at
        || matches!(&hunk.style, Style::Envelope { above, .. } if !above.is_empty());
    let hint = match hunk.style {
        Style::Envelope { hint, .. } | Style::Unified { hint, .. } => hint,
    };
    file.splice(place.at..here, new);
    let drift = match hint {
        Some(hint) => place.at as isize - head as isize - hint as isize + grown,
        None => before.drift,
    };
    // Lines appended at the end without a hint say nothing about where the next hunk is.
    let (began, ended) = if looked_for || hint.is_some() {
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

/// Whether the patch shows how lines end, and agrees with the file about those it shows.
fn endings_are_said(file: &[TextLine<'_>], hunk: &Hunk, place: Place) -> bool {
    match hunk.style {
        Style::Envelope { .. } => false,
        Style::Unified { shows_cr, .. } if hunk.old().next().is_none() => {
            shows_cr || file.is_empty()
        }
        Style::Unified { .. } => place.likeness == Likeness::Exact,
    }
}

/// How a new line ends where the patch does not say: as the line of the hunk above it does, or as what surrounds it.
fn neighbour(file: &[TextLine<'_>], at: usize, here: usize) -> Ending {
    let ends = |line: &&TextLine<'_>| line.ending != Ending::None;
    let above = file[at..here].iter().rev().find(ends);
    let below = || file.get(here).filter(ends);
    above
        .or_else(below)
        .map_or_else(|| ending_near(file, at), |line| line.ending)
}

/// A file without a newline at its end keeps it so, where the patch does not know.
fn keep_lack(new: &mut [TextLine<'_>], file: &[TextLine<'_>], here: usize, hunk: &Hunk) {
    let lacks = here == file.len() && file.last().is_some_and(|line| line.ending == Ending::None);
    let knows = hunk.lines.iter().any(|line| line.ending == Ending::None);
    let ends_new = hunk.lines.last().is_some_and(|line| line.role == Role::Add);
    if let Some(last) = new.last_mut().filter(|_| lacks && ends_new && !knows) {
        last.ending = Ending::None;
    }
}

/// Every line but the last has a newline; after an envelope, which cannot say that there is none, the last one, too.
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
