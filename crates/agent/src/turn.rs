//! The turn loop: from the user's prompt to the model's last answer.

use std::time::Instant;

use futures_util::FutureExt;
use selvedge_models::Calls;
use selvedge_protocol::{
    CallRecord, Event, EventSink, FinishReason, Item, Mode, ModelErrorKind, TurnEnd, TurnError,
    TurnErrorKind, TurnItem, Usage,
};
use selvedge_tools::Scope;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::acting::Results;
use crate::agents::{Background, Circumstances};
use crate::budget::{Budget, Spent};
use crate::kept::Kept;
use crate::record::{Others, Step, StepKind};
use crate::recovery::Known;
use crate::{Agent, Input, Session, counters};

/// The options of one turn.
#[derive(Debug, Clone, Default)]
pub struct TurnOptions {
    /// Cancels the turn and everything it started. The session remains usable.
    pub cancel: CancellationToken,
    /// Suspends scripts that wait for a person, so that they can be resumed later.
    pub leave: CancellationToken,
    /// Receives the events of the turn.
    pub events: EventSink,
    /// Whether scripts run in this turn; `None` uses the agent's option.
    pub mode: Option<Mode>,
    /// The configuration of the tools, stored with each run so that a resume or replay can create
    /// the same tools.
    pub setting: String,
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
    fn told(self, events: &EventSink) -> Self {
        let (turn, usage, cost) = (self.turn, self.usage, self.cost);
        events.emit(match self.end.clone() {
            Ok(finish_reason) => Event::TurnCompleted {
                turn,
                finish_reason,
                usage,
                cost,
            },
            Err(error) => Event::TurnFailed {
                turn,
                error,
                usage,
                cost,
            },
        });
        self
    }
}

/// Returns the error of a turn that depends on a run of another process. The turn stays open.
pub(crate) fn in_use(run: &str) -> TurnError {
    TurnError::new(
        TurnErrorKind::InUse,
        format!("{run} is still running in another process"),
    )
}

/// The state of a running turn.
pub(crate) struct Turn<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) session: &'a mut Session,
    pub(crate) options: &'a TurnOptions,
    pub(crate) events: EventSink,
    pub(crate) kept: Kept,
    /// Cancels everything the turn started.
    pub(crate) stop: CancellationToken,
    pub(crate) mode: Mode,
    pub(crate) budget: Budget,
    /// The text that the turn hook adds to the newest message.
    pub(crate) rides: Option<String>,
    /// Whether requests contain tools and allow calls.
    pub(crate) calls: Calls,
    /// Whether the next answer is the last one, in which nothing can be called.
    pub(crate) last: bool,
    /// Whether the conversation was compacted because the provider rejected the request as too
    /// long.
    pub(crate) shortened: bool,
    /// Whether the warning that the context has no room was emitted.
    pub(crate) no_room_said: bool,
    /// The scope of the structured calls, created with the first one.
    pub(crate) scope: Option<Scope>,
    /// The id of the run of the structured calls.
    pub(crate) run: Option<String>,
    /// The records of the structured calls.
    pub(crate) records: Vec<CallRecord>,
    /// The ledger ids of the structured calls.
    pub(crate) used: Vec<String>,
    /// The recorded results of an answer that an earlier process did not finish.
    pub(crate) known: Known,
    /// The agents that run in the background.
    background: Background,
}

impl Agent {
    /// Runs one turn: asks the model, runs the scripts and calls of its answer, and repeats until
    /// the model is done or a limit is reached.
    pub async fn turn(
        &self,
        session: &mut Session,
        input: impl Into<Input>,
        options: &TurnOptions,
    ) -> TurnOutcome {
        let asked = match self.settle(session, options).await {
            Ok(()) => session.ask(input.into()).await.map_err(TurnError::from),
            Err(error) => Err(error),
        };
        match asked {
            Ok(()) => self.go_on(session, options).await,
            Err(error) => TurnOutcome {
                turn: session.turn(),
                end: Err(error),
                message: None,
                usage: Usage::default(),
                cost: None,
            }
            .told(&options.events),
        }
    }

