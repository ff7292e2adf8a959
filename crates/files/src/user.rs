//! Files of the user: configuration, saved decisions, caches.

use std::io;
use std::path::Path;

use crate::open::{open_following_links, read_bounded};
use crate::{FileRefusal, RefusalReason};

/// Creates a folder, and those above it, that other users cannot read. One that exists stays as it
/// is.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Reads a regular file of the user, or returns `None` if it does not exist. A larger file than
/// `max_bytes` is refused. Links are followed.
pub fn read_user_file(path: &Path, max_bytes: usize) -> Result<Option<Vec<u8>>, FileRefusal> {
    let refuse = |reason| FileRefusal::new(path, reason);
    let file = match open_following_links(path) {
        Err(RefusalReason::Unreadable(error)) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(None);
        }
        opened => opened.map_err(refuse)?,
    };
    match read_bounded(file, max_bytes).map_err(|error| refuse(error.into()))? {
        (_, true) => Err(refuse(RefusalReason::TooLarge { max_bytes })),
        (bytes, false) => Ok(Some(bytes)),
    }
}

/// Reads a text file of the user, as [`read_user_file`] does.
pub fn read_user_text(path: &Path, max_bytes: usize) -> Result<Option<String>, FileRefusal> {
    let text = read_user_file(path, max_bytes)?.map(String::from_utf8);
    text.transpose()
        .map_err(|_| FileRefusal::new(path, RefusalReason::NotText))
}
