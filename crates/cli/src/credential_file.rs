//! Keys in a file of Selvedge's folder that only its owner can read, for machines without a system
//! keyring.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::private_file::create_private;
use crate::problem::Problem;

/// Name of the file in Selvedge's folder: a JSON object with a text for each entry.
const CREDENTIAL_FILE: &str = "credentials.json";
/// Largest file that is read, in bytes.
const MAX_FILE_BYTES: usize = 1 << 20;

/// The file with keys.
#[derive(Debug, Clone)]
pub(crate) struct CredentialFile {
    home: PathBuf,
}

impl CredentialFile {
    /// Returns the file of the user; `None` if there is no home folder.
    pub(crate) fn of_user() -> Option<Self> {
        Some(Self {
            home: selvedge_config::home()?,
        })
    }

    #[cfg(test)]
    pub(crate) fn in_folder(home: &Path) -> Self {
        Self {
            home: home.to_owned(),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.home.join(CREDENTIAL_FILE)
    }

    /// Fails if an entry could not be stored.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        let _lock = self.lock()?;
        self.read().map(drop)
    }

    /// Returns an entry. Fails if the file cannot be used, or if other users have access to it.
    pub(crate) fn get(&self, entry: &str) -> Result<Option<String>, Problem> {
        Ok(self.read()?.remove(entry))
    }

    /// Stores an entry, and replaces one of the same name.
    pub(crate) fn set(&self, entry: &str, text: &str) -> Result<(), Problem> {
        let _lock = self.lock()?;
        let mut entries = self.read()?;
        entries.insert(entry.to_owned(), text.to_owned());
        self.write(&entries)
    }

    /// Deletes an entry. Returns whether there was one.
    pub(crate) fn delete(&self, entry: &str) -> Result<bool, Problem> {
        if self.read()?.is_empty() {
            return Ok(false);
        }
        let _lock = self.lock()?;
        let mut entries = self.read()?;
        if entries.remove(entry).is_none() {
            return Ok(false);
        }
        match entries.is_empty() {
            true => {
                std::fs::remove_file(self.path()).map_err(|error| self.unwritable(&error))?;
            }
            false => self.write(&entries)?,
        }
        Ok(true)
    }

    fn read(&self) -> Result<BTreeMap<String, String>, Problem> {
        let path = self.path();
        let shown = path.display();
        let refused = |reason: String| {
            Problem::new(reason).hint(format!(
                "run `rm {shown}`, then `selvedge models login PROVIDER`"
            ))
        };
        let text = selvedge_files::read_user_text(&path, MAX_FILE_BYTES)
            .map_err(|refusal| refused(refusal.to_string()))?;
        let Some(text) = text else {
            return Ok(BTreeMap::new());
        };
        if is_open_to_others(&path) {
            let message = format!("other users have access to the keys in {shown}");
            return Err(Problem::new(message)
                .hint(format!("run `chmod 600 {shown}`, and replace the keys")));
        }
        serde_json::from_str(&text)
            .map_err(|error| refused(format!("{shown} is not a file of keys: {error}")))
    }

    /// Replaces the file as a whole, so that an interruption leaves no truncated file, not even one
    /// of the machine.
    fn write(&self, entries: &BTreeMap<String, String>) -> Result<(), Problem> {
        let new = self.home.join(format!("{CREDENTIAL_FILE}.new"));
        let text = serde_json::to_string_pretty(entries)
            .map_err(|error| Problem::new(format!("cannot write the keys: {error}")))?;
        let replace = || {
            let mut file = create_private(&new)?;
            writeln!(file, "{text}")?;
            file.sync_all()?;
            std::fs::rename(&new, self.path())
        };
        replace().map_err(|error| self.unwritable(&error))
    }

    /// Waits until no other process changes the file.
    fn lock(&self) -> Result<File, Problem> {
        let locked = selvedge_files::create_private_folder(&self.home)
            .and_then(|()| selvedge_files::lock_file(&self.home.join("credentials.lock")));
        locked.map_err(|error| self.unwritable(&error))
    }

    fn unwritable(&self, error: &io::Error) -> Problem {
        Problem::new(format!("cannot write {}: {error}", self.path().display()))
            .hint("set SELVEDGE_HOME to a writable folder")
    }
}

#[cfg(unix)]
fn is_open_to_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let mode = path
        .metadata()
        .map(|metadata| metadata.permissions().mode());
    mode.is_ok_and(|mode| mode & 0o077 != 0)
}

#[cfg(not(unix))]
fn is_open_to_others(_: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_stored_and_deleted_one_by_one() {
        let home = tempfile::tempdir().unwrap();
        let file = CredentialFile {
            home: home.path().join("new"),
        };
        assert_eq!(file.get("a").unwrap(), None);
        assert!(!file.delete("a").unwrap());
        file.set("a", "1").unwrap();
        file.set("b", "2").unwrap();
        file.set("a", "3").unwrap();
        assert_eq!(file.get("a").unwrap().as_deref(), Some("3"));
        assert!(file.delete("a").unwrap() && !file.delete("a").unwrap());
        assert_eq!(file.get("b").unwrap().as_deref(), Some("2"));
        assert!(file.delete("b").unwrap());
        assert!(!file.path().exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let file = CredentialFile {
            home: home.path().to_owned(),
        };
        file.set("a", "1").unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&file.path()), 0o600);
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o640)).unwrap();
        let problem = file.get("a").unwrap_err();
        assert!(problem.to_string().starts_with("other users have access"));
        assert!(problem.hints()[0].starts_with("run `chmod 600 "));
        std::fs::write(file.path(), "no JSON").unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(file.set("a", "1").is_err(), "a damaged file is kept");
    }
}
