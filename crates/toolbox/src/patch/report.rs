//! Error messages for hunks that do not match: where they were searched, and the most similar
//! lines.

use std::collections::HashMap;

use selvedge_text::truncate_chars;

use super::seek::{HunkMismatch, HunkProgress, LineMatchLevel};
use super::text::TextLine;
use super::{Hunk, HunkFormat, HunkLine, HunkLineRole};

/// Maximum number of lines shown of the hunk and of the file.
const MAX_SHOWN_LINES: usize = 6;

/// Maximum number of characters shown of a line.
const MAX_LINE_CHARS: usize = 120;

/// Returns the error message for a hunk that does not match. `number` of `of` is its position in
/// the file's part of the patch.
pub(crate) fn describe_mismatch(
    file: &[TextLine<'_>],
    hunk: &Hunk,
    mismatch: &HunkMismatch,
    progress: HunkProgress,
    (number, of): (usize, usize),
) -> String {
    let old: Vec<&HunkLine> = hunk.old_lines().collect();
    let searched = describe_search_range(file, hunk, progress);
    let mut text = match mismatch {
        HunkMismatch::MissingAnchor(line) => format!(
            "hunk {number} of {of} (line {} of the patch) does not match: \
             the line `{}` named by `@@` was not found; searched {searched}",
            hunk.patch_line,
            truncate_chars(line, MAX_LINE_CHARS)
        ),
        HunkMismatch::MissingLines => {
            format!(
                "hunk {number} of {of} (line {} of the patch) does not match the file; \
                 searched {searched}",
                hunk.patch_line
            )
        }
    };
    text.push_str("\nthe hunk begins:");
    for line in hunk.lines.iter().take(MAX_SHOWN_LINES / 2) {
        let sign = match line.role {
            HunkLineRole::Keep => ' ',
            HunkLineRole::Remove => '-',
            HunkLineRole::Add => '+',
        };
        text.push_str(&format!(
            "\n  {sign}{}",
            truncate_chars(&line.text, MAX_LINE_CHARS)
        ));
    }
    match find_nearest(file, &old, adjusted_hint(hunk, progress)) {
        Some(at) => {
            let above =
                at < progress.previous_end && matches!(hunk.format, HunkFormat::Envelope { .. });
            let note = if above {
                ", above the previous hunk: hunks must be in the order of the file"
            } else {
                ""
            };
            text.push_str(&format!("\nnearest match at line {}{note}:", at + 1));
            append_comparison(&mut text, file, &old, at);
        }
        None if file.is_empty() => text.push_str("\nthe file is empty"),
        None => text.push_str("\nthe file has no similar lines"),
    }
    text
}

/// Returns the line hint of a hunk, shifted by the offset of the earlier hunks.
fn adjusted_hint(hunk: &Hunk, progress: HunkProgress) -> Option<usize> {
    match hunk.format {
        HunkFormat::Envelope { hint, .. } | HunkFormat::Unified { hint, .. } => hint,
    }
    .map(|hint| hint.saturating_add_signed(progress.offset))
}

/// Describes the lines that were searched.
fn describe_search_range(file: &[TextLine<'_>], hunk: &Hunk, progress: HunkProgress) -> String {
    let all = match file.len() {
        1 => "the only line".to_owned(),
        lines => format!("all {lines} lines"),
    };
    match (adjusted_hint(hunk, progress), &hunk.format) {
        (Some(hint), _) => format!("{all}, outward from line {}", hint + 1),
        (None, HunkFormat::Envelope { .. }) if progress.previous_end > 0 => {
            format!(
                "from line {} (after the previous hunk) to the end at line {}",
                progress.previous_end + 1,
                file.len()
            )
        }
        (None, _) => all,
    }
}

/// Returns the position where most lines of the hunk are, weighted by length. If there is none,
/// returns the position of the line most similar to the longest line of the hunk.
fn find_nearest(file: &[TextLine<'_>], old: &[&HunkLine], hint: Option<usize>) -> Option<usize> {
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
        .map(|(at, line)| (at, similarity_percent(line.text.trim_ascii(), longest)));
    let (at, percent) =
        similarities.max_by_key(|(at, percent)| (*percent, std::cmp::Reverse(distance(*at))))?;
    (percent >= 50).then(|| at.saturating_sub(index))
}

/// Returns the percentage of two lines that is equal, counted from both ends.
fn similarity_percent(a: &[u8], b: &[u8]) -> usize {
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
fn append_comparison(text: &mut String, file: &[TextLine<'_>], old: &[&HunkLine], at: usize) {
    let differs = |index: usize| {
        !file
            .get(at + index)
            .is_some_and(|line| LineMatchLevel::Punctuation.matches(line, old[index]))
    };
    let first = (0..old.len())
        .find(|index| differs(*index))
        .unwrap_or(0)
        .saturating_sub(1);
    for (index, line) in old.iter().enumerate().skip(first).take(MAX_SHOWN_LINES) {
        let number = at + index + 1;
        match file.get(at + index) {
            Some(in_file) => {
                let in_file = String::from_utf8_lossy(in_file.text);
                text.push_str(&format!(
                    "\n  file {number}: {}",
                    truncate_chars(&in_file, MAX_LINE_CHARS)
                ));
            }
            None => text.push_str(&format!("\n  file {number}: (past the end)")),
        }
        if differs(index) {
            let pad = " ".repeat(number.to_string().len());
            text.push_str(&format!(
                "\n  patch{pad}: {}",
                truncate_chars(&line.text, MAX_LINE_CHARS)
            ));
        }
    }
}
