//! The files of a git repository that lie outside of its `.git` folder: the folders that a `.git`
//! file names, and what the configuration makes git execute or include.
//!
//! Hand-written, because running `git config` for every write would be slow, and would already obey
//! the configuration.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use selvedge_files::has_repository;

use crate::hidden_paths::expand_home;
use crate::protected_paths::{followed_links, link_targets, resolve_existing};

/// Names of the programs that git runs in the folder of hooks.
const HOOK_NAMES: &str = "applypatch-msg commit-msg fsmonitor-watchman p4-changelist \
    p4-post-changelist p4-pre-submit p4-prepare-changelist post-applypatch post-checkout \
    post-commit post-index-change post-merge post-receive post-rewrite post-update pre-applypatch \
    pre-auto-gc pre-commit pre-merge-commit pre-push pre-rebase pre-receive prepare-commit-msg \
    proc-receive push-to-checkout reference-transaction sendemail-validate update";

/// Largest part of a configuration file that is read, in bytes.
const MAX_CONFIG_BYTES: u64 = 256 << 10;
/// Largest part of a file that contains a path, in bytes. A longer path is none.
const MAX_POINTER_BYTES: u64 = 16 << 10;
/// Maximum number of configuration files that are read for one repository.
const MAX_CONFIG_FILES: usize = 16;
/// Maximum number of entries of a folder that are searched for bare repositories.
const MAX_ENTRIES: usize = 1_000;

/// Returns the paths outside of `folder/.git` that belong to the repository of a folder: where a
/// `.git` file leads, what its configuration names, and targets of links. Links on the way are
/// included. Empty if the folder has no `.git`.
pub(crate) fn repository_paths(folder: &Path) -> Vec<PathBuf> {
    let git = folder.join(".git");
    if git.symlink_metadata().is_err() {
        return Vec::new();
    }
    let mut paths = Vec::new();
    let mut repositories = linked_folders(&git);
    for linked in &repositories {
        paths.extend(followed_links(linked));
        paths.push(resolve_existing(linked));
    }
    if repositories.is_empty() {
        repositories.push(git);
    }
    for repository in &repositories {
        for part in ["", "hooks", "info"] {
            paths.extend(link_targets(&repository.join(part), 1));
        }
        let named = configured_files(repository, folder);
        for path in named.included.into_iter().chain(named.hooks) {
            paths.extend(followed_links(&path));
            paths.push(resolve_existing(&path));
        }
    }
    paths
}

/// Returns the name of a file of the repository of a folder that git would read and that is no
/// regular file, such as a pipe, on which git would wait.
pub(crate) fn irregular_file(folder: &Path) -> Option<&'static str> {
    let work_tree = folder.ancestors().find(|above| has_repository(above))?;
    let git = work_tree.join(".git");
    let mut repositories = linked_folders(&git);
    if repositories.is_empty() {
        repositories.push(git);
    }
    let is_irregular = |path: &Path| path.metadata().is_ok_and(|found| !found.is_file());
    repositories.iter().find_map(|repository| {
        const READ_FILES: [&str; 7] = [
            "config",
            "config.worktree",
            "commondir",
            "HEAD",
            "index",
            "packed-refs",
            "info/attributes",
        ];
        let mut files = READ_FILES.into_iter();
        let irregular = files.find(|name| is_irregular(&repository.join(name)));
        let included = configured_files(repository, work_tree).included;
        let has_irregular = || included.iter().any(|path| is_irregular(path));
        irregular.or_else(|| has_irregular().then_some("include.path"))
    })
}

/// Returns whether a folder has the shape of a repository, as git checks it.
pub(crate) fn is_repository(folder: &Path) -> bool {
    folder.join("HEAD").symlink_metadata().is_ok()
        && folder.join("objects").is_dir()
        && folder.join("refs").is_dir()
}

/// Returns the repositories directly in a folder that are not named `.git`, such as `.bare`. Only
/// names that are usual for them are looked at.
pub(crate) fn bare_repositories(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .take(MAX_ENTRIES)
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.as_encoded_bytes();
            (name.starts_with(b".") || name.ends_with(b".git")) && name != b".git"
        })
        .map(|entry| entry.path())
        .filter(|path| is_repository(path))
        .collect()
}

/// Returns the repository folders that a `.git` file names: that of the work tree, and the one it
/// shares with others. Empty if `.git` is a folder.
pub(crate) fn linked_folders(git: &Path) -> Vec<PathBuf> {
    let named = || {
        let target = pointer_target(git, b"gitdir: ")?;
        Some(git.parent()?.join(target))
    };
    let Some(linked) = named() else {
        return Vec::new();
    };
    let shared = pointer_target(&linked.join("commondir"), b"").map(|path| linked.join(path));
    std::iter::once(linked).chain(shared).collect()
}

