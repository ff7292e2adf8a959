//! Renders changes in the format of `git diff`, which `git apply` accepts.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use super::changes::FileChange;
use super::file::{MAX_FILE_BYTES, TrackedContent, TrackedFile, UnknownContentReason};
use super::lines::{LineCounts, write_hunks};
use super::{ChangeKind, ChangedFile, WorkspaceDiff};

/// Bytes at the start of a file that are checked for a NUL, which marks a binary file, as in git.
const BINARY_CHECK_BYTES: usize = 8000;

/// Maximum number of notes about single files that are not shown.
const MAX_FILE_NOTES: usize = 20;

/// Time limit for finding the shortest diffs of all files together.
const TOTAL_DIFF_TIME_LIMIT: Duration = Duration::from_secs(5);

/// Renders changes as one diff.
pub(super) fn render_diff(changes: &[FileChange]) -> WorkspaceDiff {
    let mut diff = WorkspaceDiff::default();
    let deadline = Instant::now() + TOTAL_DIFF_TIME_LIMIT;
    for change in changes {
        let (before, after) = (change.before.as_deref(), change.after.as_ref());
        let from = change
            .rename_origin
            .as_ref()
            .map_or(&change.path, |renamed| &renamed.from);
        let kind = match (before, after) {
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Deleted,
            _ if change.rename_origin.is_some() => ChangeKind::Renamed,
            _ => ChangeKind::Modified,
        };
        let similarity = change
            .rename_origin
            .as_ref()
            .map(|renamed| renamed.similarity);
        let section = |before, after| DiffSection {
            from,
            path: &change.path,
            similarity,
            before,
            after,
            deadline,
        };
        let counts = match (before, after) {
            // A change between file and link is a deletion and an addition.
            (Some(old), Some(new)) if old.stat.kind != new.stat.kind => {
                let removed = section(before, None).write(&mut diff).removed;
                LineCounts {
                    removed,
                    ..section(None, after).write(&mut diff)
                }
            }
            _ => section(before, after).write(&mut diff),
        };
        diff.files.push(ChangedFile {
            path: change.path.to_string_lossy().into_owned(),
            from: change
                .rename_origin
                .as_ref()
                .map(|renamed| renamed.from.to_string_lossy().into_owned()),
            kind,
            added: counts.added,
            removed: counts.removed,
        });
    }
    let omitted = diff.notes.len().saturating_sub(MAX_FILE_NOTES);
    if omitted > 0 {
        diff.notes.truncate(MAX_FILE_NOTES);
        diff.notes
            .push(format!("further changed files not shown: {omitted}"));
    }
    diff
}

/// The part of a diff below one `diff --git` line.
struct DiffSection<'a> {
    from: &'a OsStr,
    path: &'a OsStr,
    /// Percentage of equal content, for a rename.
    similarity: Option<u8>,
    before: Option<&'a TrackedFile>,
    after: Option<&'a TrackedFile>,
    /// When to stop looking for the shortest diff.
    deadline: Instant,
}

impl DiffSection<'_> {
    /// Appends the section to `diff`.
    fn write(&self, diff: &mut WorkspaceDiff) -> LineCounts {
        self.write_header(&mut diff.text);
        let old = self
            .before
            .map_or("/dev/null".to_owned(), |_| quote_path("a/", self.from));
        let new = self
            .after
            .map_or("/dev/null".to_owned(), |_| quote_path("b/", self.path));
        let same = self
            .before
            .zip(self.after)
            .is_some_and(|(before, after)| before.has_same_content(after));
        match (content_or_empty(self.before), content_or_empty(self.after)) {
            // Only the path or the mode changed.
            _ if same => LineCounts::default(),
            (Err(reason), _) | (_, Err(reason)) => {
                let verb = if reason == UnknownContentReason::Unreadable {
                    "cannot be read"
                } else {
                    "are too large to show"
                };
                // Git recognizes this line by its first and last word.
                diff.text
                    .push_str(&format!("Files {old} and {new} {verb} and differ\n"));
                diff.notes.push(format!(
                    "{} changed but is not shown: {}",
                    self.path.display(),
                    self::omission_reason(reason)
                ));
                LineCounts::default()
            }
            // An empty file was added or deleted.
            (Ok([]), Ok([])) => LineCounts::default(),
            (Ok(before), Ok(after)) if is_binary(before) || is_binary(after) => {
                diff.text
                    .push_str(&format!("Binary files {old} and {new} differ\n"));
                LineCounts::default()
            }
            (Ok(before), Ok(after)) => {
                // Git writes a tab after a name that contains a space.
                let tab = |label: &str| if label.contains(' ') { "\t" } else { "" };
                diff.text
                    .push_str(&format!("--- {old}{}\n+++ {new}{}\n", tab(&old), tab(&new)));
                write_hunks(before, after, self.deadline, &mut diff.text)
            }
        }
    }

    fn write_header(&self, out: &mut String) {
        out.push_str(&format!(
            "diff --git {} {}\n",
            quote_path("a/", self.from),
            quote_path("b/", self.path)
        ));
        match (
            self.before.map(|held| held.stat.git_mode()),
            self.after.map(|held| held.stat.git_mode()),
        ) {
            (None, Some(mode)) => out.push_str(&format!("new file mode {mode}\n")),
            (Some(mode), None) => out.push_str(&format!("deleted file mode {mode}\n")),
            (Some(old), Some(new)) if old != new => {
                out.push_str(&format!("old mode {old}\nnew mode {new}\n"))
            }
            _ => {}
        }
        if let Some(similarity) = self.similarity {
            let (from, to) = (quote_path("", self.from), quote_path("", self.path));
            out.push_str(&format!(
                "similarity index {similarity}%\nrename from {from}\nrename to {to}\n"
            ));
        }
    }
}

/// Returns the content of a file; empty if the file does not exist.
fn content_or_empty(held: Option<&TrackedFile>) -> Result<&[u8], UnknownContentReason> {
    match held.map(|held| &held.content) {
        None => Ok(&[]),
        Some(TrackedContent::Known(bytes)) => Ok(bytes),
        Some(TrackedContent::Unknown(why)) => Err(*why),
    }
}

/// Returns why a file is not shown.
fn omission_reason(why: UnknownContentReason) -> String {
    match why {
        UnknownContentReason::TooLarge => format!("larger than {} MB", MAX_FILE_BYTES / 1_000_000),
        UnknownContentReason::TotalLimitReached => {
            "the workspace is too large to store all of it".to_owned()
        }
        UnknownContentReason::Unreadable => "cannot be read".to_owned(),
    }
}

fn is_binary(bytes: &[u8]) -> bool {
    memchr::memchr(0, &bytes[..bytes.len().min(BINARY_CHECK_BYTES)]).is_some()
}

/// Formats a name as git does: in C-style quotes if it has a byte that is not printable ASCII.
fn quote_path(prefix: &str, name: &OsStr) -> String {
    let mut out = String::new();
    for &byte in name.as_bytes() {
        match byte {
            b'"' | b'\\' => out.extend(['\\', byte as char]),
            0x07 => out.push_str("\\a"),
            0x08 => out.push_str("\\b"),
            b'\t' => out.push_str("\\t"),
            b'\n' => out.push_str("\\n"),
            0x0b => out.push_str("\\v"),
            0x0c => out.push_str("\\f"),
            b'\r' => out.push_str("\\r"),
            b' '..=b'~' => out.push(byte as char),
            _ => out.push_str(&format!("\\{byte:03o}")),
        }
    }
    if out.len() == name.len() {
        format!("{prefix}{out}")
    } else {
        format!("\"{prefix}{out}\"")
    }
}
