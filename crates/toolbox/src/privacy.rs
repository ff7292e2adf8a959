//! Whether a command that only reads might read what is private. Behind the wall it cannot: this is for commands
//! that run without one. A name can be written in too many ways for this to be a wall: it is a question in time.

use std::path::{Path, PathBuf};

use crate::Workspace;

/// Programs that show the lines of all files below a folder.
const SEARCHERS: [&str; 5] = ["grep", "egrep", "fgrep", "rg", "diff"];

/// Whether one of these commands, started in this folder, might show what is private.
pub(crate) fn may_show_secrets(
    workspace: &Workspace,
    commands: &[Vec<String>],
    cwd: &Path,
) -> bool {
    let mut folders = vec![real(cwd)];
    for target in commands
        .iter()
        .filter(|words| program(words) == "cd")
        .filter_map(|words| words.get(1))
    {
        // Each may come before or after another.
        let targets: Vec<PathBuf> = folders
            .iter()
            .map(|folder| real(folder.join(at_home(target))))
            .collect();
        folders.extend(targets);
        folders.dedup();
        if folders.len() > MAX_FOLDERS {
            return true;
        }
    }
    let secrets: Vec<PathBuf> = workspace
        .secrets()
        .filter(|secret| secret.exists())
        .map(real)
        .collect();
    let leads_there = |path: &Path| secrets.iter().any(|secret| path.starts_with(secret));
    let lies_above = |path: &Path| secrets.iter().any(|secret| secret.starts_with(path));
    let shows = |words: &Vec<String>, folder: &PathBuf| {
        let searches = SEARCHERS.contains(&program(words));
        let named = words.iter().skip(1).any(|word| {
            let word = word
                .strip_prefix('-')
                .and_then(|option| Some(option.split_once('=')?.1))
                .unwrap_or(word);
            let (path, is_pattern) = before_pattern(&folder.join(at_home(word)));
            let path = real(&path);
            leads_there(&path) || (is_pattern || searches) && lies_above(&path)
        });
        named || searches && lies_above(folder)
    };
    folders.iter().any(|folder| leads_there(folder))
        || commands
            .iter()
            .any(|words| folders.iter().any(|folder| shows(words, folder)))
}

/// Folders a script may be in.
const MAX_FOLDERS: usize = 64;

fn program(words: &[String]) -> &str {
    words
        .first()
        .and_then(|word| word.rsplit('/').next())
        .unwrap_or_default()
}

/// A word with the shell's `~` in front of it resolved.
fn at_home(word: &str) -> PathBuf {
    match (word.strip_prefix('~'), std::env::home_dir()) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
            home.join(rest.trim_start_matches('/'))
        }
        _ => PathBuf::from(word),
    }
}

/// The folder in which a pattern begins, or the whole path if it holds none.
fn before_pattern(path: &Path) -> (PathBuf, bool) {
    let mut plain = PathBuf::new();
    for part in path.components() {
        if part
            .as_os_str()
            .as_encoded_bytes()
            .iter()
            .any(|byte| b"*?[".contains(byte))
        {
            return (plain, true);
        }
        plain.push(part);
    }
    (plain, false)
}

/// The path without links, as far as it exists.
fn real(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    path.canonicalize()
        .unwrap_or_else(|_| match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => real(parent).join(name),
            _ => path.to_owned(),
        })
}
