//! Finds Unix sockets that have a path. A network namespace does not block them, and some of the
//! programs that listen on them run commands for their clients: a container engine, a terminal
//! multiplexer, a signing agent.

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

/// Returns the paths of all sockets that a process has bound and that this process can see.
pub(crate) fn bound_socket_paths() -> Vec<PathBuf> {
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

/// Returns the path in a line of `/proc/net/unix`. Unnamed and abstract sockets have none.
fn bound_path(line: &str) -> Option<&str> {
    line.find(" /").map(|at| &line[at + 1..])
}