/// Returns the path in a file, parsed as git does: bytes after the prefix, without line breaks at
/// the end, up to the first NUL.
fn pointer_target(file: &Path, prefix: &[u8]) -> Option<PathBuf> {
    let bytes = read_start(file, MAX_POINTER_BYTES)?;
    let end = bytes
        .iter()
        .rposition(|byte| !matches!(byte, b'\n' | b'\r'))?;
    let path = bytes[..=end].strip_prefix(prefix)?;
    let path = path.split(|byte| *byte == 0).next()?;
    (!path.is_empty()).then(|| OsStr::from_bytes(path).into())
}

/// Returns the folder that identifies the project of a folder: the repository that its work trees
/// share, or the folder itself without one. A work tree whose repository does not name it back is
/// a project of its own, so that a folder cannot claim to belong to another project.
pub fn project_root(folder: &Path) -> PathBuf {
    let Some(work_tree) = folder.ancestors().find(|above| has_repository(above)) else {
        return folder.to_owned();
    };
    let git = work_tree.join(".git");
    // A link is not followed: it could lead to the repository of another project.
    let is_folder = |found: std::fs::Metadata| found.is_dir();
    if git.symlink_metadata().is_ok_and(is_folder) {
        return git.canonicalize().unwrap_or(git);
    }
    if git.is_symlink() {
        return work_tree.to_owned();
    }
    let shared = || {
        let [linked, shared] = <[PathBuf; 2]>::try_from(linked_folders(&git)).ok()?;
        let named = pointer_target(&linked.join("gitdir"), b"")?;
        let names_back = linked.join(named).canonicalize().ok()? == git.canonicalize().ok()?;
        let shared = shared.canonicalize().ok()?;
        let linked = linked.canonicalize().ok()?;
        (names_back && linked.starts_with(shared.join("worktrees"))).then_some(shared)
    };
    shared().unwrap_or_else(|| work_tree.to_owned())
}

/// Returns the branch that is checked out in the repository of a folder. `None` without one, and if
/// the name has characters that are unusual in a branch: it is shown to models.
pub(crate) fn git_branch(folder: &Path) -> Option<String> {
    const MAX_CHARS: usize = 100;
    let git = folder.ancestors().find(|above| has_repository(above))?;
    let git = git.join(".git");
    let git = linked_folders(&git).into_iter().next().unwrap_or(git);
    let head = String::from_utf8(read_start(&git.join("HEAD"), MAX_POINTER_BYTES)?).ok()?;
    let branch = head.trim().strip_prefix("ref: refs/heads/")?;
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "/._-+#@".contains(c);
    (branch.len() <= MAX_CHARS && branch.chars().all(is_usual)).then(|| branch.to_owned())
}

