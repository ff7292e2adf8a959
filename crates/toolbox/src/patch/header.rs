//! Parses the header of a file in a unified diff: names with and without prefixes, quotes and
//! dates, and file modes.

use std::ffi::OsString;
use std::path::PathBuf;

use selvedge_tools::ToolError;

use super::PatchLines;

/// The lines above the hunks of a file.
#[derive(Debug, Default)]
pub(super) struct DiffFileHeader {
    /// Both names of the `diff --git` line.
    pub(super) git_names: Option<(PathBytes, PathBytes)>,
    /// Name of the `---` line; `Some(None)` for `/dev/null`.
    pub(super) old_name: Option<Option<PathBytes>>,
    /// Name of the `+++` line; `Some(None)` for `/dev/null`.
    pub(super) new_name: Option<Option<PathBytes>>,
    /// Name of the `rename from` or `copy from` line.
    pub(super) transfer_from: Option<PathBytes>,
    /// Name of the `rename to` or `copy to` line.
    pub(super) transfer_to: Option<PathBytes>,
    pub(super) is_copy: bool,
    pub(super) is_new: bool,
    pub(super) is_deleted: bool,
    /// The new executable bit, if the header has a mode.
    pub(super) executable: Option<bool>,
    /// Whether the patch itself has CRLF line endings.
    pub(super) patch_has_crlf: bool,
}

/// A file name as bytes, because git escapes names that are not UTF-8.
pub(super) type PathBytes = Vec<u8>;

impl DiffFileHeader {
    /// Parses the header that starts at line `at`. Also returns the first line after it.
    pub(super) fn parse(text: PatchLines<'_>, mut at: usize) -> Result<(Self, usize), ToolError> {
        let mut head = Self {
            patch_has_crlf: text.lines[at].ends_with('\r'),
            ..Self::default()
        };
        if let Some(names) = text
            .get(at)
            .and_then(|line| line.strip_prefix("diff --git "))
        {
            head.git_names = split_git_names(names);
            at += 1;
            while let Some(line) = text.get(at) {
                if !head.parse_extended(line, || text.location(at))? {
                    break;
                }
                at += 1;
            }
        }
        if let (Some(old), Some(new)) = (text.get(at), text.get(at + 1))
            && let (Some(old), Some(new)) = (old.strip_prefix("--- "), new.strip_prefix("+++ "))
        {
            (head.old_name, head.new_name) = (Some(parse_name(old)), Some(parse_name(new)));
            at += 2;
        }
        Ok((head, at))
    }

    /// Parses a line between `diff --git` and `---`. Returns false if it is not an extended header.
    fn parse_extended(
        &mut self,
        line: &str,
        place: impl Fn() -> String,
    ) -> Result<bool, ToolError> {
        let mode = |mode: &str| match mode.trim() {
            "120000" => Err(ToolError::new(format!(
                "{}: symbolic links cannot be patched",
                place()
            ))),
            "160000" => Err(ToolError::new(format!(
                "{}: submodules cannot be patched",
                place()
            ))),
            mode => Ok(mode.ends_with("755")),
        };
        let Some((key, value)) = EXTENDED_HEADERS.iter().find_map(|key| {
            line.strip_prefix(key)
                .map(|value| (*key, value.trim_start()))
        }) else {
            return Ok(false);
        };
        match key {
            "old mode " => _ = mode(value)?,
            "new mode " => self.executable = Some(mode(value)?),
            "new file mode " => (self.is_new, self.executable) = (true, Some(mode(value)?)),
            "deleted file mode " => (self.is_deleted, _) = (true, mode(value)?),
            "rename from " | "rename old " => self.transfer_from = parse_name(value),
            "rename to " | "rename new " => self.transfer_to = parse_name(value),
            "copy from " => (self.transfer_from, self.is_copy) = (parse_name(value), true),
            "copy to " => (self.transfer_to, self.is_copy) = (parse_name(value), true),
            "index " => {
                if let Some((_, bits)) = value.split_once(' ') {
                    mode(bits)?;
                }
            }
            _ => {}
        }
        Ok(true)
    }

