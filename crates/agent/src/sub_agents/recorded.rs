//! The results of agents that other processes ran, as the journal recorded them.

use std::sync::Arc;

use selvedge_journal::{Journal, JournalError, StoredRun, StoredRunState};
use selvedge_protocol::{DOCUMENT_RETENTION, DocumentKind, TurnEnd};
use selvedge_tools::ToolError;

use super::SubAgentsInner;
use super::arguments::{LaunchAgentOutput, SubAgentStatus};

impl SubAgentsInner {
    /// Returns the result of an agent that an earlier process ran for this session.
    pub(super) async fn recorded_result(
        &self,
        journal: Option<&Arc<Journal>>,
        id: &str,
        session: &str,
    ) -> Result<LaunchAgentOutput, ToolError> {
        let not_found = || {
            let id: String = id.chars().take(40).collect();
            ToolError::new(format!("no agent `{id}` was launched in this session"))
        };
        let journal = journal.ok_or_else(not_found)?;
        let (run_id, parent) = (id.to_owned(), session.to_owned());
        let run = journal
            .spawn_blocking(move |journal| find_agent(journal, &run_id, &parent))
            .await
            .map_err(|error| ToolError::new(error.to_string()))?
            .ok_or_else(not_found)?;
        let status = match run.summary.state {
            StoredRunState::Completed => SubAgentStatus::Ended(TurnEnd::Stop),
            StoredRunState::Failed => SubAgentStatus::Failed,
            StoredRunState::Running | StoredRunState::Suspended => {
                let message = format!("the agent {id} runs in another process");
                return Err(ToolError::new(message));
            }
            StoredRunState::Died => {
                let message = format!("the process that ran agent {id} ended before the agent did");
                return Err(ToolError::new(message).outcome_unknown());
            }
        };
        let message = run.output.and_then(|output| output.output_json);
        let message = message.and_then(|json| serde_json::from_str::<Option<String>>(&json).ok());
        Ok(LaunchAgentOutput {
            agent_id: id.to_owned(),
            session_id: run.summary.session,
            status,
            message: message.flatten().unwrap_or_default(),
            file_key: self.result_key(id).await,
            ..LaunchAgentOutput::default()
        })
    }

    /// Returns the key under which the result of an agent is stored.
    async fn result_key(&self, agent_id: &str) -> Option<String> {
        let (cabinet, agent_id) = (self.cabinet.get()?.clone(), agent_id.to_owned());
        let find = move || cabinet.find_latest(DocumentKind::Result, &agent_id, DOCUMENT_RETENTION);
        let found = tokio::task::spawn_blocking(find).await.ok()?.ok()??;
        Some(found.info.key)
    }
}

/// Returns the run of an agent whose session is a child of `parent`.
fn find_agent(
    journal: &Journal,
    id: &str,
    parent: &str,
) -> Result<Option<StoredRun>, JournalError> {
    if !id.starts_with("agt_") {
        return Ok(None);
    }
    let Ok(run) = journal.run(id) else {
        return Ok(None);
    };
    let session = journal.session(&run.summary.session)?;
    let is_child = session.parent.as_deref() == Some(parent);
    Ok(Some(run).filter(|run| run.summary.id == id && is_child))
}
