//! Parses unified diffs of git and `diff -u`, and the inexact ones that models write.

use std::path::PathBuf;

use selvedge_tools::ToolError;

use super::header::DiffFileHeader;
use super::text::LineEnding;
use super::{
    FileTransfer, Hunk, HunkFormat, HunkLine, HunkLineRole, OverwritePolicy, PatchAction,
    PatchLines, PatchOperation, PatchTarget,
};

/// Whether the part for a file, or a hunk, starts at line `at`.
pub(super) fn is_marker(lines: &[&str], at: usize) -> bool {
    let line = lines[at];
    line.starts_with("diff --git ")
        || is_name_pair(lines, at)
        || is_binary(line)
        || is_merge(line)
        || parse_range(line).is_some()
}

/// Parses all files of a unified diff.
pub(super) fn parse(text: PatchLines<'_>) -> Result<Vec<PatchOperation>, ToolError> {
    let mut operations = Vec::new();
    let (mut at, mut step) = (0, 0);
    while let Some(line) = text.get(at) {
        if line.starts_with("diff --git ") || is_name_pair(text.lines, at) {
            let (operation, after) = parse_file(text, at, step)?;
            operations.push(operation);
            at = after;
        } else if is_merge(line) {
            return Err(ToolError::new(format!(
                "{}: the diff of a merge cannot be applied",
                text.location(at)
            ))
            .suggest("make the diff against one parent"));
        } else if is_binary(line) {
            return Err(binary_error(text, at, None));
        } else if parse_range(line).is_some() {
            return Err(text.expected_error(
                at,
                "the name of a file (`--- a/file`, `+++ b/file`) before a hunk",
            ));
        } else {
            // Prose between files separates two diffs; the second applies to the result of the
            // first.
            if !line.trim().is_empty()
                && operations
                    .last()
                    .is_some_and(|last: &PatchOperation| last.step == step)
            {
                step += 1;
            }
            at += 1;
        }
    }
    Ok(operations)
}

/// Parses the header and hunks of one file. Also returns the first line after them.
fn parse_file(
    text: PatchLines<'_>,
    start: usize,
    step: usize,
) -> Result<(PatchOperation, usize), ToolError> {
    let (head, mut at) = DiffFileHeader::parse(text, start)?;
    let paths = head.candidate_paths();
    let Some(first) = paths.first() else {
        return Err(text.expected_error(start, "the name of a file"));
    };
    let is_git = head.git_names.is_some() || text.lines[start].starts_with("diff --git ");
    let mut hunks = Vec::new();
    loop {
        let next = (at..text.lines.len())
            .find(|at| !text.lines[*at].trim().is_empty())
            .unwrap_or(text.lines.len());
        match text.get(next) {
            Some(line) if line.starts_with("@@") && !is_merge(line) => {
                let (hunk, after) = parse_hunk(text, next, is_git, head.patch_has_crlf)?;
                hunks.push(hunk);
                at = after;
            }
            Some(line) if is_binary(line) => return Err(binary_error(text, next, Some(first))),
            _ => break,
        }
    }
    mark_crlf(&mut hunks);
    let action = build_action(text, start, &head, hunks)?;
    Ok((
        PatchOperation {
            paths,
            action,
            step,
        },
        at,
    ))
}

fn build_action(
    text: PatchLines<'_>,
    start: usize,
    head: &DiffFileHeader,
    hunks: Vec<Hunk>,
) -> Result<PatchAction, ToolError> {
    if let Some(path) = head.target_path() {
        let source = if head.is_copy {
            FileTransfer::Copy
        } else {
            FileTransfer::Move
        };
        let to = Some(PatchTarget {
            path,
            transfer: source,
            overwrite: OverwritePolicy::DenyNonEmpty,
        });
        return Ok(PatchAction::Update {
            hunks,
            target: to,
            executable: head.executable,
        });
    }
    if head.is_new || matches!(head.old_name, Some(None)) {
        if let Some(hunk) = hunks.iter().find(|hunk| hunk.old_lines().next().is_some()) {
            let place = hunk.patch_line;
            return Err(ToolError::new(format!(
                "line {place} of the patch: expected only `+` lines in a new file"
            )));
        }
        let content = hunks.iter().flat_map(Hunk::added_text).collect();
        return Ok(PatchAction::Add {
            content,
            executable: head.executable == Some(true),
            overwrite: OverwritePolicy::DenyNonEmpty,
        });
    }
    if head.is_deleted || matches!(head.new_name, Some(None)) {
        return Ok(PatchAction::Delete { hunks });
    }
    if hunks.is_empty() && head.executable.is_none() {
        return Err(text.expected_error(start, "hunks (`@@ -1,3 +1,4 @@`) below a file's name"));
    }
    Ok(PatchAction::Update {
        hunks,
        target: None,
        executable: head.executable,
    })
}

