//! Files that may hold what a conversation or a run held: nobody else reads them, not even while they are written.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// A new or emptied file for its owner alone. One that was there before, and was readable for others, is not any more.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    // Pipes and devices are whose they are.
    if file.metadata()?.is_file() {
        close_to_others(&file)?;
        file.set_len(0)?;
    }
    Ok(file)
}

pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    create(path)?.write_all(text.as_bytes())
}

#[cfg(unix)]
fn close_to_others(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mut permissions = file.metadata()?.permissions();
    if permissions.mode() & 0o077 != 0 {
        permissions.set_mode(permissions.mode() & !0o077);
        // A disk that knows no rights has none to take away.
        let _ = file.set_permissions(permissions);
    }
    Ok(())
}

#[cfg(not(unix))]
fn close_to_others(_: &File) -> io::Result<()> {
    Ok(())
}
