//! A sub-agent that runs one task: its turn, its record in the journal, and its result in the File
//! Cabinet.

use std::sync::Arc;

use futures_util::FutureExt;
use selvedge_protocol::{
    DocumentKind, DocumentStore, ErrorCode, EventSink, Ledger, NewDocument, Phase, RunStart,
    RunStatus, RuntimeEvent, ScriptError, ScriptToolCallOutput, TurnEnd, TurnError,
};
use selvedge_tools::{ToolError, until_cancel_requested};
use tokio_util::sync::CancellationToken;

use super::SubAgentsInner;
use super::arguments::{LaunchAgentOutput, SubAgentStatus};
use crate::{Agent, Session, TurnOptions, TurnOutcome};

/// A sub-agent that is ready to run.
pub(super) struct PreparedSubAgent {
    pub(super) id: String,
    pub(super) agent: Agent,
    pub(super) session: Session,
    pub(super) prompt: String,
    pub(super) caller_gone: CancellationToken,
    pub(super) shared: Arc<SubAgentsInner>,
    /// The run that launched the agent.
    pub(super) parent_run_id: String,
    /// The call that launched the agent.
    pub(super) parent_call_id: String,
    /// The key of the result in the File Cabinet; `None` if a new one is made.
    pub(super) file_key: Option<String>,
}

impl PreparedSubAgent {
    /// Runs the agent until it ends, or until another process requests that it is cancelled.
    pub(super) async fn run(
        self,
        cancel: CancellationToken,
        events: EventSink,
    ) -> Result<LaunchAgentOutput, ToolError> {
        let ledger = self.agent.harness.orchestrator().ledger().cloned();
        let (id, cancel) = (self.id.clone(), cancel.child_token());
        let run = self.run_recorded(cancel.clone(), events);
        tokio::pin!(run);
        tokio::select! {
            biased;
            ended = &mut run => return ended,
            () = until_cancel_requested(ledger.as_ref(), &id) => cancel.cancel(),
        }
        run.await
    }

    async fn run_recorded(
        mut self,
        cancel: CancellationToken,
        events: EventSink,
    ) -> Result<LaunchAgentOutput, ToolError> {
        let ledger = self.agent.harness.orchestrator().ledger().cloned();
        let mut guard = SubAgentRunGuard {
            ledger: ledger.clone(),
            id: self.id.clone(),
        };
        if let Some(ledger) = &ledger
            && let Err(error) = self.record_start(&**ledger).await
        {
            guard.ledger = None;
            return Err(error);
        }
        events.emit(RuntimeEvent::AgentStarted {
            agent_id: self.id.clone(),
            parent_id: self.parent_run_id,
            call_id: self.parent_call_id,
            session_id: self.session.id().to_owned(),
        });
        let options = TurnOptions {
            cancel,
            caller_gone: self.caller_gone,
            events: sub_agent_events(events),
            ..TurnOptions::default()
        };
        // Boxed, because an agent can launch agents.
        let turn = self
            .agent
            .run_turn(&mut self.session, self.prompt.as_str(), &options);
        let outcome = Box::pin(turn).await;
        if let Some(ledger) = guard.ledger.take() {
            record_end(&*ledger, &self.id, &outcome).await?;
        }
        let status = status_of(outcome.end)?;
        let message = outcome.message.unwrap_or_default();
        let result = AgentResultDocument {
            agent_id: self.id.clone(),
            prompt: self.prompt,
            file_key: self.file_key,
        };
        let file_key = result.store(&self.shared, message.clone()).await;
        Ok(LaunchAgentOutput {
            agent_id: self.id,
            session_id: self.session.id().to_owned(),
            status,
            message,
            file_key,
            input_tokens: outcome.usage.input_tokens,
            output_tokens: outcome.usage.output_tokens,
        })
    }

    async fn record_start(&self, ledger: &dyn Ledger) -> Result<(), ToolError> {
        let start = ledger.record_run_start(RunStart {
            id: &self.id,
            source: &self.prompt,
            directory: &self.agent.options.directory,
            session: self.session.id(),
            seed: "0",
            resumes: None,
            saved_config: "",
        });
        let recorded = start.await;
        recorded.map_err(|error| ToolError::new(format!("cannot record the agent: {error}")))
    }
}

