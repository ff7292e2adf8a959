//! One run: pumps the script, submits its calls, answers it, and brings it to an end whatever happens.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use selvedge_protocol::{CallRecord, CallStatus, ErrorCode, Phase, ScriptError};
use selvedge_sandbox::{Fault, Finish, Leash, Outcome, Position, Program, Pump, Request, Runtime, State};
use selvedge_tools::{Arguments, CallOutcome, CallRequest, Orchestrator, Report, Scope, camel_case};
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::bridge::{Bridge, Said, error_facts};
use crate::compile::Compiled;
use crate::globals::is_global;
use crate::meter::Clock;
use crate::outcome::{from_fault, from_syntax, from_thrown, shortened, timed_out};
use crate::preview::preview;

/// Calls beyond the budget a script is told about one by one, before it is ended.
const REFUSALS: usize = 200;
/// Bytes of results kept for the case that the script fails.
const MAX_KEPT: usize = 1 << 20;
/// How long the leash may take to stop a guest.
const LEASH_GRACE: Duration = Duration::from_secs(1);
/// How long after its deadline a run may take to stop its calls.
const HARD_STOP: Duration = Duration::from_secs(2);

/// A script on its way. Everything it started is inside and ends with it.
pub(crate) struct Run<'a> {
    pub(crate) runtime: &'a dyn Runtime,
    pub(crate) orchestrator: &'a Orchestrator,
    pub(crate) compiled: &'a Arc<Compiled>,
    pub(crate) scope: &'a Scope,
    pub(crate) limits: &'a selvedge_protocol::Limits,
    pub(crate) timeout: Duration,
    pub(crate) seed: u64,
    pub(crate) said: &'a Arc<Mutex<Said>>,
    /// Wait for calls nobody awaited instead of stopping them.
    pub(crate) allow_detached: bool,
}

/// How a run ended.
pub(crate) struct Ended {
    /// The returned JSON, if the script returned one.
    pub(crate) result: Result<Option<String>, ScriptError>,
    pub(crate) calls: Vec<CallRecord>,
    /// What finished calls returned: call, tool, JSON.
    pub(crate) results: Vec<(String, String, String)>,
    pub(crate) dispatched: u32,
    pub(crate) heap_peak: u64,
}

/// Calls and timers of a running script.
struct Traffic<'a> {
    run: &'a Run<'a>,
    batches: FuturesUnordered<BoxFuture<'a, ()>>,
    reports: UnboundedReceiver<Report>,
    report_to: UnboundedSender<Report>,
    /// Guest id to call.
    pending: HashMap<u32, Pending>,
    /// Calls that wait for a person.
    asking: HashSet<String>,
    timers: BTreeMap<(Instant, u32), ()>,
    calls: Vec<Option<CallRecord>>,
    results: Vec<(String, String, String)>,
    kept: usize,
    dispatched: u32,
    stubborn: Vec<String>,
}

#[derive(Clone)]
struct Pending {
    call_id: String,
    tool: String,
    at: Option<Position>,
    cancel: CancellationToken,
    /// The script itself gave it up: it lost a race.
    given_up: bool,
}

/// What happened while the script waited.
enum Wake {
    Settle(u32, Result<String, String>),
    Nothing,
    TimeUp,
    Cancelled,
}

