//! The configuration files of a project, read once, so that the text that is checked for trust is
//! the text that is used, even if a file changes in between.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ConfigError;

/// Configuration files of a project folder. They can start programs and change approval rules, so
/// they are used only if the folder is trusted.
pub const PROJECT_FILES: [&str; 2] = [".selvedge/config.toml", ".mcp.json"];
/// Largest project file that is read, in bytes.
const MAX_PROJECT_FILE_BYTES: u64 = 1 << 20;

/// A project folder and the text of its configuration files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// Path of the folder.
    pub folder: PathBuf,
    /// Text of `.selvedge/config.toml`. `None` if the file does not exist.
    pub config: Option<String>,
    /// Text of `.mcp.json`. `None` if the file does not exist.
    pub servers: Option<String>,
}

impl Project {
    /// Reads the configuration files of a folder.
    pub fn read(folder: &Path) -> Result<Self, ConfigError> {
        let [config, servers] = PROJECT_FILES.map(|name| read(&folder.join(name)));
        Ok(Self {
            folder: folder.to_owned(),
            config: config?,
            servers: servers?,
        })
    }

    /// Returns name and text of each file that exists.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let texts = [self.config.as_deref(), self.servers.as_deref()];
        PROJECT_FILES
            .into_iter()
            .zip(texts)
            .filter_map(|(name, text)| Some((name, text?)))
    }
}

/// Reads a file, or returns `None` if it does not exist. Only regular files of up to
/// [`MAX_PROJECT_FILE_BYTES`] are read: reading a pipe might never end.
fn read(path: &Path) -> Result<Option<String>, ConfigError> {
    let unreadable = |error| ConfigError::Unreadable {
        path: path.to_owned(),
        error,
    };
    let file = match open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let metadata = file.metadata().map_err(unreadable)?;
    // While a command runs, an empty folder keeps it from creating the file.
    if metadata.is_dir() {
        return Ok(None);
    }
    if !metadata.is_file() {
        return Err(ConfigError::Invalid {
            path: path.to_owned(),
            message: "not a regular file".to_owned(),
        });
    }
    let mut text = String::new();
    file.take(MAX_PROJECT_FILE_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    if text.len() as u64 > MAX_PROJECT_FILE_BYTES {
        return Err(ConfigError::Invalid {
            path: path.to_owned(),
            message: "larger than 1 MiB".to_owned(),
        });
    }
    Ok(Some(text))
}

/// Opens a file for reading. Does not block, even if the path is a pipe without a writer.
#[cfg(unix)]
fn open(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    File::options()
        .read(true)
        .custom_flags(nonblocking)
        .open(path)
}

#[cfg(not(unix))]
fn open(path: &Path) -> std::io::Result<File> {
    File::open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_up_to_the_size_limit_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".mcp.json");
        assert_eq!(Project::read(dir.path()).unwrap().files().count(), 0);
        std::fs::write(&path, "{}").unwrap();
        let project = Project::read(dir.path()).unwrap();
        assert_eq!(project.files().collect::<Vec<_>>(), [(".mcp.json", "{}")]);
        std::fs::write(&path, " ".repeat((1 << 20) + 1)).unwrap();
        assert!(
            Project::read(dir.path())
                .unwrap_err()
                .to_string()
                .contains("larger than 1 MiB")
        );
        std::fs::remove_file(&path).unwrap();
        // The placeholder of a running command is not a file of the project.
        std::fs::create_dir(&path).unwrap();
        assert_eq!(Project::read(dir.path()).unwrap().files().count(), 0);
        #[cfg(unix)]
        {
            std::fs::remove_dir(&path).unwrap();
            assert!(
                std::process::Command::new("mkfifo")
                    .arg(&path)
                    .status()
                    .unwrap()
                    .success()
            );
            assert!(
                Project::read(dir.path())
                    .unwrap_err()
                    .to_string()
                    .contains("not a regular file")
            );
        }
    }
}
