//! Writes exported sessions and runs to files that only their owner can read, from the first byte,
//! and replaces files of the user without changing who can read them.

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

/// Replaces a file atomically, and keeps its permissions. Without a file, creates one with the
/// default permissions. A link is replaced by a file; the text never goes through a link.
pub(crate) fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}.new", std::process::id()));
    let new = Path::new(&new);
    // Left behind by a process that was killed, or by other programs: a link in this place must
    // not redirect the write to another file.
    match std::fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = write_replacement(path, new, text).and_then(|()| std::fs::rename(new, path));
    if written.is_err() {
        // The error that matters is the first one.
        let _ = std::fs::remove_file(new);
    }
    written
}

/// Writes a new file with the permissions of the file that it will replace.
fn write_replacement(path: &Path, new: &Path, text: &str) -> io::Result<()> {
    let mut options = File::options();
    options.write(true).create_new(true);
    let before = std::fs::symlink_metadata(path);
    let before = before.ok().filter(std::fs::Metadata::is_file);
    #[cfg(unix)]
    if before.is_some() {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    let mut file = options.open(new)?;
    if let Some(before) = before {
        // Some file systems have no permissions.
        let _ = file.set_permissions(before.permissions());
    }
    file.write_all(text.as_bytes())
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

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_replaced_file_keeps_its_permissions_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.json");
        let other = folder.path().join("other");
        replace_file(&file, "one").unwrap();
        let permissions = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(&file, permissions).unwrap();
        replace_file(&file, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        std::fs::write(&other, "other").unwrap();
        let new = format!("a.json.{}.new", std::process::id());
        symlink(&other, folder.path().join(new)).unwrap();
        replace_file(&file, "three").unwrap();
        std::fs::remove_file(&file).unwrap();
        symlink(&other, &file).unwrap();
        replace_file(&file, "four").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "four");
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "other");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
