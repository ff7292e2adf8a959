//! Opens the journal with the configured durability and encryption.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use selvedge_config::JournalSettings;
use selvedge_journal::{Journal, Keeping};

/// Opens the journal to read and write.
pub(crate) fn open(home: &Path, config: &JournalSettings) -> Result<Arc<Journal>> {
    Ok(
        Journal::open_with(home, &keeping(config)?)
            .map_err(|error| crate::runs::problem(&error))?,
    )
}

/// Opens the journal for a command that has `--ephemeral`, which the hint then names.
pub(crate) fn open_for_run(home: &Path, config: &JournalSettings) -> Result<Arc<Journal>> {
    Ok(Journal::open_with(home, &keeping(config)?)
        .map_err(|error| crate::runs::problem(&error).or("pass --ephemeral"))?)
}

/// Opens the journal to read, also if its folder is read-only.
pub(crate) fn open_to_read(home: &Path, config: &JournalSettings) -> Result<Arc<Journal>> {
    Ok(Journal::open_to_read(home, &keeping(config)?)
        .map_err(|error| crate::runs::problem(&error))?)
}

fn keeping(config: &JournalSettings) -> Result<Keeping> {
    // Without the key the journal is not opened, so that nothing is written unencrypted.
    let key = config
        .encrypt
        .then(crate::keyring::journal_key)
        .transpose()?;
    Ok(Keeping {
        durability: config.durability,
        key,
    })
}
