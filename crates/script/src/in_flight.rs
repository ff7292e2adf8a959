//! Calls and timers of a running script, from the guest's request to its answer.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use selvedge_protocol::{CallRecord, CallStatus, ErrorCode, Phase, ScriptError};
use selvedge_sandbox::{Fault, GuestRequest, InterruptHandle, Position};
use selvedge_tools::{
    ApprovalTiming, BatchReport, CallArguments, CallOutcome, CallRequest, camel_case,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::call_log::{CallLog, call_number};
use crate::clock::{RunActivity, sleep_until};
use crate::context::RunContext;
use crate::errors::truncate_bytes;
use crate::run_record::RUN_START_DELAY;
use crate::script_host::call_error_json;
use crate::suspension::SuspendedCalls;
use crate::unicode::replace_lone_surrogates;

/// How many calls beyond the limit fail one by one. With one more, the script is stopped.
const MAX_REFUSED_CALLS: usize = 200;
/// Time that a guest has to stop after its deadline or cancellation.
const INTERRUPT_GRACE_PERIOD: Duration = Duration::from_secs(1);

/// Owns the calls and timers of a running script, and the log of its calls.
pub(crate) struct InFlightCalls<'a> {
    pub(crate) context: &'a RunContext<'a>,
    pub(crate) batches: FuturesUnordered<BoxFuture<'a, ()>>,
    pub(crate) reports: UnboundedReceiver<BatchReport>,
    report_sender: UnboundedSender<BatchReport>,
    /// Calls that are not settled, by guest id.
    pub(crate) pending: HashMap<u32, PendingCall>,
    /// Answers that are held back from the guest.
    pub(crate) held_answers: VecDeque<CallAnswer>,
    pub(crate) timers: BTreeSet<(Instant, u32)>,
    pub(crate) log: CallLog,
}

/// The answer that settles a call: guest id, id of the call that produced it, value or error as
/// JSON.
pub(crate) type CallAnswer = (u32, String, Result<String, String>);

/// A call as the guest made it. Part of a suspended run's state.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GuestCall {
    /// The guest's id.
    id: u32,
    pub(crate) call_id: String,
    pub(crate) tool: String,
    /// The tool's name as the script wrote it.
    pub(crate) path: String,
    /// A JSON array. Empty if there is no recording.
    pub(crate) args: String,
    /// Line and column in the script.
    pub(crate) at: Option<(u32, u32)>,
    /// The script cancelled the call, because the call lost a race.
    #[serde(default)]
    abandoned: bool,
}

impl GuestCall {
    pub(crate) fn line(&self) -> Option<u32> {
        self.at.map(|(line, _)| line)
    }

    /// Creates a record for a call of which only the status is known.
    fn into_record(self, status: CallStatus) -> CallRecord {
        CallRecord {
            line: self.line(),
            id: self.call_id,
            tool: self.tool,
            status,
            reused: false,
            duration_ms: 0.0,
            args_digest: String::new(),
            error: None,
            exit_code: None,
        }
    }
}

/// A call that is not settled.
pub(crate) struct PendingCall {
    pub(crate) call: GuestCall,
    cancel: CancellationToken,
    /// Whether the tool runs, within the time limit of the call.
    pub(crate) tool_runs: bool,
    /// Set while the call waits for an approval: whether the approval was requested before or after
    /// the call started.
    open_approval: Option<ApprovalTiming>,
    /// For how many answers of a person the running call waits.
    pub(crate) waits: u32,
}

impl PendingCall {
    fn waits_for_person(&self) -> bool {
        self.open_approval.is_some() || self.waits > 0
    }
}

impl<'a> InFlightCalls<'a> {
    pub(crate) fn new(context: &'a RunContext<'a>) -> Self {
        let (report_to, reports) = unbounded_channel();
        Self {
            context,
            batches: FuturesUnordered::new(),
            reports,
            report_sender: report_to,
            pending: HashMap::new(),
            held_answers: VecDeque::new(),
            timers: BTreeSet::new(),
            log: CallLog::default(),
        }
    }

    /// Lets the guest compute while calls continue. A cancellation or the deadline interrupts the
    /// guest. A guest that has not stopped after a grace period, for example because the runtime
    /// has no free instance for it yet, is dropped.
    pub(crate) async fn run_guest<T>(
        &mut self,
        interrupt: &InterruptHandle,
        deadline: Option<Instant>,
        guest: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let context = self.context;
        let overdue = sleep_until(deadline.map(|deadline| deadline + INTERRUPT_GRACE_PERIOD));
        let cancelled = async {
            context.scope.cancel.cancelled().await;
            interrupt.cancel();
            tokio::time::sleep(INTERRUPT_GRACE_PERIOD).await;
        };
        let record_start_late = async {
            tokio::time::sleep(RUN_START_DELAY).await;
            // A failure is reported before the script's first call.
            let _ = context.ensure_start_recorded().await;
            std::future::pending::<()>().await;
        };
        tokio::pin!(guest, overdue, cancelled, record_start_late);
        loop {
            tokio::select! {
                biased;
                done = &mut guest => return done,
                () = &mut cancelled => return Err(Fault::Cancelled),
                () = &mut overdue => return Err(Fault::Deadline),
                () = &mut record_start_late => {}
                Some(()) = self.batches.next(), if !self.batches.is_empty() => {}
            }
        }
    }

