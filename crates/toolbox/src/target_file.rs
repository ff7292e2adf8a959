//! The target of a write: a file name in an open folder. The folder stays open between the check
//! and the write, so the file that was checked is the file that is written.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::fs::{Dir, MetadataExt, OpenOptions, OpenOptionsExt};
use selvedge_tools::ToolError;

use crate::Workspace;
use crate::text_file::{read_error, read_limited};
use crate::workspace::real_path;

/// A file that exists or is to be created.
#[derive(Debug, Clone)]
pub(crate) struct TargetFile {
    /// The deepest existing folder above the file.
    pub(crate) dir: Arc<Dir>,
    /// The canonical path of that folder.
    pub(crate) dir_path: PathBuf,
    /// Names of the folders to create below it, outermost first.
    pub(crate) missing_dirs: Vec<OsString>,
    /// The name of the file.
    pub(crate) name: OsString,
    /// A file at a path where a folder is needed.
    pub(crate) blocking_file: Option<PathBuf>,
    /// The path as messages show it.
    pub(crate) display_path: String,
}

/// Whether the path of a symbolic link means its target or the link itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkMode {
    /// The target of the link.
    Follow,
    /// The link itself.
    NoFollow,
}

/// The permissions and the owner of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileMode {
    /// The defaults for a new file.
    New { executable: bool },
    /// Those of the existing file.
    Existing { bits: u32, owner: u32, group: u32 },
    /// None: a symbolic link, whose content is its target.
    Link,
}

/// The deepest existing folder above a file.
struct DeepestFolder {
    /// Its canonical path.
    dir_path: PathBuf,
    /// Names of the folders to create below it, outermost first.
    missing_dirs: Vec<OsString>,
    /// A file at a path where a folder is needed.
    blocking_file: Option<PathBuf>,
}

/// Finds the deepest folder that exists at `parent` or above it.
fn deepest_existing_folder(parent: &Path, display_path: &str) -> Result<DeepestFolder, ToolError> {
    let (mut missing_dirs, mut blocking_file, mut ancestor) = (Vec::new(), None, parent);
    let dir_path = loop {
        match ancestor.canonicalize() {
            Ok(real) if real.is_dir() => break real,
            Ok(file) => blocking_file = Some(file),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) => {}
            Err(error) => return Err(write_error(display_path, &error)),
        }
        let (Some(above), Some(name)) = (ancestor.parent(), ancestor.file_name()) else {
            return Err(folder_error(display_path));
        };
        missing_dirs.insert(0, name.to_owned());
        ancestor = above;
    };
    Ok(DeepestFolder {
        dir_path,
        missing_dirs,
        blocking_file,
    })
}

impl Workspace {
    /// Returns the target for a path if it may be written. Creates nothing.
    pub(crate) fn target_file(
        &self,
        path: &Path,
        links: LinkMode,
    ) -> Result<TargetFile, ToolError> {
        let display_path = self.display_path(path);
        self.refuse_protected(path, &display_path)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(folder_error(&display_path));
        };
        let DeepestFolder {
            dir_path,
            missing_dirs,
            blocking_file,
        } = deepest_existing_folder(parent, &display_path)?;
        let real = dir_path
            .join(missing_dirs.iter().collect::<PathBuf>())
            .join(name);
        self.writable_path(&real, &display_path)?;
        self.refuse_secrets(&real, &display_path)?;
        let file = TargetFile {
            dir: Arc::new(self.open_folder(&dir_path, &display_path)?),
            dir_path,
            missing_dirs,
            name: name.to_owned(),
            blocking_file,
            display_path,
        };
        if let Ok(metadata) = file.real_path().symlink_metadata() {
            self.refuse_secret_file(&metadata, &file.display_path)?;
        }
        match links {
            LinkMode::Follow if file.is_link() => self.follow_link(file),
            LinkMode::Follow | LinkMode::NoFollow => Ok(file),
        }
    }

    /// Returns the target of a symbolic link, with the path of the link for messages.
    fn follow_link(&self, link: TargetFile) -> Result<TargetFile, ToolError> {
        let display_path = link.display_path.clone();
        let target = link.real_path().canonicalize();
        let target = target.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                ToolError::new(format!("{display_path} is a broken symbolic link"))
            }
            _ => write_error(&display_path, &error),
        })?;
        let target = self.target_file(&target, LinkMode::NoFollow);
        let target = target.map_err(|error| ToolError {
            message: format!("{display_path} is a symbolic link: {}", error.message),
            ..error
        })?;
        Ok(TargetFile {
            display_path,
            ..target
        })
    }

    /// Returns the key of an approval to write a file: its path with symbolic links resolved now.
    pub(crate) fn write_approval_key(&self, path: &str) -> Option<String> {
        let path = self.absolute(path, None);
        let file = self.target_file(&path, LinkMode::Follow);
        let real = file.map_or(path, |file| file.real_path());
        Some(real.to_string_lossy().into_owned())
    }

    /// Opens a folder by its canonical path. Fails if the folder was replaced by a link meanwhile.
    fn open_folder(&self, dir_path: &Path, display_path: &str) -> Result<Dir, ToolError> {
        let writable = self.writable_path(dir_path, display_path)?;
        let relative = if writable.path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            &writable.path
        };
        let folder = writable
            .dir
            .open_dir(relative)
            .map_err(|error| write_error(display_path, &error))?;
        check_dir_path(&folder, dir_path).map_err(|error| write_error(display_path, &error))?;
        Ok(folder)
    }
}

