//! Keys in the system keyring: Keychain, Credential Manager or Secret Service.

use keyring::v1::{Entry, Error};
use selvedge_models::Secret;

use crate::problem::Problem;

/// Service name of all entries in the keyring.
const KEYRING_SERVICE: &str = "selvedge";

/// Checks that the keyring can be read.
pub(crate) fn check() -> Result<(), Problem> {
    let entry = Entry::new(KEYRING_SERVICE, "selvedge doctor");
    match entry.and_then(|entry| entry.get_password()) {
        Ok(_) | Err(Error::NoEntry) => Ok(()),
        Err(error) => Err(keyring_problem(&error)),
    }
}

/// Returns the stored key of a provider; `None` also if the machine has no keyring.
pub(crate) fn provider_key(provider: &str) -> Option<Secret> {
    Entry::new(KEYRING_SERVICE, provider)
        .and_then(|entry| entry.get_password())
        .ok()
        .map(Secret::new)
}

/// Stores the key of a provider. `variable` is the environment variable for the same key.
pub(crate) fn store_provider_key(provider: &str, variable: &str, key: &str) -> Result<(), Problem> {
    Entry::new(KEYRING_SERVICE, provider)
        .and_then(|entry| entry.set_password(key))
        .map_err(|error| {
            keyring_problem(&error).hint(format!("run `export {variable}=KEY` instead"))
        })
}

/// Deletes the key of a provider. Returns whether there was one.
pub(crate) fn delete_provider_key(provider: &str) -> Result<bool, Problem> {
    match Entry::new(KEYRING_SERVICE, provider).and_then(|entry| entry.delete_credential()) {
        Ok(()) => Ok(true),
        Err(Error::NoEntry) => Ok(false),
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
