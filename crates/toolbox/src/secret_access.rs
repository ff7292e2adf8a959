//! Detects read-only commands that may show secrets. Confined commands cannot read secrets, so this
//! is for commands without confinement. A path can be written in too many ways for this to be
//! complete: it decides only whether a person is asked.

use std::path::{Path, PathBuf};

use crate::Workspace;

/// Programs that print lines of all files below a folder.
const SEARCH_PROGRAMS: [&str; 5] = ["grep", "egrep", "fgrep", "rg", "diff"];

/// Returns whether one of these commands, started in `cwd`, may show secrets.
pub(crate) fn may_show_secrets(
    workspace: &Workspace,
    commands: &[Vec<String>],
    cwd: &Path,
) -> bool {
    let mut folders = vec![resolve_links(cwd)];
    for target in commands
        .iter()
        .filter(|words| program_name(words) == "cd")
        .filter_map(|words| words.get(1))
    {
        // The order of several `cd` commands is not known.
        let targets: Vec<PathBuf> = folders
            .iter()
            .map(|folder| resolve_links(folder.join(expand_home(target))))
            .collect();
        folders.extend(targets);
        folders.dedup();
        if folders.len() > MAX_WORKING_FOLDERS {
            return true;
        }
    }
    let secrets: Vec<PathBuf> = workspace
        .secret_paths()
        .filter(|secret| secret.exists())
        .map(resolve_links)
        .collect();
    let is_secret = |path: &Path| secrets.iter().any(|secret| path.starts_with(secret));
    let contains_secret = |path: &Path| secrets.iter().any(|secret| secret.starts_with(path));
    let may_show = |words: &Vec<String>, folder: &PathBuf| {
        let searches = SEARCH_PROGRAMS.contains(&program_name(words));
        let names_secret = words.iter().skip(1).any(|word| {
            let word = word
                .strip_prefix('-')
                .and_then(|option| Some(option.split_once('=')?.1))
                .unwrap_or(word);
            let (path, is_pattern) = path_before_glob(&folder.join(expand_home(word)));
            let path = resolve_links(&path);
            is_secret(&path) || (is_pattern || searches) && contains_secret(&path)
        });
        names_secret || searches && contains_secret(folder)
    };
    folders.iter().any(|folder| is_secret(folder))
        || commands
            .iter()
            .any(|words| folders.iter().any(|folder| may_show(words, folder)))
}

/// The most working folders that are considered for one script.
const MAX_WORKING_FOLDERS: usize = 64;

fn program_name(words: &[String]) -> &str {
    words
        .first()
        .and_then(|word| word.rsplit('/').next())
        .unwrap_or_default()
}

/// Expands a leading `~` as a shell does.
fn expand_home(word: &str) -> PathBuf {
    match (word.strip_prefix('~'), std::env::home_dir()) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
            home.join(rest.trim_start_matches('/'))
        }
        _ => PathBuf::from(word),
    }
}

/// Returns the part of a path before its first glob pattern, and whether it has a pattern.
fn path_before_glob(path: &Path) -> (PathBuf, bool) {
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

/// Resolves the symbolic links in the existing part of a path.
fn resolve_links(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    path.canonicalize()
        .unwrap_or_else(|_| match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => resolve_links(parent).join(name),
            _ => path.to_owned(),
        })
}