    /// Handles the guest's requests. Its calls are submitted as one batch.
    pub(crate) fn handle_requests(
        &mut self,
        requests: Vec<GuestRequest>,
    ) -> Result<(), ScriptError> {
        let calls = requests
            .iter()
            .filter(|request| matches!(request, GuestRequest::Call { .. }))
            .count();
        if self.log.records.len() + calls > self.context.max_calls() + MAX_REFUSED_CALLS {
            let message = "the script kept calling tools beyond its limits of calls";
            let code = ErrorCode::ToolBudgetExceededError;
            return Err(ScriptError::new(code, Phase::Executing, message)
                .suggest("do more with each call, or split the work into several scripts"));
        }
        let mut batch = Vec::new();
        for request in requests {
            match request {
                GuestRequest::Call { id, path, args, at } => {
                    let args = replace_lone_surrogates(&args);
                    self.context
                        .lock_recorder()
                        .record_or_check_call(&path, &args);
                    batch.push(self.add_call(id, path, &args, at));
                }
                GuestRequest::Sleep { id, ms } => {
                    let wait = Duration::from_secs_f64((ms / 1000.0).clamp(0.0, 1e6));
                    self.timers.insert((Instant::now() + wait, id));
                }
                GuestRequest::Cancel { id } => {
                    self.remove_timer(id);
                    if let Some(pending) = self.pending.get_mut(&id) {
                        pending.call.abandoned = true;
                        pending.cancel.cancel();
                    }
                }
            }
        }
        // On replay, the recording answers the calls.
        if !self.context.lock_recorder().is_replaying() {
            self.submit(batch);
        }
        Ok(())
    }

    pub(crate) fn remove_timer(&mut self, id: u32) {
        self.timers.retain(|(_, timer)| *timer != id);
    }

    fn submit(&mut self, batch: Vec<CallRequest>) {
        if !batch.is_empty() {
            let (orchestrator, scope) = (self.context.orchestrator, self.context.scope);
            let batch = orchestrator.run_batch(scope, batch, self.report_sender.clone());
            self.batches.push(Box::pin(batch));
        }
    }

    fn add_call(&mut self, id: u32, path: String, args: &str, at: Option<Position>) -> CallRequest {
        let call_id = self.log.add_call();
        // A call beyond the limit is refused whatever its arguments are.
        let refused = self.log.records.len() > self.context.max_calls();
        let arguments = parse_arguments(if refused { "[]" } else { args });
        let at = at.and_then(|at| self.context.compiled.original_position(at));
        let recorded = self.context.lock_recorder().is_enabled();
        let call = GuestCall {
            id,
            tool: self.context.tool_name(&path, &call_id),
            call_id,
            path,
            args: if recorded { args } else { "" }.to_owned(),
            at: at.map(|at| (at.line, at.column)),
            abandoned: false,
        };
        self.add_pending(call, arguments)
    }

    fn add_pending(&mut self, call: GuestCall, args: CallArguments) -> CallRequest {
        let cancel = self.context.scope.cancel.child_token();
        if call.abandoned {
            cancel.cancel();
        }
        let request = CallRequest {
            id: call.call_id.clone(),
            tool: call.path.clone(),
            args,
            line: call.line(),
            cancel: cancel.clone(),
        };
        let pending = PendingCall {
            tool_runs: false,
            cancel,
            open_approval: None,
            waits: 0,
            call,
        };
        self.pending.insert(pending.call.id, pending);
        request
    }

    /// Returns the calls and timers in the form that another process restores.
    pub(crate) fn to_suspended(&self) -> SuspendedCalls {
        let now = Instant::now();
        let timers = self.timers.iter();
        SuspendedCalls {
            timers: timers
                .map(|(at, id)| (*id, at.saturating_duration_since(now)))
                .collect(),
            waiting: self.pending_in_order(),
            held_answers: self.held_answers.iter().cloned().collect(),
            log: self.log.clone(),
        }
    }

    /// Restores calls and timers. Calls that waited for a person are submitted again.
    pub(crate) fn restore(&mut self, suspended: &SuspendedCalls) {
        let now = Instant::now();
        self.timers = suspended
            .timers
            .iter()
            .map(|(id, remaining)| (now + *remaining, *id))
            .collect();
        self.held_answers = suspended.held_answers.iter().cloned().collect();
        self.log = suspended.log.clone();
        self.pending.clear();
        let mut batch = Vec::new();
        for call in &suspended.waiting {
            batch.push(self.add_pending(call.clone(), parse_arguments(&call.args)));
        }
        self.submit(batch);
    }

