//! The turn loop: from the user's prompt to the model's last answer.

use std::path::PathBuf;
use std::time::Instant;

use futures_util::FutureExt;
use selvedge_models::ToolCallMode;
use selvedge_protocol::{
    CallRecord, ConversationItem, EventSink, FinishReason, ModelErrorKind, RuntimeEvent,
    ScriptMode, TurnChangeStore, TurnEnd, TurnError, TurnErrorKind, TurnFileChanges, TurnItem,
    Usage,
};
use selvedge_tools::Scope;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::budget::{Budget, BudgetSpent};
use crate::execution::AnswerResults;
use crate::recovery::RecordedResults;
use crate::session_record::{DelegatedUsage, SessionStep, SessionStepKind};
use crate::stop::until_stop_requested;
use crate::sub_agents::{BackgroundPolicy, TurnBackgroundAgents, TurnContext};
use crate::turn_documents::TurnDocuments;
use crate::{Agent, Session, TurnAdditions, TurnCharge, TurnInput, metrics};

/// The options of one turn.
#[derive(Debug, Clone, Default)]
pub struct TurnOptions {
    /// Cancels the turn and everything it started. The session remains usable.
    pub cancel: CancellationToken,
    /// Cancelled when the caller has gone: scripts that wait for a person are then suspended,
    /// others are stopped.
    pub caller_gone: CancellationToken,
    /// Receives the events of the turn.
    pub events: EventSink,
    /// Whether scripts run in this turn; `None` uses the agent's option.
    pub mode: Option<ScriptMode>,
    /// The configuration of the tools, stored with each run so that a restore or replay can create
    /// the same tools.
    pub saved_config: String,
    /// What happens to agents that still run in the background when the turn ends.
    pub background: BackgroundPolicy,
}

/// The result of a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnOutcome {
    /// The number of the turn, counted from 1.
    pub turn: u32,
    /// Why the turn ended, or the error that ended it.
    pub end: Result<TurnEnd, TurnError>,
    /// The last message of the model in the turn.
    pub message: Option<String>,
    /// The tokens of all requests of the turn.
    pub usage: Usage,
    /// The cost, in the currency of the model's prices; `None` if they are not known.
    pub cost: Option<f64>,
}

impl TurnOutcome {
    /// Emits the end of the turn as an event.
    fn emit_end(self, events: &EventSink) -> Self {
        let end = self.end.clone();
        events.emit(RuntimeEvent::turn_end(
            self.turn, end, self.usage, self.cost,
        ));
        self
    }
}

/// Returns the error of a turn that depends on a run of another process. The turn stays open.
pub(crate) fn run_in_use_error(run: &str) -> TurnError {
    TurnError::new(
        TurnErrorKind::InUse,
        format!("{run} is still running in another process"),
    )
}

/// The state of a running turn.
pub(crate) struct AgentTurn<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) session: &'a mut Session,
    pub(crate) options: &'a TurnOptions,
    pub(crate) events: EventSink,
    pub(crate) documents: TurnDocuments,
    /// Cancels everything the turn started.
    pub(crate) turn_cancel: CancellationToken,
    pub(crate) script_mode: ScriptMode,
    pub(crate) budget: Budget,
    /// What the turn hook adds to the requests of the turn.
    pub(crate) additions: TurnAdditions,
    /// Whether requests contain tools and allow calls.
    pub(crate) call_mode: ToolCallMode,
    /// Whether the next answer is the last one, in which nothing can be called.
    pub(crate) is_last_round: bool,
    /// Whether the conversation was compacted because the provider rejected the request as too
    /// long.
    pub(crate) compacted_after_error: bool,
    /// Whether the warning that the context has no room was emitted.
    pub(crate) no_room_warned: bool,
    /// The scope of the structured calls, created with the first one.
    pub(crate) structured_scope: Option<Scope>,
    /// The id of the run of the structured calls.
    pub(crate) structured_run_id: Option<String>,
    /// The records of the structured calls.
    pub(crate) call_records: Vec<CallRecord>,
    /// The ledger ids of the structured calls.
    pub(crate) ledger_call_ids: Vec<String>,
    /// The recorded results of an answer that an earlier process did not finish.
    pub(crate) recorded_results: RecordedResults,
    /// The agents that run in the background.
    background_agents: TurnBackgroundAgents,
    /// The budget of the session; `None` in a sub-agent.
    session_budget: Option<Budget>,
}

