//! What goes back and forth between a running script and its tools: calls, timers, results.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use selvedge_protocol::{CallRecord, CallStatus, ErrorCode, Phase, ScriptError};
use selvedge_sandbox::{Fault, Leash, Position, Request};
use selvedge_tools::{Arguments, CallOutcome, CallRequest, Report, SoFar, WaitsFor, camel_case};
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::bridge::error_facts;
use crate::first_line::SOON;
use crate::outcome::shortened;
use crate::run::Run;
use crate::suspension::{Paused, Waiting};
use crate::unicode::whole_unicode;

/// Calls beyond the budget a script is told about one by one, before it is ended.
const REFUSALS: usize = 200;
/// Bytes of results kept for the case that the script fails.
const MAX_KEPT: usize = 1 << 20;
/// How often a script that waits for people is written down.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);
/// How long the leash may take to stop a guest.
const LEASH_GRACE: Duration = Duration::from_secs(1);
/// How long after its deadline a run may take to stop its calls.
const HARD_STOP: Duration = Duration::from_secs(2);

/// Calls and timers of a running script.
pub(crate) struct Traffic<'a> {
    pub(crate) run: &'a Run<'a>,
    pub(crate) batches: FuturesUnordered<BoxFuture<'a, ()>>,
    pub(crate) reports: UnboundedReceiver<Report>,
    report_to: UnboundedSender<Report>,
    /// Guest id to call.
    pub(crate) pending: HashMap<u32, Pending>,
    /// Calls that wait for a person.
    asking: HashMap<String, SoFar>,
    /// Calls that wait for somebody on their way, as often as they do: for people, and for models.
    waiting: HashMap<String, Vec<WaitsFor>>,
    /// Calls that are over, of which the script was not told yet.
    pub(crate) untold: VecDeque<(u32, String, Result<String, String>)>,
    /// The script as it stands is in the ledger.
    pub(crate) kept_as_it_is: bool,
    /// When it was last written there.
    pub(crate) kept_at: Option<Instant>,
    /// Another process goes on with the script.
    pub(crate) elsewhere: bool,
    /// A question will be answered later: as soon as nothing else is to wait for, the script is put away.
    pub(crate) to_be_left: bool,
    /// Played, the script does other things than it did.
    pub(crate) left_the_road: bool,
    pub(crate) timers: BTreeMap<(Instant, u32), ()>,
    pub(crate) calls: Vec<Vec<CallRecord>>,
    pub(crate) results: Vec<(String, String, String)>,
    kept: usize,
    pub(crate) dispatched: u32,
    pub(crate) stubborn: Vec<String>,
}

#[derive(Clone)]
pub(crate) struct Pending {
    pub(crate) call_id: String,
    pub(crate) tool: String,
    pub(crate) at: Option<Position>,
    /// As the script wrote it.
    pub(crate) path: String,
    /// A JSON array, where somebody may need it again.
    pub(crate) args: String,
    cancel: CancellationToken,
    /// It waits for a model.
    takes_its_time: bool,
    /// The script itself gave it up: it lost a race.
    given_up: bool,
}

/// What happened while the script waited.
pub(crate) enum Wake {
    /// A call is over.
    Settle(u32, String, Result<String, String>),
    /// A timer rang.
    Ring(u32),
    Nothing,
    TimeUp,
    Cancelled,
    /// Somebody wants the script put away.
    Suspend,
    /// Another process goes on with it.
    TakenOver,
    /// What was recorded is over.
    TapeOver,
}

impl<'a> Traffic<'a> {
    pub(crate) fn new(run: &'a Run<'a>) -> Self {
        let (report_to, reports) = unbounded_channel();
        Self {
            run,
            batches: FuturesUnordered::new(),
            reports,
            report_to,
            pending: HashMap::new(),
            asking: HashMap::new(),
            waiting: HashMap::new(),
            untold: VecDeque::new(),
            kept_as_it_is: false,
            kept_at: None,
            elsewhere: false,
            to_be_left: false,
            left_the_road: false,
            timers: BTreeMap::new(),
            calls: Vec::new(),
            results: Vec::new(),
            kept: 0,
            dispatched: 0,
            stubborn: Vec::new(),
        }
    }

