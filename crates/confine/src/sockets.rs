//! Sockets that have a name in the file system. A network of its own does not keep a command from them, and
//! behind some sit programs that do what they are told: a container engine, a terminal multiplexer, an agent
//! that signs.

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

/// Every named socket somebody listens on and that can be seen from here.
pub(crate) fn listening() -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut paths: Vec<PathBuf> = table
        .lines()
        .filter_map(bound_path)
        .map(PathBuf::from)
        .collect();
    paths.sort_unstable();
    paths.dedup();
    paths.retain(|path| std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket()));
    paths
}

/// The path of a socket in a line of the table; those without, and abstract ones, have none.
fn bound_path(line: &str) -> Option<&str> {
    line.find(" /").map(|at| &line[at + 1..])
}