impl Agent {
    /// Runs one turn: asks the model, runs the scripts and calls of its answer, and repeats until
    /// the model is done or a limit is reached.
    pub async fn run_turn(
        &self,
        session: &mut Session,
        input: impl Into<TurnInput>,
        options: &TurnOptions,
    ) -> TurnOutcome {
        let begun = match self.interrupt_open_turn(session, options).await {
            Ok(()) => session
                .begin_turn(input.into(), self.start_note())
                .await
                .map_err(TurnError::from),
            Err(error) => Err(error),
        };
        match begun {
            Ok(()) => self.run_open_turn(session, options).await,
            Err(error) => TurnOutcome {
                turn: session.turn_number(),
                end: Err(error),
                message: None,
                usage: Usage::default(),
                cost: None,
            }
            .emit_end(&options.events),
        }
    }

    /// Runs the open turn of the session: a new one, or one that was interrupted, whose completed
    /// calls are not repeated.
    pub async fn run_open_turn(&self, session: &mut Session, options: &TurnOptions) -> TurnOutcome {
        let number = session.turn_number();
        let span = tracing::info_span!(
            "turn",
            session = session.id(),
            turn = number,
            end = tracing::field::Empty
        );
        let started = Instant::now();
        options
            .events
            .emit(RuntimeEvent::TurnStarted { turn: number });
        if let Some(changes) = &self.change_tracker {
            changes.begin_turn();
        }
        let stop_requested = until_stop_requested(session);
        let options = &TurnOptions {
            cancel: options.cancel.child_token(),
            ..options.clone()
        };
        let mut turn = AgentTurn::new(self, session, options);
        let end = {
            let mut run = std::pin::pin!(turn.run_with_time_limit().instrument(span.clone()));
            tokio::select! {
                biased;
                end = &mut run => end,
                () = stop_requested => {
                    options.cancel.cancel();
                    run.await
                }
            }
        };
        turn.end_children(&end).await;
        let changes = self.emit_changes(&options.events).await;
        let spent @ BudgetSpent { usage, cost, .. } = turn.budget.spent();
        let session_spent = turn.session_budget.as_ref().map(Budget::spent);
        let documents = turn.documents.take();
        let charge = TurnCharge(turn.budget.clone());
        drop(turn);
        span.record("end", tracing::field::debug(&end));
        metrics::record_turn(&end, started.elapsed(), &usage);
        let items = session.turn_items(number);
        record_changes(session, number, changes).await;
        // A suspended turn, or one that depends on another process, stays open.
        let stays_open = match &end {
            Ok(end) => *end == TurnEnd::Suspended,
            Err(error) => error.kind == TurnErrorKind::InUse,
        };
        let ended = match stays_open {
            true => Ok(()),
            false => {
                let delegated = match session_spent {
                    Some(all) => unrecorded_usage(all, session.total_spent()),
                    None => delegated_usage(spent, session),
                };
                session.end_turn(end.clone(), delegated).await
            }
        };
        if let Some(hook) = self.turn_hook.as_ref() {
            hook.documents_used(session, documents).await;
            // A turn whose end is not recorded continues, maybe in another process.
            if !stays_open && ended.is_ok() {
                hook.after_turn(session, &charge).await;
            }
        }
        let end = end.and_then(|end| ended.map(|()| end).map_err(TurnError::from));
        let message = match end {
            Ok(TurnEnd::Stop | TurnEnd::Length) => final_text(&items),
            _ => items.iter().rev().find_map(TurnItem::assistant_text),
        };
        TurnOutcome {
            turn: number,
            end,
            message,
            usage,
            cost,
        }
        .emit_end(&options.events)
    }

    /// Emits the file changes of the turn as an event, and returns them. `None` without changes.
    async fn emit_changes(&self, events: &EventSink) -> Option<FoundChanges> {
        let tracker = self.change_tracker.clone()?;
        let find = move || {
            let diff = tracker.diff();
            let found = || FoundChanges {
                files: tracker.changed_files(),
                written_by_tools: tracker.files_written_by_tools(),
            };
            (!diff.is_empty()).then(|| (diff, found()))
        };
        let (diff, found) = tokio::task::spawn_blocking(find).await.ok()??;
        events.emit(RuntimeEvent::DiffUpdated { diff });
        Some(found)
    }

