//! Folders whose own configuration may be followed. Remembered in `$SELVEDGE_HOME/trusted`, one per line.

use std::io::Write;
use std::path::Path;

const FILE: &str = "trusted";

/// Whether the folder was trusted before.
pub fn is_trusted(home: &Path, project: &Path) -> bool {
    let Ok(project) = project.canonicalize() else { return false };
    let list = std::fs::read_to_string(home.join(FILE)).unwrap_or_default();
    list.lines().any(|line| Path::new(line) == project)
}

/// Remembers that the folder is trusted.
pub fn trust(home: &Path, project: &Path) -> std::io::Result<()> {
    if is_trusted(home, project) {
        return Ok(());
    }
    std::fs::create_dir_all(home)?;
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(home.join(FILE))?;
    writeln!(file, "{}", project.canonicalize()?.display())
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
    }
}
