//! Detects commands that may show hidden files or change protected ones, if nothing prevents it:
//! without confinement, or with Landlock only. A path can be written in too many ways for this to
//! be complete: it decides only whether a person is asked.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use globset::GlobBuilder;

use crate::Workspace;
use crate::command_safety::{CommandClassification, HARMLESS_PROC, has_option};

/// Programs that print lines of all files below a folder.
const SEARCH_PROGRAMS: [(&str, SearchedFolders, LinksInFolders); 6] = [
    ("grep", RECURSIVE_GREP, LinksInFolders::Followed),
    ("egrep", RECURSIVE_GREP, LinksInFolders::Followed),
    ("fgrep", RECURSIVE_GREP, LinksInFolders::Followed),
    ("rg", SearchedFolders::Working, LinksInFolders::Followed),
    ("diff", SearchedFolders::Named, LinksInFolders::Followed),
    ("git", SearchedFolders::Working, LinksInFolders::NotFollowed),
];
const RECURSIVE_GREP: SearchedFolders =
    SearchedFolders::WorkingWith("-r -R -d --recursive --dereference-recursive --directories");

/// The folders that a program searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SearchedFolders {
    /// Those that its words name.
    Named,
    /// The working folder, and those that its words name.
    Working,
    /// The same, with one of these options. Without them it searches none.
    WorkingWith(&'static str),
}

/// Options with which read-only programs open files that no word names: lists of files, and notes
/// in folders.
const LIST_OPTIONS: [(&str, &str); 6] = [
    ("du", "--files0-from"),
    ("file", "-f --files-from"),
    ("find", "-files0-from"),
    ("sort", "--files0-from"),
    ("tree", "--fromfile --fromtabfile --info --infofile"),
    ("wc", "--files0-from"),
];

/// Where processes show their environment and their open files.
const PROC: &str = "/proc";

/// Maximum number of working folders that are considered for one script.
const MAX_WORKING_FOLDERS: usize = 64;

/// Maximum number of entries of folders that are compared with a pattern.
const MAX_GLOB_ENTRIES: usize = 10_000;

/// The most entries of folders that are looked at for one search.
const MAX_SEARCHED_ENTRIES: usize = 50_000;

/// The most letters before the value in a word such as `-rnfFILE`.
const MAX_OPTION_LETTERS: usize = 8;

/// Whether a search opens the targets of links in the folders that it searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinksInFolders {
    Followed,
    NotFollowed,
}

/// Returns whether a command, started in `cwd`, may show secrets.
pub(crate) fn may_show_secrets(
    workspace: &Workspace,
    command: &CommandClassification,
    cwd: &Path,
) -> bool {
    let Some(folders) = working_folders(command, cwd) else {
        return true;
    };
    let secrets = ExistingSecrets::new(workspace);
    let inputs = |folder: &PathBuf| {
        let mut files = command.input_files.iter();
        files.any(|file| secrets.may_be_shown_by(file, folder, None))
    };
    let shows = |folder: &PathBuf| {
        let mut commands = command.commands.iter();
        secrets.is_secret(folder)
            || commands.any(|words| secrets.may_be_shown_in(words, folder))
            || inputs(folder)
    };
    folders.iter().any(shows)
}

/// The secrets that exist now.
struct ExistingSecrets<'a> {
    workspace: &'a Workspace,
    /// Their canonical paths.
    paths: Vec<PathBuf>,
}

impl<'a> ExistingSecrets<'a> {
    fn new(workspace: &'a Workspace) -> Self {
        let existing = workspace.secret_paths().filter(|secret| secret.exists());
        Self {
            workspace,
            paths: existing.map(resolve_links).collect(),
        }
    }

    fn is_secret(&self, path: &Path) -> bool {
        path.starts_with(PROC) || self.paths.iter().any(|secret| path.starts_with(secret))
    }

    fn are_below(&self, path: &Path) -> bool {
        let is_above_proc = Path::new(PROC).starts_with(path);
        is_above_proc || self.paths.iter().any(|secret| secret.starts_with(path))
    }

    fn is_secret_file(&self, path: &Path) -> bool {
        self.is_secret(&resolve_links(path))
            || path
                .metadata()
                .is_ok_and(|metadata| self.workspace.is_secret_file(&metadata))
    }

    /// Returns whether a simple command may show a secret in this working folder.
    fn may_be_shown_in(&self, words: &[String], folder: &Path) -> bool {
        let (program, arguments) = (program_name(words), words.get(1..).unwrap_or_default());
        let is_program = |name: &str| name == program;
        let mut lists = LIST_OPTIONS.iter().filter(|(name, _)| is_program(name));
        if lists.any(|(_, options)| has_option(arguments, options)) {
            return true;
        }
        let search = SEARCH_PROGRAMS
            .iter()
            .find(|(name, folders, _)| match folders {
                SearchedFolders::WorkingWith(options) => {
                    is_program(name) && has_option(arguments, options)
                }
                SearchedFolders::Named | SearchedFolders::Working => is_program(name),
            });
        let searches_folder = search.is_some_and(|(_, folders, links)| {
            *folders != SearchedFolders::Named && self.are_reached_from(folder, *links)
        });
        let links = search.map(|(_, _, links)| *links);
        searches_folder
            || arguments
                .iter()
                .flat_map(|word| possible_files(word))
                .any(|file| self.may_be_shown_by(file, folder, links))
    }

