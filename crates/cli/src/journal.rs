//! Opening the journal as the configuration has it.

use std::path::Path;

use anyhow::Result;
use selvedge_config::JournalKeeping;
use selvedge_journal::{Durability, Journal, Keeping};

pub(crate) fn open(home: &Path, config: &JournalKeeping) -> Result<Journal> {
    let durability = match config.durability {
        selvedge_config::Durability::Normal => Durability::Normal,
        selvedge_config::Durability::Full => Durability::Full,
    };
    // Without its key nothing is written rather than written plainly.
    let key = if config.encrypt { Some(crate::keyring::journal_key()?) } else { None };
    let keeping = Keeping { durability, key };
    Ok(Journal::open_with(home, &keeping).map_err(|error| crate::runs::problem(&error))?)
}
