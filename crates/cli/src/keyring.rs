//! Keys in the system's keyring: the Keychain, the Credential Manager, the Secret Service.

use keyring::v1::{Entry, Error};
use selvedge_models::Secret;

use crate::problem::Problem;

/// The name all keys are kept under.
const SERVICE: &str = "selvedge";

/// The key that was kept for this provider. A machine without a keyring has none.
pub(crate) fn key(provider: &str) -> Option<Secret> {
    Entry::new(SERVICE, provider)
        .and_then(|entry| entry.get_password())
        .ok()
        .map(Secret::new)
}

pub(crate) fn keep(provider: &str, key: &str) -> Result<(), Problem> {
    Entry::new(SERVICE, provider)
        .and_then(|entry| entry.set_password(key))
        .map_err(|error| problem_with_provider(&error))
}

/// Forgets a key; says whether there was one.
pub(crate) fn forget(provider: &str) -> Result<bool, Problem> {
    match Entry::new(SERVICE, provider).and_then(|entry| entry.delete_credential()) {
        Ok(()) => Ok(true),
        Err(Error::NoEntry) => Ok(false),
        Err(error) => Err(problem_with_provider(&error)),
    }
}

/// The name the journal's key is kept under.
const JOURNAL: &str = "the journal";

/// The key the journal is sealed with; made and kept where there is none yet.
pub(crate) fn journal_key() -> Result<[u8; 32], Problem> {
    let entry = Entry::new(SERVICE, JOURNAL).map_err(|error| sealed(&error))?;
    match entry.get_secret() {
        Ok(key) => key.try_into().map_err(|_| {
            Problem::new("the journal's key in the system's keyring is damaged")
                .hint("restore it from a backup")
        }),
        Err(Error::NoEntry) => {
            let mut key = [0; 32];
            getrandom::fill(&mut key)
                .map_err(|error| Problem::new(format!("no random numbers: {error}")))?;
            entry.set_secret(&key).map_err(|error| sealed(&error))?;
            Ok(key)
        }
        Err(error) => Err(sealed(&error)),
    }
}

fn sealed(error: &Error) -> Problem {
    problem(error).hint("unlock it, or set `journal.encrypt = false`")
}

fn problem_with_provider(error: &Error) -> Problem {
    problem(error).hint("set the key in the environment instead")
}

fn problem(error: &Error) -> Problem {
    let why = match error {
        // The store itself could not be opened: that error says why.
        Error::NoDefaultStore => Entry::store_status()
            .as_ref()
            .err()
            .map_or_else(|| error.to_string(), |e| e.to_string()),
        other => other.to_string(),
    };
    Problem::new(format!("the system's keyring cannot be used: {why}"))
}