    /// Returns the possible paths of the file, most likely first; empty if the header names none.
    pub(super) fn candidate_paths(&self) -> Vec<PathBuf> {
        if let Some(from) = &self.transfer_from {
            return vec![path_from_bytes(self.strip_repeated_prefix(from))];
        }
        let (old, new) = match (&self.old_name, &self.new_name) {
            (Some(old), Some(new)) => (old.as_deref(), new.as_deref()),
            _ => self
                .git_names
                .as_ref()
                .map_or((None, None), |(old, new)| (Some(&old[..]), Some(&new[..]))),
        };
        let pair = self
            .git_names
            .as_ref()
            .map(|(old, new)| (&old[..], &new[..]))
            .or(old.zip(new));
        let prefixed = pair.is_none_or(|(old, new)| have_side_prefixes(old, new));
        let mnemonic =
            |name: &&[u8]| pair.is_some() || name.starts_with(b"a/") || name.starts_with(b"b/");
        let given = new.into_iter().chain(old);
        let mut names: Vec<&[u8]> = Vec::new();
        if prefixed {
            names.extend(given.map(|name| {
                Some(name)
                    .filter(mnemonic)
                    .and_then(strip_side_prefix)
                    .unwrap_or(name)
            }));
        } else {
            // `diff -r before after`, or a prefix on one side only.
            names.extend(given.clone().chain(given.filter_map(strip_first_folder)));
        }
        let mut paths: Vec<PathBuf> = Vec::new();
        for name in names.into_iter().map(|name| path_from_bytes(name.to_vec())) {
            if !name.as_os_str().is_empty() && !paths.contains(&name) {
                paths.push(name);
            }
        }
        paths
    }

    /// Returns the target path of a rename or copy.
    pub(super) fn target_path(&self) -> Option<PathBuf> {
        self.transfer_to
            .as_ref()
            .map(|to| path_from_bytes(self.strip_repeated_prefix(to)))
    }

    /// Normalizes a name of a `rename` or `copy` line. Such names have no prefix, but some authors
    /// repeat the prefixes of the `diff --git` line, which are removed.
    fn strip_repeated_prefix(&self, name: &PathBytes) -> PathBytes {
        let has_prefixes = self.git_names.as_ref().is_some_and(|(old, new)| {
            have_side_prefixes(old, new)
                && self.transfer_from.as_ref() == Some(old)
                && self.transfer_to.as_ref() == Some(new)
        });
        Some(&name[..])
            .filter(|_| has_prefixes)
            .and_then(strip_side_prefix)
            .unwrap_or(name)
            .to_vec()
    }
}

/// Starts of extended header lines.
const EXTENDED_HEADERS: [&str; 13] = [
    "old mode ",
    "new mode ",
    "new file mode ",
    "deleted file mode ",
    "rename from ",
    "rename to ",
    "rename old ",
    "rename new ",
    "copy from ",
    "copy to ",
    "similarity index ",
    "dissimilarity index ",
    "index ",
];

/// Parses a name after `---`, `+++` or `rename from`: quoted, or up to a tab or a date. Returns
/// `None` for `/dev/null`.
pub(super) fn parse_name(text: &str) -> Option<PathBytes> {
    if let Some((name, _)) = parse_quoted(text) {
        return Some(name);
    }
    let name = match text.split_once('\t') {
        Some((name, _)) => name,
        None => text[..find_date(text).unwrap_or(text.len())].trim_end(),
    };
    (name != "/dev/null").then(|| name.as_bytes().to_vec())
}

/// Returns the position of a date such as ` 2024-05-31 …`.
fn find_date(text: &str) -> Option<usize> {
    let is_date = |rest: &[u8]| {
        rest.len() >= 11
            && rest.iter().take(11).enumerate().all(|(at, byte)| match at {
                0 => *byte == b' ',
                5 | 8 => *byte == b'-',
                _ => byte.is_ascii_digit(),
            })
            && rest.get(11).is_none_or(|byte| matches!(byte, b' ' | b'T'))
    };
    (0..text.len()).find(|at| is_date(&text.as_bytes()[*at..]))
}