/// Marks all hunks of a file if any of its lines in the patch ends with CRLF.
fn mark_crlf(hunks: &mut [Hunk]) {
    let any_crlf = hunks
        .iter()
        .flat_map(|hunk| &hunk.lines)
        .any(|line| line.ending == LineEnding::CrLf);
    for hunk in hunks {
        if let HunkFormat::Unified { shows_cr, .. } = &mut hunk.format {
            *shows_cr = any_crlf;
        }
    }
}

/// Parses a hunk that starts at line `at`. Also returns the first line after it.
fn parse_hunk(
    text: PatchLines<'_>,
    at: usize,
    is_git: bool,
    sent_with_cr: bool,
) -> Result<(Hunk, usize), ToolError> {
    let numbers = parse_range(text.lines[at]);
    let end = match numbers {
        Some(numbers) => end_by_counts(text, at + 1, numbers, is_git)
            .map_or_else(|| end_by_scanning(text, at + 1), Ok)?,
        None => end_by_scanning(text, at + 1)?,
    };
    let mut lines: Vec<HunkLine> = Vec::new();
    for line in &text.lines[at + 1..end] {
        let (line, cr) = match line.strip_suffix('\r') {
            Some(line) => (line, !sent_with_cr),
            None => (*line, false),
        };
        let role = match line.as_bytes().first() {
            Some(b'+') => HunkLineRole::Add,
            Some(b'-') => HunkLineRole::Remove,
            Some(b'\\') => {
                if let Some(last) = lines.last_mut() {
                    if last.ending == LineEnding::CrLf {
                        last.text.push('\r');
                    }
                    last.ending = LineEnding::Missing;
                }
                continue;
            }
            _ => HunkLineRole::Keep,
        };
        let ending = if cr { LineEnding::CrLf } else { LineEnding::Lf };
        lines.push(HunkLine {
            role,
            text: line.get(1..).unwrap_or_default().to_owned(),
            ending,
        });
    }
    if lines.is_empty() {
        return Err(text.expected_error(at + 1, "the lines of a hunk"));
    }
    let style = HunkFormat::Unified {
        // A range `-5,0` means: after line 5.
        hint: numbers.map(|numbers| {
            if numbers.old_count == 0 {
                numbers.old_start
            } else {
                numbers.old_start.saturating_sub(1)
            }
        }),
        shows_cr: false,
        old_is_empty: numbers
            .is_some_and(|numbers| (numbers.old_start, numbers.old_count) == (0, 0)),
    };
    Ok((
        Hunk {
            patch_line: text.line_number(at),
            format: style,
            lines,
        },
        end,
    ))
}

/// The line numbers of `@@ -start,old +_,new @@`.
#[derive(Debug, Clone, Copy)]
pub(super) struct HunkRange {
    pub(super) old_start: usize,
    pub(super) old_count: usize,
    new_count: usize,
}

/// Parses the line numbers of an `@@` line.
pub(super) fn parse_range(line: &str) -> Option<HunkRange> {
    let rest = line
        .strip_prefix("@@ -")
        .or_else(|| line.strip_prefix("@@-"))?;
    let mut words = rest.split_whitespace();
    // `u32` covers every file, and sums of such numbers do not overflow `usize`.
    let number = |digits: &str| digits.parse::<u32>().ok().map(|number| number as usize);
    let range = |word: &str| match word.trim_end_matches('@').split_once(',') {
        Some((start, count)) => Some((number(start)?, number(count)?)),
        None => Some((number(word.trim_end_matches('@'))?, 1)),
    };
    let (start, old) = range(words.next()?)?;
    let (_, new) = range(words.next()?.strip_prefix('+')?)?;
    Some(HunkRange {
        old_start: start,
        old_count: old,
        new_count: new,
    })
}

