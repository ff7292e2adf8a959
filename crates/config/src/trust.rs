//! Which project folders the user trusts to configure Selvedge.
//!
//! Trust applies to the content of the project's configuration files: after a change the user is
//! asked again, because a script can write them. Decisions are stored in `$SELVEDGE_HOME/trusted`
//! and `$SELVEDGE_HOME/not-trusted`, one per line: the fingerprint of the files, and the folder.

use std::io::Write;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::Project;

/// Largest list of decisions that is read, in bytes. Without its list, no folder is trusted.
const MAX_DECISIONS_BYTES: usize = 16 << 20;
const TRUSTED_FILE: &str = "trusted";
const DECLINED_FILE: &str = "not-trusted";

/// Whether the user trusts a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrustState {
    /// The user trusts the folder with its current files.
    Trusted,
    /// The user declined to trust the folder with its current files.
    Declined,
    /// The user trusted the folder, and its files have changed since.
    Changed,
    /// The user has not decided.
    Unknown,
}

/// Returns whether the user trusts the project's folder with the files that were read.
pub fn trust_state(home: &Path, project: &Project) -> TrustState {
    let Ok(folder) = project.folder.canonicalize() else {
        return TrustState::Unknown;
    };
    let current = fingerprint(project);
    // Whether the folder is in the file with the current fingerprint; `None` if it is not in it.
    let listed = |file: &str| {
        let list = selvedge_files::read_user_text(&home.join(file), MAX_DECISIONS_BYTES);
        let list = list.ok().flatten().unwrap_or_default();
        let mut entries = list.lines().filter_map(|line| match line.split_once(' ') {
            Some((stored, path)) if Path::new(path) == folder => Some(stored == current),
            // Early versions stored the folder without a fingerprint.
            _ if Path::new(line) == folder => Some(false),
            _ => None,
        });
        let first_matches = entries.next()?;
        Some(first_matches || entries.any(|matches| matches))
    };
    match (listed(TRUSTED_FILE), listed(DECLINED_FILE)) {
        (Some(true), _) => TrustState::Trusted,
        (_, Some(true)) => TrustState::Declined,
        (Some(false), _) => TrustState::Changed,
        (None, _) => TrustState::Unknown,
    }
}

/// Stores that the user trusts the folder with the files that were read.
pub fn trust(home: &Path, project: &Project) -> std::io::Result<()> {
    match trust_state(home, project) {
        TrustState::Trusted => Ok(()),
        _ => append_entry(home, TRUSTED_FILE, project),
    }
}

/// Stores that the user declined to trust the folder. A later [`trust`] has precedence.
pub fn distrust(home: &Path, project: &Project) -> std::io::Result<()> {
    append_entry(home, DECLINED_FILE, project)
}

fn append_entry(home: &Path, file: &str, project: &Project) -> std::io::Result<()> {
    let folder = project.folder.canonicalize()?;
    let line = format!("{} {}", fingerprint(project), storable_path(&folder)?);
    selvedge_files::create_private_folder(home)?;
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(home.join(file))?;
    writeln!(file, "{line}")
}

/// Returns a path as it is stored in a line. Fails for a path that a line cannot hold exactly: a
/// line break in a name would add an entry for another folder, and replaced bytes would name one.
fn storable_path(folder: &Path) -> std::io::Result<&str> {
    let text = folder
        .to_str()
        .filter(|text| !text.contains(char::is_control));
    text.ok_or_else(|| {
        std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            "the folder's path has control characters or is not UTF-8",
        )
    })
}

/// Returns the SHA-256 digest of the names and texts of the project's files, in hexadecimal.
fn fingerprint(project: &Project) -> String {
    let mut hash = Sha256::new();
    for (name, text) in project.files() {
        hash.update(name);
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    selvedge_text::hex(&hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project::PROJECT_FILES;

    fn trusted(home: &Path, folder: &Path) -> TrustState {
        super::trust_state(home, &Project::in_folder(folder))
    }

    fn trust(home: &Path, folder: &Path) -> std::io::Result<()> {
        super::trust(home, &Project::in_folder(folder))
    }

    fn distrust(home: &Path, folder: &Path) -> std::io::Result<()> {
        super::distrust(home, &Project::in_folder(folder))
    }

    #[test]
    fn trust_is_stored_per_folder() {
        let dir = tempfile::tempdir().unwrap();
        let (home, a, b) = (
            dir.path().join("home"),
            dir.path().join("a b"),
            dir.path().join("b"),
        );
        std::fs::create_dir_all(&a).unwrap();
        std::fs::create_dir_all(&b).unwrap();
        assert_eq!(trusted(&home, &a), TrustState::Unknown);
        trust(&home, &a).unwrap();
        trust(&home, &a).unwrap();
        assert_eq!(
            std::fs::read_to_string(home.join("trusted"))
                .unwrap()
                .lines()
                .count(),
            1
        );
        assert_eq!(
            (trusted(&home, &a), trusted(&home, &b)),
            (TrustState::Trusted, TrustState::Unknown)
        );
        distrust(&home, &b).unwrap();
        assert_eq!(trusted(&home, &b), TrustState::Declined);
        trust(&home, &b).unwrap();
        assert_eq!(trusted(&home, &b), TrustState::Trusted);
    }

    #[test]
    #[cfg(unix)]
    fn the_name_of_a_folder_adds_no_entry_for_another_folder() {
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (home, victim) = (root.join("home"), root.join("victim"));
        std::fs::create_dir_all(&victim).unwrap();
        let entry = fingerprint(&Project::in_folder(&victim));
        let similar = root.join("b\u{fffd}");
        std::fs::create_dir_all(&similar).unwrap();
        let mut injected = root.join("x\n").into_os_string();
        injected.push(format!("{entry} {}", victim.display()));
        let not_utf8 = root.join(std::ffi::OsStr::from_bytes(b"b\xff"));
        for folder in [injected.into(), not_utf8] {
            std::fs::create_dir_all(&folder).unwrap();
            assert!(trust(&home, &folder).is_err(), "{folder:?}");
            assert!(distrust(&home, &folder).is_err(), "{folder:?}");
        }
        for folder in [victim, similar] {
            assert_eq!(trusted(&home, &folder), TrustState::Unknown, "{folder:?}");
        }
    }

    #[test]
    fn trust_ends_when_a_file_of_the_folder_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (home, project) = (dir.path().join("home"), dir.path().join("project"));
        std::fs::create_dir_all(project.join(".selvedge")).unwrap();
        let servers = project.join(".mcp.json");
        std::fs::write(&servers, "{}").unwrap();
        trust(&home, &project).unwrap();
        assert_eq!(trusted(&home, &project), TrustState::Trusted);
        for file in PROJECT_FILES {
            let path = project.join(file);
            let before = std::fs::read(&path).ok();
            std::fs::write(&path, "other").unwrap();
            assert_eq!(trusted(&home, &project), TrustState::Changed, "{file}");
            match before {
                Some(before) => std::fs::write(&path, before).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            assert_eq!(trusted(&home, &project), TrustState::Trusted, "{file}");
        }
        std::fs::remove_file(&servers).unwrap();
        assert_eq!(trusted(&home, &project), TrustState::Changed);
        distrust(&home, &project).unwrap();
        assert_eq!(trusted(&home, &project), TrustState::Declined);
    }

    #[test]
    fn an_entry_without_a_fingerprint_counts_as_changed() {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().canonicalize().unwrap();
        std::fs::write(project.join("trusted"), format!("{}\n", project.display())).unwrap();
        assert_eq!(trusted(&project, &project), TrustState::Changed);
    }
}
