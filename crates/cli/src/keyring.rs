//! Keys in the system keyring: Keychain, Credential Manager or Secret Service.

use keyring::v1::{Entry, Error};

use crate::problem::Problem;

/// Service name of all entries in the keyring.
const KEYRING_SERVICE: &str = "selvedge";

/// Whether keys can be stored in the keyring.
#[derive(Debug)]
pub(crate) enum KeyringState {
    Usable,
    /// It asks for its password before it returns or stores an entry.
    Locked,
    /// No keyring runs on this machine.
    Missing,
    /// There is one, and it does not answer.
    Unusable(Problem),
}

/// Asks the keyring for an entry.
pub(crate) fn state() -> KeyringState {
    let entry = Entry::new(KEYRING_SERVICE, "selvedge doctor");
    match entry.and_then(|entry| entry.get_password()) {
        Ok(_) | Err(Error::NoEntry) if is_locked() => KeyringState::Locked,
        Ok(_) | Err(Error::NoEntry) => KeyringState::Usable,
        Err(Error::NoDefaultStore) => KeyringState::Missing,
        Err(error) => KeyringState::Unusable(keyring_problem(&error)),
    }
}

/// Whether the collection for new entries is locked. Does not unlock it. One that does not exist
/// yet is not locked.
#[cfg(target_os = "linux")]
fn is_locked() -> bool {
    use secret_service::{EncryptionType, blocking::SecretService};
    let asked = SecretService::connect(EncryptionType::Plain);
    asked.is_ok_and(|service| {
        let collection = service.get_default_collection();
        collection.is_ok_and(|collection| collection.is_locked().unwrap_or(false))
    })
}

/// Always false: other systems unlock their keyring with the login of the user.
#[cfg(not(target_os = "linux"))]
fn is_locked() -> bool {
    false
}

/// Stores an entry and deletes it. Fails if the keyring is locked and cannot be unlocked. Blocks
/// while the keyring asks for its password.
pub(crate) fn check_storing() -> Result<(), Problem> {
    const PROBE_ENTRY: &str = "selvedge models login";
    set(PROBE_ENTRY, "")?;
    delete(PROBE_ENTRY).map(drop)
}

/// Returns an entry; `None` also if the machine has no keyring.
pub(crate) fn get(entry: &str) -> Option<String> {
    Entry::new(KEYRING_SERVICE, entry)
        .and_then(|entry| entry.get_password())
        .ok()
}

/// Stores an entry.
pub(crate) fn set(entry: &str, text: &str) -> Result<(), Problem> {
    Entry::new(KEYRING_SERVICE, entry)
        .and_then(|entry| entry.set_password(text))
        .map_err(|error| keyring_problem(&error).hint("start and unlock the keyring"))
}

/// Deletes an entry. Returns whether there was one; without a keyring there is none.
pub(crate) fn delete(entry: &str) -> Result<bool, Problem> {
    match Entry::new(KEYRING_SERVICE, entry).and_then(|entry| entry.delete_credential()) {
        Ok(()) => Ok(true),
        Err(Error::NoEntry | Error::NoDefaultStore) => Ok(false),
        Err(error) => Err(keyring_problem(&error).hint("start and unlock the keyring")),
    }
}

/// Name of the entry with the journal's key.
const JOURNAL_ENTRY: &str = "the journal";

/// Returns the key that encrypts the journal. Creates and stores one if there is none.
pub(crate) fn journal_key() -> Result<[u8; 32], Problem> {
    let entry =
        Entry::new(KEYRING_SERVICE, JOURNAL_ENTRY).map_err(|error| journal_key_problem(&error))?;
    match entry.get_secret() {
        Ok(key) => key.try_into().map_err(|_| {
            Problem::new("the journal's key in the system keyring is damaged")
                .hint("restore the key from a backup of the keyring")
        }),
        Err(Error::NoEntry) => {
            let mut key = [0; 32];
            getrandom::fill(&mut key)
                .map_err(|error| Problem::new(format!("cannot create a random key: {error}")))?;
            entry
                .set_secret(&key)
                .map_err(|error| journal_key_problem(&error))?;
            Ok(key)
        }
        Err(error) => Err(journal_key_problem(&error)),
    }
}

fn journal_key_problem(error: &Error) -> Problem {
    keyring_problem(error)
        .hint("unlock the keyring, or set `journal.encrypt = false` in config.toml")
}

fn keyring_problem(error: &Error) -> Problem {
    match error {
        Error::NoDefaultStore => Problem::new("no system keyring is running"),
        other => Problem::new(format!("cannot use the system keyring: {other}")),
    }
}