    /// Ends an interrupted turn before a new one begins. Its calls get their recorded results.
    async fn interrupt_open_turn(
        &self,
        session: &mut Session,
        options: &TurnOptions,
    ) -> Result<(), TurnError> {
        if !session.has_open_turn() {
            return Ok(());
        }
        let stopped = TurnOptions {
            cancel: CancellationToken::new(),
            ..options.clone()
        };
        stopped.cancel.cancel();
        let mut turn = AgentTurn::new(self, session, &stopped);
        let settled = turn.finish_unfinished_answer().await;
        turn.end_children(&Ok(TurnEnd::Interrupted)).await;
        drop(turn);
        if let Err(error) = settled
            && !matches!(error.kind, TurnErrorKind::Model(_))
        {
            return Err(error);
        }
        Ok(session
            .end_turn(Ok(TurnEnd::Interrupted), DelegatedUsage::default())
            .await?)
    }
}

/// Returns the answer of a turn that the model ended: its last text after the last result of a
/// script or a call. A text before a result is not the answer.
fn final_text(items: &[TurnItem]) -> Option<String> {
    let is_result = |item: &TurnItem| {
        matches!(
            item,
            TurnItem::ScriptToolCallOutput(_)
                | TurnItem::Conversation(ConversationItem::FunctionCallOutput(_))
        )
    };
    let mut last = items.iter().rev().take_while(|item| !is_result(item));
    last.find_map(TurnItem::assistant_text)
}

/// The files that changed during a turn.
struct FoundChanges {
    files: TurnFileChanges,
    /// Those that tools of the turn wrote.
    written_by_tools: Vec<PathBuf>,
}

/// Stores the file changes of a turn in the journal of its session. Without them, the turn cannot
/// be reverted, but it is complete.
async fn record_changes(session: &Session, turn: u32, changes: Option<FoundChanges>) {
    let (Some(journal), Some(found)) = (session.journal(), changes) else {
        return;
    };
    let mut changes = found.files;
    // If this cannot be read, the changes count as shared.
    if !matches!(
        journal.is_folder_shared(session.id(), turn).await,
        Ok(false)
    ) {
        changes.record_only(&found.written_by_tools);
    }
    // The turn may have been suspended or interrupted before.
    let earlier = journal.recorded_changes(session.id(), Some(turn)).await;
    let changes = match earlier {
        Ok(Some((_, earlier))) => earlier.followed_by(changes),
        _ => changes,
    };
    if let Err(error) = journal.record_changes(session.id(), turn, changes).await {
        tracing::warn!(%error, "the changes of the turn are not recorded");
    }
}

impl<'a> AgentTurn<'a> {
    fn new(agent: &'a Agent, session: &'a mut Session, options: &'a TurnOptions) -> Self {
        let (usage, cost) = session.total_spent();
        let spent = BudgetSpent {
            requests: 0,
            usage,
            cost: Some(cost),
        };
        // A sub-agent has the gate of the turn that launched it.
        let gate = agent.request_gate.clone();
        let gate = gate.filter(|_| agent.budget.is_none());
        let (budget, session_budget) = match &agent.budget {
            Some(launcher) => (launcher.clone(), None),
            None => {
                // Agents of earlier turns may still spend from the budget of the session.
                let known = agent.sub_agents.session_budget(session.id());
                let own = known.unwrap_or_else(|| Budget::new(agent.options.session_limits, spent));
                (own.clone(), Some(own))
            }
        };
        let so_far = spent_in_turn(session.steps(), session.turn_number());
        let documents = TurnDocuments::default();
        Self {
            agent,
            session,
            options,
            events: documents.observe(options.events.clone()),
            documents,
            turn_cancel: options.cancel.child_token(),
            script_mode: options.mode.unwrap_or(agent.options.mode),
            budget: budget.child(agent.options.turn_limits, so_far, gate),
            additions: TurnAdditions::default(),
            call_mode: match agent.model.tools {
                true => ToolCallMode::Parallel,
                false => ToolCallMode::Off,
            },
            is_last_round: false,
            compacted_after_error: false,
            no_room_warned: false,
            structured_scope: None,
            structured_run_id: None,
            call_records: Vec::new(),
            ledger_call_ids: Vec::new(),
            recorded_results: RecordedResults::default(),
            background_agents: TurnBackgroundAgents::default(),
            session_budget,
        }
    }

