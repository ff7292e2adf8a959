//! Opening the journal as the configuration has it.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use selvedge_config::JournalSettings;
use selvedge_journal::{Journal, Keeping};

pub(crate) fn open(home: &Path, config: &JournalSettings) -> Result<Arc<Journal>> {
    Ok(
        Journal::open_with(home, &keeping(config)?)
            .map_err(|error| crate::runs::problem(&error))?,
    )
}

/// To look at, also where nothing may be written.
pub(crate) fn open_to_read(home: &Path, config: &JournalSettings) -> Result<Arc<Journal>> {
    Ok(Journal::open_to_read(home, &keeping(config)?)
        .map_err(|error| crate::runs::problem(&error))?)
}

fn keeping(config: &JournalSettings) -> Result<Keeping> {
    // Without its key nothing is written rather than written plainly.
    let key = config
        .encrypt
        .then(crate::keyring::journal_key)
        .transpose()?;
    Ok(Keeping {
        durability: config.durability,
        key,
    })
}
