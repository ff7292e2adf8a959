//! Opens the journal with the configured durability and encryption.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use selvedge_config::JournalSettings;
use selvedge_journal::{Journal, JournalOptions};

/// Opens the journal to read and write.
pub(crate) fn open_journal(home: &Path, config: &JournalSettings) -> Result<Arc<Journal>> {
    Ok(Journal::open_with(home, &journal_options(config)?)
        .map_err(|error| crate::runs::journal_error_problem(&error))?)
}

/// Opens the journal for turns of the agent server: they wait while the disk is full.
pub(crate) fn open_waiting_journal(home: &Path, config: &JournalSettings) -> Result<Arc<Journal>> {
    let options = JournalOptions {
        waits_for_space: true,
        ..journal_options(config)?
    };
    Ok(Journal::open_with(home, &options)
        .map_err(|error| crate::runs::journal_error_problem(&error))?)
}

/// Whether a command can work without the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JournalNeed {
    /// The command continues what is in the journal.
    Required,
    /// The command also runs with `--ephemeral`.
    Optional,
}

/// Opens the journal. If that fails and the command can work without it, the hint is also to pass
/// `--ephemeral`.
pub(crate) fn open_journal_for_run(
    home: &Path,
    config: &JournalSettings,
    need: JournalNeed,
) -> Result<Arc<Journal>> {
    Ok(
        Journal::open_with(home, &journal_options(config)?).map_err(|error| {
            let problem = crate::runs::journal_error_problem(&error);
            match need {
                JournalNeed::Required => problem,
                JournalNeed::Optional => problem.or_hint("pass --ephemeral"),
            }
        })?,
    )
}

/// Opens the journal to read, also if its folder is read-only.
pub(crate) fn open_journal_read_only(
    home: &Path,
    config: &JournalSettings,
) -> Result<Arc<Journal>> {
    Ok(Journal::open_for_reading(home, &journal_options(config)?)
        .map_err(|error| crate::runs::journal_error_problem(&error))?)
}

fn journal_options(config: &JournalSettings) -> Result<JournalOptions> {
    // Without the key the journal is not opened, so that nothing is written unencrypted.
    let key = config
        .encrypt
        .then(crate::keyring::journal_key)
        .transpose()?;
    Ok(JournalOptions {
        durability: config.durability,
        encryption_key: key,
        waits_for_space: false,
    })
}
