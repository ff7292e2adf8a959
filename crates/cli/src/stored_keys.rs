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
            KeyringState::Usable => Ok(Self::Keyring),
            KeyringState::Missing => {
                let file = CredentialFile::of_user().ok_or_else(|| {
                    Problem::new("this machine has no system keyring, and you have no home folder")
                        .hint("set SELVEDGE_HOME to a folder")
                })?;
                file.check()?;
                Ok(Self::File(file))
            }
            KeyringState::Unusable(problem) => Err(problem.hint("unlock the keyring")),
        }
    }

    /// Stores an entry here, and deletes one of the same name from the other place.
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

/// Returns an entry: that of the keyring, else that of the file. Fails only if the file cannot be
/// used.
pub(crate) fn find_entry(entry: &str) -> Result<Option<StoredEntry>, Problem> {
    if let Some(text) = keyring::get(entry) {
        let store = KeyStore::Keyring;
        return Ok(Some(StoredEntry { text, store }));
    }
    let Some(file) = CredentialFile::of_user() else {
        return Ok(None);
    };
    let text = file.get(entry)?;
    let store = KeyStore::File(file);
    Ok(text.map(|text| StoredEntry { text, store }))
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