    /// Continues an interrupted turn. Completed calls are not repeated.
    pub async fn go_on(&self, session: &mut Session, options: &TurnOptions) -> TurnOutcome {
        let number = session.turn();
        let span = tracing::info_span!(
            "turn",
            session = session.id(),
            turn = number,
            end = tracing::field::Empty
        );
        let started = Instant::now();
        options.events.emit(Event::TurnStarted { turn: number });
        if let Some(changes) = &self.changes {
            changes.begin();
        }
        let mut turn = Turn::new(self, session, options);
        let end = turn.until_its_end().instrument(span.clone()).await;
        turn.end_children().await;
        self.tell_changes(&options.events).await;
        let spent @ Spent { usage, cost, .. } = turn.budget.spent();
        let kept = turn.kept.take();
        drop(turn);
        span.record("end", tracing::field::debug(&end));
        counters::turn(&end, started.elapsed(), &usage);
        let items = session.items_of(number);
        // A suspended turn, or one that depends on another process, stays open.
        let waits = match &end {
            Ok(end) => *end == TurnEnd::Suspended,
            Err(error) => error.kind == TurnErrorKind::InUse,
        };
        let ended = match waits {
            true => Ok(()),
            false => {
                let others = by_others(spent, session);
                session.end(end.clone(), others).await
            }
        };
        if let Some(companion) = self.companion.as_ref() {
            companion.kept(session, kept).await;
            if !waits {
                companion.after(session).await;
            }
        }
        let end = end.and_then(|end| ended.map(|()| end).map_err(TurnError::from));
        TurnOutcome {
            turn: number,
            end,
            message: items.iter().rev().find_map(TurnItem::said),
            usage,
            cost,
        }
        .told(&options.events)
    }

    /// Emits the file changes of the turn as an event.
    async fn tell_changes(&self, events: &EventSink) {
        let Some(changes) = self.changes.clone() else {
            return;
        };
        let diff = tokio::task::spawn_blocking(move || changes.diff()).await;
        if let Some(diff) = diff.ok().filter(|diff| !diff.is_empty()) {
            events.emit(Event::DiffUpdated { diff });
        }
    }

    /// Ends an interrupted turn before a new one begins. Its calls get their recorded results.
    async fn settle(&self, session: &mut Session, options: &TurnOptions) -> Result<(), TurnError> {
        if !session.is_open() {
            return Ok(());
        }
        let stopped = TurnOptions {
            cancel: CancellationToken::new(),
            ..options.clone()
        };
        stopped.cancel.cancel();
        let mut turn = Turn::new(self, session, &stopped);
        let settled = turn.finish_left_undone().await;
        turn.end_children().await;
        drop(turn);
        if let Err(error) = settled
            && matches!(error.kind, TurnErrorKind::Journal | TurnErrorKind::InUse)
        {
            return Err(error);
        }
        Ok(session
            .end(Ok(TurnEnd::Interrupted), Others::default())
            .await?)
    }
}

impl<'a> Turn<'a> {
    fn new(agent: &'a Agent, session: &'a mut Session, options: &'a TurnOptions) -> Self {
        let (usage, cost) = session.spent();
        let spent = Spent {
            rounds: 0,
            usage,
            cost: Some(cost),
        };
        let budget = agent
            .budget
            .clone()
            .unwrap_or_else(|| Budget::new(agent.settings.session_limits, spent));
        let so_far = spent_in(session.steps(), session.turn());
        let documents = Kept::default();
        Self {
            agent,
            session,
            options,
            events: documents.listening(options.events.clone()),
            kept: documents,
            stop: options.cancel.child_token(),
            mode: options.mode.unwrap_or(agent.settings.mode),
            budget: budget.within(agent.settings.turn_limits, so_far),
            rides: None,
            calls: match agent.model.tools {
                true => Calls::Parallel,
                false => Calls::Off,
            },
            last: false,
            shortened: false,
            no_room_said: false,
            scope: None,
            run: None,
            records: Vec::new(),
            used: Vec::new(),
            known: Known::default(),
            background: Background::default(),
        }
    }

