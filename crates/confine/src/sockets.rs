//! Finds Unix sockets that have a path. A network namespace does not block them, and some of the
//! programs that listen on them run commands for their clients: a container engine, a terminal
//! multiplexer, a signing agent.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use crate::ConfineError;

/// The longest path of a socket, in bytes: the size of `sun_path`.
const MAX_SOCKET_PATH_BYTES: usize = 108;

/// Returns the paths of all sockets that a process has bound and that this process can see. Fails
/// if the list of the system cannot be read: then no socket could be covered.
pub(crate) fn bound_socket_paths() -> Result<Vec<PathBuf>, ConfineError> {
    let table = std::fs::read("/proc/net/unix").map_err(|error| ConfineError::System {
        operation: "list the Unix sockets of this machine",
        error,
    })?;
    let mut paths = possible_paths(&table);
    paths.retain(|path| std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket()));
    Ok(paths)
}

/// Returns the paths in the text of `/proc/net/unix`, sorted. Names are any bytes, line breaks
/// included, and the text does not escape them. So a path may also continue on the next lines.
fn possible_paths(table: &[u8]) -> Vec<PathBuf> {
    let lines: Vec<&[u8]> = table.split(|byte| *byte == b'\n').collect();
    let mut paths = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(start) = bound_path(line) else {
            continue;
        };
        let mut path = start.to_vec();
        paths.push(path.clone());
        for next in &lines[at + 1..] {
            path.push(b'\n');
            path.extend_from_slice(next);
            if path.len() > MAX_SOCKET_PATH_BYTES {
                break;
            }
            paths.push(path.clone());
        }
    }
    paths.sort_unstable();
    paths.dedup();
    let to_path = |bytes: Vec<u8>| PathBuf::from(OsStr::from_bytes(&bytes));
    paths.into_iter().map(to_path).collect()
}

/// Returns the path in a line of `/proc/net/unix`. Unnamed and abstract sockets have none.
fn bound_path(line: &[u8]) -> Option<&[u8]> {
    let at = line.windows(2).position(|pair| pair == b" /")?;
    Some(&line[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sockets_are_bytes() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 10 /run/a.sock\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 11 /run/b\xff.sock\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 12 /run/c\nd.sock\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 13\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 14 @/abstract\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 15 /run/e f.sock\n";
        let paths = possible_paths(table);
        for expected in [
            &b"/run/a.sock"[..],
            b"/run/b\xff.sock",
            b"/run/c\nd.sock",
            b"/run/e f.sock",
        ] {
            let path = PathBuf::from(OsStr::from_bytes(expected));
            assert!(paths.contains(&path), "{path:?} in {paths:?}");
        }
    }
}
