//! The configuration files of a project, read once, so that the text that is checked for trust is
//! the text that is used, even if a file changes in between.

use std::path::{Path, PathBuf};

use selvedge_files::{FileRefusal, ProjectFiles};
use serde::{Deserialize, Serialize};

use crate::load::MAX_CONFIG_BYTES;

/// Configuration files of a project folder. They can start programs and change approval rules, so
/// they are used only if the folder is trusted.
pub const PROJECT_FILES: [&str; 2] = [".selvedge/config.toml", ".mcp.json"];

/// A project folder and the text of its configuration files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// Path of the folder.
    pub folder: PathBuf,
    /// Text of `.selvedge/config.toml`. `None` if the file does not exist or is not used.
    pub config: Option<String>,
    /// Text of `.mcp.json`. `None` if the file does not exist or is not used.
    pub servers: Option<String>,
}

impl Project {
    /// Reads the configuration files of the working folder, and returns the files that are not
    /// used. If the folder's `.selvedge` is `home`, its configuration is the user's own.
    pub fn read(files: &ProjectFiles, home: Option<&Path>) -> (Self, Vec<FileRefusal>) {
        let folder = files.folder().to_owned();
        let is_users_own = home.is_some_and(|home| {
            let home = home.canonicalize();
            home.is_ok_and(|home| folder.join(".selvedge") == home)
        });
        let mut refused = Vec::new();
        let mut read = |name: &str| match files.read_text(&folder.join(name), MAX_CONFIG_BYTES) {
            Ok(text) => text,
            Err(refusal) => {
                refused.push(refusal);
                None
            }
        };
        let config = match is_users_own {
            true => None,
            false => read(PROJECT_FILES[0]),
        };
        let servers = read(PROJECT_FILES[1]);
        let project = Self {
            folder,
            config,
            servers,
        };
        (project, refused)
    }

    /// Returns name and text of each file that exists.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let texts = [self.config.as_deref(), self.servers.as_deref()];
        PROJECT_FILES
            .into_iter()
            .zip(texts)
            .filter_map(|(name, text)| Some((name, text?)))
    }

    /// Reads the files of a test's folder, all of which must be usable.
    #[cfg(test)]
    pub(crate) fn in_folder(folder: &Path) -> Self {
        let files = ProjectFiles::of_folder(folder, Default::default());
        let (project, refused) = Self::read(&files, None);
        assert!(refused.is_empty(), "{refused:?}");
        project
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_in_place_of_a_file_counts_as_missing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(".mcp.json")).unwrap();
        assert_eq!(Project::in_folder(dir.path()).files().next(), None);
    }

    #[test]
    fn a_file_that_is_not_usable_is_named_and_the_other_is_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(".selvedge")).unwrap();
        std::fs::write(dir.path().join(PROJECT_FILES[0]), "model = \"x\"").unwrap();
        std::fs::create_dir_all(dir.path().join(".mcp.json/folder")).unwrap();
        let files = ProjectFiles::of_folder(dir.path(), Default::default());
        let (project, refused) = Project::read(&files, None);
        let names: Vec<&str> = project.files().map(|(name, _)| name).collect();
        assert_eq!(
            (names.as_slice(), refused.len()),
            (&[PROJECT_FILES[0]][..], 1)
        );
        assert!(refused[0].to_string().contains(".mcp.json is not read: "));
        // The user's own configuration is not a project's.
        let home = dir.path().join(".selvedge");
        assert_eq!(Project::read(&files, Some(&home)).0.config, None);
    }
}