    /// Lets the guest compute; calls under way go on beside it, and a cancellation reaches it. The leash
    /// stops a guest that computes; one that still waits for its place in the sandbox is let go here.
    pub(crate) async fn while_computing<T>(
        &mut self,
        leash: &Leash,
        deadline: Option<Instant>,
        guest: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let cancel = &self.run.scope.cancel;
        let too_late = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until((deadline + LEASH_GRACE).into()).await,
                None => std::future::pending().await,
            }
        };
        let given_up = async {
            cancel.cancelled().await;
            leash.cut();
            tokio::time::sleep(LEASH_GRACE).await;
        };
        let run = self.run;
        let takes_long = async {
            tokio::time::sleep(SOON).await;
            // Where it cannot be written down, the script hears of it before it does anything.
            let _ = run.write_first_line();
            std::future::pending::<()>().await;
        };
        tokio::pin!(guest, too_late, given_up, takes_long);
        loop {
            tokio::select! {
                biased;
                done = &mut guest => return done,
                () = &mut given_up => return Err(Fault::Cancelled),
                () = &mut too_late => return Err(Fault::Deadline),
                () = &mut takes_long => {}
                Some(()) = self.batches.next(), if !self.batches.is_empty() => {}
            }
        }
    }

    /// Submits all calls of a pump as one batch.
    pub(crate) fn take_requests(&mut self, requests: Vec<Request>) -> Result<(), ScriptError> {
        let calls = requests
            .iter()
            .filter(|request| matches!(request, Request::Call { .. }))
            .count();
        let max = self.run.limits.max_tool_calls;
        if self.calls.len() + calls > max as usize + REFUSALS {
            let message =
                format!("this script may make {max} tool calls, and went on when it was told so");
            return Err(ScriptError::new(
                ErrorCode::ToolBudgetExceededError,
                Phase::Executing,
                message,
            )
            .suggest("do more with each call, or split the work into several scripts"));
        }
        let mut batch = Vec::new();
        for request in requests {
            match request {
                Request::Call { id, path, args, at } => {
                    let args = whole_unicode(&args);
                    self.run.head().made(&path, &args);
                    batch.push(self.accept(id, path, &args, at));
                }
                Request::Sleep { id, ms } => {
                    let wait = Duration::from_secs_f64((ms / 1000.0).clamp(0.0, 1e6));
                    self.timers.insert((Instant::now() + wait, id), ());
                }
                Request::Cancel { id } => {
                    self.timers.retain(|(_, timer), ()| *timer != id);
                    if let Some(pending) = self.pending.get_mut(&id) {
                        pending.given_up = true;
                        pending.cancel.cancel();
                    }
                }
            }
        }
        // Played, the tape answers.
        if !self.run.head().is_playing() {
            self.submit(batch);
        }
        Ok(())
    }

    fn submit(&mut self, batch: Vec<CallRequest>) {
        if !batch.is_empty() {
            let run = self.run;
            self.batches.push(Box::pin(run.orchestrator.run_batch(
                run.scope,
                batch,
                self.report_to.clone(),
            )));
        }
    }

    fn accept(&mut self, id: u32, path: String, args: &str, at: Option<Position>) -> CallRequest {
        self.calls.push(Vec::new());
        let call_id = format!("tool_{}", self.calls.len());
        let tool = self.run.tool_name(&path, &call_id);
        let at = at.and_then(|at| self.run.compiled.locate(at));
        let cancel = self.run.scope.cancel.child_token();
        // A call beyond the budget is refused whatever it says.
        let refused = self.calls.len() > self.run.limits.max_tool_calls as usize;
        let list = arguments(if refused { "[]" } else { args });
        let args = if self.run.head().is_on() {
            args.to_owned()
        } else {
            String::new()
        };
        let pending = Pending {
            call_id: call_id.clone(),
            tool,
            at,
            takes_its_time: self.takes_its_time(&path),
            path: path.clone(),
            args,
            cancel: cancel.clone(),
            given_up: false,
        };
        self.pending.insert(id, pending);
        CallRequest {
            id: call_id,
            tool: path,
            args: list,
            line: at.map(|at| at.line),
            cancel,
        }
    }

    /// What another process needs to go on with these calls and timers.
    pub(crate) fn pause(&self) -> Paused {
        let now = Instant::now();
        let mut waiting: Vec<Waiting> = self
            .pending
            .iter()
            .map(|(id, pending)| Waiting {
                id: *id,
                call_id: pending.call_id.clone(),
                tool: pending.tool.clone(),
                path: pending.path.clone(),
                args: pending.args.clone(),
                at: pending.at.map(|at| (at.line, at.column)),
                given_up: pending.given_up,
            })
            .collect();
        waiting.sort_by_key(|waiting| call_number(&waiting.call_id));
        Paused {
            timers: self
                .timers
                .keys()
                .map(|(at, id)| (*id, at.saturating_duration_since(now)))
                .collect(),
            waiting,
            untold: self.untold.iter().cloned().collect(),
            calls: self.calls.clone(),
            results: self.results.clone(),
            kept: self.kept,
            dispatched: self.dispatched,
        }
    }

    /// Goes on with calls and timers that were put away: what waits for a person is asked for again.
    pub(crate) fn take_up(&mut self, paused: &Paused) {
        let now = Instant::now();
        self.timers = paused
            .timers
            .iter()
            .map(|(id, left)| ((now + *left, *id), ()))
            .collect();
        self.untold = paused.untold.iter().cloned().collect();
        self.calls = paused.calls.clone();
        self.results = paused.results.clone();
        self.kept = paused.kept;
        self.dispatched = paused.dispatched;
        self.pending.clear();
        let mut batch = Vec::new();
        for waiting in &paused.waiting {
            let cancel = self.run.scope.cancel.child_token();
            if waiting.given_up {
                cancel.cancel();
            }
            let pending = Pending {
                call_id: waiting.call_id.clone(),
                tool: waiting.tool.clone(),
                at: waiting.position(),
                path: waiting.path.clone(),
                args: waiting.args.clone(),
                cancel: cancel.clone(),
                takes_its_time: self.takes_its_time(&waiting.path),
                given_up: waiting.given_up,
            };
            self.pending.insert(waiting.id, pending);
            batch.push(CallRequest {
                id: waiting.call_id.clone(),
                tool: waiting.path.clone(),
                args: arguments(&waiting.args),
                line: waiting.at.map(|(line, _)| line),
                cancel,
            });
        }
        self.submit(batch);
    }

    /// Whether there is nothing to wait for but people, and timers.
    pub(crate) fn rests(&self) -> bool {
        // What was answered but not yet heard of is no question any more.
        self.reports.is_empty()
            && self.untold.is_empty()
            && !self.pending.is_empty()
            && self.nothing_runs()
    }

    /// A script that ticks while a question is open is not written down at every tick: what was written before is as good,
    /// as long as it has done nothing since.
    pub(crate) fn is_time_to_keep(&self) -> bool {
        self.keep_at().is_none_or(|at| at <= Instant::now())
    }

    /// When it is time to write it down anew.
    pub(crate) fn keep_at(&self) -> Option<Instant> {
        self.kept_at
            .filter(|_| !self.kept_as_it_is && self.rests())
            .map(|at| at + KEEP_INTERVAL)
    }

    /// Whether every pending call waits for a person before anything was done of it.
    fn nothing_runs(&self) -> bool {
        self.pending
            .values()
            .all(|pending| self.asking.get(&pending.call_id) == Some(&SoFar::Nothing))
    }

    /// Waits for calls under way, without telling the script of them.
    pub(crate) async fn let_them_finish(&mut self, deadline: Option<Instant>) -> Wake {
        while !(self.reports.is_empty() && self.nothing_runs()) {
            let time_up = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.run.scope.cancel.cancelled() => return Wake::Cancelled,
                () = time_up => return Wake::TimeUp,
                Some(report) = self.reports.recv() => match self.take_report(report) {
                    Wake::Settle(id, call, answer) => self.untold.push_back((id, call, answer)),
                    Wake::TakenOver => return Wake::TakenOver,
                    _ => {}
                },
                Some(()) = self.batches.next(), if !self.batches.is_empty() => {}
            }
        }
        Wake::Suspend
    }

    /// Drops everything as it stands: it is written down, and somebody else goes on.
    pub(crate) fn let_go(&mut self) {
        self.batches.clear();
        self.run.scope.end();
        let mut left: Vec<Pending> = std::mem::take(&mut self.pending).into_values().collect();
        left.sort_by_key(|pending| call_number(&pending.call_id));
        for pending in left {
            self.write_down(unsettled(pending, CallStatus::NotStarted));
        }
    }

    pub(crate) fn take_report(&mut self, report: Report) -> Wake {
        match report {
            Report::Asking {
                request_id,
                calls,
                so_far,
            } => {
                self.run.said().last_approval = Some(request_id);
                self.asking
                    .extend(calls.into_iter().map(|call| (call, so_far)));
            }
            Report::Answered(calls) => calls.iter().for_each(|call| _ = self.asking.remove(call)),
            Report::Waits(call, whom) => self.waiting.entry(call).or_default().push(whom),
            Report::GoesOn(call, whom) => {
                if let Some(waits) = self.waiting.get_mut(&call)
                    && let Some(at) = waits.iter().position(|other| *other == whom)
                {
                    waits.swap_remove(at);
                }
            }
            Report::Later => self.to_be_left = true,
            Report::TakenOver => {
                self.elsewhere = true;
                return Wake::TakenOver;
            }
            Report::Repeated(record) => {
                self.dispatched += 1;
                self.write_down(record);
            }
            Report::Finished(outcome) => {
                let id = self
                    .pending
                    .iter()
                    .find(|(_, pending)| pending.call_id == outcome.settles)
                    .map(|(id, _)| *id);
                let Some((id, pending)) = id.and_then(|id| self.pending.remove_entry(&id)) else {
                    return Wake::Nothing;
                };
                // What settles it may be its second attempt.
                let call = outcome.record.id.clone();
                return Wake::Settle(id, call, self.record(*outcome, &pending));
            }
        }
        Wake::Nothing
    }

    /// Writes a finished call into the ledger and returns what the script is told.
    fn record(&mut self, outcome: CallOutcome, pending: &Pending) -> Result<String, String> {
        let CallOutcome {
            record,
            result,
            stubborn,
            dispatched,
            ..
        } = outcome;
        self.dispatched += u32::from(dispatched);
        if stubborn {
            self.stubborn
                .push(format!("{} ({})", record.id, record.tool));
        }
        let answer = match result {
            Ok(output) => {
                let json = output.value.to_string();
                self.keep(&record.id, &record.tool, &json);
                Ok(json)
            }
            Err(mut failure) => {
                failure.message = shortened(&failure.message, 2048);
                Err(error_facts(
                    failure.code,
                    &failure,
                    &record.tool,
                    &record.id,
                    pending.at,
                ))
            }
        };
        self.write_down(record);
        answer
    }

    /// Keeps a result for the case that the script fails.
    pub(crate) fn keep(&mut self, call_id: &str, tool: &str, json: &str) {
        self.kept += json.len();
        let kept = if self.kept <= MAX_KEPT {
            json.to_owned()
        } else {
            format!("\"… {} bytes\"", json.len())
        };
        self.results
            .push((call_id.to_owned(), tool.to_owned(), kept));
    }

    /// A line in the ledger, beside the others of the same call.
    pub(crate) fn write_down(&mut self, record: CallRecord) {
        if let Some(slot) = self
            .calls
            .get_mut(call_number(&record.id).saturating_sub(1))
        {
            slot.push(record);
        }
    }

    pub(crate) fn waits_for_a_person(&self) -> bool {
        !self.pending.is_empty()
            && self
                .pending
                .values()
                .all(|pending| self.needs_a_person(pending))
    }

    fn needs_a_person(&self, pending: &Pending) -> bool {
        let call = &pending.call_id;
        self.asking.contains_key(call)
            || self
                .waiting
                .get(call)
                .is_some_and(|who| who.contains(&WaitsFor::Person))
    }

    /// Whether every pending call waits for a model, or for a person.
    pub(crate) fn waits_for_a_model(&self) -> bool {
        let waits = |pending: &Pending| {
            let for_somebody = || {
                self.waiting
                    .get(&pending.call_id)
                    .is_some_and(|who| !who.is_empty())
            };
            pending.takes_its_time || self.needs_a_person(pending) || for_somebody()
        };
        !self.pending.is_empty() && self.pending.values().all(waits)
    }

    fn takes_its_time(&self, path: &str) -> bool {
        self.run
            .orchestrator
            .registry()
            .get(path)
            .is_some_and(|tool| tool.tool.takes_its_time())
    }

    /// What to say of a call that was pending at the end, unless it finished after all or was given up.
    pub(crate) fn still_running(&self, left: &Pending) -> Option<String> {
        let record = self
            .calls
            .get(call_number(&left.call_id).checked_sub(1)?)?
            .last()?;
        let stopped = matches!(
            record.status,
            CallStatus::Aborted | CallStatus::NotStarted | CallStatus::OutcomeUnknown
        );
        let line = left
            .at
            .map(|at| format!(" in line {}", at.line))
            .unwrap_or_default();
        let tool = camel_case(&left.tool);
        (stopped && !left.given_up).then(|| {
            format!(
                "{} (tools.{tool}{line}) was still running when the script ended",
                left.call_id
            )
        })
    }

    /// Takes reports until no call is pending, time is up, or somebody cancels.
    async fn settle_until(&mut self, limit: Instant, cancel: &CancellationToken) {
        while !self.pending.is_empty() && !self.elsewhere {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(limit.into()) => return,
                () = cancel.cancelled() => return,
                Some(report) = self.reports.recv() => { self.take_report(report); }
                Some(()) = self.batches.next(), if !self.batches.is_empty() => {}
            }
        }
    }

    /// Brings every call to an end, and returns those that were pending.
    pub(crate) async fn wind_up(&mut self, wait_for_them: bool) -> Vec<Pending> {
        let mut left: Vec<Pending> = self.pending.values().cloned().collect();
        left.sort_by_key(|pending| call_number(&pending.call_id));
        if wait_for_them {
            let limit = Instant::now() + self.run.timeout;
            self.settle_until(limit, &self.run.scope.cancel.clone())
                .await;
        }
        self.run.scope.cancel.cancel();
        self.settle_until(Instant::now() + HARD_STOP, &CancellationToken::new())
            .await;
        // Whatever did not even answer is dropped with its batch, and nobody knows how far it came.
        for pending in std::mem::take(&mut self.pending).into_values() {
            self.stubborn
                .push(format!("{} ({})", pending.call_id, pending.tool));
            self.write_down(unsettled(pending, CallStatus::OutcomeUnknown));
        }
        self.batches.clear();
        self.run.scope.end();
        left
    }
}

fn arguments(json: &str) -> Arguments {
    match serde_json::from_str(json) {
        Ok(Value::Array(list)) => Arguments::List(list),
        _ => Arguments::List(Vec::new()),
    }
}

/// The line of a call that nothing more is known of.
fn unsettled(pending: Pending, status: CallStatus) -> CallRecord {
    CallRecord {
        id: pending.call_id,
        tool: pending.tool,
        status,
        reused: false,
        duration_ms: 0.0,
        args_digest: String::new(),
        line: pending.at.map(|at| at.line),
        error: None,
    }
}

/// `tool_12` and `tool_12.again` → 12.
pub(crate) fn call_number(call_id: &str) -> usize {
    let number = call_id
        .rsplit('_')
        .next()
        .and_then(|number| number.split('.').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
