//! Renders changes in the format of `git diff`, which `git apply` accepts.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use super::changes::Change;
use super::file::{Content, Held, MAX_FILE, Why};
use super::lines::{Counts, hunks};
use super::{ChangeKind, ChangedFile, Diff};

/// Bytes at the start of a file that are checked for a NUL, which marks a binary file, as in git.
const LOOKED_AT: usize = 8000;

/// Maximum number of notes about single files that are not shown.
const MAX_NAMED: usize = 20;

/// Time limit for finding the shortest diffs of all files together.
const PATIENCE: Duration = Duration::from_secs(5);

/// Renders changes as one diff.
pub(super) fn write(changes: &[Change]) -> Diff {
    let mut diff = Diff::default();
    let deadline = Instant::now() + PATIENCE;
    for change in changes {
        let (before, after) = (change.before.as_deref(), change.after.as_ref());
        let from = change
            .renamed
            .as_ref()
            .map_or(&change.path, |renamed| &renamed.from);
        let kind = match (before, after) {
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Deleted,
            _ if change.renamed.is_some() => ChangeKind::Renamed,
            _ => ChangeKind::Modified,
        };
        let similarity = change.renamed.as_ref().map(|renamed| renamed.similarity);
        let section = |before, after| Section {
            from,
            path: &change.path,
            similarity,
            before,
            after,
            until: deadline,
        };
        let counts = match (before, after) {
            // A change between file and link is a deletion and an addition.
            (Some(old), Some(new)) if old.stat.kind != new.stat.kind => {
                let removed = section(before, None).write(&mut diff).removed;
                Counts {
                    removed,
                    ..section(None, after).write(&mut diff)
                }
            }
            _ => section(before, after).write(&mut diff),
        };
        diff.files.push(ChangedFile {
            path: change.path.to_string_lossy().into_owned(),
            from: change
                .renamed
                .as_ref()
                .map(|renamed| renamed.from.to_string_lossy().into_owned()),
            kind,
            added: counts.added,
            removed: counts.removed,
        });
    }
    let omitted = diff.notes.len().saturating_sub(MAX_NAMED);
    if omitted > 0 {
        diff.notes.truncate(MAX_NAMED);
        diff.notes
            .push(format!("further changed files not shown: {omitted}"));
    }
    diff
}

/// The part of a diff below one `diff --git` line.
struct Section<'a> {
    from: &'a OsStr,
    path: &'a OsStr,
    /// Percentage of equal content, for a rename.
    similarity: Option<u8>,
    before: Option<&'a Held>,
    after: Option<&'a Held>,
    /// When to stop looking for the shortest diff.
    until: Instant,
}

impl Section<'_> {
    /// Appends the section to `diff`.
    fn write(&self, diff: &mut Diff) -> Counts {
        self.header(&mut diff.text);
        let old = self
            .before
            .map_or("/dev/null".to_owned(), |_| quoted("a/", self.from));
        let new = self
            .after
            .map_or("/dev/null".to_owned(), |_| quoted("b/", self.path));
        let same = self
            .before
            .zip(self.after)
            .is_some_and(|(before, after)| before.same_content(after));
        match (content(self.before), content(self.after)) {
            // Only the path or the mode changed.
            _ if same => Counts::default(),
            (Err(reason), _) | (_, Err(reason)) => {
                let verb = if reason == Why::Unreadable {
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
                    self::reason(reason)
                ));
                Counts::default()
            }
            // An empty file was added or deleted.
            (Ok([]), Ok([])) => Counts::default(),
            (Ok(before), Ok(after)) if is_binary(before) || is_binary(after) => {
                diff.text
                    .push_str(&format!("Binary files {old} and {new} differ\n"));
                Counts::default()
            }
            (Ok(before), Ok(after)) => {
                // Git writes a tab after a name that contains a space.
                let tab = |label: &str| if label.contains(' ') { "\t" } else { "" };
                diff.text
                    .push_str(&format!("--- {old}{}\n+++ {new}{}\n", tab(&old), tab(&new)));
                hunks(before, after, self.until, &mut diff.text)
            }
        }
    }

    fn header(&self, out: &mut String) {
        out.push_str(&format!(
            "diff --git {} {}\n",
            quoted("a/", self.from),
            quoted("b/", self.path)
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
            let (from, to) = (quoted("", self.from), quoted("", self.path));
            out.push_str(&format!(
                "similarity index {similarity}%\nrename from {from}\nrename to {to}\n"
            ));
        }
    }
}

/// Returns the content of a file; empty if the file does not exist.
fn content(held: Option<&Held>) -> Result<&[u8], Why> {
    match held.map(|held| &held.content) {
        None => Ok(&[]),
        Some(Content::Known(bytes)) => Ok(bytes),
        Some(Content::Unknown(why)) => Err(*why),
    }
}

/// Returns why a file is not shown.
fn reason(why: Why) -> String {
    match why {
        Why::TooLarge => format!("larger than {} MB", MAX_FILE / 1_000_000),
        Why::NoRoom => "the workspace is too large to store all of it".to_owned(),
        Why::Unreadable => "cannot be read".to_owned(),
    }
}

fn is_binary(bytes: &[u8]) -> bool {
    memchr::memchr(0, &bytes[..bytes.len().min(LOOKED_AT)]).is_some()
}

/// Formats a name as git does: in C-style quotes if it has a byte that is not printable ASCII.
fn quoted(prefix: &str, name: &OsStr) -> String {
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
