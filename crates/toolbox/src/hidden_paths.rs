//! The paths that neither tools nor commands can read: credentials, Selvedge's own folder, and what
//! the configuration adds. A file is also recognised by its inode, so that a hard link to a hidden
//! file is hidden, too.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::credentials::credential_paths;

/// System files with credentials. Only root can read them, and in containers they are usually
/// empty.
const SYSTEM_SECRETS: [&str; 4] = [
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
];

/// Folders with credentials that container engines and clusters mount.
const MOUNTED_SECRETS: [&str; 2] = ["/run/secrets", "/var/run/secrets"];

/// Folder and prefix of the files in which Kerberos keeps tickets.
const KERBEROS_TICKETS: (&str, &str) = ("/tmp", "krb5cc_");

/// The most entries of the folder of Kerberos tickets that are looked at.
const MAX_TICKET_ENTRIES: usize = 10_000;

/// The most files whose inodes are collected, and the deepest folder that is searched for them. A
/// hidden file beyond these limits is recognised by its path only, not by a hard link.
const MAX_HIDDEN_FILES: usize = 5_000;
const MAX_HIDDEN_DEPTH: usize = 4;

/// How long the collected inodes are used.
const INODE_CACHE_AGE: Duration = Duration::from_secs(2);

/// A file on this machine: device and inode number.
type FileId = (u64, u64);

/// The hidden paths. They are collected when they are first needed, because that takes hundreds of
/// system calls, and many scripts use neither files nor commands.
#[derive(Debug)]
pub(crate) struct HiddenPaths {
    rules: HiddenPathRules,
    collected: OnceLock<CollectedPaths>,
    /// The files at and below the paths that have further hard links.
    linked_files: Mutex<Option<(Instant, HashSet<FileId>)>>,
}

/// What decides which paths are hidden.
#[derive(Debug)]
struct HiddenPathRules {
    root: PathBuf,
    private: Vec<PathBuf>,
    hidden: Vec<PathBuf>,
    visible: Vec<PathBuf>,
}

#[derive(Debug)]
struct CollectedPaths {
    paths: Vec<PathBuf>,
    /// The same paths, for lookups.
    set: HashSet<PathBuf>,
    /// Those of the paths that the configuration can make visible.
    credentials: HashSet<PathBuf>,
    /// The most components of a path in the set. A longer path is hidden by one of its folders.
    max_components: usize,
}

impl HiddenPaths {
    /// Takes the rules: `private` paths, credentials without `visible`, and `hidden` ones are
    /// hidden. The last two are relative to the workspace `root`, and `~` is the home folder.
    pub(crate) fn new(
        root: &Path,
        private: &[PathBuf],
        hidden: &[PathBuf],
        visible: &[PathBuf],
    ) -> Self {
        Self {
            rules: HiddenPathRules {
                root: root.to_owned(),
                private: private.to_vec(),
                hidden: hidden.to_vec(),
                visible: visible.to_vec(),
            },
            collected: OnceLock::new(),
            linked_files: Mutex::default(),
        }
    }

    fn collected(&self) -> &CollectedPaths {
        self.collected.get_or_init(|| self.rules.collect())
    }

    /// Returns the file or folder with credentials that hides a path, if the configuration can make
    /// it visible.
    pub(crate) fn credential_of<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        let credentials = &self.collected().credentials;
        path.ancestors().find(|above| credentials.contains(*above))
    }

    /// Returns the hidden files and folders, whether they exist or not.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Path> {
        self.collected().paths.iter().map(PathBuf::as_path)
    }

    /// Returns whether a path is hidden or lies below a hidden folder.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        // Only the folders that could be in the set: a path can have thousands of components.
        let CollectedPaths {
            set,
            max_components,
            ..
        } = self.collected();
        let mut above = PathBuf::new();
        path.components().take(*max_components).any(|part| {
            above.push(part);
            set.contains(&above)
        })
    }

    /// Returns whether a file is a hard link to a hidden file.
    #[cfg(unix)]
    pub(crate) fn contains_file(&self, metadata: &Metadata) -> bool {
        use std::os::unix::fs::MetadataExt;
        if !metadata.is_file() || metadata.nlink() < 2 {
            return false;
        }
        self.with_linked_files(|files| files.contains(&(metadata.dev(), metadata.ino())))
    }

    /// Returns whether a hidden file has further hard links.
    #[cfg(unix)]
    pub(crate) fn has_linked_files(&self) -> bool {
        self.with_linked_files(|files| !files.is_empty())
    }

    /// Calls `check` with the hidden files that have further hard links. The list is at most
    /// `INODE_CACHE_AGE` old.
    #[cfg(unix)]
    fn with_linked_files(&self, check: impl FnOnce(&HashSet<FileId>) -> bool) -> bool {
        let mut cache = self
            .linked_files
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let files = match cache.take() {
            Some((at, files)) if at.elapsed() < INODE_CACHE_AGE => (at, files),
            _ => (Instant::now(), self.linked_files()),
        };
        let found = check(&files.1);
        *cache = Some(files);
        found
    }

    /// Returns `false`: this system does not tell which files are the same.
    #[cfg(not(unix))]
    pub(crate) fn contains_file(&self, _: &Metadata) -> bool {
        false
    }

    /// Returns `false`: this system does not tell which files are the same.
    #[cfg(not(unix))]
    pub(crate) fn has_linked_files(&self) -> bool {
        false
    }

    /// Returns the hidden files that have further hard links, within the limits.
    #[cfg(unix)]
    fn linked_files(&self) -> HashSet<FileId> {
        use std::os::unix::fs::MetadataExt;
        let mut found = HashSet::new();
        let mut left = MAX_HIDDEN_FILES;
        let mut pending: Vec<(PathBuf, usize)> =
            self.iter().rev().map(|path| (path.to_owned(), 0)).collect();
        while let Some((path, depth)) = pending.pop() {
            let Ok(metadata) = path.symlink_metadata() else {
                continue;
            };
            if left == 0 {
                break;
            }
            left -= 1;
            if metadata.is_file() && metadata.nlink() > 1 {
                found.insert((metadata.dev(), metadata.ino()));
            } else if metadata.is_dir() && depth < MAX_HIDDEN_DEPTH {
                let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
                pending.extend(entries.take(left).map(|entry| (entry.path(), depth + 1)));
            }
        }
        found
    }
}

