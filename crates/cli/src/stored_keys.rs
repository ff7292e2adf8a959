//! Where the keys of providers are stored: in the system keyring, or in a file of the user if the
//! machine has no keyring.

use selvedge_models::{AccessTokens, Secret};

use crate::credential_file::CredentialFile;
use crate::keyring::{self, KeyringState};
use crate::problem::Problem;

/// A place in which keys are stored.
#[derive(Debug, Clone)]
pub(crate) enum KeyStore {
    Keyring,
    File(CredentialFile),
}

impl KeyStore {
    /// Returns the place in which a new key is stored. Fails if the machine has a keyring that
    /// cannot be used, or neither a keyring nor a file that can be written.
    pub(crate) fn for_new_keys() -> Result<Self, Problem> {
        match keyring::state() {
            KeyringState::Usable | KeyringState::Locked => {
                // A locked keyring asks for its password here, or refuses.
                keyring::check_storing()?;
                Ok(Self::Keyring)
            }
            KeyringState::Missing => Self::new_file(),
            KeyringState::Unusable(problem) => Err(problem.hint("unlock the keyring")),
        }
    }

    /// Returns the file in which a new key is stored on a machine without a keyring. Fails if it
    /// cannot be written.
    pub(crate) fn new_file() -> Result<Self, Problem> {
        let file = CredentialFile::of_user().ok_or_else(|| {
            Problem::new("this machine has no system keyring, and you have no home folder")
                .hint("set SELVEDGE_HOME to a folder")
        })?;
        file.check()?;
        Ok(Self::File(file))
    }

    /// Stores an entry here. The keyring replaces one of the same name in the file. A keyring that
    /// is not running keeps its own, so an entry of the file is always the newer one.
    pub(crate) fn set(&self, entry: &str, text: &str) -> Result<(), Problem> {
        match self {
            Self::Keyring => {
                keyring::set(entry, text)?;
                if let Some(file) = CredentialFile::of_user() {
                    file.delete(entry)?;
                }
                Ok(())
            }
            Self::File(file) => file.set(entry, text),
        }
    }

    /// Names the place in a sentence.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Keyring => "the system keyring".to_owned(),
            Self::File(file) => file.path().display().to_string(),
        }
    }
}

/// A stored text and its place.
#[derive(Debug)]
pub(crate) struct StoredEntry {
    pub(crate) text: String,
    pub(crate) store: KeyStore,
}

/// Returns an entry: that of the file, which is the newer one (see [`KeyStore::set`]), else that of
/// the keyring. Fails only if the file cannot be used and the keyring has no entry.
pub(crate) fn find_entry(entry: &str) -> Result<Option<StoredEntry>, Problem> {
    let in_file = match CredentialFile::of_user() {
        Some(file) => file.get(entry).map(|text| text.map(|text| (text, file))),
        None => Ok(None),
    };
    newest_entry(in_file, || keyring::get(entry))
}

fn newest_entry(
    in_file: Result<Option<(String, CredentialFile)>, Problem>,
    in_keyring: impl FnOnce() -> Option<String>,
) -> Result<Option<StoredEntry>, Problem> {
    if let Ok(Some((text, file))) = in_file {
        let store = KeyStore::File(file);
        return Ok(Some(StoredEntry { text, store }));
    }
    let store = KeyStore::Keyring;
    match in_keyring() {
        Some(text) => Ok(Some(StoredEntry { text, store })),
        None => in_file.map(|_| None),
    }
}

/// Deletes an entry in both places. Returns those that had it.
pub(crate) fn delete_entry(entry: &str) -> Result<Vec<KeyStore>, Problem> {
    let mut stores = Vec::new();
    if keyring::delete(entry)? {
        stores.push(KeyStore::Keyring);
    }
    if let Some(file) = CredentialFile::of_user()
        && file.delete(entry)?
    {
        stores.push(KeyStore::File(file));
    }
    Ok(stores)
}

/// Where the key of a provider comes from.
#[derive(Debug, Clone)]
pub(crate) enum KeyOrigin {
    /// An environment variable of this name.
    Environment(String),
    Stored(KeyStore),
    /// An OAuth login whose tokens are stored.
    Login(KeyStore),
}

impl KeyOrigin {
    /// Names the place in a sentence.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Environment(variable) => variable.clone(),
            Self::Stored(store) => store.describe(),
            Self::Login(store) => format!("the login in {}", store.describe()),
        }
    }

    /// The kind of place, for JSON.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Environment(_) => "environment",
            Self::Stored(KeyStore::Keyring) | Self::Login(KeyStore::Keyring) => "keyring",
            Self::Stored(KeyStore::File(_)) | Self::Login(KeyStore::File(_)) => "file",
        }
    }
}

/// What authorizes requests to a provider.
#[derive(Debug, Clone)]
pub(crate) enum ProviderCredential {
    Key(Secret),
    Login(AccessTokens),
}

/// The key of a provider, and where it comes from.
#[derive(Debug)]
pub(crate) struct FoundKey {
    pub(crate) credential: ProviderCredential,
    pub(crate) origin: KeyOrigin,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a keyring, a login stores the key in the file; the keyring may have an older one.
    #[test]
    fn the_entry_of_the_file_is_used_before_that_of_the_keyring() {
        let home = tempfile::tempdir().unwrap();
        let file = CredentialFile::in_folder(home.path());
        let text_of = |in_file, in_keyring: Option<&str>| {
            let found = newest_entry(in_file, || in_keyring.map(str::to_owned));
            found.map(|found| found.map(|found| found.text))
        };
        let entry = || Ok(Some(("new".to_owned(), file.clone())));
        let unusable = || Err(Problem::new("damaged"));
        assert_eq!(text_of(entry(), Some("old")).unwrap().unwrap(), "new");
        assert_eq!(text_of(Ok(None), Some("old")).unwrap().unwrap(), "old");
        assert_eq!(text_of(unusable(), Some("old")).unwrap().unwrap(), "old");
        assert!(text_of(unusable(), None).is_err());
        assert_eq!(text_of(Ok(None), None).unwrap(), None);
    }
}
