//! Stops work of sessions that other processes do.

use selvedge_agent::{ChildSessions, request_stop};
use selvedge_journal::{Journal, JournalError};
use selvedge_server::HostError;

use crate::serve_errors::journal_failure;

/// Requests that the turn of a session stops, which runs in another process, or its resumed
/// scripts. Returns whether one runs.
pub(crate) async fn stop_other_process(session: &str) -> Result<bool, HostError> {
    let opened = tokio::task::spawn_blocking(crate::runs::open_user_journal).await;
    let journal = opened
        .map_err(HostError::failed)?
        .map_err(HostError::failed)?;
    let asked = request_stop(&journal, session, ChildSessions::KeepRunning).await;
    if !asked.map_err(HostError::failed)?.is_empty() {
        return Ok(true);
    }
    // Without a turn, the scripts that run were resumed by clients of this server or another.
    let session = session.to_owned();
    let cancel = move |journal: &Journal| {
        let scripts = journal.open_scripts(&session)?;
        scripts
            .iter()
            .try_for_each(|run| journal.request_cancel(run))?;
        Ok::<_, JournalError>(!scripts.is_empty())
    };
    let cancelled = journal.spawn_blocking(cancel).await;
    cancelled.map_err(|error| journal_failure(&error))
}