impl TargetFile {
    /// Returns the canonical path of the file. Equal paths mean the same file.
    pub(crate) fn real_path(&self) -> PathBuf {
        self.dir_path
            .join(self.missing_dirs.iter().collect::<PathBuf>())
            .join(&self.name)
    }

    /// Whether there is a file, a folder or a link with this name.
    pub(crate) fn exists(&self) -> bool {
        self.missing_dirs.is_empty() && self.dir.symlink_metadata(&self.name).is_ok()
    }

    pub(crate) fn is_link(&self) -> bool {
        self.missing_dirs.is_empty()
            && self
                .dir
                .symlink_metadata(&self.name)
                .is_ok_and(|metadata| metadata.is_symlink())
    }

    /// Returns the mode of the file, or `None` if it does not exist. Fails for a folder or a
    /// special file.
    pub(crate) fn existing_mode(&self) -> Result<Option<FileMode>, ToolError> {
        if !self.missing_dirs.is_empty() {
            return Ok(None);
        }
        let metadata = match self.dir.metadata(&self.name) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.write_error(&error)),
        };
        if metadata.is_dir() {
            return Err(folder_error(&self.display_path));
        }
        if !metadata.is_file() {
            return Err(ToolError::new(format!(
                "{} is neither a file nor a folder",
                self.display_path
            )));
        }
        // The set-user-id and set-group-id bits are dropped: the new content must not get these
        // rights.
        Ok(Some(FileMode::Existing {
            bits: metadata.mode() & 0o777,
            owner: metadata.uid(),
            group: metadata.gid(),
        }))
    }

    /// Fails if the file exists and is not writable. Replacing a file by renaming does not check
    /// this.
    pub(crate) fn check_writable(&self) -> Result<(), ToolError> {
        if self.existing_mode()?.is_none() {
            return Ok(());
        }
        match self
            .dir
            .open_with(&self.name, OpenOptions::new().write(true))
        {
            Ok(_) => Ok(()),
            Err(error) => Err(self.write_error(&error)),
        }
    }

    /// Returns the content and the mode of the file, or `None` if it does not exist.
    pub(crate) fn read(&self) -> Result<Option<(Vec<u8>, FileMode)>, ToolError> {
        let Some(mode) = self.existing_mode()? else {
            return Ok(None);
        };
        // If the file was replaced meanwhile, a link is not followed and a pipe does not block.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags.bits() as i32);
        let file = self
            .dir
            .open_with(&self.name, &options)
            .map_err(|error| read_error(&self.display_path, &error))?;
        Ok(Some((read_limited(file, &self.display_path)?, mode)))
    }

    pub(crate) fn write_error(&self, error: &io::Error) -> ToolError {
        write_error(&self.display_path, error)
    }
}

impl FileMode {
    pub(crate) fn is_executable(self) -> bool {
        match self {
            Self::New { executable } => executable,
            Self::Existing { bits, .. } => bits & 0o100 != 0,
            Self::Link => false,
        }
    }

    /// Returns the same mode with or without permission to execute.
    pub(crate) fn with_executable(self, executable: bool) -> Self {
        match self {
            Self::Link => Self::Link,
            Self::New { .. } => Self::New { executable },
            Self::Existing { bits, owner, group } => {
                // Execute permission for everyone with read permission.
                let bits = if executable {
                    bits | (bits & 0o444) >> 2
                } else {
                    bits & !0o111
                };
                Self::Existing { bits, owner, group }
            }
        }
    }
}

/// Fails if an open folder does not have this canonical path, because a folder above it was
/// replaced by a link.
pub(crate) fn check_dir_path(folder: &Dir, dir_path: &Path) -> io::Result<()> {
    if real_path(folder, dir_path) == dir_path {
        return Ok(());
    }
    Err(io::Error::other(
        "a parent folder was replaced in the meantime",
    ))
}

fn folder_error(display_path: &str) -> ToolError {
    ToolError::new(format!("{display_path} is a folder"))
}

fn write_error(display_path: &str, error: &io::Error) -> ToolError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => ToolError::new(format!(
            "{display_path} cannot be written: permission denied"
        )),
        _ => ToolError::new(format!("{display_path} cannot be written: {error}")),
    }
}