/// Records the end of an agent's run. If this fails, the agent has run, and may have changed
/// something.
async fn record_end(ledger: &dyn Ledger, id: &str, outcome: &TurnOutcome) -> Result<(), ToolError> {
    let mut output = ScriptToolCallOutput::new(id, "");
    output.status = match outcome.end {
        Ok(TurnEnd::Stop) => RunStatus::Completed,
        _ => RunStatus::Error,
    };
    output.output_json = serde_json::to_string(&outcome.message).ok();
    output.error = matches!(outcome.end, Ok(TurnEnd::Interrupted)).then(|| {
        let code = ErrorCode::ScriptCancelledError;
        ScriptError::new(code, Phase::Executing, "the agent was cancelled")
    });
    let recorded = ledger.record_run_end(&output, None).await;
    recorded.map_err(|error| {
        ToolError::new(format!("cannot record the end of the agent: {error}")).outcome_unknown()
    })
}

/// Returns the status of an agent whose turn ended. An agent that was cancelled or failed may have
/// changed something before.
fn status_of(end: Result<TurnEnd, TurnError>) -> Result<SubAgentStatus, ToolError> {
    match end {
        Ok(TurnEnd::Interrupted) => {
            Err(ToolError::new("the agent was cancelled").outcome_unknown())
        }
        Ok(end) => Ok(SubAgentStatus::Ended(end)),
        Err(TurnError { kind, message }) => {
            let message = format!("the agent failed ({kind}): {message}");
            Err(ToolError::new(message).outcome_unknown())
        }
    }
}

/// The document with the result of an agent.
pub(super) struct AgentResultDocument {
    pub(super) agent_id: String,
    pub(super) prompt: String,
    /// The key of the document; `None` if a new one is made.
    pub(super) file_key: Option<String>,
}

impl AgentResultDocument {
    /// Stores the result in the File Cabinet and returns its key; `None` if that is not possible.
    pub(super) async fn store(self, shared: &SubAgentsInner, message: String) -> Option<String> {
        let cabinet: Arc<dyn DocumentStore> = shared.cabinet.get()?.clone();
        let title = self.prompt.lines().next().unwrap_or_default();
        let title: String = title.chars().take(80).collect();
        let save = move || {
            let document = NewDocument {
                kind: DocumentKind::Result,
                title: &title,
                source: &self.agent_id,
                media_type: "text/plain",
                content: message.as_bytes(),
            };
            match &self.file_key {
                Some(key) => cabinet.save_as(key, &document),
                None => cabinet.save(&document),
            }
        };
        Some(tokio::task::spawn_blocking(save).await.ok()?.ok()?.key)
    }
}

/// Records the end of an agent whose future is dropped before it ends.
struct SubAgentRunGuard {
    ledger: Option<Arc<dyn Ledger>>,
    id: String,
}

impl Drop for SubAgentRunGuard {
    fn drop(&mut self) {
        if let Some(ledger) = &self.ledger {
            let output = ScriptToolCallOutput::new(&self.id, "");
            // If this fails, the run counts as died once this process ends.
            let _ = ledger.record_run_end(&output, None).now_or_never();
        }
    }
}

/// Returns a sink that forwards the events of a sub-agent's scripts, calls and approvals, which
/// carry the id of their run. Its messages, turns and plans are dropped, because observers would
/// attribute them to the parent agent.
fn sub_agent_events(events: EventSink) -> EventSink {
    EventSink::new(move |event| match event {
        RuntimeEvent::ThreadStarted { .. }
        | RuntimeEvent::TurnStarted { .. }
        | RuntimeEvent::ItemStarted { .. }
        | RuntimeEvent::ItemUpdated { .. }
        | RuntimeEvent::ItemCompleted { .. }
        | RuntimeEvent::ItemDropped { .. }
        | RuntimeEvent::ThreadCompacted { .. }
        | RuntimeEvent::MemoryRecalled { .. }
        | RuntimeEvent::UsageUpdated { .. }
        | RuntimeEvent::PlanUpdated { .. }
        | RuntimeEvent::DiffUpdated { .. }
        | RuntimeEvent::TurnCompleted { .. }
        | RuntimeEvent::TurnFailed { .. } => {}
        other => events.emit(other),
    })
}