impl<'a> Run<'a> {
    pub(crate) async fn to_its_end(&'a self, context: Value) -> Ended {
        let (report_to, reports) = unbounded_channel();
        let mut traffic = Traffic {
            run: self,
            batches: FuturesUnordered::new(),
            reports,
            report_to,
            pending: HashMap::new(),
            asking: HashSet::new(),
            timers: BTreeMap::new(),
            calls: Vec::new(),
            results: Vec::new(),
            kept: 0,
            dispatched: 0,
            stubborn: Vec::new(),
        };
        let mut heap_peak = 0;
        let mut result = self.pump(context, &mut traffic, &mut heap_peak).await;
        let left = traffic.wind_up(result.is_ok() && self.allow_detached).await;
        let stopped: Vec<String> = left.iter().filter_map(|left| traffic.still_running(left)).collect();
        match &mut result {
            Ok(_) => {
                // A call in the queue counts as aborted, like one that ran: its error says which.
                traffic.calls.iter_mut().flatten().filter(|call| call.status == CallStatus::NotStarted).for_each(
                    |call| {
                        call.status = CallStatus::Aborted;
                    },
                );
                for words in stopped {
                    self.said()
                        .warn(format!("{words}, and was stopped: write `await` for what the script should wait for"));
                }
            }
            Err(error) if error.code == ErrorCode::ScriptRuntimeError => {
                error.suggestions.extend(stopped.iter().take(3).map(|words| format!("{words}: was it awaited?")));
            }
            Err(error) if error.code == ErrorCode::ScriptTimeoutError && error.line.is_none() => {
                if let Some(first) = left.first() {
                    (error.line, error.column) = (first.at.map(|at| at.line), first.at.map(|at| at.column));
                    (error.call_id, error.tool_name) = (Some(first.call_id.clone()), Some(first.tool.clone()));
                }
            }
            Err(_) => {}
        }
        let stubborn = std::mem::take(&mut traffic.stubborn);
        let result = match result {
            Ok(value) if !stubborn.is_empty() => Err(detached(&stubborn, value)),
            result => result,
        };
        let mut results = traffic.results;
        // In the order the calls were made, not the order they finished.
        results.sort_by_key(|(call_id, ..)| call_number(call_id));
        Ended {
            result,
            calls: traffic.calls.into_iter().flatten().collect(),
            results,
            dispatched: traffic.dispatched,
            heap_peak,
        }
    }

    async fn pump(
        &'a self,
        context: Value,
        traffic: &mut Traffic<'a>,
        heap_peak: &mut u64,
    ) -> Result<Option<String>, ScriptError> {
        let timeout_ms = self.timeout.as_millis() as u64;
        let fail = |fault: Fault| from_fault(&fault, self.limits, timeout_ms);
        let mut clock = Clock::start(self.timeout);
        let leash = Arc::new(Leash::new(self.timeout));
        let bridge = Bridge {
            said: self.said.clone(),
            compiled: self.compiled.clone(),
            orchestrator: self.orchestrator.clone(),
            scope: self.scope.clone(),
            context,
            max_depth: self.limits.max_value_depth,
        };
        let source = self.source();
        let program = Program {
            source: &source,
            seed: self.seed,
            memory_limit: self.limits.memory_mb << 20,
            stack_limit: self.limits.max_stack_bytes,
            leash: leash.clone(),
        };
        let start = self.runtime.start(program, Box::new(bridge));
        let (mut execution, mut pump) = traffic.while_computing(&leash, clock.deadline(), start).await.map_err(fail)?;
        loop {
            *heap_peak = execution.heap_peak();
            traffic.take_requests(std::mem::take(&mut pump.requests))?;
            if let State::Finished(finish) = pump.state {
                return match finish {
                    Finish::Value(value) => Ok(value),
                    Finish::Exit => Ok(None),
                    Finish::Error(error) => {
                        let made = |id: &str| traffic.calls.iter().flatten().any(|call| call.id == id);
                        let registry = self.orchestrator.registry();
                        Err(from_thrown(&whole_unicode(&error), self.compiled, registry, made))
                    }
                    Finish::Syntax(error) => Err(from_syntax(&error)),
                };
            }
            match self.wait(&mut clock, traffic).await? {
                Wake::Nothing => {}
                Wake::TimeUp => return Err(timed_out(timeout_ms)),
                Wake::Cancelled => return Err(fail(Fault::Cancelled)),
                Wake::Settle(id, answer) => {
                    clock.run();
                    if let Some(deadline) = clock.deadline() {
                        leash.stop_at(deadline);
                    }
                    let outcome = match &answer {
                        Ok(value) => Outcome::Value(value),
                        Err(error) => Outcome::Error(error),
                    };
                    let computing = execution.settle(id, outcome);
                    pump = traffic.while_computing(&leash, clock.deadline(), computing).await.map_err(fail)?;
                    continue;
                }
            }
            pump = Pump { requests: Vec::new(), state: State::Waiting };
        }
    }

