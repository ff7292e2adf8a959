//! One turn, from what somebody asks to the model's last word.

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

/// The circumstances of one turn.
#[derive(Debug, Clone, Default)]
pub struct TurnOptions {
    /// Stops the turn and everything it started; the session stays.
    pub cancel: CancellationToken,
    /// Nobody is there any more: a script that waits for a person is put away, to be gone on with later.
    pub leave: CancellationToken,
    /// Takes events.
    pub events: EventSink,
    /// Whether scripts run in this turn; as the agent's settings say where nothing is said.
    pub mode: Option<Mode>,
    /// Kept with each run: what whoever assembled the tools needs to assemble them again.
    pub setting: String,
}

/// What a turn came to.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnOutcome {
    /// Which turn.
    pub turn: u32,
    /// How it ended.
    pub end: Result<TurnEnd, TurnError>,
    /// The last thing the model said in it.
    pub message: Option<String>,
    /// Tokens of all its requests.
    pub usage: Usage,
    /// What it cost, where prices are known.
    pub cost: Option<f64>,
}

impl TurnOutcome {
    /// Tells the end of the turn as an event.
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

/// The failure of a turn that depends on a run in another process. The turn stays open.
pub(crate) fn in_use(run: &str) -> TurnError {
    TurnError::new(
        TurnErrorKind::InUse,
        format!("{run} still runs in another process"),
    )
}

/// A turn under way.
pub(crate) struct Turn<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) session: &'a mut Session,
    pub(crate) options: &'a TurnOptions,
    pub(crate) events: EventSink,
    pub(crate) kept: Kept,
    /// Stops everything the turn started.
    pub(crate) stop: CancellationToken,
    pub(crate) mode: Mode,
    pub(crate) budget: Budget,
    /// What rides inside the newest message.
    pub(crate) rides: Option<String>,
    /// Whether the server takes tools.
    pub(crate) calls: Calls,
    /// Whether this is the last answer: nothing is called any more.
    pub(crate) last: bool,
    /// The provider said that the request is too long, and it was made shorter.
    pub(crate) shortened: bool,
    /// It was said that the context has no room for a conversation.
    pub(crate) no_room_said: bool,
    /// What structured calls belong to, once there are any.
    pub(crate) scope: Option<Scope>,
    pub(crate) run: Option<String>,
    pub(crate) records: Vec<CallRecord>,
    /// Ids of calls in the ledger.
    pub(crate) used: Vec<String>,
    /// What is known of calls an earlier process made.
    pub(crate) known: Known,
    /// Agents that go on by themselves.
    background: Background,
}

impl Agent {
    /// One turn: asks the model, runs what it wrote, and asks again until it is done.
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

    /// Goes on with a turn that was broken off. What was done is not done again.
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
        // A turn that waits for a person is not over.
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

    async fn tell_changes(&self, events: &EventSink) {
        let Some(changes) = self.changes.clone() else {
            return;
        };
        let diff = tokio::task::spawn_blocking(move || changes.diff()).await;
        if let Some(diff) = diff.ok().filter(|diff| !diff.is_empty()) {
            events.emit(Event::DiffUpdated { diff });
        }
    }

    /// A new turn begins although the last one was broken off: its calls get the results that are known.
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
        let kept = Kept::default();
        Self {
            agent,
            session,
            options,
            events: kept.listening(options.events.clone()),
            kept,
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

    /// The loop: assemble, ask, record, act, record, and again. When time is up everything is told to stop.
    async fn until_its_end(&mut self) -> Result<TurnEnd, TurnError> {
        let stop = self.stop.clone();
        let time_is_up = match self.budget.deadline() {
            Some(deadline) => tokio::time::sleep_until(deadline.into()),
            None => tokio::time::sleep(std::time::Duration::from_secs(u64::from(u32::MAX))),
        };
        let rounds = self.rounds();
        tokio::pin!(rounds, time_is_up);
        tokio::select! {
            end = &mut rounds => end,
            () = &mut time_is_up => {
                stop.cancel();
                rounds.await
            }
        }
    }

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

    /// Why no other request may be made.
    fn must_end(&self) -> Option<TurnEnd> {
        if self.options.cancel.is_cancelled() {
            return Some(TurnEnd::Interrupted);
        }
        if self.stop.is_cancelled() {
            return Some(TurnEnd::MaxTime);
        }
        self.budget.reached()
    }

    /// What an earlier process did not get to: results it did not write down, or the end of the turn.
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

    /// What rides inside the newest message, for the whole turn.
    async fn recall(&mut self) {
        let Some(companion) = &self.agent.companion else {
            return;
        };
        let turn = self.session.turn();
        let mut steps = self.session.steps().iter().rev();
        let asked = steps.find(|step| step.turn == turn && step.kind == StepKind::Asked);
        let prompt = match asked.and_then(|step| step.items.first()) {
            Some(TurnItem::Item(Item::Message(message))) => message.text(),
            _ => String::new(),
        };
        self.rides = companion.before(self.session, &prompt).await;
    }

    /// Nothing the turn started outlives it.
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

/// What the answers of a turn took so far.
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

/// What of a turn's expenses its own answers do not account for.
fn by_others(all: Spent, session: &Session) -> Others {
    let own = spent_in(session.steps(), session.turn());
    let cost = (all.cost.unwrap_or(0.0) - own.cost.unwrap_or(0.0)).max(0.0);
    // Money is added up in another order here.
    Others {
        usage: all.usage.beyond(&own.usage),
        cost: if cost < 1e-9 { 0.0 } else { cost },
    }
}

/// Whether an answer that asks for nothing ends the turn, and how.
fn end_of(
    finish: Option<FinishReason>,
    detail: Option<String>,
) -> Result<Option<TurnEnd>, TurnError> {
    match finish {
        // Without a reason it was not heard to its end: the loop knows why.
        Some(FinishReason::Paused) | None => Ok(None),
        Some(FinishReason::Length) => Ok(Some(TurnEnd::Length)),
        Some(FinishReason::Refused) => {
            let words = detail.unwrap_or_else(|| "the model would not answer".to_owned());
            Err(TurnError::new(ModelErrorKind::Refused, words))
        }
        Some(_) => Ok(Some(TurnEnd::Stop)),
    }
}

impl Drop for Turn<'_> {
    /// Also a turn that is let go of ends what it started.
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = self.end_scope().now_or_never();
    }
}

/// The steps a model is still told of.
pub(crate) fn since_compaction(steps: &[Step]) -> &[Step] {
    let last = steps
        .iter()
        .rposition(|step| step.kind == StepKind::Compacted);
    &steps[last.unwrap_or(0)..]
}
