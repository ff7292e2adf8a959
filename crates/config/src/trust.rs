//! Folders whose own configuration may be followed, as it was when somebody said so: one that has become another is
//! asked about again, because a script can write it. Remembered in `$SELVEDGE_HOME/trusted`, one per line.

use std::io::Write;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::Project;

const FILE: &str = "trusted";
const DECLINED: &str = "not-trusted";

/// What was said about a folder before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Follow it.
    Yes,
    /// Do not, and do not ask.
    No,
    /// It was said of files that are others now.
    Changed,
    /// Nothing.
    Unknown,
}

/// What was said about the folder before.
pub fn trusted(home: &Path, project: &Project) -> Trust {
    let Ok(folder) = project.folder.canonicalize() else {
        return Trust::Unknown;
    };
    let now = fingerprint(project);
    let listed = |file: &str| {
        let list = std::fs::read_to_string(home.join(file)).unwrap_or_default();
        let mut of_folder = list.lines().filter_map(|line| match line.split_once(' ') {
            Some((files, path)) if Path::new(path) == folder => Some(files == now),
            // From when only the folder was remembered.
            _ if Path::new(line) == folder => Some(false),
            _ => None,
        });
        let any = of_folder.next()?;
        Some(any || of_folder.any(|same| same))
    };
    match (listed(FILE), listed(DECLINED)) {
        (Some(true), _) => Trust::Yes,
        (_, Some(true)) => Trust::No,
        (Some(false), _) => Trust::Changed,
        (None, _) => Trust::Unknown,
    }
}

/// Remembers that the folder is trusted, with the files it has now.
pub fn trust(home: &Path, project: &Project) -> std::io::Result<()> {
    match trusted(home, project) {
        Trust::Yes => Ok(()),
        _ => add(home, FILE, project),
    }
}

/// Remembers that somebody was asked and does not trust the folder. [`trust`] is stronger.
pub fn distrust(home: &Path, project: &Project) -> std::io::Result<()> {
    add(home, DECLINED, project)
}

fn add(home: &Path, file: &str, project: &Project) -> std::io::Result<()> {
    std::fs::create_dir_all(home)?;
    let line = format!(
        "{} {}",
        fingerprint(project),
        project.folder.canonicalize()?.display()
    );
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(home.join(file))?;
    writeln!(file, "{line}")
}

/// What the folder's files are.
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

    fn trusted(home: &Path, folder: &Path) -> Trust {
        super::trusted(home, &Project::read(folder).unwrap())
    }

    fn trust(home: &Path, folder: &Path) -> std::io::Result<()> {
        super::trust(home, &Project::read(folder).unwrap())
    }

    fn distrust(home: &Path, folder: &Path) -> std::io::Result<()> {
        super::distrust(home, &Project::read(folder).unwrap())
    }

    #[test]
    fn trust_is_remembered_per_folder() {
        let dir = tempfile::tempdir().unwrap();
        let (home, a, b) = (
            dir.path().join("home"),
            dir.path().join("a b"),
            dir.path().join("b"),
        );
        std::fs::create_dir_all(&a).unwrap();
        std::fs::create_dir_all(&b).unwrap();
        assert_eq!(trusted(&home, &a), Trust::Unknown);
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
            (Trust::Yes, Trust::Unknown)
        );
        distrust(&home, &b).unwrap();
        assert_eq!(trusted(&home, &b), Trust::No);
        trust(&home, &b).unwrap();
        assert_eq!(trusted(&home, &b), Trust::Yes);
    }

    #[test]
    fn a_folder_whose_files_have_changed_is_asked_about_again() {
        let dir = tempfile::tempdir().unwrap();
        let (home, project) = (dir.path().join("home"), dir.path().join("project"));
        std::fs::create_dir_all(project.join(".selvedge")).unwrap();
        let servers = project.join(".mcp.json");
        std::fs::write(&servers, "{}").unwrap();
        trust(&home, &project).unwrap();
        assert_eq!(trusted(&home, &project), Trust::Yes);
        for file in PROJECT_FILES {
            let path = project.join(file);
            let before = std::fs::read(&path).ok();
            std::fs::write(&path, "other").unwrap();
            assert_eq!(trusted(&home, &project), Trust::Changed, "{file}");
            match before {
                Some(before) => std::fs::write(&path, before).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            assert_eq!(trusted(&home, &project), Trust::Yes, "{file}");
        }
        std::fs::remove_file(&servers).unwrap();
        assert_eq!(trusted(&home, &project), Trust::Changed);
        distrust(&home, &project).unwrap();
        assert_eq!(trusted(&home, &project), Trust::No);
    }

    #[test]
    fn what_was_said_of_a_folder_alone_holds_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().canonicalize().unwrap();
        std::fs::write(project.join("trusted"), format!("{}\n", project.display())).unwrap();
        assert_eq!(trusted(&project, &project), Trust::Changed);
    }
}
