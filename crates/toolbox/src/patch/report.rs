//! Error messages for hunks that do not match: where they were searched, and the most similar
//! lines.

use std::collections::HashMap;

use selvedge_text::with_ellipsis;

use super::seek::{Likeness, Lost, Progress};
use super::text::TextLine;
use super::{Hunk, Line, Role, Style};

/// Maximum number of lines shown of the hunk and of the file.
const SHOWN: usize = 6;

/// Maximum number of characters shown of a line.
const WIDTH: usize = 120;

/// Returns the error message for a hunk that does not match. `number` of `of` is its position in
/// the file's part of the patch.
pub(crate) fn lost(
    file: &[TextLine<'_>],
    hunk: &Hunk,
    lost: &Lost,
    progress: Progress,
    (number, of): (usize, usize),
) -> String {
    let old: Vec<&Line> = hunk.old().collect();
    let searched = searched(file, hunk, progress);
    let mut text = match lost {
        Lost::Above(line) => format!(
            "hunk {number} of {of} (line {} of the patch) does not match: \
             the line `{}` named by `@@` was not found; searched {searched}",
            hunk.line,
            with_ellipsis(line, WIDTH)
        ),
        Lost::Lines => {
            format!(
                "hunk {number} of {of} (line {} of the patch) does not match the file; \
                 searched {searched}",
                hunk.line
            )
        }
    };
    text.push_str("\nthe hunk begins:");
    for line in hunk.lines.iter().take(SHOWN / 2) {
        let sign = match line.role {
            Role::Keep => ' ',
            Role::Remove => '-',
            Role::Add => '+',
        };
        text.push_str(&format!("\n  {sign}{}", with_ellipsis(&line.text, WIDTH)));
    }
    match nearest(file, &old, hint(hunk, progress)) {
        Some(at) => {
            let above = at < progress.ended && matches!(hunk.style, Style::Envelope { .. });
            let note = if above {
                ", above the previous hunk: hunks must be in the order of the file"
            } else {
                ""
            };
            text.push_str(&format!("\nnearest match at line {}{note}:", at + 1));
            compare(&mut text, file, &old, at);
        }
        None if file.is_empty() => text.push_str("\nthe file is empty"),
        None => text.push_str("\nthe file has no similar lines"),
    }
    text
}

/// Returns the line hint of a hunk, shifted by the offset of the earlier hunks.
fn hint(hunk: &Hunk, progress: Progress) -> Option<usize> {
    match hunk.style {
        Style::Envelope { hint, .. } | Style::Unified { hint, .. } => hint,
    }
    .map(|hint| hint.saturating_add_signed(progress.drift))
}

/// Describes the lines that were searched.
fn searched(file: &[TextLine<'_>], hunk: &Hunk, progress: Progress) -> String {
    let all = format!("all {} lines", file.len());
    match (hint(hunk, progress), &hunk.style) {
        (Some(hint), _) => format!("{all}, outward from line {}", hint + 1),
        (None, Style::Envelope { .. }) if progress.ended > 0 => {
            format!(
                "from line {} (after the previous hunk) to the end at line {}",
                progress.ended + 1,
                file.len()
            )
        }
        (None, _) => all,
    }
}

/// Returns the position where most lines of the hunk are, weighted by length. If there is none,
/// returns the position of the line most similar to the longest line of the hunk.
fn nearest(file: &[TextLine<'_>], old: &[&Line], hint: Option<usize>) -> Option<usize> {
    let mut wanted: HashMap<&[u8], Vec<usize>> = HashMap::new();
    for (index, line) in old.iter().enumerate() {
        wanted
            .entry(line.text.as_bytes().trim_ascii())
            .or_default()
            .push(index);
    }
    let mut weights: HashMap<usize, usize> = HashMap::new();
    for (at, line) in file.iter().enumerate() {
        let text = line.text.trim_ascii();
        for index in wanted
            .get(text)
            .into_iter()
            .flatten()
            .take(16)
            .filter(|index| **index <= at)
        {
            *weights.entry(at - index).or_default() += text.len().min(40);
        }
    }
    let distance = |at: usize| hint.map_or(at, |hint| hint.abs_diff(at));
    let best = weights
        .into_iter()
        .filter(|(_, weight)| *weight > 2)
        .max_by_key(|(at, weight)| (*weight, std::cmp::Reverse(distance(*at))));
    if let Some((at, _)) = best {
        return Some(at);
    }
    let (index, longest) = old
        .iter()
        .enumerate()
        .max_by_key(|(_, line)| line.text.trim().len())?;
    let longest = longest.text.as_bytes().trim_ascii();
    let similarities = file
        .iter()
        .enumerate()
        .map(|(at, line)| (at, affinity(line.text.trim_ascii(), longest)));
    let (at, percent) =
        similarities.max_by_key(|(at, percent)| (*percent, std::cmp::Reverse(distance(*at))))?;
    (percent >= 50).then(|| at.saturating_sub(index))
}

/// Returns the percentage of two lines that is equal, counted from both ends.
fn affinity(a: &[u8], b: &[u8]) -> usize {
    let head = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let tail = a[head..]
        .iter()
        .rev()
        .zip(b[head..].iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    (head + tail) * 100 / a.len().max(b.len()).max(1)
}

/// Appends lines of the file and of the hunk, starting one line before the first difference.
fn compare(text: &mut String, file: &[TextLine<'_>], old: &[&Line], at: usize) {
    let differs = |index: usize| {
        !file
            .get(at + index)
            .is_some_and(|line| Likeness::Punctuation.same(line, old[index]))
    };
    let first = (0..old.len())
        .find(|index| differs(*index))
        .unwrap_or(0)
        .saturating_sub(1);
    for (index, line) in old.iter().enumerate().skip(first).take(SHOWN) {
        let number = at + index + 1;
        match file.get(at + index) {
            Some(in_file) => {
                let in_file = String::from_utf8_lossy(in_file.text);
                text.push_str(&format!(
                    "\n  file {number}: {}",
                    with_ellipsis(&in_file, WIDTH)
                ));
            }
            None => text.push_str(&format!("\n  file {number}: (past the end)")),
        }
        if differs(index) {
            let pad = " ".repeat(number.to_string().len());
            text.push_str(&format!(
                "\n  patch{pad}: {}",
                with_ellipsis(&line.text, WIDTH)
            ));
        }
    }
}
