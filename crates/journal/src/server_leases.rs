//! The leases of servers: the implementation of [`ServerLeaseStore`], and which sessions no server
//! serves.

use std::path::Path;

use async_trait::async_trait;
use selvedge_database::Connection;
use selvedge_protocol::{
    LeaseObserver, ServerLeaseStore, ServerStoreError, SessionInfo, SessionState,
};

use crate::lease::OwnerLease;
use crate::{Journal, JournalError};

#[async_trait]
impl ServerLeaseStore for Journal {
    fn owner(&self) -> &str {
        &self.owner.id
    }

    async fn declare_workspaces(&self, workspaces: Vec<String>) -> Result<(), ServerStoreError> {
        let json = serde_json::to_string(&workspaces).map_err(JournalError::from)?;
        let Some(lease) = self.owner.lease() else {
            return Ok(());
        };
        if lease.set_workspaces(json) {
            // Other servers see them at once.
            let renew = |journal: &Self, connection: &Connection| journal.renew_lease(connection);
            self.run_now_or_queue(renew).await?;
        }
        Ok(())
    }

    async fn lapse(&self, seen: &mut u64) {
        let Some(lease) = self.owner.lease() else {
            return std::future::pending().await;
        };
        let mut lapses = lease.lapses();
        // The sender belongs to the journal, so it is not dropped while this waits.
        if let Ok(lapses) = lapses.wait_for(|lapses| *lapses > *seen).await {
            *seen = *lapses;
        }
    }

    async fn lost_sessions(&self, sessions: Vec<String>) -> Result<Vec<String>, ServerStoreError> {
        Ok(self.sessions_taken_over(sessions).await?)
    }
}

impl Journal {
    /// Returns whether several servers can share the database, so that processes have leases.
    pub fn has_leases(&self) -> bool {
        self.owner.lease().is_some()
    }

    /// Makes the renewals of the lease of this process known to an observer. Does nothing if
    /// processes have no leases.
    pub fn observe_lease(&self, observer: &'static dyn LeaseObserver) {
        if let Some(lease) = self.owner.lease() {
            lease.observe(observer);
        }
    }

    fn renew_lease(&self, connection: &Connection) -> Result<(), JournalError> {
        self.begin_lease_if_unused(connection)?;
        match self.owner.lease() {
            Some(lease) => lease.renew(connection),
            None => Ok(()),
        }
    }

    /// Sets the state of a session for which messages wait and that no running server serves.
    /// `served` are the workspaces of all running servers, once they are read.
    pub(crate) fn with_served_state(
        &self,
        connection: &Connection,
        mut session: SessionInfo,
        served: &mut Option<Vec<String>>,
    ) -> Result<SessionInfo, JournalError> {
        let is_waiting = session.state == SessionState::Idle && session.queued > 0;
        if is_waiting && !self.is_served(connection, &session.directory, served)? {
            session.state = SessionState::Unserved;
        }
        Ok(session)
    }

    /// Returns whether a running server serves a folder, or processes have no leases, so that this
    /// is not known.
    pub(crate) fn is_served(
        &self,
        connection: &Connection,
        directory: &str,
        served: &mut Option<Vec<String>>,
    ) -> Result<bool, JournalError> {
        if !self.has_leases() {
            return Ok(true);
        }
        let served = match served {
            Some(served) => served,
            None => served.insert(served_workspaces(connection)?),
        };
        let mut served = served.iter();
        Ok(served.any(|workspace| Path::new(directory).starts_with(workspace)))
    }
}

/// Returns the workspaces of all running servers.
fn served_workspaces(connection: &Connection) -> Result<Vec<String>, JournalError> {
    let mut all = Vec::new();
    for json in OwnerLease::served_workspaces(connection)? {
        all.extend(serde_json::from_str::<Vec<String>>(&json)?);
    }
    Ok(all)
}
