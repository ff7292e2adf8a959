//! A project's own files, read once: what was judged is what is followed, whatever becomes of the files meanwhile.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ConfigError;

/// Files of a folder that can start programs and change what is asked.
pub const PROJECT_FILES: [&str; 2] = [".selvedge/config.toml", ".mcp.json"];
/// What is larger nobody wrote.
const MAX_BYTES: u64 = 1 << 20;

/// A folder and its own files, as they were when it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// The folder.
    pub folder: PathBuf,
    /// Its `.selvedge/config.toml`.
    pub config: Option<String>,
    /// Its `.mcp.json`.
    pub servers: Option<String>,
}

impl Project {
    /// The files of this folder.
    pub fn read(folder: &Path) -> Result<Self, ConfigError> {
        let [config, servers] = PROJECT_FILES.map(|name| read(&folder.join(name)));
        Ok(Self {
            folder: folder.to_owned(),
            config: config?,
            servers: servers?,
        })
    }

    /// The files there are, with what they say.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let texts = [self.config.as_deref(), self.servers.as_deref()];
        PROJECT_FILES
            .into_iter()
            .zip(texts)
            .filter_map(|(name, text)| Some((name, text?)))
    }
}

/// A file's text; `None` where there is none. Nothing but a file of a sane size is read: a pipe would never end.
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
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(ConfigError::Invalid {
            path: path.to_owned(),
            message: "it is no file".to_owned(),
        });
    }
    let mut text = String::new();
    file.take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(ConfigError::Invalid {
            path: path.to_owned(),
            message: "it is larger than a megabyte".to_owned(),
        });
    }
    Ok(Some(text))
}

/// Waits for nobody.
#[cfg(unix)]
fn open(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let waiting_for_nobody = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    File::options()
        .read(true)
        .custom_flags(waiting_for_nobody)
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
    fn only_files_of_a_sane_size_are_read() {
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
                .contains("larger than a megabyte")
        );
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(Project::read(dir.path()).is_err());
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
                    .contains("it is no file")
            );
        }
    }
}
