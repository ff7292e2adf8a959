//! Files of a project: the repository, or the folder, that the user works in.

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

use crate::open::{open_canonical, read_bounded};
use crate::{CredentialFiles, FileRefusal, RefusalReason};

/// Reads the files of one project.
#[derive(Debug, Clone)]
pub struct ProjectFiles {
    /// The working folder, canonical.
    folder: PathBuf,
    /// The folder that contains all files of the project, canonical.
    root: PathBuf,
    credentials: CredentialFiles,
}

/// The start of a text file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextStart {
    /// The text. Invalid UTF-8 is replaced.
    pub text: String,
    /// Whether the file continues.
    pub is_cut: bool,
}

impl ProjectFiles {
    /// Finds the project of a folder: the nearest folder, itself or above it, with a `.git` that
    /// belongs to the user, to root or to the owner of `folder`. Without one, it is `folder` alone.
    pub fn of_folder(folder: &Path, credentials: CredentialFiles) -> Self {
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let root = folder
            .ancestors()
            .find(|above| is_trusted_repository_root(above, &folder))
            .unwrap_or(&folder)
            .to_owned();
        Self {
            folder,
            root,
            credentials,
        }
    }

    /// Returns a reader with another folder as its root: links must not leave that folder. Used for
    /// a repository that the project refers to.
    pub fn with_root(&self, folder: &Path) -> io::Result<Self> {
        let folder = folder.canonicalize()?;
        Ok(Self {
            root: folder.clone(),
            folder,
            credentials: self.credentials.clone(),
        })
    }

    /// Returns the canonical path of the working folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder that contains all files of the project.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folders from the root down to the working folder.
    pub fn folders(&self) -> Vec<&Path> {
        let mut folders: Vec<&Path> = self
            .folder
            .ancestors()
            .take_while(|folder| folder.starts_with(&self.root))
            .collect();
        folders.reverse();
        folders
    }

    /// Reads a text file, or returns `None` if it does not exist. A larger file than `max_bytes`
    /// is refused.
    pub fn read_text(&self, path: &Path, max_bytes: usize) -> Result<Option<String>, FileRefusal> {
        let refuse = |reason| FileRefusal::new(path, reason);
        let Some((bytes, is_cut)) = self.read(path, max_bytes).map_err(refuse)? else {
            return Ok(None);
        };
        if is_cut {
            return Err(refuse(RefusalReason::TooLarge { max_bytes }));
        }
        let text = String::from_utf8(bytes);
        text.map(Some).map_err(|_| refuse(RefusalReason::NotText))
    }

    /// Reads at most the first `max_bytes` of a text file. Returns `None` if it does not exist.
    pub fn read_start(
        &self,
        path: &Path,
        max_bytes: usize,
    ) -> Result<Option<TextStart>, FileRefusal> {
        let read = self.read(path, max_bytes);
        let read = read.map_err(|reason| FileRefusal::new(path, reason))?;
        Ok(read.map(|(bytes, is_cut)| {
            let mut text = String::from_utf8_lossy(&bytes).into_owned();
            if is_cut {
                // The limit may divide a character.
                text.truncate(text.trim_end_matches('\u{fffd}').len());
            }
            TextStart { text, is_cut }
        }))
    }

    /// Reads at most `max_bytes`. Returns whether the file continues.
    fn read(
        &self,
        path: &Path,
        max_bytes: usize,
    ) -> Result<Option<(Vec<u8>, bool)>, RefusalReason> {
        if let Err(error) = path.symlink_metadata() {
            return match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
                _ => Err(error.into()),
            };
        }
        let canonical = path.canonicalize()?;
        if !canonical.starts_with(&self.root) {
            return Err(RefusalReason::LeavesProject);
        }
        let file = match open_canonical(&canonical) {
            // While a command is confined, an empty folder stands where it must not create a file.
            Err(RefusalReason::NotRegular(_)) if is_empty_folder(&canonical) => return Ok(None),
            opened => opened?,
        };
        if self.credentials.contains(&canonical, &file.metadata()?) {
            return Err(RefusalReason::Credentials);
        }
        Ok(Some(read_bounded(file, max_bytes)?))
    }
}

fn is_empty_folder(path: &Path) -> bool {
    path.read_dir()
        .is_ok_and(|mut entries| entries.next().is_none())
}

/// Whether a folder is the root of a git repository.
pub fn has_repository(folder: &Path) -> bool {
    repository_entry(folder).is_some()
}

/// Returns the metadata of the `.git` of a folder. An empty `.git` is none: it stands in folders
/// without a repository while a command is confined. In a linked work tree, `.git` is a file.
fn repository_entry(folder: &Path) -> Option<Metadata> {
    let path = folder.join(".git");
    let git = path.symlink_metadata().ok()?;
    let is_repository = path.is_file() || path.join("HEAD").symlink_metadata().is_ok();
    is_repository.then_some(git)
}

/// Whether a folder is the root of a repository whose owner is trusted. Another user could put a
/// `.git` into a shared folder such as `/tmp`, and with it their own instructions.
fn is_trusted_repository_root(folder: &Path, working_folder: &Path) -> bool {
    let Some(git) = repository_entry(folder) else {
        return false;
    };
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let own_uid = rustix::process::geteuid().as_raw();
        let owner = working_folder.metadata().map(|folder| folder.uid());
        git.uid() == own_uid || git.uid() == 0 || owner.is_ok_and(|owner| owner == git.uid())
    }
    #[cfg(not(unix))]
    {
        let _ = (git, working_folder);
        true
    }
}
