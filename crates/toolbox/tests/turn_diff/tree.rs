//! The content of a folder as a value, and applying diffs with git.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use selvedge_toolbox::WorkspaceDiff;

use crate::random::{self, TreeRandom};

/// Every file and link below a folder.
#[derive(Debug, PartialEq, Eq)]
pub struct FolderTree(pub BTreeMap<OsString, Entry>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    File { content: Vec<u8>, executable: bool },
    Link(OsString),
}

impl FolderTree {
    pub fn random(random: &mut TreeRandom) -> Self {
        let mut tree = BTreeMap::new();
        for _ in 0..3 + random.below(10) {
            let name = random::name(random);
            let clashes = |other: &OsString| {
                Path::new(other).starts_with(&name) || Path::new(&name).starts_with(other)
            };
            if !tree.keys().any(clashes) {
                tree.insert(name, random::entry(random));
            }
        }
        Self(tree)
    }

    pub fn read(folder: &Path) -> Self {
        let mut tree = BTreeMap::new();
        read(folder, folder, &mut tree);
        Self(tree)
    }

    pub fn write(&self, folder: &Path) {
        for (name, entry) in &self.0 {
            entry.write(&folder.join(name));
        }
    }

    /// Returns the paths that differ, in lossy UTF-8.
    pub fn differing(&self, other: &Self) -> Vec<String> {
        let differs = |name: &&OsString| self.0.get(*name) != other.0.get(*name);
        let names = self.0.keys().chain(other.0.keys()).filter(differs);
        let mut names: Vec<String> = names
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

fn read(root: &Path, folder: &Path, tree: &mut BTreeMap<OsString, Entry>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        let name = path.strip_prefix(root).unwrap().as_os_str().to_owned();
        if kind.is_symlink() {
            tree.insert(
                name,
                Entry::Link(fs::read_link(&path).unwrap().into_os_string()),
            );
        } else if kind.is_file() {
            let executable = entry.metadata().unwrap().permissions().mode() & 0o100 != 0;
            tree.insert(
                name,
                Entry::File {
                    content: fs::read(&path).unwrap(),
                    executable,
                },
            );
        } else if entry.file_name() != ".git" {
            read(root, &path, tree);
        }
    }
}

impl Entry {
    pub fn write(&self, path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(path);
        // Folders without files may remain.
        let _ = fs::remove_dir_all(path);
        match self {
            Self::File {
                content,
                executable,
            } => {
                fs::write(path, content).unwrap();
                let mode = if *executable { 0o755 } else { 0o644 };
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            }
            Self::Link(target) => symlink(target, path).unwrap(),
        }
    }
}

pub fn git(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.args(args).current_dir(folder);
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1");
    command
}

/// Applies a diff with git. The diff does not contain binary files, so they are copied from `to`.
pub fn apply(
    diff: &WorkspaceDiff,
    folder: &Path,
    to: &FolderTree,
    reverse: bool,
) -> Result<(), String> {
    assert!(git(folder, &["init", "-q"]).status().unwrap().success());
    let sections = sections(&diff.text);
    assert_eq!(sections.len(), diff.files.len());
    let mut patch = String::new();
    let mut binary_files = Vec::new();
    for (section, file) in sections.iter().zip(&diff.files) {
        assert_eq!((file.added, file.removed), counted(section), "{file:?}");
        if section.iter().any(|line| line.starts_with("Binary files ")) {
            binary_files.extend(header_names(section));
        } else {
            patch.extend(section.iter().map(|line| format!("{line}\n")));
        }
    }
    for name in &binary_files {
        let path = folder.join(name);
        let _ = fs::remove_file(&path);
        // Like git, remove folders that have lost their last file.
        let _ = path.ancestors().skip(1).try_for_each(fs::remove_dir);
    }
    if !patch.is_empty() {
        let args: &[&str] = if reverse {
            &["apply", "-R", "--whitespace=nowarn"]
        } else {
            &["apply", "--whitespace=nowarn"]
        };
        let mut child = git(folder, args)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(patch.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
    }
    if reverse {
        sections
            .iter()
            .for_each(|section| restore_mode(folder, section));
    }
    for name in binary_files {
        if let Some(entry) = to.0.get(&name) {
            entry.write(&folder.join(name));
        }
    }
    Ok(())
}

/// Restores the mode of a deleted file. `git apply -R` restores it as a plain file, whatever mode
/// the diff has.
fn restore_mode(folder: &Path, section: &[&str]) {
    let Some(mode) = section
        .iter()
        .find_map(|line| line.strip_prefix("deleted file mode "))
    else {
        return;
    };
    let path = folder.join(&header_names(section)[0]);
    let Ok(content) = fs::read(&path) else { return };
    let entry = match mode {
        "120000" => Entry::Link(OsString::from_vec(content)),
        _ => Entry::File {
            content,
            executable: mode == "100755",
        },
    };
    entry.write(&path);
}

/// Splits a diff into the lines of each file. A file whose type changed has two sections with the
/// same header, which count as one.
fn sections(text: &str) -> Vec<Vec<&str>> {
    let mut sections: Vec<Vec<&str>> = Vec::new();
    for line in text.split_terminator('\n') {
        let same = sections.last().is_some_and(|section| section[0] == line);
        if line.starts_with("diff --git ") && !same {
            sections.push(Vec::new());
        }
        sections.last_mut().unwrap().push(line);
    }
    sections
}

/// Counts the added and removed lines.
fn counted(section: &[&str]) -> (usize, usize) {
    let (mut added, mut removed, mut in_hunk) = (0, 0, false);
    for line in section {
        match line.as_bytes().first() {
            Some(b'd') => in_hunk = false,
            Some(b'@') => in_hunk = true,
            Some(b'+') if in_hunk => added += 1,
            Some(b'-') if in_hunk => removed += 1,
            _ => {}
        }
    }
    (added, removed)
}

/// Returns the paths of a section: both paths of a rename, else the one path of `diff --git`, which
/// is half of that line.
fn header_names(section: &[&str]) -> Vec<OsString> {
    let value_of = |word: &str| {
        section
            .iter()
            .find_map(|line| line.strip_prefix(word))
            .map(unquoted)
    };
    if let (Some(from), Some(to)) = (value_of("rename from "), value_of("rename to ")) {
        return vec![from, to];
    }
    let names = section[0].strip_prefix("diff --git ").unwrap();
    let first = unquoted(&names[..names.len() / 2]);
    vec![OsStr::from_bytes(&first.as_bytes()[2..]).to_owned()]
}

fn unquoted(name: &str) -> OsString {
    let Some(inner) = name
        .strip_prefix('"')
        .and_then(|name| name.strip_suffix('"'))
    else {
        return name.into();
    };
    let mut out = Vec::new();
    let mut bytes = inner.bytes();
    while let Some(byte) = bytes.next() {
        let escaped = if byte == b'\\' {
            bytes.next().unwrap()
        } else {
            0
        };
        out.push(match escaped {
            0 => byte,
            b'a' => 7,
            b'b' => 8,
            b't' => 9,
            b'n' => 10,
            b'v' => 11,
            b'f' => 12,
            b'r' => 13,
            digit @ b'0'..=b'3' => {
                let mut digit_of = || bytes.next().unwrap() - b'0';
                (digit - b'0') * 64 + digit_of() * 8 + digit_of()
            }
            other => other,
        });
    }
    OsString::from_vec(out)
}
