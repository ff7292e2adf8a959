//! Which recorded runs a script may read, resume and wait for.

use std::sync::Arc;

use anyhow::Result;
use selvedge_agent::{ResumeError, recorded_task, resume_input};
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
    /// Only in `mcp serve`.
    pub(crate) mcp: Option<McpRunAccess>,
}

/// Which runs a client of `mcp serve` may use.
#[derive(Clone)]
pub(crate) struct McpRunAccess {
    pub(crate) live_runs: LiveRuns,
    pub(crate) open_sessions: OpenSessions,
    /// Name of the clients over HTTP, by their token; `None` over standard input and output, where
    /// the client acts for the user.
    pub(crate) http_client_name: Option<String>,
}

impl RunAccess {
    /// Whether a script of the run or task `requesting_run` may use the recorded run.
    pub(crate) fn run_may_use(
        &self,
        journal: &Journal,
        requesting_run: &str,
        run: &StoredRun,
    ) -> bool {
        let session = match &self.mcp {
            Some(mcp) => mcp.session_of(requesting_run),
            None => self.session.clone(),
        };
        self.session_may_use(journal, &session, run)
    }

    /// Whether a script of the session may use the recorded run.
    fn session_may_use(&self, journal: &Journal, session: &str, run: &StoredRun) -> bool {
        let summary = &run.summary;
        let is_of_folder = summary.directory == self.directory;
        match &self.mcp {
            Some(mcp) => is_of_folder && mcp.session_may_use(journal, session, run),
            None => is_of_folder || !session.is_empty() && summary.session == session,
        }
    }
}

impl McpRunAccess {
    /// Returns the session of a live run; empty if there is no such run.
    pub(crate) fn session_of(&self, run: &str) -> String {
        let run = self.live_runs.find(run);
        run.map_or_else(String::new, |run| run.session().to_owned())
    }

    /// Whether a session may use a recorded run: its own runs, and those of ended sessions of the
    /// same client.
    fn session_may_use(&self, journal: &Journal, session: &str, run: &StoredRun) -> bool {
        let owner = &run.summary.session;
        let in_ended_session = || {
            self.open_sessions.session_may_use(session, owner)
                // If the journal cannot tell, the run counts as running.
                && !journal.is_run_of_other_process(&run.summary.id).unwrap_or(true)
        };
        !session.is_empty() && session == owner
            || in_ended_session()
                && SavedRunConfig::client_of(&run.saved_config) == self.http_client_name
    }
}

impl CliSetup {
    /// Returns which recorded runs scripts may use.
    pub(crate) fn run_access(&self) -> RunAccess {
        RunAccess {
            directory: self.directory.display().to_string(),
            session: self.session.clone(),
            mcp: self.mcp_run_access.clone(),
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
                    let may_use = task
                        .is_some_and(|task| access.run_may_use(journal, &query.scope_id, &task));
                    let recorded = || recorded_task(journal, &query.id, &access.directory);
                    Ok::<_, JournalError>(may_use.then(recorded).flatten())
                };
                let read = journal.spawn_blocking(read);
                async { read.await.ok().flatten() }
            });
        }
        if let Some(mcp) = self.mcp_run_access.clone() {
            tasks.set_access(move |run, session| {
                let requesting_session = mcp.session_of(run);
                mcp.open_sessions
                    .session_may_use(&requesting_session, session)
            });
        }
    }

    /// Returns the input of a script of a client of `mcp serve` that resumes a run. A run that the
    /// session may not use is reported like one that does not exist.
    pub(crate) fn resume_input_for_client(&self, request: &ResumeRequest) -> Result<ResumeInput> {
        let (run, journal) = (&request.run, self.journal_for_resume()?);
        let not_found = || {
            let error = JournalError::RunNotFound(run.clone());
            crate::runs::journal_error_problem(&error)
        };
        let here = self.directory.display().to_string();
        let access = self.run_access();
        let may_use = |id: &str| {
            journal.run(id).is_ok_and(|found| {
                found.summary.id == id && access.session_may_use(journal, &request.session, &found)
            })
        };
        if !may_use(run) {
            return Err(not_found().into());
        }
        // The newest run of the chain may have been started by another session.
        let found = resume_input(journal, run, &here);
        let newest = match &found {
            Ok(resume) => Some(&resume.run_id),
            Err(ResumeError::Running(run) | ResumeError::Suspended(run)) => Some(&run.newest),
            Err(_) => None,
        };
        if newest.is_some_and(|newest| newest != run && !may_use(newest)) {
            return Err(not_found().into());
        }
        self.resume_input_by_id(run)
    }
}
