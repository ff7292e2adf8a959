//! What differs for a server that shares its database with others.

use std::path::Path;

use selvedge_agent::{Session, TurnOutcome};
use selvedge_journal::Journal;
use selvedge_protocol::{ServerLeaseStore, TurnErrorKind};
use selvedge_server::HostError;

/// Returns whether a server runs the sessions of a folder, by the workspaces that it declares. A
/// server that declares none runs those of all.
pub(crate) fn is_declared(folder: &str, declared: &[String]) -> bool {
    let lies_in = |workspace: &String| Path::new(folder).starts_with(workspace);
    declared.is_empty() || declared.iter().any(lies_in)
}

/// Returns whether a turn has to continue, here or on another server, because its end could not be
/// recorded in the shared database.
pub(crate) fn is_unfinished(
    journal: &Journal,
    session: &Session,
    outcome: Option<&TurnOutcome>,
) -> bool {
    let error = outcome.and_then(|outcome| outcome.end.as_ref().err());
    let is_storage = error.is_some_and(|error| error.kind == TurnErrorKind::Journal);
    journal.has_leases() && is_storage && session.has_open_turn()
}

/// Returns whether another server has taken over a session.
pub(crate) async fn is_lost(journal: &Journal, session: &str) -> Result<bool, HostError> {
    let lost = journal.lost_sessions(vec![session.to_owned()]).await;
    Ok(!lost.map_err(HostError::failed)?.is_empty())
}