impl HiddenPathRules {
    fn collect(&self) -> CollectedPaths {
        let root = &self.root;
        let home = std::env::home_dir();
        let full = |path: &PathBuf| root.join(expand_home(path, home.as_deref()));
        // Only files with a password hash are hidden, because each hidden path costs every command
        // a mount.
        let has_hash = |path: &PathBuf| std::fs::read(path).is_ok_and(|text| text.contains(&b'$'));
        let mut paths: Vec<PathBuf> = SYSTEM_SECRETS
            .iter()
            .map(PathBuf::from)
            .filter(has_hash)
            .collect();
        paths.extend(credential_paths(home.as_deref(), root, |name| {
            std::env::var_os(name)
        }));
        paths.extend(MOUNTED_SECRETS.map(PathBuf::from));
        paths.extend(kerberos_tickets());
        // If the home folder is a link, the files in it have two paths. `HOME` may also name
        // another folder than that of the account.
        let real_home = home.as_ref().and_then(|home| home.canonicalize().ok());
        let account = account_home();
        let real_account = account.as_ref().and_then(|home| home.canonicalize().ok());
        let mut homes: Vec<PathBuf> = [real_home, account, real_account]
            .into_iter()
            .flatten()
            .filter(|other| Some(other) != home.as_ref())
            .collect();
        homes.sort();
        homes.dedup();
        for other in homes {
            paths.extend(credential_paths(Some(&other), root, |_| None));
        }
        let visible: Vec<PathBuf> = self
            .visible
            .iter()
            .map(full)
            .flat_map(with_target)
            .collect();
        paths.retain(|path| !visible.iter().any(|visible| path.starts_with(visible)));
        let credentials = paths.iter().cloned().collect();
        paths.extend(self.hidden.iter().map(full));
        paths.extend(self.private.iter().cloned());
        // If a hidden path is itself a link, its target is hidden, too.
        let mut paths: Vec<PathBuf> = paths.into_iter().flat_map(with_target).collect();
        paths.sort();
        paths.dedup();
        CollectedPaths {
            set: paths.iter().cloned().collect(),
            max_components: paths
                .iter()
                .map(|path| path.components().count())
                .max()
                .unwrap_or(0),
            paths,
            credentials,
        }
    }
}

/// Returns the files with Kerberos tickets that exist now.
fn kerberos_tickets() -> Vec<PathBuf> {
    let (folder, prefix) = KERBEROS_TICKETS;
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_ticket = |name: &OsStr| name.as_encoded_bytes().starts_with(prefix.as_bytes());
    entries
        .take(MAX_TICKET_ENTRIES)
        .filter(|entry| is_ticket(&entry.file_name()))
        .map(|entry| entry.path())
        .collect()
}

/// Returns the home folder of the account in `/etc/passwd`. `None` if the account is not listed.
#[cfg(unix)]
fn account_home() -> Option<PathBuf> {
    const MAX_PASSWD_BYTES: usize = 1 << 20;
    let uid = rustix::process::geteuid().as_raw().to_string();
    let text =
        selvedge_files::read_user_text(Path::new("/etc/passwd"), MAX_PASSWD_BYTES).ok()??;
    let mut accounts = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let account = accounts.find(|fields| fields.get(2) == Some(&uid.as_str()))?;
    let home = account.get(5).map(PathBuf::from)?;
    (home.is_absolute() && home.parent().is_some()).then_some(home)
}

#[cfg(not(unix))]
fn account_home() -> Option<PathBuf> {
    None
}

/// Expands a leading `~` as a shell does.
pub(crate) fn expand_home(path: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

/// Returns a path and, if it exists, its canonical form.
fn with_target(path: PathBuf) -> Vec<PathBuf> {
    // Most do not exist. Resolving each of their folders would take milliseconds at every start.
    let exists = path.symlink_metadata().is_ok();
    let real = exists.then(|| path.canonicalize().ok()).flatten();
    let real = real.filter(|real| *real != path);
    std::iter::once(path).chain(real).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deep_path_is_compared_quickly() {
        let private = [PathBuf::from("/project/private")];
        let hidden = HiddenPaths::new(Path::new("/project"), &private, &[], &[]);
        assert!(hidden.contains(Path::new("/project/private/a/b")));
        let mut deep = PathBuf::from("/project/private/..").join("d/".repeat(1_900));
        let started = Instant::now();
        for at in 0..1_900 {
            deep.set_file_name(format!("file{at}"));
            hidden.contains(&deep.join("x"));
        }
        assert!(!hidden.contains(&Path::new("/project").join("d/".repeat(1_900))));
        assert!(
            started.elapsed() < Duration::from_secs(3),
            "{:?}",
            started.elapsed()
        );
    }
}