/// Splits the two names of a `diff --git` line. Unquoted names with spaces can be split only if
/// they are equal apart from their prefixes.
fn split_git_names(text: &str) -> Option<(PathBytes, PathBytes)> {
    if let Some((old, rest)) = parse_quoted(text) {
        let rest = rest.trim_start();
        return Some((
            old,
            parse_quoted(rest).map_or_else(|| rest.as_bytes().to_vec(), |(new, _)| new),
        ));
    }
    if let Some(quote) = text.find(" \"")
        && let Some((new, _)) = parse_quoted(&text[quote + 1..])
    {
        return Some((text.as_bytes()[..quote].to_vec(), new));
    }
    let text = text.trim_end();
    let splits = || {
        text.match_indices(' ')
            .map(|(at, _)| (&text[..at], &text[at + 1..]))
    };
    let same = splits().find(|(old, new)| {
        old == new
            || strip_first_folder(old.as_bytes())
                .is_some_and(|rest| Some(rest) == strip_first_folder(new.as_bytes()))
    });
    let only = || splits().next().filter(|_| splits().count() == 1);
    same.or_else(only)
        .map(|(old, new)| (old.as_bytes().to_vec(), new.as_bytes().to_vec()))
}

/// Parses a name in C-style quotes. Also returns the text after it.
fn parse_quoted(text: &str) -> Option<(PathBytes, &str)> {
    let inner = text.strip_prefix('"')?;
    let bytes = inner.as_bytes();
    let mut name = Vec::new();
    let mut at = 0;
    loop {
        let byte = *bytes.get(at)?;
        at += 1;
        match byte {
            b'"' => return Some((name, &inner[at..])),
            b'\\' => {
                let escape = *bytes.get(at)?;
                at += 1;
                name.push(match escape {
                    b'a' => 7,
                    b'b' => 8,
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'v' => 11,
                    b'f' => 12,
                    b'r' => b'\r',
                    b'0'..=b'3' => {
                        let digits = inner.get(at - 1..at + 2)?;
                        at += 2;
                        u8::from_str_radix(digits, 8).ok()?
                    }
                    other => other,
                });
            }
            byte => name.push(byte),
        }
    }
}

/// Whether both names have side prefixes: `a/` and `b/`, or git's mnemonic prefixes.
fn have_side_prefixes(old: &[u8], new: &[u8]) -> bool {
    let (Some(old_rest), Some(new_rest)) = (strip_first_folder(old), strip_first_folder(new))
    else {
        return false;
    };
    match (
        &old[..old.len() - old_rest.len()],
        &new[..new.len() - new_rest.len()],
    ) {
        (b"a/", b"b/") | (b"b/", b"a/") => true,
        ([old, b'/'], [new, b'/']) => {
            let mnemonic = |side: &u8| b"ciow12".contains(side);
            old != new && mnemonic(old) && mnemonic(new) && old_rest == new_rest
        }
        _ => false,
    }
}

/// Removes a one-letter prefix such as `a/`.
fn strip_side_prefix(name: &[u8]) -> Option<&[u8]> {
    strip_first_folder(name).filter(|rest| name.len() - rest.len() == 2)
}

/// Removes the first folder of a name.
fn strip_first_folder(name: &[u8]) -> Option<&[u8]> {
    let slash = name.iter().position(|byte| *byte == b'/')?;
    Some(&name[slash + 1..]).filter(|_| slash > 0)
}

#[cfg(unix)]
fn path_from_bytes(name: PathBytes) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    PathBuf::from(OsString::from_vec(name))
}

#[cfg(not(unix))]
fn path_from_bytes(name: PathBytes) -> PathBuf {
    PathBuf::from(OsString::from(String::from_utf8_lossy(&name).into_owned()))
}