    /// Runs the rounds of the turn. Cancels everything when the time limit is reached.
    async fn until_its_end(&mut self) -> Result<TurnEnd, TurnError> {
        let stop = self.stop.clone();
        let timeout = match self.budget.deadline() {
            Some(deadline) => tokio::time::sleep_until(deadline.into()),
            None => tokio::time::sleep(std::time::Duration::from_secs(u64::from(u32::MAX))),
        };
        let rounds = self.rounds();
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
    async fn rounds(&mut self) -> Result<TurnEnd, TurnError> {
        if let Some(end) = self.finish_left_undone().await? {
            return Ok(end);
        }
        self.recall().await;
        loop {
            if let Some(end) = self.must_end() {
                return Ok(end);
            }
            let prompt = self.assemble().await?;
            let answer = match self.ask(&prompt).await {
                Ok(answer) => {
                    self.shortened = false;
                    answer
                }
                Err(error) => {
                    self.find_another_way(error).await?;
                    continue;
                }
            };
            let (finish, detail) = (answer.finish.clone(), answer.detail.clone());
            let pieces = self.record_answer(answer).await?;
            let asks = pieces.iter().any(|told| told.piece.asks());
            let results = self.act(pieces).await;
            if results.suspended {
                return Ok(TurnEnd::Suspended);
            }
            if asks {
                self.record_results(results).await?;
            } else if let Some(end) = end_of(finish, detail)? {
                return Ok(end);
            }
        }
    }

    /// Returns why the turn has to end before the next request.
    fn must_end(&self) -> Option<TurnEnd> {
        if self.options.cancel.is_cancelled() {
            return Some(TurnEnd::Interrupted);
        }
        if self.stop.is_cancelled() {
            return Some(TurnEnd::MaxTime);
        }
        self.budget.reached()
    }

    /// Completes what an earlier process left open: results that it did not record, or the end of
    /// the turn.
    async fn finish_left_undone(&mut self) -> Result<Option<TurnEnd>, TurnError> {
        if let Some(pieces) = self.left_undone().await? {
            self.last = self.budget.was_last_round();
            let results = self.act(pieces).await;
            if results.suspended {
                return Ok(Some(TurnEnd::Suspended));
            }
            self.record_results(results).await?;
            return Ok(None);
        }
        let turn = self.session.turn();
        let last = self.session.steps().last().filter(|step| step.turn == turn);
        match last.map(|step| &step.kind) {
            Some(StepKind::Answered { finish, .. }) => end_of(finish.clone(), None),
            _ => Ok(None),
        }
    }

    async fn record_results(&mut self, results: Results) -> Result<(), TurnError> {
        let wire = results.wire();
        let acted = self.session.add(StepKind::Acted, results.items, wire);
        Ok(acted.await?)
    }

    /// Asks the turn hook for the text to add to the newest message of every request of the turn.
    async fn recall(&mut self) {
        let Some(hook) = &self.agent.companion else {
            return;
        };
        let turn = self.session.turn();
        let mut steps = self.session.steps().iter().rev();
        let asked = steps.find(|step| step.turn == turn && step.kind == StepKind::Asked);
        let prompt = match asked.and_then(|step| step.items.first()) {
            Some(TurnItem::Item(Item::Message(message))) => message.text(),
            _ => String::new(),
        };
        self.rides = hook.before(self.session, &prompt).await;
    }

    /// Stops the background agents and the structured calls of the turn.
    async fn end_children(&mut self) {
        if !self.background.is_empty() {
            self.stop.cancel();
            self.background.end().await;
        }
        self.end_scope().await;
    }

    pub(crate) fn circumstances(&self) -> Circumstances {
        Circumstances {
            budget: self.budget.clone(),
            depth: self.agent.depth,
            leave: self.options.leave.clone(),
            stop: self.stop.clone(),
            session: self.session.id().to_owned(),
            background: self.background.clone(),
        }
    }
}

/// Returns what the answers of a turn have spent so far.
fn spent_in(steps: &[Step], turn: u32) -> Spent {
    let mut spent = Spent::default();
    for step in steps.iter().filter(|step| step.turn == turn) {
        if let StepKind::Answered { usage, cost, .. } = &step.kind {
            spent.rounds += 1;
            spent.usage += *usage;
            if let Some(cost) = cost {
                *spent.cost.get_or_insert(0.0) += cost;
            }
        }
    }
    spent
}

/// Returns the part of a turn's spending that its own answers do not account for.
fn by_others(all: Spent, session: &Session) -> Others {
    let own = spent_in(session.steps(), session.turn());
    let cost = (all.cost.unwrap_or(0.0) - own.cost.unwrap_or(0.0)).max(0.0);
    // The cost was added up in another order, so a tiny difference is a rounding error.
    Others {
        usage: all.usage.beyond(&own.usage),
        cost: if cost < 1e-9 { 0.0 } else { cost },
    }
}

/// Returns how an answer without scripts and calls ends the turn, or `None` if the turn continues.
fn end_of(
    finish: Option<FinishReason>,
    detail: Option<String>,
) -> Result<Option<TurnEnd>, TurnError> {
    match finish {
        // Without a finish reason the answer was not read to its end; the loop then ends the turn.
        Some(FinishReason::Paused) | None => Ok(None),
        Some(FinishReason::Length) => Ok(Some(TurnEnd::Length)),
        Some(FinishReason::Refused) => {
            let message = detail.unwrap_or_else(|| "the model refused to answer".to_owned());
            Err(TurnError::new(ModelErrorKind::Refused, message))
        }
        Some(_) => Ok(Some(TurnEnd::Stop)),
    }
}

impl Drop for Turn<'_> {
    /// Stops what the turn started, also if its future is dropped.
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = self.end_scope().now_or_never();
    }
}

/// Returns the steps from the last compaction on, which are those that requests can contain.
pub(crate) fn since_compaction(steps: &[Step]) -> &[Step] {
    let last = steps
        .iter()
        .rposition(|step| step.kind == StepKind::Compacted);
    &steps[last.unwrap_or(0)..]
}
