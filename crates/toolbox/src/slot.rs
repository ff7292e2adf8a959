//! A name in an opened folder: where a file is, or will be. What was judged is what is written, because
//! the folder is held open and its name is not asked for again.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::fs::{Dir, MetadataExt, OpenOptions, OpenOptionsExt};
use selvedge_tools::ToolError;

use crate::Workspace;
use crate::workspace::real_path;

/// The largest file that is read to be changed.
const MAX_BYTES: u64 = 64 << 20;

/// Where a file is, or will be.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    /// The deepest folder on the way there that exists.
    pub(crate) folder: Arc<Dir>,
    /// What that folder is really called.
    pub(crate) place: PathBuf,
    /// Folders to be made below it.
    pub(crate) missing: Vec<OsString>,
    pub(crate) name: OsString,
    /// A file where a folder is needed.
    pub(crate) blocked: Option<PathBuf>,
    /// For messages.
    pub(crate) shown: String,
}

/// Whether the name of a link means the link, or what it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    Follow,
    Keep,
}

/// Who owns a file and what they may do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// As the system makes new files.
    New { executable: bool },
    /// As it was.
    Kept { bits: u32, owner: u32, group: u32 },
}

impl Workspace {
    /// Where a file is that may be written. Nothing is made yet.
    pub(crate) fn slot(&self, path: &Path, links: Links) -> Result<Slot, ToolError> {
        let shown = self.shown(path);
        self.refuse_protected(path, &shown)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(is_folder(&shown));
        };
        let (mut missing, mut blocked, mut ancestor) = (Vec::new(), None, parent);
        let place = loop {
            match ancestor.canonicalize() {
                Ok(real) if real.is_dir() => break real,
                Ok(file) => blocked = Some(file),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) => {}
                Err(error) => return Err(write_error(&shown, &error)),
            }
            let (Some(above), Some(name)) = (ancestor.parent(), ancestor.file_name()) else {
                return Err(is_folder(&shown));
            };
            missing.insert(0, name.to_owned());
            ancestor = above;
        };
        let real = place.join(missing.iter().collect::<PathBuf>()).join(name);
        self.writable(&real, &shown)?;
        self.refuse_secrets(&real, &shown)?;
        let slot = Slot {
            folder: Arc::new(self.open_folder(&place, &shown)?),
            place,
            missing,
            name: name.to_owned(),
            blocked,
            shown,
        };
        match links {
            Links::Follow if slot.is_link() => {
                let target = slot
                    .real()
                    .canonicalize()
                    .map_err(|error| match error.kind() {
                        io::ErrorKind::NotFound => {
                            ToolError::new(format!("{} is a link that leads nowhere", slot.shown))
                        }
                        _ => write_error(&slot.shown, &error),
                    })?;
                let target = self.slot(&target, Links::Keep).map_err(|error| ToolError {
                    message: format!("{} is a link: {}", slot.shown, error.message),
                    ..error
                })?;
                Ok(Slot {
                    shown: slot.shown,
                    ..target
                })
            }
            _ => Ok(slot),
        }
    }

    /// Opens a folder by its real name, and makes sure that it still is the one of that name.
    fn open_folder(&self, place: &Path, shown: &str) -> Result<Dir, ToolError> {
        let inside = self.writable(place, shown)?;
        let here = if inside.path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            &inside.path
        };
        let folder = inside
            .dir
            .open_dir(here)
            .map_err(|error| write_error(shown, &error))?;
        check_place(&folder, place).map_err(|error| write_error(shown, &error))?;
        Ok(folder)
    }
}

impl Slot {
    /// What the file is really called: two slots of one name are one.
    pub(crate) fn real(&self) -> PathBuf {
        self.place
            .join(self.missing.iter().collect::<PathBuf>())
            .join(&self.name)
    }

    pub(crate) fn is_link(&self) -> bool {
        self.missing.is_empty()
            && self
                .folder
                .symlink_metadata(&self.name)
                .is_ok_and(|metadata| metadata.is_symlink())
    }

    /// The mode of the file, if there is one. Anything else in its place is an error.
    pub(crate) fn look(&self) -> Result<Option<Mode>, ToolError> {
        if !self.missing.is_empty() {
            return Ok(None);
        }
        let metadata = match self.folder.metadata(&self.name) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.error(&error)),
        };
        if metadata.is_dir() {
            return Err(is_folder(&self.shown));
        }
        if !metadata.is_file() {
            return Err(ToolError::new(format!(
                "{} is neither a file nor a folder",
                self.shown
            )));
        }
        // Another's rights do not go over to what is written now.
        Ok(Some(Mode::Kept {
            bits: metadata.mode() & 0o777,
            owner: metadata.uid(),
            group: metadata.gid(),
        }))
    }

    /// Makes sure that the file itself, if there is one, may be written: replacing it would not ask.
    pub(crate) fn check_writable(&self) -> Result<(), ToolError> {
        if self.look()?.is_none() {
            return Ok(());
        }
        match self
            .folder
            .open_with(&self.name, OpenOptions::new().write(true))
        {
            Ok(_) => Ok(()),
            Err(error) => Err(self.error(&error)),
        }
    }

    /// What the file holds, if there is one.
    pub(crate) fn read(&self) -> Result<Option<(Vec<u8>, Mode)>, ToolError> {
        let Some(mode) = self.look()? else {
            return Ok(None);
        };
        // A link that was put there meanwhile is not followed, a pipe not waited for.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags.bits() as i32);
        let file = self
            .folder
            .open_with(&self.name, &options)
            .map_err(|error| self.read_error(&error))?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| self.read_error(&error))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(ToolError::new(format!(
                "{} is larger than {} MB",
                self.shown,
                MAX_BYTES >> 20
            )));
        }
        Ok(Some((bytes, mode)))
    }

    pub(crate) fn error(&self, error: &io::Error) -> ToolError {
        write_error(&self.shown, error)
    }

    fn read_error(&self, error: &io::Error) -> ToolError {
        ToolError::new(format!("{} cannot be read: {error}", self.shown))
    }
}

impl Mode {
    pub(crate) fn is_executable(self) -> bool {
        match self {
            Self::New { executable } => executable,
            Self::Kept { bits, .. } => bits & 0o100 != 0,
        }
    }

    /// The same for a file that is, or is not, to be run.
    pub(crate) fn with_executable(self, executable: bool) -> Self {
        match self {
            Self::New { .. } => Self::New { executable },
            Self::Kept { bits, owner, group } => {
                // Who may read may run.
                let bits = if executable {
                    bits | (bits & 0o444) >> 2
                } else {
                    bits & !0o111
                };
                Self::Kept { bits, owner, group }
            }
        }
    }
}

/// Fails if an open folder is not the one of this name, because somebody put a link in its way.
pub(crate) fn check_place(folder: &Dir, place: &Path) -> io::Result<()> {
    if real_path(folder, place) == place {
        return Ok(());
    }
    Err(io::Error::other(
        "a folder on the way to it was replaced meanwhile",
    ))
}

fn is_folder(shown: &str) -> ToolError {
    ToolError::new(format!("{shown} is a folder"))
}

fn write_error(shown: &str, error: &io::Error) -> ToolError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            ToolError::new(format!("{shown} cannot be written: permission denied"))
        }
        _ => ToolError::new(format!("{shown} cannot be written: {error}")),
    }
}
