//! Events of changed files in the folders of a workspace.
//!
//! The kernel queues an event with the change itself, and reading the queue takes microseconds: a
//! query reads it instead of the stamps of all files. The crate `notify` is not used: its thread
//! would deliver an event some time after the change, and a query could miss it.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// What changed since the queue was read last.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FolderChanges {
    /// These files and folders changed.
    Known(KnownChanges),
    /// Folders were moved, or events were lost: everything has to be scanned.
    Unknown,
}

/// Files and folders that changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownChanges {
    /// Files that were created, changed or removed.
    pub(crate) files: BTreeSet<PathBuf>,
    /// Folders that are new and not watched yet.
    pub(crate) new_folders: BTreeSet<PathBuf>,
}

#[cfg(target_os = "linux")]
pub(crate) use linux::FolderWatch;

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::HashMap;
    use std::ffi::OsStr;
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::os::unix::ffi::OsStrExt;
    use std::path::{Path, PathBuf};

    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

    use super::{FolderChanges, KnownChanges};

    /// Maximum number of watched folders. Editors need watches, too, and a user has a limited
    /// number of them.
    const MAX_WATCHED_FOLDERS: usize = 4_096;
    /// Maximum number of changed files that are looked at one by one.
    const MAX_CHANGED_FILES: usize = 2_000;
    /// Size of the buffer for events, in bytes.
    const EVENT_BUFFER_BYTES: usize = 16 << 10;

    /// Types of file systems that other machines can change without an event.
    const REMOTE_FILE_SYSTEMS: [u32; 9] = [
        0x0102_1997, // 9p
        0x6573_5546, // FUSE, virtiofs
        0x0000_6969, // NFS
        0x0000_517b, // SMB
        0xfe53_4d42, // SMB2
        0xff53_4d42, // CIFS
        0x00c3_6400, // Ceph
        0x5346_414f, // AFS
        0x7375_7245, // Coda
    ];

    /// Watches folders for changed files.
    #[derive(Debug)]
    pub(crate) struct FolderWatch {
        queue: OwnedFd,
        folders: HashMap<i32, PathBuf>,
        /// Whether a folder could not be watched.
        is_incomplete: bool,
    }

    impl FolderWatch {
        /// Returns a watch of no folder, or `None` if the system has none left.
        pub(crate) fn new() -> Option<Self> {
            let queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
            Some(Self {
                queue,
                folders: HashMap::new(),
                is_incomplete: false,
            })
        }

        /// Watches a folder.
        pub(crate) fn add(&mut self, folder: &Path) {
            let flags = WatchFlags::CREATE
                | WatchFlags::MODIFY
                | WatchFlags::CLOSE_WRITE
                | WatchFlags::ATTRIB
                | WatchFlags::DELETE
                | WatchFlags::MOVED_FROM
                | WatchFlags::MOVED_TO
                | WatchFlags::DELETE_SELF
                | WatchFlags::MOVE_SELF
                | WatchFlags::ONLYDIR
                | WatchFlags::DONT_FOLLOW
                | WatchFlags::EXCL_UNLINK;
            let is_possible =
                !self.is_incomplete && self.folders.len() < MAX_WATCHED_FOLDERS && is_local(folder);
            match inotify::add_watch(&self.queue, folder, flags) {
                Ok(watch) if is_possible => _ = self.folders.insert(watch, folder.to_owned()),
                _ => self.is_incomplete = true,
            }
        }

        /// Whether every folder is watched.
        pub(crate) fn is_complete(&self) -> bool {
            !self.is_incomplete
        }

        /// Returns what changed since the last call. Never waits.
        pub(crate) fn take_changes(&mut self) -> FolderChanges {
            let mut buffer = [MaybeUninit::uninit(); EVENT_BUFFER_BYTES];
            let mut events = Reader::new(&self.queue, &mut buffer);
            let mut changes = KnownChanges::default();
            loop {
                // The workspace itself was removed.
                if self.folders.is_empty() {
                    return FolderChanges::Unknown;
                }
                let event = match events.next() {
                    Ok(event) => event,
                    Err(rustix::io::Errno::WOULDBLOCK) => return FolderChanges::Known(changes),
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(_) => return FolderChanges::Unknown,
                };
                let flags = event.events();
                // A removed folder: its files were removed before it, each with its own event.
                if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::IGNORED) {
                    if flags.contains(ReadFlags::IGNORED) {
                        self.folders.remove(&event.wd());
                    }
                    continue;
                }
                let folder = self.folders.get(&event.wd());
                let (Some(folder), Some(name)) = (folder, event.file_name()) else {
                    return FolderChanges::Unknown;
                };
                let path = folder.join(OsStr::from_bytes(name.to_bytes()));
                let is_lost = flags.intersects(ReadFlags::QUEUE_OVERFLOW | ReadFlags::UNMOUNT)
                    || changes.files.len() >= MAX_CHANGED_FILES;
                let is_new = flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
                match flags.contains(ReadFlags::ISDIR) {
                    _ if is_lost => return FolderChanges::Unknown,
                    false => _ = changes.files.insert(path),
                    true if is_new => _ = changes.new_folders.insert(path),
                    true if flags.contains(ReadFlags::DELETE) => {}
                    // Moved away, or its permissions changed.
                    true => return FolderChanges::Unknown,
                }
            }
        }
    }

    fn is_local(folder: &Path) -> bool {
        // If the check fails, assume that it is not.
        rustix::fs::statfs(folder)
            .is_ok_and(|system| !REMOTE_FILE_SYSTEMS.contains(&(system.f_type as u32)))
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) use fallback::FolderWatch;

#[cfg(not(target_os = "linux"))]
mod fallback {
    use std::path::Path;

    use super::FolderChanges;

    /// Stands for a watch on systems without one: every query scans.
    #[derive(Debug)]
    pub(crate) enum FolderWatch {}

    impl FolderWatch {
        pub(crate) fn new() -> Option<Self> {
            None
        }

        pub(crate) fn add(&mut self, _: &Path) {}

        pub(crate) fn is_complete(&self) -> bool {
            false
        }

        pub(crate) fn take_changes(&mut self) -> FolderChanges {
            FolderChanges::Unknown
        }
    }
}
