//! Changes in the words of `git diff`: what `git apply` takes, and what people are used to read.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use super::changes::Change;
use super::file::{Content, Held, MAX_FILE, Why};
use super::lines::{Counts, hunks};
use super::{ChangeKind, ChangedFile, Diff};

/// Where git looks for a NUL to tell that a file is not text.
const LOOKED_AT: usize = 8000;

/// Files that are named one by one when they cannot be shown.
const MAX_NAMED: usize = 20;

/// How long the best way to tell all changes is looked for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The changes as one text.
pub(super) fn write(changes: &[Change]) -> Diff {
    let mut diff = Diff::default();
    let until = Instant::now() + PATIENCE;
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
            until,
        };
        let counts = match (before, after) {
            // What became of another type is one file less and one more.
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
    let unnamed = diff.notes.len().saturating_sub(MAX_NAMED);
    if unnamed > 0 {
        diff.notes.truncate(MAX_NAMED);
        diff.notes
            .push(format!("more files changed, and are not shown: {unnamed}"));
    }
    diff
}

/// What stands below one `diff --git`.
struct Section<'a> {
    from: &'a OsStr,
    path: &'a OsStr,
    /// Percent, for a rename.
    similarity: Option<u8>,
    before: Option<&'a Held>,
    after: Option<&'a Held>,
    until: Instant,
}

impl Section<'_> {
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
            // Only its name or its mode is another.
            _ if same => Counts::default(),
            (Err(why), _) | (_, Err(why)) => {
                let verb = if why == Why::Unreadable {
                    "cannot be read"
                } else {
                    "are too large to show"
                };
                // The first and the last word tell git what kind of line this is.
                diff.text
                    .push_str(&format!("Files {old} and {new} {verb} and differ\n"));
                diff.notes.push(format!(
                    "{} changed, and is not shown: {}",
                    self.path.display(),
                    reason(why)
                ));
                Counts::default()
            }
            // An empty file that came or went.
            (Ok([]), Ok([])) => Counts::default(),
            (Ok(before), Ok(after)) if is_binary(before) || is_binary(after) => {
                diff.text
                    .push_str(&format!("Binary files {old} and {new} differ\n"));
                Counts::default()
            }
            (Ok(before), Ok(after)) => {
                // Git ends a name with a space in it by a tab.
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

/// What a file holds; one that is not there holds nothing.
fn content(held: Option<&Held>) -> Result<&[u8], Why> {
    match held.map(|held| &held.content) {
        None => Ok(&[]),
        Some(Content::Known(bytes)) => Ok(bytes),
        Some(Content::Unknown(why)) => Err(*why),
    }
}

fn reason(why: Why) -> String {
    match why {
        Why::TooLarge => format!("it has more than {} MB", MAX_FILE / 1_000_000),
        Why::NoRoom => "the workspace is too large to remember all of it".to_owned(),
        Why::Unreadable => "it cannot be read".to_owned(),
    }
}

fn is_binary(bytes: &[u8]) -> bool {
    memchr::memchr(0, &bytes[..bytes.len().min(LOOKED_AT)]).is_some()
}

/// A name as git writes it: in quotes, as in C, if it has a byte that is not printable ASCII.
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