/// Returns the end of a hunk by its line counts; `None` if the counts are wrong.
fn end_by_counts(
    text: PatchLines<'_>,
    start: usize,
    numbers: HunkRange,
    is_git: bool,
) -> Option<usize> {
    let (mut old, mut new) = (numbers.old_count, numbers.new_count);
    let mut at = start;
    while old > 0 || new > 0 {
        match text.get(at)?.as_bytes().first() {
            Some(b' ') | None => (old, new) = (old.checked_sub(1)?, new.checked_sub(1)?),
            Some(b'-') => old = old.checked_sub(1)?,
            Some(b'+') => new = new.checked_sub(1)?,
            Some(b'\\') => {}
            _ => return None,
        }
        at += 1;
    }
    while text.get(at).is_some_and(|line| line.starts_with('\\')) {
        at += 1;
    }
    // If the counts are too large, the names of the next file look like lines of this hunk.
    let includes_next_file = !is_git
        && at >= start + 2
        && is_name_pair(text.lines, at - 2)
        && text.get(at).is_some_and(|line| line.starts_with("@@"));
    (!includes_next_file && !has_more_lines(text, at)).then_some(at)
}

/// Whether the hunk has more lines than its counts say.
fn has_more_lines(text: PatchLines<'_>, from: usize) -> bool {
    for at in from..text.lines.len() {
        let line = text.get(at).unwrap_or_default();
        if ends_hunk(text, at) {
            return false;
        }
        // A list in the prose below a diff also has lines that start with a dash.
        let is_list_item = at > from && line.starts_with("- ");
        if line.starts_with('+')
            || (line.starts_with('-') && !line.starts_with("--") && !is_list_item)
        {
            return true;
        }
        if at == from && line.starts_with(' ') && !line.trim().is_empty() {
            return true;
        }
    }
    false
}

/// Returns the end of a hunk by the first line that ends one. Fails at a line without a valid sign.
fn end_by_scanning(text: PatchLines<'_>, start: usize) -> Result<usize, ToolError> {
    let mut at = start;
    while at < text.lines.len() && !ends_hunk(text, at) {
        if !matches!(
            text.get(at).unwrap_or_default().as_bytes().first(),
            None | Some(b' ' | b'+' | b'-' | b'\\')
        ) {
            return Err(text.expected_error(
                at,
                "a line of the hunk, which starts with a space, `+` or `-`",
            ));
        }
        at += 1;
    }
    while at > start && text.get(at - 1) == Some("") {
        at -= 1;
    }
    Ok(at)
}

/// Whether a line cannot belong to a hunk.
fn ends_hunk(text: PatchLines<'_>, at: usize) -> bool {
    let line = text.get(at).unwrap_or_default();
    // `-- ` starts the signature of a patch sent by mail.
    line.starts_with("@@")
        || line.starts_with("diff ")
        || line.starts_with("```")
        || line == "-- "
        || is_name_pair(text.lines, at)
}

/// Whether the `---` and `+++` lines of a file start at line `at`.
fn is_name_pair(lines: &[&str], at: usize) -> bool {
    lines[at].starts_with("--- ")
        && lines
            .get(at + 1)
            .is_some_and(|line| line.starts_with("+++ "))
}

fn is_merge(line: &str) -> bool {
    line.starts_with("diff --cc ")
        || line.starts_with("diff --combined ")
        || line.starts_with("@@@ -")
}

fn is_binary(line: &str) -> bool {
    line.starts_with("GIT binary patch")
        || (line.starts_with("Binary files ") && line.trim_end().ends_with(" differ"))
}

fn binary_error(text: PatchLines<'_>, at: usize, path: Option<&PathBuf>) -> ToolError {
    let of = path
        .map(|path| format!(" of {}", path.display()))
        .unwrap_or_default();
    ToolError::new(format!(
        "{}: the patch{of} is binary and cannot be applied",
        text.location(at)
    ))
}
