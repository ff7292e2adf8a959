//! Opens regular files without blocking, and reads them up to a limit.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

use crate::RefusalReason;

/// Opens a regular file. Follows links.
pub(crate) fn open_following_links(path: &Path) -> Result<File, RefusalReason> {
    // Opening a device can have an effect, so its type is checked before and after.
    require_regular(&path.metadata()?)?;
    require_regular_file(open_nonblocking(path)?)
}

/// Opens a regular file by its canonical path. Fails if a part of the path has become a link.
pub(crate) fn open_canonical(path: &Path) -> Result<File, RefusalReason> {
    require_regular(&path.symlink_metadata()?)?;
    let file = match open_without_links(path) {
        Err(error) if needs_fallback(&error) => {
            let file = open_nonblocking(path)?;
            match is_file_at(&file, path)? {
                true => file,
                false => return Err(RefusalReason::LeavesProject),
            }
        }
        opened => opened?,
    };
    require_regular_file(file)
}

/// Reads a file up to `max_bytes`. Returns whether there is more.
pub(crate) fn read_bounded(file: File, max_bytes: usize) -> io::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    file.take(max_bytes as u64 + 1).read_to_end(&mut bytes)?;
    let has_more = bytes.len() > max_bytes;
    bytes.truncate(max_bytes);
    Ok((bytes, has_more))
}

fn require_regular_file(file: File) -> Result<File, RefusalReason> {
    require_regular(&file.metadata()?)?;
    match is_proc_file(&file) {
        true => Err(RefusalReason::ProcFile),
        false => Ok(file),
    }
}

fn require_regular(metadata: &Metadata) -> Result<(), RefusalReason> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(RefusalReason::NotRegular(file_kind_name(metadata))),
    }
}

#[cfg(unix)]
fn file_kind_name(metadata: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match metadata.file_type() {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_symlink() => "a link",
        _ => "a device",
    }
}

#[cfg(not(unix))]
fn file_kind_name(metadata: &Metadata) -> &'static str {
    match metadata.is_dir() {
        true => "a folder",
        false => "a special file",
    }
}

/// Opens a file for reading. Does not block, even if it has become a pipe without a writer.
#[cfg(unix)]
fn open_nonblocking(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    File::options()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

#[cfg(not(unix))]
fn open_nonblocking(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Opens a file whose path has no links.
#[cfg(target_os = "linux")]
fn open_without_links(path: &Path) -> io::Result<File> {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(CWD, path, flags, Mode::empty(), resolve)?.into())
}

#[cfg(not(target_os = "linux"))]
fn open_without_links(_: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether the system does not support `openat2`. Some containers forbid the call instead, which
/// gives the same error as a file that may not be read; for such a file the fallback fails, too.
fn needs_fallback(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied
    )
}

/// Whether an open file is the one at a path that has no links.
#[cfg(unix)]
fn is_file_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (opened, there) = (file.metadata()?, path.symlink_metadata()?);
    let is_same = (opened.dev(), opened.ino()) == (there.dev(), there.ino());
    Ok(is_same && path.canonicalize()? == path)
}

#[cfg(not(unix))]
fn is_file_at(_: &File, path: &Path) -> io::Result<bool> {
    Ok(path.canonicalize()? == path)
}

#[cfg(target_os = "linux")]
fn is_proc_file(file: &File) -> bool {
    // If the file system cannot be determined, treat the file as one of proc.
    rustix::fs::fstatfs(file).map_or(true, |system| system.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

#[cfg(not(target_os = "linux"))]
fn is_proc_file(_: &File) -> bool {
    false
}