    /// Waits until something happens that the script should know, or that ends it.
    async fn wait(&self, clock: &mut Clock, traffic: &mut Traffic<'a>) -> Result<Wake, ScriptError> {
        if traffic.pending.is_empty() && traffic.timers.is_empty() {
            let message = "the script waits for a promise that nothing will ever settle";
            let mut error = ScriptError::new(ErrorCode::ScriptRuntimeError, Phase::Executing, message)
                .suggest("check that every `new Promise` calls its resolve function, and has no async executor");
            error
                .suggestions
                .extend(self.said().rejections.values().map(|words| format!("a promise failed and {words}")));
            return Err(error);
        }
        if traffic.waits_for_a_person() {
            clock.pause()
        } else {
            clock.run()
        }
        let time_up = async {
            match clock.deadline() {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        let timer = traffic.timers.keys().next().copied();
        let ring = async {
            match timer {
                Some((at, _)) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.scope.cancel.cancelled() => Ok(Wake::Cancelled),
            () = time_up => Ok(Wake::TimeUp),
            Some(report) = traffic.reports.recv() => Ok(traffic.take_report(report)),
            () = ring => {
                let Some(((_, id), ())) = traffic.timers.pop_first() else { return Ok(Wake::Nothing) };
                Ok(Wake::Settle(id, Ok("null".to_owned())))
            }
            Some(()) = traffic.batches.next(), if !traffic.batches.is_empty() => Ok(Wake::Nothing),
        }
    }

    /// The compiled script; servers it names without `tools.mcp.` are bound where the name is free.
    fn source(&self) -> Cow<'a, str> {
        let registry = self.orchestrator.registry();
        let servers = self
            .compiled
            .unresolved
            .iter()
            .filter(|name| !is_global(name) && registry.is_namespace(&format!("mcp.{name}")));
        let bound: String = servers.map(|name| format!("const {name} = tools.mcp.{name};")).collect();
        if bound.is_empty() {
            return Cow::Borrowed(&self.compiled.javascript);
        }
        // On the wrapper's own line, so that every position stays what it was.
        Cow::Owned(self.compiled.javascript.replacen("{\n", &format!("{{{bound}\n"), 1))
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> Traffic<'a> {
    /// Lets the guest compute; calls under way go on beside it, and a cancellation reaches it. The leash
    /// stops a guest that computes; one that still waits for its place in the sandbox is let go here.
    async fn while_computing<T>(
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
        tokio::pin!(guest, too_late, given_up);
        loop {
            tokio::select! {
                biased;
                done = &mut guest => return done,
                () = &mut given_up => return Err(Fault::Cancelled),
                () = &mut too_late => return Err(Fault::Deadline),
                Some(()) = self.batches.next(), if !self.batches.is_empty() => {}
            }
        }
    }

    /// Submits all calls of a pump as one batch.
    fn take_requests(&mut self, requests: Vec<Request>) -> Result<(), ScriptError> {
        let calls = requests.iter().filter(|request| matches!(request, Request::Call { .. })).count();
        let max = self.run.limits.max_tool_calls;
        if self.calls.len() + calls > max as usize + REFUSALS {
            let message = format!("this script may make {max} tool calls, and went on when it was told so");
            return Err(ScriptError::new(ErrorCode::ToolBudgetExceededError, Phase::Executing, message)
                .suggest("do more with each call, or split the work into several scripts"));
        }
        let mut batch = Vec::new();
        for request in requests {
            match request {
                Request::Call { id, path, args, at } => batch.push(self.accept(id, path, &whole_unicode(&args), at)),
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
        if !batch.is_empty() {
            let run = self.run;
            self.batches.push(Box::pin(run.orchestrator.run_batch(run.scope, batch, self.report_to.clone())));
        }
        Ok(())
    }

    fn accept(&mut self, id: u32, path: String, args: &str, at: Option<Position>) -> CallRequest {
        let tool = self
            .run
            .orchestrator
            .registry()
            .get(&path)
            .map_or_else(|| shortened(&path, 80), |tool| tool.spec.name.clone());
        self.calls.push(None);
        let call_id = format!("tool_{}", self.calls.len());
        let at = at.and_then(|at| self.run.compiled.locate(at));
        let cancel = self.run.scope.cancel.child_token();
        // A call beyond the budget is refused whatever it says.
        let refused = self.calls.len() > self.run.limits.max_tool_calls as usize;
        let args = match serde_json::from_str(if refused { "[]" } else { args }) {
            Ok(Value::Array(list)) => list,
            _ => Vec::new(),
        };
        self.pending
            .insert(id, Pending { call_id: call_id.clone(), tool, at, cancel: cancel.clone(), given_up: false });
        CallRequest { id: call_id, tool: path, args: Arguments::List(args), line: at.map(|at| at.line), cancel }
    }

    fn take_report(&mut self, report: Report) -> Wake {
        match report {
            Report::Asking { request_id, calls } => {
                self.run.said().last_approval = Some(request_id);
                self.asking.extend(calls);
            }
            Report::Answered(calls) => calls.iter().for_each(|call| _ = self.asking.remove(call)),
            Report::Finished(outcome) => {
                let id =
                    self.pending.iter().find(|(_, pending)| pending.call_id == outcome.record.id).map(|(id, _)| *id);
                let Some((id, pending)) = id.and_then(|id| self.pending.remove_entry(&id)) else {
                    return Wake::Nothing;
                };
                return Wake::Settle(id, self.record(*outcome, &pending));
            }
        }
        Wake::Nothing
    }

    /// Writes a finished call into the ledger and returns what the script is told.
    fn record(&mut self, outcome: CallOutcome, pending: &Pending) -> Result<String, String> {
        let CallOutcome { record, result, stubborn, dispatched } = outcome;
        self.dispatched += u32::from(dispatched);
        if stubborn {
            self.stubborn.push(format!("{} ({})", record.id, record.tool));
        }
        let answer = match result {
            Ok(output) => {
                let json = output.value.to_string();
                self.kept += json.len();
                let kept = if self.kept <= MAX_KEPT { json.clone() } else { format!("\"… {} bytes\"", json.len()) };
                self.results.push((record.id.clone(), record.tool.clone(), kept));
                Ok(json)
            }
            Err(mut failure) => {
                failure.message = shortened(&failure.message, 2048);
                Err(error_facts(failure.code, &failure, &record.tool, &record.id, pending.at))
            }
        };
        let index = call_number(&record.id).saturating_sub(1);
        if let Some(slot) = self.calls.get_mut(index) {
            *slot = Some(record);
        }
        answer
    }

    fn waits_for_a_person(&self) -> bool {
        !self.pending.is_empty() && self.pending.values().all(|pending| self.asking.contains(&pending.call_id))
    }

    /// What to say of a call that was pending at the end, unless it finished after all or was given up.
    fn still_running(&self, left: &Pending) -> Option<String> {
        let record = self.calls.get(call_number(&left.call_id).checked_sub(1)?)?.as_ref()?;
        let stopped =
            matches!(record.status, CallStatus::Aborted | CallStatus::NotStarted | CallStatus::OutcomeUnknown);
        let line = left.at.map(|at| format!(" in line {}", at.line)).unwrap_or_default();
        let tool = camel_case(&left.tool);
        (stopped && !left.given_up)
            .then(|| format!("{} (tools.{tool}{line}) was still running when the script ended", left.call_id))
    }

    /// Takes reports until no call is pending, time is up, or somebody cancels.
    async fn settle_until(&mut self, limit: Instant, cancel: &CancellationToken) {
        while !self.pending.is_empty() {
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
    async fn wind_up(&mut self, wait_for_them: bool) -> Vec<Pending> {
        let mut left: Vec<Pending> = self.pending.values().cloned().collect();
        left.sort_by_key(|pending| call_number(&pending.call_id));
        if wait_for_them {
            let limit = Instant::now() + self.run.timeout;
            self.settle_until(limit, &self.run.scope.cancel.clone()).await;
        }
        self.run.scope.cancel.cancel();
        self.settle_until(Instant::now() + HARD_STOP, &CancellationToken::new()).await;
        // Whatever did not even answer is dropped with its batch, and nobody knows how far it came.
        for pending in std::mem::take(&mut self.pending).into_values() {
            let index = call_number(&pending.call_id).saturating_sub(1);
            self.stubborn.push(format!("{} ({})", pending.call_id, pending.tool));
            if let Some(slot) = self.calls.get_mut(index) {
                *slot = Some(CallRecord {
                    id: pending.call_id,
                    tool: pending.tool,
                    status: CallStatus::OutcomeUnknown,
                    reused: false,
                    duration_ms: 0.0,
                    args_digest: String::new(),
                    line: pending.at.map(|at| at.line),
                    error: None,
                });
            }
        }
        self.batches.clear();
        left
    }
}

fn detached(stubborn: &[String], value: Option<String>) -> ScriptError {
    let message = format!("the script ended while calls were running that did not stop: {}", stubborn.join(", "));
    let mut error = ScriptError::new(ErrorCode::DetachedPromiseError, Phase::Finalizing, message)
        .suggest("await every call before the script returns");
    if let Some(value) = value.and_then(|json| serde_json::from_str::<Value>(&json).ok()) {
        // Cut as JSON, so that it stays JSON.
        let returned = serde_json::from_str(&preview(&value, 8 << 10)).unwrap_or(Value::Null);
        error = error.with("returned", returned);
    }
    error
}

/// `tool_12` → 12.
fn call_number(call_id: &str) -> usize {
    call_id.rsplit('_').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// JSON text of a script may hold half a surrogate pair, which no Unicode text can: it becomes U+FFFD.
pub(crate) fn whole_unicode(json: &str) -> std::borrow::Cow<'_, str> {
    if !json.contains("\\ud") {
        return json.into();
    }
    let bytes = json.as_bytes();
    let unit = |at: usize| -> Option<u16> {
        let hex = (bytes.get(at)? == &b'\\' && bytes.get(at + 1)? == &b'u').then(|| json.get(at + 2..at + 6))??;
        u16::from_str_radix(hex, 16).ok()
    };
    let mut out = String::with_capacity(json.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            let end = json[at..].find('\\').map_or(json.len(), |step| at + step);
            out.push_str(&json[at..end]);
            at = end;
            continue;
        }
        let width = match unit(at) {
            Some(0xD800..=0xDBFF) if matches!(unit(at + 6), Some(0xDC00..=0xDFFF)) => 12,
            Some(0xD800..=0xDFFF) => {
                out.push_str("\\ufffd");
                at += 6;
                continue;
            }
            Some(_) => 6,
            None => 2,
        };
        let end = (at + width).min(json.len());
        out.push_str(json.get(at..end).unwrap_or_default());
        at = end;
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::whole_unicode;

    #[test]
    fn half_surrogates_become_replacement_characters() {
        for (given, wanted) in [
            (r#"["\ud83d\ude00"]"#, r#"["\ud83d\ude00"]"#),
            (r#"["\ud83d"]"#, r#"["\ufffd"]"#),
            (r#"["a\ude00\ud83db\\ud800"]"#, r#"["a\ufffd\ufffdb\\ud800"]"#),
            (r#"["\\\ud800"]"#, r#"["\\\ufffd"]"#),
            (r#"["ü\ud800"]"#, r#"["ü\ufffd"]"#),
        ] {
            assert_eq!(whole_unicode(given), wanted);
            serde_json::from_str::<serde_json::Value>(&whole_unicode(given)).unwrap();
        }
    }
}
