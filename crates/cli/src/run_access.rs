//! Which recorded runs a script may read, resume and wait for.

use std::sync::Arc;

use anyhow::Result;
use selvedge_agent::{ResumeError, find_run_to_resume, recorded_task};
use selvedge_journal::{Journal, JournalError, StoredRun};
use selvedge_mcp::{OpenSessions, ResumeRequest};
use selvedge_script::{LiveRuns, ResumeInput};
use selvedge_tools::TaskSet;

use crate::saved_config::SavedRunConfig;
use crate::setup::CliSetup;

/// The runs that scripts may use: those of this folder or of this session. In `mcp serve`, a run of
/// the folder must also belong to the client.
#[derive(Clone)]
pub(crate) struct RunAccess {
    pub(crate) directory: String,
    pub(crate) session: String,
    pub(crate) clients: Option<ClientRuns>,
}

/// The runs of the clients of `mcp serve`.
#[derive(Clone)]
pub(crate) struct ClientRuns {
    pub(crate) live_runs: LiveRuns,
    pub(crate) open_sessions: OpenSessions,
    /// Name of the clients over HTTP, by their token; `None` over standard input and output, where
    /// the client acts for the user.
    pub(crate) client: Option<String>,
}

impl RunAccess {
    /// Whether a script of the run or task `asking` may use the recorded run.
    pub(crate) fn may_use(&self, journal: &Journal, asking: &str, run: &StoredRun) -> bool {
        let summary = &run.summary;
        match &self.clients {
            Some(clients) => {
                let session = clients.session_of(asking);
                summary.directory == self.directory && clients.may_use(journal, &session, run)
            }
            None => {
                summary.directory == self.directory
                    || !summary.session.is_empty() && summary.session == self.session
            }
        }
    }
}

impl ClientRuns {
    /// Returns the session of a live run; empty if there is no such run.
    pub(crate) fn session_of(&self, run: &str) -> String {
        let run = self.live_runs.find(run);
        run.map_or_else(String::new, |run| run.session().to_owned())
    }

    /// Whether a session may use a recorded run: its own runs, and those of ended sessions of the
    /// same client.
    fn may_use(&self, journal: &Journal, session: &str, run: &StoredRun) -> bool {
        let owner = &run.summary.session;
        let in_ended_session = || {
            self.open_sessions.may_use(session, owner)
                // If that is unknown, the session counts as open.
                && !journal.is_run_of_other_process(&run.summary.id).unwrap_or(true)
        };
        !session.is_empty() && session == owner
            || in_ended_session() && SavedRunConfig::client_of(&run.saved_config) == self.client
    }
}

impl CliSetup {
    /// Returns which recorded runs scripts may use.
    pub(crate) fn run_access(&self) -> RunAccess {
        RunAccess {
            directory: self.directory.display().to_string(),
            session: self.session.clone(),
            clients: self.client_runs.clone(),
        }
    }

    /// Sets which tasks scripts may use, recorded ones included.
    pub(crate) fn set_task_access(&self, tasks: &TaskSet) {
        if let Some(journal) = self.journal.clone() {
            let access = Arc::new(self.run_access());
            tasks.set_recorded_lookup(move |query| {
                let access = access.clone();
                let read = move |journal: &Journal| {
                    let task = journal.run(&query.id).ok();
                    let may_use =
                        task.is_some_and(|task| access.may_use(journal, &query.scope_id, &task));
                    let recorded = || recorded_task(journal, &query.id, &access.directory);
                    Ok::<_, JournalError>(may_use.then(recorded).flatten())
                };
                let read = journal.spawn_blocking(read);
                async { read.await.ok().flatten() }
            });
        }
        if let Some(clients) = self.client_runs.clone() {
            tasks.set_access(move |run, session| {
                let asking = clients.session_of(run);
                clients.open_sessions.may_use(&asking, session)
            });
        }
    }

    /// Finds the run to resume for a client of `mcp serve`, and reads its recorded calls. A run
    /// that the session may not use is reported like one that does not exist.
    pub(crate) fn find_run_to_resume_for_client(
        &self,
        request: &ResumeRequest,
    ) -> Result<ResumeInput> {
        let (run, journal) = (&request.run, self.require_journal()?);
        let not_found = || {
            let error = JournalError::RunNotFound(run.clone());
            crate::runs::journal_error_problem(&error)
        };
        let here = self.directory.display().to_string();
        let may_use = |id: &str| match journal.run(id) {
            Ok(found) => {
                let clients = self.client_runs.as_ref();
                found.summary.id == id
                    && found.summary.directory == here
                    && clients
                        .is_none_or(|clients| clients.may_use(journal, &request.session, &found))
            }
            Err(_) => false,
        };
        if !may_use(run) {
            return Err(not_found().into());
        }
        // The newest run of the chain may have been started by another session.
        let found = find_run_to_resume(journal, run, &here);
        let newest = match &found {
            Ok(resume) => Some(&resume.run_id),
            Err(ResumeError::Running(id) | ResumeError::Suspended(id)) => Some(id),
            Err(_) => None,
        };
        if newest.is_some_and(|newest| newest != run && !may_use(newest)) {
            return Err(not_found().into());
        }
        self.find_run_to_resume_by_id(run)
    }
}
