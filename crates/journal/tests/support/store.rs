//! The store of a test: a file in its folder, or a schema of the PostgreSQL database that
//! `SELVEDGE_TEST_STORE` names.
#![allow(dead_code)] // Each test binary uses some of it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Duration;

use selvedge_database::Connection;
use selvedge_journal::JournalLocation;

/// Returns whether the tests use files of SQLite.
pub fn uses_files() -> bool {
    std::env::var_os("SELVEDGE_TEST_STORE").is_none()
}

/// Returns the value of `SELVEDGE_STORE` for a home folder; `None` if its journal is a file.
pub fn store_address(home: &Path) -> Option<String> {
    let database = std::env::var("SELVEDGE_TEST_STORE").ok()?;
    let mut hasher = DefaultHasher::new();
    home.hash(&mut hasher);
    let separator = if database.contains('?') { '&' } else { '?' };
    let schema = format!("t_{:016x}", hasher.finish());
    Some(format!(
        "{database}{separator}options=-csearch_path%3D{schema}"
    ))
}

/// Returns where the journal of a home folder is stored.
pub fn store(home: &Path) -> JournalLocation {
    match store_address(home) {
        None => JournalLocation::from(home),
        Some(address) => JournalLocation::postgres(home, address.parse().unwrap()),
    }
}

/// Returns a connection to the database of a home folder, for changes that no program makes.
pub fn database(home: &Path) -> Connection {
    match store(home).database() {
        None => {
            let file = home.join("journal.sqlite");
            Connection::open_file(&file, Duration::from_secs(20)).unwrap()
        }
        Some(url) => Connection::open_postgres(url).unwrap(),
    }
}
