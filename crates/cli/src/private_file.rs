//! Writes exported sessions and runs to files that only their owner can read, from the first byte.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Creates or truncates a file that only its owner can read. The permissions of an existing file
/// are reduced before it is truncated.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    // Pipes and devices keep their permissions.
    if file.metadata()?.is_file() {
        remove_other_access(&file)?;
        file.set_len(0)?;
    }
    Ok(file)
}

/// Writes a text to a file that only its owner can read.
pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    create_private(path)?.write_all(text.as_bytes())
}

#[cfg(unix)]
fn remove_other_access(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mut permissions = file.metadata()?.permissions();
    if permissions.mode() & 0o077 != 0 {
        permissions.set_mode(permissions.mode() & !0o077);
        // Some file systems have no permissions.
        let _ = file.set_permissions(permissions);
    }
    Ok(())
}

#[cfg(not(unix))]
fn remove_other_access(_: &File) -> io::Result<()> {
    Ok(())
}
