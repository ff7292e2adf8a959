//! Detects commands that may show hidden files or change protected ones, if nothing prevents it:
//! without confinement, or with Landlock only. A path can be written in too many ways for this to
//! be complete: it decides only whether a person is asked.

use std::path::{Path, PathBuf};

use globset::GlobBuilder;

use crate::Workspace;
use crate::command_safety::CommandClassification;

/// Programs that print lines of all files below a folder.
const SEARCH_PROGRAMS: [&str; 6] = ["grep", "egrep", "fgrep", "rg", "diff", "git"];

/// Maximum number of working folders that are considered for one script.
const MAX_WORKING_FOLDERS: usize = 64;

/// Maximum number of entries of folders that are compared with a pattern.
const MAX_GLOB_ENTRIES: usize = 10_000;

/// Returns whether a command, started in `cwd`, may show secrets.
pub(crate) fn may_show_secrets(
    workspace: &Workspace,
    command: &CommandClassification,
    cwd: &Path,
) -> bool {
    let Some(folders) = working_folders(command, cwd) else {
        return true;
    };
    let secrets: Vec<PathBuf> = workspace
        .secret_paths()
        .filter(|secret| secret.exists())
        .map(resolve_links)
        .collect();
    let is_secret = |path: &Path| secrets.iter().any(|secret| path.starts_with(secret));
    let contains_secret = |path: &Path| secrets.iter().any(|secret| secret.starts_with(path));
    let is_secret_file = |path: &Path| {
        is_secret(&resolve_links(path))
            || path
                .metadata()
                .is_ok_and(|metadata| workspace.is_secret_file(&metadata))
    };
    let shows = |word: &str, folder: &Path, searches: bool| {
        let path = folder.join(expand_home(word));
        let (before, is_pattern) = path_before_glob(&path);
        let before = resolve_links(&before);
        is_secret(&before)
            || (is_pattern || searches) && contains_secret(&before)
            || match is_pattern {
                true => expand_glob(&path, DotFiles::Matched)
                    .is_none_or(|found| found.iter().any(|path| is_secret_file(path))),
                false => is_secret_file(&path),
            }
    };
    let words = |folder: &PathBuf| {
        command.commands.iter().any(|words| {
            let searches = SEARCH_PROGRAMS.contains(&program_name(words));
            let named = words.iter().skip(1).any(|word| {
                let value = word
                    .strip_prefix('-')
                    .and_then(|option| Some(option.split_once('=')?.1));
                shows(value.unwrap_or(word), folder, searches)
            });
            named || searches && contains_secret(folder)
        })
    };
    let inputs = |folder: &PathBuf| {
        let mut files = command.input_files.iter();
        files.any(|file| shows(file, folder, false))
    };
    folders
        .iter()
        .any(|folder| is_secret(folder) || words(folder) || inputs(folder))
}

/// Returns a file that a command, started in `cwd`, may change through a redirection or a pattern
/// although it is protected, with the reason.
pub(crate) fn protected_change(
    workspace: &Workspace,
    command: &CommandClassification,
    cwd: &Path,
) -> Option<String> {
    let folders = working_folders(command, cwd).unwrap_or_else(|| vec![cwd.to_owned()]);
    let patterns = command
        .commands
        .iter()
        .flatten()
        .filter(|word| is_glob(word));
    let words: Vec<&String> = command.output_files.iter().chain(patterns).collect();
    folders.iter().find_map(|folder| {
        words.iter().find_map(|word| {
            let path = folder.join(expand_home(word));
            let matches = match is_glob(word) {
                true => expand_glob(&path, DotFiles::AsShells).unwrap_or_default(),
                false => vec![path],
            };
            matches.iter().find_map(|path| {
                let path = resolve_links(path);
                let why = workspace.protection_reason(&path).or_else(|| {
                    let secret = workspace.is_secret(&path);
                    secret.then(|| "it holds secrets".to_owned())
                })?;
                Some(format!(
                    "may change {}: {why}",
                    workspace.display_path(&path)
                ))
            })
        })
    })
}

/// Returns the folders in which the commands of a script may run: `cwd` and the targets of `cd`.
/// `None` if there are too many.
fn working_folders(command: &CommandClassification, cwd: &Path) -> Option<Vec<PathBuf>> {
    let mut folders = vec![resolve_links(cwd)];
    let changes = command
        .commands
        .iter()
        .filter(|words| program_name(words) == "cd");
    for words in changes {
        let mut operands = words.iter().skip(1).filter(|word| !word.starts_with('-'));
        let target = operands.next().map_or("~", String::as_str);
        // `cd -` leads to an earlier folder.
        if words.iter().any(|word| word == "-") {
            return None;
        }
        // The order of several `cd` commands is not known.
        let entered: Vec<PathBuf> = folders
            .iter()
            .map(|folder| resolve_links(folder.join(expand_home(target))))
            .collect();
        folders.extend(entered);
        folders.dedup();
        if folders.len() > MAX_WORKING_FOLDERS {
            return None;
        }
    }
    Some(folders)
}

fn program_name(words: &[String]) -> &str {
    words
        .first()
        .and_then(|word| word.rsplit('/').next())
        .unwrap_or_default()
}

/// Expands a leading `~` as a shell does.
fn expand_home(word: &str) -> PathBuf {
    crate::hidden_paths::expand_home(Path::new(word), std::env::home_dir().as_deref())
}

fn is_glob(word: &str) -> bool {
    word.contains(['*', '?', '['])
}

/// Returns the part of a path before its first glob pattern, and whether it has a pattern.
fn path_before_glob(path: &Path) -> (PathBuf, bool) {
    let mut plain = PathBuf::new();
    for part in path.components() {
        if is_glob(&part.as_os_str().to_string_lossy()) {
            return (plain, true);
        }
        plain.push(part);
    }
    (plain, false)
}

/// Whether a pattern at the start of a name matches a dot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DotFiles {
    /// Only if the pattern starts with a dot, as in shells by default.
    AsShells,
    /// Always. Some users configure their shell so.
    Matched,
}

/// Returns the paths that match a pattern. `None` if there are too many files to compare, or the
/// pattern cannot be compared.
fn expand_glob(pattern: &Path, dot_files: DotFiles) -> Option<Vec<PathBuf>> {
    let mut found = vec![PathBuf::new()];
    let mut compared = 0;
    for part in pattern.components() {
        let part = part.as_os_str().to_string_lossy();
        if !is_glob(&part) {
            found.iter_mut().for_each(|path| path.push(&*part));
            continue;
        }
        let matcher = GlobBuilder::new(&part).build().ok()?.compile_matcher();
        let mut matches = Vec::new();
        for folder in &found {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                compared += 1;
                if compared > MAX_GLOB_ENTRIES {
                    return None;
                }
                let name = entry.file_name();
                let is_visible = dot_files == DotFiles::Matched
                    || part.starts_with('.')
                    || !name.as_encoded_bytes().starts_with(b".");
                if is_visible && matcher.is_match(Path::new(&name)) {
                    matches.push(entry.path());
                }
            }
        }
        found = matches;
    }
    Some(found)
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