    /// Runs the rounds of the turn. Cancels everything when the time limit is reached.
    async fn run_with_time_limit(&mut self) -> Result<TurnEnd, TurnError> {
        let stop = self.turn_cancel.clone();
        let timeout = match self.budget.deadline() {
            Some(deadline) => tokio::time::sleep_until(deadline.into()),
            None => tokio::time::sleep(std::time::Duration::from_secs(u64::from(u32::MAX))),
        };
        let rounds = self.run_rounds();
        tokio::pin!(rounds, timeout);
        tokio::select! {
            end = &mut rounds => end,
            () = &mut timeout => {
                stop.cancel();
                rounds.await
            }
        }
    }

    /// Repeats the rounds of the turn: assemble the prompt, ask the model, record the answer, run
    /// its scripts and calls, record the results.
    async fn run_rounds(&mut self) -> Result<TurnEnd, TurnError> {
        if let Some(end) = self.finish_unfinished_answer().await? {
            return Ok(end);
        }
        self.call_hook_before_turn().await;
        loop {
            if let Some(end) = self.end_reason().await {
                return Ok(end);
            }
            let prompt = self.assemble_prompt().await?;
            let answer = match self.ask_model(&prompt).await {
                Ok(answer) => {
                    self.compacted_after_error = false;
                    answer
                }
                Err(error) => {
                    self.prepare_resend(error).await?;
                    continue;
                }
            };
            let (finish_reason, detail) =
                (answer.finish_reason.clone(), answer.finish_detail.clone());
            let pieces = self.record_answer(answer).await?;
            let has_actions = pieces.iter().any(|entry| entry.piece.must_run());
            let results = self.run_pieces(pieces).await;
            if results.suspended {
                return Ok(TurnEnd::Suspended);
            }
            if has_actions {
                self.record_results(results).await?;
            } else if let Some(end) = turn_end_for(finish_reason, detail)? {
                return Ok(end);
            }
        }
    }

    /// Returns why the turn has to end before the next request.
    async fn end_reason(&self) -> Option<TurnEnd> {
        tokio::select! {
            biased;
            () = self.options.cancel.cancelled() => Some(TurnEnd::Interrupted),
            () = self.turn_cancel.cancelled() => Some(TurnEnd::MaxTime),
            end = self.budget.before_request() => end,
        }
    }

    /// Finishes the last answer of an earlier process: runs what has no recorded result. Returns
    /// how the turn ends, if that answer was its last.
    async fn finish_unfinished_answer(&mut self) -> Result<Option<TurnEnd>, TurnError> {
        if let Some(pieces) = self.load_unfinished_answer().await? {
            self.is_last_round = self.budget.was_last_round();
            let results = self.run_pieces(pieces).await;
            if results.suspended {
                return Ok(Some(TurnEnd::Suspended));
            }
            self.record_results(results).await?;
            return Ok(None);
        }
        let turn = self.session.turn_number();
        let last = self.session.steps().last().filter(|step| step.turn == turn);
        match last.map(|step| &step.kind) {
            Some(SessionStepKind::Answer { finish_reason, .. }) => {
                turn_end_for(finish_reason.clone(), None)
            }
            _ => Ok(None),
        }
    }

    async fn record_results(&mut self, results: AnswerResults) -> Result<(), TurnError> {
        let request_items = results.to_request_items();
        let added = self
            .session
            .add_step(SessionStepKind::Results, results.items, request_items);
        Ok(added.await?)
    }

    /// Asks the turn hook what to add to every request of the turn.
    async fn call_hook_before_turn(&mut self) {
        let Some(hook) = &self.agent.turn_hook else {
            return;
        };
        let turn = self.session.turn_number();
        let mut steps = self.session.steps().iter().rev();
        let message_step =
            steps.find(|step| step.turn == turn && step.kind == SessionStepKind::UserMessage);
        let user_message = match message_step.and_then(|step| step.items.first()) {
            Some(TurnItem::Conversation(ConversationItem::Message(message))) => message.text(),
            _ => String::new(),
        };
        let charge = TurnCharge(self.budget.clone());
        let additions = hook.before_turn(self.session, &user_message, &charge);
        self.additions = additions.await;
        if let Some(event) = self.additions.event.take() {
            self.events.emit(event);
        }
    }