/// Reads the start of a regular file. The file may be untrusted, so a pipe does not block.
fn read_start(path: &Path, max_bytes: u64) -> Option<Vec<u8>> {
    let file = crate::workspace::open_nonblocking(path).ok()?;
    let mut bytes = Vec::new();
    let file = file.metadata().ok()?.is_file().then_some(file)?;
    file.take(max_bytes).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// What the configuration of a repository names.
#[derive(Debug, Default)]
struct ConfiguredFiles {
    /// Further configuration files.
    included: Vec<PathBuf>,
    /// Folders with hooks. If such a folder contains the work tree, the hooks in it.
    hooks: Vec<PathBuf>,
}

/// Returns the files and folders that the configuration of a repository names.
fn configured_files(repository: &Path, work_tree: &Path) -> ConfiguredFiles {
    let mut found = ConfiguredFiles::default();
    let mut pending: Vec<PathBuf> = ["config", "config.worktree"]
        .iter()
        .map(|name| repository.join(name))
        .collect();
    let mut files_left = MAX_CONFIG_FILES;
    while let Some(file) = pending.pop() {
        let Some(text) = read_start(&file, MAX_CONFIG_BYTES).filter(|_| files_left > 0) else {
            continue;
        };
        files_left -= 1;
        for (section, key, value) in config_entries(&text) {
            let value = value.strip_prefix(b":(optional)").unwrap_or(&value);
            let home = std::env::home_dir();
            let value = expand_home(Path::new(OsStr::from_bytes(value)), home.as_deref());
            match (section.as_str(), key.as_str()) {
                ("include" | "includeif", "path") => {
                    let base = file.parent().unwrap_or(repository);
                    found.included.push(base.join(&value));
                    pending.push(base.join(value));
                }
                ("core", "hookspath") => {
                    let hooks = work_tree.join(value);
                    let names = HOOK_NAMES.split_ascii_whitespace();
                    // A folder that contains a workspace cannot be protected as a whole.
                    found.hooks.extend(names.map(|name| hooks.join(name)));
                    if !work_tree.starts_with(resolve_existing(&hooks)) {
                        found.hooks.push(hooks);
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// Returns the entries of a configuration file of git: section without its subsection and key, both
/// in lower case, and value. A part that git would refuse is skipped.
fn config_entries(text: &[u8]) -> Vec<(String, String, Vec<u8>)> {
    let mut entries = Vec::new();
    let mut section = String::new();
    let mut rest = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let lower = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_ascii_lowercase();
    while let Some((first, after)) = rest.split_first() {
        match first {
            b'#' | b';' => rest = after_line(rest),
            b'[' => {
                let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
                let end = after.iter().position(|byte| !is_name(byte));
                section = lower(&after[..end.unwrap_or(after.len())]);
                rest = after_section(after);
            }
            byte if byte.is_ascii_alphabetic() => {
                let is_key = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
                let end = rest.iter().position(|byte| !is_key(byte));
                let (key, after) = rest.split_at(end.unwrap_or(rest.len()));
                let after = after.trim_ascii_start_of_line();
                match after.strip_prefix(b"=") {
                    Some(after) => {
                        let (value, after) = config_value(after);
                        entries.push((section.clone(), lower(key), value));
                        rest = after;
                    }
                    None => rest = after_line(after),
                }
            }
            _ => rest = after,
        }
    }
    entries
}

/// Parses a value up to the end of its line. Returns it and the text after it.
fn config_value(text: &[u8]) -> (Vec<u8>, &[u8]) {
    let mut value = Vec::new();
    // The length of the value without the spaces at its end.
    let mut length = 0;
    let mut is_quoted = false;
    let mut rest = text.trim_ascii_start_of_line();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'\n' => break,
            b'"' => is_quoted = !is_quoted,
            b'#' | b';' if !is_quoted => {
                rest = after_line(rest);
                break;
            }
            b'\\' => {
                let (escaped, after) = match rest.split_first() {
                    Some((b'\n', after)) => (None, after),
                    Some((b'\r', [b'\n', after @ ..])) => (None, after),
                    Some((b'n', after)) => (Some(b'\n'), after),
                    Some((b't', after)) => (Some(b'\t'), after),
                    Some((b'b', after)) => (Some(8), after),
                    Some((other, after)) => (Some(*other), after),
                    None => (None, rest),
                };
                value.extend(escaped);
                length = value.len();
                rest = after;
            }
            byte => {
                value.push(*byte);
                if is_quoted || !byte.is_ascii_whitespace() {
                    length = value.len();
                }
            }
        }
    }
    value.truncate(length);
    (value, rest)
}

/// Returns the text after the end of a section header, whose subsection may be quoted.
fn after_section(text: &[u8]) -> &[u8] {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b']' if !is_quoted => return &text[at + 1..],
            b'\n' => return &text[at..],
            _ => {}
        }
    }
    &[]
}

/// Returns the text after the next line break.
fn after_line(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == b'\n');
    end.map_or(&[], |end| &text[end + 1..])
}

/// Removes spaces from a text without leaving its first line.
trait TrimStartOfLine {
    fn trim_ascii_start_of_line(&self) -> &Self;
}

impl TrimStartOfLine for [u8] {
    fn trim_ascii_start_of_line(&self) -> &Self {
        let start = self
            .iter()
            .position(|byte| !matches!(byte, b' ' | b'\t' | b'\r'));
        &self[start.unwrap_or(self.len())..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_read_as_git_reads_it() {
        let text =
            b"\xef\xbb\xbf# comment\n[core] bare = false ; why\n\thooksPath = \"my hooks\" # x\n\
            [CORE]\nHOOKSPATH=a\\\nb/\\\"c\\\"  \n[includeIf \"gitdir:~/x]y/\"]\npath = more\n\
            [include]\n  path\n  path = b\xff\r\n[alias]x = \"a;b\"";
        let entry = |section: &str, key: &str, value: &[u8]| {
            (section.to_owned(), key.to_owned(), value.to_vec())
        };
        let expected = [
            entry("core", "bare", b"false"),
            entry("core", "hookspath", b"my hooks"),
            entry("core", "hookspath", b"ab/\"c\""),
            entry("includeif", "path", b"more"),
            entry("include", "path", b"b\xff"),
            entry("alias", "x", b"a;b"),
        ];
        assert_eq!(config_entries(text), expected);
    }

    #[test]
    fn a_git_file_names_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let git = dir.path().join(".git");
        for (text, expected) in [
            (&b"gitdir: ./b\xff\n"[..], Some(&b"./b\xff"[..])),
            (b"gitdir: ./repo \n\r\n", Some(b"./repo ")),
            (b"gitdir: ./repo\0rest\n", Some(b"./repo")),
            (b"gitdir:  x", Some(b" x")),
            (b"gitdir:x", None),
            (b"gitdir: \n", None),
            (b"", None),
        ] {
            std::fs::write(&git, text).unwrap();
            let expected = expected.map(|path| PathBuf::from(OsStr::from_bytes(path)));
            assert_eq!(pointer_target(&git, b"gitdir: "), expected, "{text:?}");
        }
    }
}
