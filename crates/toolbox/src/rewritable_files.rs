//! Files that a command names and that confined commands may write. What such a file does can
//! change between two calls, so an approval of an unconfined command covers only its content.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use selvedge_protocol::new_id;

use crate::Workspace;
use crate::command_request::CommandRequest;
use crate::command_safety::classify_command;
use crate::workspace::open_nonblocking;

/// Largest file whose content is compared, in bytes.
const MAX_COMPARED_BYTES: u64 = 16 << 20;

/// Returns whether one of the words names such a file.
pub(crate) fn names_rewritable_file(workspace: &Workspace, cwd: &Path, words: &[String]) -> bool {
    !rewritable_files(workspace, cwd, words).is_empty()
}

/// Returns a key of the command and the content of the files that it names; `None` if it names no
/// such file. A file that cannot be compared has another key each time.
pub(crate) fn key_with_content(
    workspace: &Workspace,
    cwd: &Path,
    request: &CommandRequest,
) -> Option<String> {
    let commands = classify_command(&request.argv).commands;
    let words = request.argv.iter().chain(commands.iter().flatten());
    let words: Vec<String> = words.cloned().collect();
    let files = rewritable_files(workspace, cwd, &words);
    let mut key = format!("{:?} {cwd:?} {:?}", request.argv, request.env);
    for path in &files {
        let content = content_hash(path).unwrap_or_else(|| new_id("file"));
        key.push_str(&format!("\n{} {content}", path.display()));
    }
    (!files.is_empty()).then_some(key)
}

/// Returns the files that the words name, also as the value of an option.
fn rewritable_files(workspace: &Workspace, cwd: &Path, words: &[String]) -> Vec<PathBuf> {
    let values = words
        .iter()
        .filter_map(|word| Some(word.split_once('=')?.1));
    let names = words.iter().map(String::as_str).chain(values);
    let mut files: Vec<PathBuf> = names
        .filter(|name| !name.is_empty())
        .map(|name| cwd.join(name))
        .filter(|path| path.is_file() && is_rewritable(workspace, path))
        .collect();
    files.sort_unstable();
    files.dedup();
    files
}

/// Returns whether commands may write the file, or a link that leads to it.
fn is_rewritable(workspace: &Workspace, path: &Path) -> bool {
    let target = path.canonicalize();
    workspace.is_writable_by_commands(path)
        || target.is_ok_and(|target| workspace.is_writable_by_commands(&target))
}

/// Returns a hash of a file's content with a key of this process; `None` if the file cannot be read
/// or is too large.
fn content_hash(path: &Path) -> Option<String> {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    let file = open_nonblocking(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() > MAX_COMPARED_BYTES {
        return None;
    }
    let mut content = Vec::new();
    let mut bounded = file.take(MAX_COMPARED_BYTES);
    bounded.read_to_end(&mut content).ok()?;
    let mut hasher = KEY.get_or_init(RandomState::new).build_hasher();
    hasher.write(&content);
    Some(format!("{} {:x}", content.len(), hasher.finish()))
}