    /// Whether every pending call waits for a person and has not started.
    pub(crate) fn all_wait_before_start(&self) -> bool {
        let untouched =
            |pending: &PendingCall| pending.open_approval == Some(ApprovalTiming::BeforeStart);
        self.reports.is_empty() && self.pending.values().all(untouched)
    }

    /// Whether the run waits only for people and timers.
    pub(crate) fn can_suspend(&self) -> bool {
        self.held_answers.is_empty() && !self.pending.is_empty() && self.all_wait_before_start()
    }

    /// Returns what the run does while the guest waits.
    pub(crate) fn activity(&self) -> RunActivity {
        let mut pending = self.pending.values();
        if !self.pending.is_empty() && pending.all(PendingCall::waits_for_person) {
            return RunActivity::Person;
        }
        match self.pending.values().any(|call| call.tool_runs) {
            true => RunActivity::Calls,
            false => RunActivity::Script,
        }
    }

    /// Whether no call or timer is pending that could answer the guest.
    pub(crate) fn nothing_pending(&self) -> bool {
        self.pending.is_empty() && self.timers.is_empty()
    }

    /// Marks calls as waiting for a person, or as no longer waiting.
    pub(crate) fn set_open_approval(&mut self, calls: &[String], timing: Option<ApprovalTiming>) {
        for pending in self.pending.values_mut() {
            if calls.contains(&pending.call.call_id) {
                pending.open_approval = timing;
            }
        }
    }

    /// Changes a pending call.
    pub(crate) fn update_pending(&mut self, call_id: &str, change: impl FnOnce(&mut PendingCall)) {
        let mut pending = self.pending.values_mut();
        if let Some(pending) = pending.find(|pending| pending.call.call_id == call_id) {
            change(pending);
        }
    }

    /// Logs a finished call and returns the answer for the guest.
    pub(crate) fn finish_call(&mut self, outcome: CallOutcome) -> Option<CallAnswer> {
        let settles = |pending: &PendingCall| pending.call.call_id == outcome.requested_id;
        let (id, _) = self.pending.iter().find(|(_, pending)| settles(pending))?;
        let id = *id;
        let at = self.pending.remove(&id)?.call.at;
        let warnings: Vec<String> = outcome.named_warnings().collect();
        let record = outcome.record;
        self.log.invoked_count += u32::from(outcome.tool_invoked);
        if outcome.ignored_cancel {
            self.log.add_unstoppable(&record.id, &record.tool);
        }
        self.log.warnings.extend(warnings);
        let answer = match outcome.result {
            Ok(output) => {
                let json = output.value.to_string();
                self.log.add_result(&record.id, &record.tool, &json);
                Ok(json)
            }
            Err(mut failure) => {
                failure.message = truncate_bytes(&failure.message, 2048);
                Err(call_error_json(&failure, &record.tool, &record.id, at))
            }
        };
        // The answer may come from a retry, which has an id of its own.
        let call = record.id.clone();
        self.log.add_record(record);
        Some((id, call, answer))
    }

    /// Returns the pending calls in the order in which they were made.
    pub(crate) fn pending_in_order(&self) -> Vec<GuestCall> {
        let pending = self.pending.values();
        let mut calls: Vec<GuestCall> = pending.map(|pending| pending.call.clone()).collect();
        calls.sort_by_key(|call| call_number(&call.call_id));
        calls
    }

    /// Drops everything in flight. Pending calls are logged with this status.
    pub(crate) fn drop_pending(&mut self, status: CallStatus) {
        self.batches.clear();
        for call in self.pending_in_order() {
            if status == CallStatus::OutcomeUnknown {
                self.log.add_unstoppable(&call.call_id, &call.tool);
            }
            self.log.add_record(call.into_record(status));
        }
        self.pending.clear();
        self.context.scope.end();
    }

    /// Describes a call that was pending at the end of the script, unless it finished afterwards or
    /// the script had cancelled it.
    pub(crate) fn describe_unfinished(&self, call: &GuestCall) -> Option<String> {
        let stopped = matches!(
            self.log.last_record(&call.call_id)?.status,
            CallStatus::Aborted | CallStatus::NotStarted | CallStatus::OutcomeUnknown
        );
        if !stopped || call.abandoned {
            return None;
        }
        let (id, tool) = (&call.call_id, camel_case(&call.tool));
        let line = call.line().map(|line| format!(" in line {line}"));
        let line = line.unwrap_or_default();
        Some(format!(
            "{id} (tools.{tool}{line}) had not finished when the script ended"
        ))
    }
}

fn parse_arguments(json: &str) -> CallArguments {
    match serde_json::from_str(json) {
        Ok(Value::Array(list)) => CallArguments::Positional(list),
        _ => CallArguments::Positional(Vec::new()),
    }
}
