//! Folders whose own configuration may be followed. Remembered in `$SELVEDGE_HOME/trusted`, one per line.

use std::io::Write;
use std::path::Path;

const FILE: &str = "trusted";
const DECLINED: &str = "not-trusted";

/// Whether the folder was trusted before.
pub fn is_trusted(home: &Path, project: &Path) -> bool {
    let Ok(project) = project.canonicalize() else { return false };
    listed(home, FILE, &project)
}

fn listed(home: &Path, file: &str, project: &Path) -> bool {
    let list = std::fs::read_to_string(home.join(file)).unwrap_or_default();
    list.lines().any(|line| Path::new(line) == project)
}

fn add(home: &Path, file: &str, project: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(home)?;
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(home.join(file))?;
    writeln!(file, "{}", project.canonicalize()?.display())
}

/// Remembers that the folder is trusted.
pub fn trust(home: &Path, project: &Path) -> std::io::Result<()> {
    if is_trusted(home, project) {
        return Ok(());
    }
    add(home, FILE, project)
}

/// What was said about a folder before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Follow it.
    Yes,
    /// Do not, and do not ask.
    No,
    /// Nothing.
    Unknown,
}

/// What was said about the folder before.
pub fn trusted(home: &Path, project: &Path) -> Trust {
    match project.canonicalize() {
        _ if is_trusted(home, project) => Trust::Yes,
        Ok(project) if listed(home, DECLINED, &project) => Trust::No,
        _ => Trust::Unknown,
    }
}

/// Remembers that somebody was asked and does not trust the folder. [`trust`] is stronger.
pub fn distrust(home: &Path, project: &Path) -> std::io::Result<()> {
    add(home, DECLINED, project)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_is_remembered_per_folder() {
        let dir = tempfile::tempdir().unwrap();
        let (home, a, b) = (dir.path().join("home"), dir.path().join("a"), dir.path().join("b"));
        std::fs::create_dir_all(&a).unwrap();
        std::fs::create_dir_all(&b).unwrap();
        assert!(!is_trusted(&home, &a));
        trust(&home, &a).unwrap();
        trust(&home, &a).unwrap();
        assert!(is_trusted(&home, &a) && !is_trusted(&home, &b));
        assert_eq!(std::fs::read_to_string(home.join("trusted")).unwrap().lines().count(), 1);
        assert_eq!((trusted(&home, &a), trusted(&home, &b)), (Trust::Yes, Trust::Unknown));
        distrust(&home, &b).unwrap();
        assert_eq!(trusted(&home, &b), Trust::No);
        trust(&home, &b).unwrap();
        assert_eq!(trusted(&home, &b), Trust::Yes);
    }
}