    /// Returns whether a file or pattern that a command names may be a secret. With `links` the
    /// command searches folders, too.
    fn may_be_shown_by(&self, word: &str, folder: &Path, links: Option<LinksInFolders>) -> bool {
        if is_shell_folder(word) {
            return true;
        }
        let path = folder.join(expand_home(word));
        let is_harmless = |harmless: &&str| path == Path::new(harmless);
        if HARMLESS_PROC.iter().any(is_harmless) {
            return false;
        }
        let (before, is_pattern) = path_before_glob(&path);
        let before = resolve_links(&before);
        if self.is_secret(&before) || is_pattern && self.are_below(&before) {
            return true;
        }
        let found = match is_pattern {
            true => expand_glob(&path, DotFiles::Matched),
            false => Some(vec![path]),
        };
        let is_shown = |path: &PathBuf| {
            self.is_secret_file(path)
                || links.is_some_and(|links| path.is_dir() && self.are_reached_from(path, links))
        };
        found.is_none_or(|found| found.iter().any(is_shown))
    }

    /// Returns whether a search of a folder finds a secret: below it, through a link, or as a hard
    /// link. Also returns true if there is too much to look at.
    fn are_reached_from(&self, folder: &Path, links: LinksInFolders) -> bool {
        let folder = resolve_links(folder);
        if self.are_below(&folder) || self.is_secret(&folder) {
            return true;
        }
        let has_hard_links = self.workspace.has_linked_secrets();
        if links == LinksInFolders::NotFollowed && !has_hard_links {
            return false;
        }
        let mut left = MAX_SEARCHED_ENTRIES;
        let mut searched = HashSet::from([folder.clone()]);
        let mut pending = vec![folder];
        while let Some(folder) = pending.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let kind = entry.file_type();
                let is_link = kind.as_ref().is_ok_and(std::fs::FileType::is_symlink);
                if left == 0 {
                    return true;
                }
                left -= 1;
                let mut enter = |folder: PathBuf| {
                    if searched.insert(folder.clone()) {
                        pending.push(folder);
                    }
                };
                if kind.is_ok_and(|kind| kind.is_dir()) {
                    enter(path);
                } else if is_link && links == LinksInFolders::Followed {
                    let target = resolve_links(&path);
                    if self.is_secret_file(&path) || self.are_below(&target) {
                        return true;
                    }
                    if target.is_dir() {
                        enter(target);
                    }
                } else if !is_link && has_hard_links && self.is_secret_file(&path) {
                    return true;
                }
            }
        }
        false
    }
}

/// Returns the parts of a word that may name a file: the word, the value after `=`, and the rest of
/// a word such as `-nfFILE`.
fn possible_files(word: &str) -> Vec<&str> {
    let Some(option) = word.strip_prefix('-') else {
        return vec![word];
    };
    let value = option.split_once('=').map(|(_, value)| value);
    let letters = match option.starts_with('-') {
        true => 0,
        false => MAX_OPTION_LETTERS,
    };
    let rests = option.char_indices().skip(1).take(letters);
    let rests = rests.map(|(at, _)| &option[at..]);
    value.into_iter().chain(rests).chain([word]).collect()
}

/// Returns a file that a command, started in `cwd`, may change through a redirection or a pattern
/// although it is protected, with the reason.
pub(crate) fn protected_change(
    workspace: &Workspace,
    command: &CommandClassification,
    cwd: &Path,
) -> Option<String> {
    let patterns = command.words.iter().filter(|word| is_glob(word));
    let words: Vec<&String> = command.output_files.iter().chain(patterns).collect();
    if words.is_empty() {
        return None;
    }
    let Some(folders) = possible_folders(command, cwd) else {
        return Some("names too many folders to check".to_owned());
    };
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
        // `cd -` leads to an earlier folder, and only a shell knows the target of `cd ~+`.
        if words.iter().any(|word| word == "-") || is_glob(target) || is_shell_folder(target) {
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

/// Returns the folders in which any part of a command may run: `cwd`, and every folder that a word
/// names, as in `cd .git`, `pushd .git`, `env -C .git` or `make -C.git`. `None` if there are too
/// many.
fn possible_folders(command: &CommandClassification, cwd: &Path) -> Option<Vec<PathBuf>> {
    let mut folders = vec![resolve_links(cwd)];
    let mut at = 0;
    // A folder may be named relative to another one.
    while let Some(folder) = folders.get(at).cloned() {
        for word in command.words.iter().flat_map(|word| possible_files(word)) {
            let named = folder.join(expand_home(word));
            let named = match is_glob(word) {
                true => expand_glob(&named, DotFiles::AsShells)?,
                false => vec![named],
            };
            for entered in named.iter().filter(|path| path.is_dir()) {
                let entered = resolve_links(entered);
                if !folders.contains(&entered) {
                    folders.push(entered);
                }
            }
            if folders.len() > MAX_WORKING_FOLDERS {
                return None;
            }
        }
        at += 1;
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

/// Returns whether a word starts with a folder that only a shell knows, such as `~+`, or with the
/// home of another user.
fn is_shell_folder(word: &str) -> bool {
    let home = word.strip_prefix('~').unwrap_or_default();
    !home.is_empty() && !home.starts_with('/')
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
        let name = part.as_os_str();
        let part = name.to_string_lossy();
        if !is_glob(&part) {
            found.iter_mut().for_each(|path| path.push(name));
            continue;
        }
        // Shells know classes such as `[[:alpha:]]`, globset does not: any name counts as a match.
        let has_class = ["[:", "[.", "[="].iter().any(|class| part.contains(class));
        let glob = if has_class { "*" } else { &*part };
        let matcher = GlobBuilder::new(glob).build().ok()?.compile_matcher();
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