    /// Ends the structured calls of the turn, and its background agents as the options say. They
    /// are stopped if the turn did not end by itself.
    async fn end_children(&mut self, end: &Result<TurnEnd, TurnError>) {
        let ended_by_itself = !matches!(
            end,
            Err(_) | Ok(TurnEnd::Interrupted | TurnEnd::Suspended | TurnEnd::MaxTime)
        );
        match self.options.background {
            _ if !ended_by_itself => self.background_agents.stop().await,
            BackgroundPolicy::Wait => self.background_agents.wait(&self.options.cancel).await,
            BackgroundPolicy::Detach => self.background_agents.detach(),
        }
        self.end_structured_scope().await;
    }

    pub(crate) fn turn_context(&self) -> TurnContext {
        TurnContext {
            budget: self.budget.clone(),
            depth: self.agent.depth,
            script_mode: self.script_mode,
            tools: self.agent.harness.orchestrator().registry().clone(),
            caller_gone: self.options.caller_gone.clone(),
            turn_cancel: self.turn_cancel.clone(),
            session: self.session.id().to_owned(),
            session_budget: self.session_budget.clone(),
            background_agents: self.background_agents.clone(),
        }
    }
}

/// Returns what the answers of a turn have spent so far.
fn spent_in_turn(steps: &[SessionStep], turn: u32) -> BudgetSpent {
    let mut spent = BudgetSpent::default();
    for step in steps.iter().filter(|step| step.turn == turn) {
        if let SessionStepKind::Answer { usage, cost, .. } = &step.kind {
            spent.requests += 1;
            spent.usage += *usage;
            if let Some(cost) = cost {
                *spent.cost.get_or_insert(0.0) += cost;
            }
        }
    }
    spent
}

/// Returns the part of a turn's spending that its own answers do not account for.
fn delegated_usage(all: BudgetSpent, session: &Session) -> DelegatedUsage {
    let own = spent_in_turn(session.steps(), session.turn_number());
    unrecorded_usage(all, (own.usage, own.cost.unwrap_or(0.0)))
}

/// Returns the part of `all` that is not recorded yet.
fn unrecorded_usage(all: BudgetSpent, (usage, cost): (Usage, f64)) -> DelegatedUsage {
    let cost = (all.cost.unwrap_or(0.0) - cost).max(0.0);
    // The cost was added up in another order, so a tiny difference is a rounding error.
    DelegatedUsage {
        usage: all.usage.saturating_sub(&usage),
        cost: if cost < 1e-9 { 0.0 } else { cost },
    }
}

/// Returns how an answer without scripts and calls ends the turn, or `None` if the turn continues.
fn turn_end_for(
    finish_reason: Option<FinishReason>,
    detail: Option<String>,
) -> Result<Option<TurnEnd>, TurnError> {
    match finish_reason {
        // Without a finish reason, reading was stopped: `end_reason` then ends the turn.
        Some(FinishReason::Paused) | None => Ok(None),
        Some(FinishReason::Length) => Ok(Some(TurnEnd::Length)),
        Some(FinishReason::Refused) => {
            let message = detail.unwrap_or_else(|| "the model refused to answer".to_owned());
            Err(TurnError::new(ModelErrorKind::Refused, message))
        }
        Some(_) => Ok(Some(TurnEnd::Stop)),
    }
}

impl Drop for AgentTurn<'_> {
    /// Stops what the turn started, also if its future is dropped.
    fn drop(&mut self) {
        self.turn_cancel.cancel();
        self.background_agents.cancel();
        let _ = self.end_structured_scope().now_or_never();
    }
}

/// Returns the steps from the last compaction on, which are those that requests can contain.
pub(crate) fn steps_since_compaction(steps: &[SessionStep]) -> &[SessionStep] {
    let last = steps
        .iter()
        .rposition(|step| step.kind == SessionStepKind::Compaction);
    &steps[last.unwrap_or(0)..]
}
