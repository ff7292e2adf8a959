//! Opens the journal with the configured durability and encryption.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use selvedge_config::JournalSettings;
use selvedge_confine::CommandLease;
use selvedge_journal::{Journal, JournalLocation, JournalOptions, PostgresUrl};

use crate::problem::Problem;

/// The variable that has precedence over the key `store`.
const STORE_VARIABLE: &str = "SELVEDGE_STORE";

/// Returns where the journal and the memory of a home folder are stored.
pub(crate) fn journal_location(home: &Path, config: &JournalSettings) -> Result<JournalLocation> {
    let variable = std::env::var(STORE_VARIABLE).ok();
    let variable = variable.filter(|url| !url.is_empty());
    let (url, place) = match (variable, &config.store) {
        (Some(url), _) => (url, STORE_VARIABLE),
        (None, Some(url)) => (url.clone(), "the key `store`"),
        (None, None) => return Ok(JournalLocation::file_in(home)),
    };
    let database = url.parse::<PostgresUrl>().map_err(|error| {
        Problem::new(format!("{place} is {error}")).hint(format!(
            "set {place} to an address such as `postgres://user:password@host/database`"
        ))
    })?;
    let location = JournalLocation::postgres(home, database);
    Ok(match config.store_connections {
        Some(connections) => location.with_max_connections(connections),
        None => location,
    })
}

/// Opens the journal to read and write.
pub(crate) fn open_journal(home: &Path, config: &JournalSettings) -> Result<Arc<Journal>> {
    Ok(
        Journal::open_with(journal_location(home, config)?, &journal_options(config)?)
            .map_err(|error| crate::runs::journal_error_problem(&error))?,
    )
}

/// Opens the journal for turns of the agent server: they wait while the disk is full.
pub(crate) fn open_waiting_journal(home: &Path, config: &JournalSettings) -> Result<Arc<Journal>> {
    let options = JournalOptions {
        waits_for_space: true,
        ..journal_options(config)?
    };
    Ok(
        Journal::open_with(journal_location(home, config)?, &options)
            .map_err(|error| crate::runs::journal_error_problem(&error))?,
    )
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
        Journal::open_with(journal_location(home, config)?, &journal_options(config)?).map_err(
            |error| {
                let problem = crate::runs::journal_error_problem(&error);
                match need {
                    JournalNeed::Required => problem,
                    JournalNeed::Optional => problem.or_hint("pass --ephemeral"),
                }
            },
        )?,
    )
}

/// Opens the journal to read, also if its folder is read-only.
pub(crate) fn open_journal_read_only(
    home: &Path,
    config: &JournalSettings,
) -> Result<Arc<Journal>> {
    Ok(
        Journal::open_for_reading(journal_location(home, config)?, &journal_options(config)?)
            .map_err(|error| crate::runs::journal_error_problem(&error))?,
    )
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
        leases: None,
    })
}

/// Returns the lease of the commands of this process, which the lease of the journal extends.
/// `None` if processes have no leases.
pub(crate) fn command_lease(journal: &Journal) -> Option<&'static CommandLease> {
    static LEASE: OnceLock<&'static CommandLease> = OnceLock::new();
    if !journal.has_leases() {
        return None;
    }
    let lease = LEASE.get_or_init(CommandLease::new);
    journal.observe_lease(*lease);
    Some(lease)
}

/// Returns whether a day has passed since old runs were last removed from the journal, and records
/// that it happens now.
pub(crate) fn begin_retention_if_due(home: &Path) -> bool {
    const INTERVAL: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
    let marker = home.join("last-retention");
    let modified = marker.metadata().and_then(|file| file.modified());
    // A time in the future, after the clock was changed, is no reason to wait.
    let age = modified.ok().and_then(|modified| modified.elapsed().ok());
    age.is_none_or(|age| age >= INTERVAL) && std::fs::write(&marker, "").is_ok()
}
