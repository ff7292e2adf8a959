//! Keys in the system keyring: Keychain, Credential Manager or Secret Service.

use keyring::v1::{Entry, Error};
use selvedge_models::Secret;

use crate::problem::Problem;

/// Service name of all entries in the keyring.
const SERVICE: &str = "selvedge";

/// Returns the stored key of a provider; `None` also if the machine has no keyring.
pub(crate) fn key(provider: &str) -> Option<Secret> {
    Entry::new(SERVICE, provider)
        .and_then(|entry| entry.get_password())
        .ok()
        .map(Secret::new)
}

/// Stores the key of a provider.
pub(crate) fn keep(provider: &str, key: &str) -> Result<(), Problem> {
    Entry::new(SERVICE, provider)
        .and_then(|entry| entry.set_password(key))
        .map_err(|error| problem_with_provider(&error))
}

/// Deletes the key of a provider. Returns whether there was one.
pub(crate) fn forget(provider: &str) -> Result<bool, Problem> {
    match Entry::new(SERVICE, provider).and_then(|entry| entry.delete_credential()) {
        Ok(()) => Ok(true),
        Err(Error::NoEntry) => Ok(false),
        Err(error) => Err(problem_with_provider(&error)),
    }
}

/// Name of the entry with the journal's key.
const JOURNAL: &str = "the journal";

/// Returns the key that encrypts the journal. Creates and stores one if there is none.
pub(crate) fn journal_key() -> Result<[u8; 32], Problem> {
    let entry = Entry::new(SERVICE, JOURNAL).map_err(|error| sealed(&error))?;
    match entry.get_secret() {
        Ok(key) => key.try_into().map_err(|_| {
            Problem::new("the journal's key in the system keyring is damaged")
                .hint("restore the key from a backup of the keyring")
        }),
        Err(Error::NoEntry) => {
            let mut key = [0; 32];
            getrandom::fill(&mut key)
                .map_err(|error| Problem::new(format!("cannot create a random key: {error}")))?;
            entry.set_secret(&key).map_err(|error| sealed(&error))?;
            Ok(key)
        }
        Err(error) => Err(sealed(&error)),
    }
}

fn sealed(error: &Error) -> Problem {
    problem(error).hint("unlock the keyring, or set `journal.encrypt = false` in config.toml")
}

fn problem_with_provider(error: &Error) -> Problem {
    problem(error).hint("set the key in an environment variable instead")
}

fn problem(error: &Error) -> Problem {
    let why = match error {
        // The error of opening the keyring says more than this one.
        Error::NoDefaultStore => Entry::store_status()
            .as_ref()
            .err()
            .map_or_else(|| error.to_string(), |e| e.to_string()),
        other => other.to_string(),
    };
    Problem::new(format!("cannot use the system keyring: {why}"))
}
