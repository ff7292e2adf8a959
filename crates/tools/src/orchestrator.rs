//! The path of every call: lookup, validation, policy, approval, queue, execution, record.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use selvedge_protocol::{
    ApprovalPolicy, CallEnd, CallRecord, CallStart, CallStatus, ErrorCode, Ledger, LedgerError,
    ResumeAs, RuntimeEvent, StartDetails, ToolSpec, command_exit_code, first_attempt_id,
    retry_call_id,
};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::args_summary::summarise_args;
use crate::call_clock::CallClock;
use crate::call_gate::{Approver, CallGate, NoApprover};
use crate::digest::digest;
use crate::failure::{CallFailure, call_error, denied_failure};
use crate::registry::{RegisteredTool, Registry, ToolLookup};
use crate::supervise::run_tool_call;
use crate::{
    ArgumentError, CallContext, CallWarnings, PolicyVerdict, Risk, Scope, ToolOutput, apply_policy,
};

/// Shortest time in the queue that is recorded, in milliseconds. A call with a free slot also takes
/// some microseconds.
const MIN_QUEUED_MS: f64 = 1.0;

/// A request to call a tool.
#[derive(Debug)]
pub struct CallRequest {
    /// Id of the call, unique in its scope: `tool_1`, or the model's own id.
    pub id: String,
    /// Any spelling of the tool's name.
    pub tool: String,
    /// Arguments, not validated yet.
    pub args: CallArguments,
    /// Line in the script, 1-based. `None` for structured calls.
    pub line: Option<u32>,
    /// Cancels this call alone. A child of the scope's token.
    pub cancel: CancellationToken,
}

/// Arguments before validation.
#[derive(Debug)]
pub enum CallArguments {
    /// Argument list of a call in a script.
    Positional(Vec<Value>),
    /// Argument object of a structured call.
    Object(Value),
    /// Arguments of a structured call that could not be parsed: the error message.
    Invalid(String),
}

/// Progress of a batch, for its owner.
#[derive(Debug)]
pub enum BatchReport {
    /// Calls wait for an approval.
    ApprovalRequested {
        /// Id of the approval request.
        request_id: String,
        /// Ids of the calls.
        calls: Vec<String>,
        /// Whether the calls have started.
        timing: ApprovalTiming,
    },
    /// The approval request for these calls ended.
    ApprovalEnded(Vec<String>),
    /// The tool of a call was invoked: from now on the call has its own time limit.
    ToolStarted(String),
    /// The tool of a call returned or was dropped.
    ToolEnded(String),
    /// A running call waits for a person.
    WaitStarted(String),
    /// A wait of a running call ended. Sent once for each start of a wait.
    WaitEnded(String),
    /// The first attempt at a call ended, and the call is retried without confinement. This is the
    /// record of the first attempt; the outcome of the retry is the outcome of the call.
    Retrying(CallRecord),
    /// A call ended.
    Finished(Box<CallOutcome>),
    /// The approval is deferred: the owner should suspend the scope.
    ApprovalDeferred,
    /// Another process has claimed the run: this process must not continue it.
    ClaimedByOther,
}

/// Whether a call had started when its approval was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalTiming {
    /// The call has not started. It can be made again after the scope is restored.
    BeforeStart,
    /// The call is running or ran once.
    AfterStart,
}

/// Outcome of a call.
#[derive(Debug)]
pub struct CallOutcome {
    /// Id of the requested call. The record of a retry has an id of its own.
    pub requested_id: String,
    /// Record of the call.
    pub record: CallRecord,
    /// Output of the tool, or why there is none.
    pub result: Result<ToolOutput, CallFailure>,
    /// Warnings about the result, without the name of the tool.
    pub warnings: Vec<String>,
    /// Whether the tool did not stop in time after a cancellation.
    pub ignored_cancel: bool,
    /// Whether the tool was invoked.
    pub tool_invoked: bool,
    /// What the call means to a run that resumes this one.
    pub resume_as: ResumeAs,
    /// Details of a call whose start was not recorded: it was answered without running, or started
    /// a task. `None` for other calls.
    pub start_details: Option<StartDetails>,
}

/// Runs batches of calls: registry, policy, approval gate, queue, tool.
#[derive(Clone)]
pub struct Orchestrator {
    registry: Registry,
    pub(crate) approver: Arc<dyn Approver>,
    policy: ApprovalPolicy,
    pub(crate) ledger: Option<Arc<dyn Ledger>>,
    digest_key: [u8; 32],
}

/// A call whose tool exists and whose arguments are valid.
pub(crate) struct PreparedCall {
    pub(crate) request: CallRequest,
    pub(crate) args: Value,
    pub(crate) tool: Arc<RegisteredTool>,
    pub(crate) digest: String,
    /// Whether the call changes nothing.
    pub(crate) read_only: bool,
    /// Id of the recorded call of the resumed run that this call repeats.
    pub(crate) prior_call: Option<String>,
    /// Idempotency key to use instead of one derived from the ids.
    pub(crate) idempotency_key: Option<String>,
}

impl PreparedCall {
    /// Returns the key of an approval of similar calls: the tool's own key, or else a digest of
    /// the arguments.
    pub(crate) fn approval_key(&self) -> String {
        let own_key = self.tool.tool.approval_key(&self.args);
        let key = own_key.unwrap_or_else(|| {
            let spec = &self.tool.spec;
            digest(&[0; 32], &spec.name, &self.args, spec.explanatory)
        });
        format!("{}\n{key}", self.tool.spec.name)
    }

    /// Returns the folder outside of the workspace that the call gives access to.
    pub(crate) fn granted_folder(&self) -> Option<String> {
        self.tool.tool.granted_folder(&self.args)
    }

    /// Returns whether an earlier approval in the scope covers the call.
    fn is_approved_in(&self, scope: &Scope) -> bool {
        match self.granted_folder() {
            Some(_) => scope.is_key_approved(&self.approval_key()),
            None => scope.is_approved(&self.approval_key()),
        }
    }
}

impl Orchestrator {
    /// Creates an orchestrator without an approver: calls that need approval are denied.
    pub fn new(registry: Registry) -> Self {
        let approver = NoApprover {
            reason: "no approver is available".to_owned(),
        };
        Self {
            registry,
            approver: Arc::new(approver),
            policy: ApprovalPolicy::default(),
            ledger: None,
            digest_key: [0; 32],
        }
    }

    /// Sets the approver.
    pub fn with_approver(mut self, approver: Arc<dyn Approver>) -> Self {
        self.approver = approver;
        self
    }

    /// Sets the ledger that records every call before it starts and after it ends.
    pub fn with_ledger(mut self, ledger: Arc<dyn Ledger>) -> Self {
        self.digest_key = ledger.digest_key();
        self.ledger = Some(ledger);
        self
    }

    /// Returns the ledger.
    pub fn ledger(&self) -> Option<&Arc<dyn Ledger>> {
        self.ledger.as_ref()
    }

    /// Sets the approval policy.
    pub fn with_policy(mut self, policy: ApprovalPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Removes the tools for which `keep` returns false.
    pub fn with_tools_where(mut self, keep: impl Fn(&ToolSpec) -> bool) -> Self {
        self.registry = self.registry.filtered(keep);
        self
    }

    /// Sets the registry.
    pub fn with_registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Returns the digest that identifies calls of a tool with these canonical arguments, except
    /// for the fields in `explanatory`.
    pub(crate) fn digest_of(&self, tool: &str, args: &Value, explanatory: &[&str]) -> String {
        digest(&self.digest_key, tool, args, explanatory)
    }

    /// Returns the registry.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the approval policy.
    pub fn policy(&self) -> ApprovalPolicy {
        self.policy
    }

    /// Runs all calls of a batch. Everything it starts is part of this future and ends with it.
    ///
    /// Calls that need approval become one approval request; the other calls do not wait for it.
    pub async fn run_batch(
        &self,
        scope: &Scope,
        batch: Vec<CallRequest>,
        reports: UnboundedSender<BatchReport>,
    ) {
        let reports = &reports;
        let mut allowed = Vec::new();
        let mut gated = Vec::new();
        for request in batch {
            let mut prepared = match self.prepare(scope, request) {
                Ok(prepared) => prepared,
                Err(outcome) => {
                    self.record_and_report(scope, reports, outcome).await;
                    continue;
                }
            };
            if let Some(outcome) = self.check_prior(scope, &mut prepared) {
                self.record_and_report(scope, reports, outcome).await;
                continue;
            }
            match apply_policy(self.policy, risk_of(&prepared)) {
                PolicyVerdict::Ask { .. } if prepared.is_approved_in(scope) => {
                    allowed.push(prepared)
                }
                PolicyVerdict::Run => allowed.push(prepared),
                PolicyVerdict::Ask { reason } => gated.push((prepared, reason)),
                PolicyVerdict::Deny { reason } => {
                    let name = prepared.tool.spec.name.clone();
                    let failure = denied_failure(format!("{name} was not allowed: {reason}"));
                    let outcome = not_run_outcome(&prepared.request, name, failure);
                    self.record_and_report(scope, reports, outcome).await;
                }
            }
        }
        let allowed = join_all(
            allowed
                .into_iter()
                .map(|prepared| self.run_with_retry(scope, prepared, reports)),
        );
        let gated = async {
            if !gated.is_empty() {
                let allowed = self.gate_batch(scope, gated, reports).await;
                join_all(
                    allowed
                        .into_iter()
                        .map(|prepared| self.run_with_retry(scope, prepared, reports)),
                )
                .await;
            }
        };
        tokio::join!(allowed, gated);
    }

    /// Finds the tool, takes the call from the budget and validates the arguments.
    fn prepare(
        &self,
        scope: &Scope,
        mut request: CallRequest,
    ) -> Result<PreparedCall, Box<CallOutcome>> {
        let tool = match self.registry.look_up(&request.tool) {
            ToolLookup::Tool(tool) => tool.clone(),
            ToolLookup::Namespace | ToolLookup::NotFound(_) => {
                let failure = self.tool_not_found(&request.tool);
                return Err(not_run_outcome(&request, request.tool.clone(), failure));
            }
        };
        let name = tool.spec.name.clone();
        if let Err(failure) = scope.reserve_call(tool.spec.reach) {
            return Err(not_run_outcome(&request, name, failure));
        }
        let args = std::mem::replace(&mut request.args, CallArguments::Positional(Vec::new()));
        match tool.validate(args) {
            Ok(args) => {
                let digest = self.digest_of(&name, &args, tool.spec.explanatory);
                let read_only = is_read_only_call(&tool, &args);
                Ok(PreparedCall {
                    request,
                    args,
                    tool,
                    digest,
                    read_only,
                    prior_call: None,
                    idempotency_key: scope.idempotency_key.clone(),
                })
            }
            Err(errors) => Err(not_run_outcome(
                &request,
                name,
                invalid_arguments(&tool, &errors),
            )),
        }
    }

    /// Returns the error for a name that is not a tool.
    pub fn tool_not_found(&self, name: &str) -> CallFailure {
        let name = &name.chars().take(80).collect::<String>();
        let near = match self.registry.look_up(name) {
            ToolLookup::NotFound(near) => near,
            ToolLookup::Tool(_) | ToolLookup::Namespace => self
                .registry
                .child_names(&format!("{name}."))
                .into_iter()
                .map(|below| format!("{name}.{below}"))
                .take(3)
                .collect(),
        };
        let hint = if near.is_empty() {
            let names: Vec<String> = self.registry.child_names("").into_iter().take(20).collect();
            if names.is_empty() {
                ": no tools are registered".to_owned()
            } else {
                format!(": available tools are {}", names.join(", "))
            }
        } else {
            format!(
                ": did you mean {}?",
                near.iter()
                    .map(|name| format!("`{name}`"))
                    .collect::<Vec<_>>()
                    .join(" or ")
            )
        };
        let mut failure = CallFailure::new(
            ErrorCode::ToolNotFoundError,
            format!("there is no tool `{name}`{hint}"),
        );
        failure.suggestions = near;
        failure
    }

    /// Runs a call. If its confinement seems to have blocked it, requests approval to retry it.
    async fn run_with_retry(
        &self,
        scope: &Scope,
        prepared: PreparedCall,
        reports: &UnboundedSender<BatchReport>,
    ) {
        let (tool, line, cancel) = (
            prepared.tool.clone(),
            prepared.request.line,
            prepared.request.cancel.clone(),
        );
        let digest = prepared.digest.clone();
        let (prior_call, idempotency_key) = (
            prepared.prior_call.clone(),
            prepared.idempotency_key.clone(),
        );
        let outcome = self.run_prepared(scope, prepared, reports).await;
        let retry = match &outcome.result {
            Ok(ToolOutput {
                unconfined_retry: Some(retry),
                ..
            }) if self.policy == ApprovalPolicy::OnFailure => retry.clone(),
            _ => return self.record_and_report(scope, reports, outcome).await,
        };
        // Recorded before approval is requested, so that the outcome of the first attempt is known
        // even if the process ends meanwhile.
        if self.record_outcome(scope, &outcome).await == Err(LedgerError::ClaimedByOther) {
            let _ = reports.send(BatchReport::ClaimedByOther);
            return;
        }
        let request = CallRequest {
            id: retry_call_id(&outcome.record.id),
            tool: tool.spec.name.clone(),
            args: CallArguments::Positional(Vec::new()),
            line,
            cancel,
        };
        let read_only = is_read_only_call(&tool, &retry.args);
        let retry_call = PreparedCall {
            request,
            args: retry.args,
            tool,
            // Both attempts are the same call of the script: in a resumed run the last one counts.
            digest,
            read_only,
            prior_call,
            idempotency_key,
        };
        // An earlier approval may cover the retry.
        let is_approved = apply_policy(self.policy, risk_of(&retry_call)) == PolicyVerdict::Run
            || retry_call.is_approved_in(scope);
        let retry_call = match is_approved {
            true => Some(retry_call),
            false => {
                self.gate_retry(scope, retry_call, retry.reason, &outcome.record.id, reports)
                    .await
            }
        };
        match retry_call {
            None => self.record_and_report(scope, reports, outcome).await,
            Some(retry_call) => {
                let requested_id = outcome.record.id.clone();
                scope.events.emit(RuntimeEvent::CallFinished {
                    parent_id: scope.id.clone(),
                    call: outcome.record.clone(),
                    result_failure: outcome.result_failure(),
                });
                let _ = reports.send(BatchReport::Retrying(outcome.record));
                let retried = self.run_prepared(scope, retry_call, reports).await;
                let retried = Box::new(CallOutcome {
                    requested_id,
                    ..*retried
                });
                self.record_and_report(scope, reports, retried).await;
            }
        }
    }

    /// Waits for a free slot, records the call, and runs its tool once.
    async fn run_prepared(
        &self,
        scope: &Scope,
        prepared: PreparedCall,
        reports: &UnboundedSender<BatchReport>,
    ) -> Box<CallOutcome> {
        let PreparedCall {
            request,
            args,
            tool,
            digest,
            read_only,
            prior_call,
            idempotency_key,
        } = prepared;
        let name = tool.spec.name.clone();
        let queued = Instant::now();
        let permit = tokio::select! {
            biased;
            () = request.cancel.cancelled() => None,
            permit = scope.call_slots.acquire() => permit.ok(),
        };
        let queued_ms = Some(elapsed_ms(queued)).filter(|ms| *ms >= MIN_QUEUED_MS);
        let stopped = |request: &CallRequest, name: String, digest: String| {
            let failure = CallFailure::new(
                ErrorCode::ToolAbortedError,
                format!("{name} was cancelled before it ran"),
            );
            let mut outcome = not_run_outcome(request, name, failure);
            outcome.record.args_digest = digest;
            outcome
        };
        let Some(_permit) = permit else {
            return stopped(&request, name, digest);
        };
        // A call that is not recorded must not run.
        let start = CallStart {
            run: &scope.id,
            id: &request.id,
            tool: &name,
            args: &args,
            digest: &digest,
            read_only,
            line: request.line,
            prior_call: prior_call.as_deref(),
            queued_ms,
        };
        let recorded = match &self.ledger {
            Some(ledger) => tokio::select! {
                biased;
                recorded = ledger.record_call_start(start) => recorded,
                () = request.cancel.cancelled() => return stopped(&request, name, digest),
            },
            None => Ok(()),
        };
        if let Err(error) = recorded {
            let message = format!("{name} did not run");
            let failure = CallFailure::record_failed(&message, &error);
            return not_run_outcome(&request, name, failure);
        }
        // The end is not recorded yet, so the call counts as one without an end.
        scope.note_resume_as(&request.id, ResumeAs::without_end(read_only));
        scope.events.emit(RuntimeEvent::CallStarted {
            parent_id: scope.id.clone(),
            call_id: request.id.clone(),
            tool: name.clone(),
            args_summary: summarise_args(&args, tool.spec.structured_defaults),
        });
        let started = Instant::now();
        let timeout = &tool.spec.timeout;
        let configured = scope.limits.configured_timeout(&tool.spec);
        let time_limit = timeout.of_call(&args, configured);
        let clock = CallClock::start(time_limit.saturating_add(timeout.tool_margin));
        let warnings = CallWarnings::default();
        let call = CallContext {
            id: request.id.clone(),
            scope_id: scope.id.clone(),
            read_only,
            idempotency_key: idempotency_key
                .unwrap_or_else(|| format!("{}.{}", scope.id, first_attempt_id(&request.id))),
            cancel: request.cancel.clone(),
            time_limit,
            events: scope.events.clone(),
            resources: scope.resources.clone(),
            notes: scope.notes.clone(),
            warnings: warnings.clone(),
            gate: CallGate::new(
                self,
                scope,
                (&request.id, request.line, &request.cancel),
                &clock,
                reports.downgrade(),
            ),
        };
        let report_id = first_attempt_id(&request.id).to_owned();
        let _ = reports.send(BatchReport::ToolStarted(report_id.clone()));
        let span = tracing::info_span!("tool_call", tool = name, call = request.id, run = scope.id);
        let (result, ignored_cancel) = run_tool_call(scope, &tool, args, call, &clock)
            .instrument(span)
            .await;
        let _ = reports.send(BatchReport::ToolEnded(report_id));
        let status = match &result {
            Ok(_) => CallStatus::Done,
            Err(_) if ignored_cancel => CallStatus::OutcomeUnknown,
            Err(failure) if failure.code == ErrorCode::ToolAbortedError => CallStatus::Aborted,
            Err(failure) if failure.outcome_unknown && !read_only => CallStatus::OutcomeUnknown,
            Err(_) => CallStatus::Failed,
        };
        let resume_as = classify_for_resume(&tool, read_only, &result, status);
        let returned = result.as_ref().ok();
        let record = CallRecord {
            id: request.id,
            tool: name,
            status,
            reused: false,
            duration_ms: elapsed_ms(started),
            args_digest: digest,
            line: request.line,
            error: result.as_ref().err().map(call_error),
            exit_code: returned.and_then(|output| command_exit_code(&output.value)),
        };
        let requested_id = record.id.clone();
        Box::new(CallOutcome {
            requested_id,
            record,
            result,
            warnings: warnings.take(),
            ignored_cancel,
            tool_invoked: true,
            resume_as,
            start_details: None,
        })
    }
}

impl Orchestrator {
    /// Records the outcome of a call, and sends it as an event and as a report.
    pub(crate) async fn record_and_report(
        &self,
        scope: &Scope,
        reports: &UnboundedSender<BatchReport>,
        mut outcome: Box<CallOutcome>,
    ) {
        let did_not_run = !outcome.tool_invoked && !outcome.record.reused;
        if let Some(prior) = scope.prior_calls.as_ref().filter(|_| did_not_run) {
            prior.release(&outcome.requested_id);
        }
        let written = self.record_outcome(scope, &outcome).await;
        if written == Err(LedgerError::ClaimedByOther) {
            let _ = reports.send(BatchReport::ClaimedByOther);
            return;
        }
        // The failure of a call that did not run already says why.
        if let Err(error) = written
            && !did_not_run
        {
            let tool = &outcome.record.tool;
            let message = match outcome.tool_invoked {
                true => format!("{tool} ran, but its outcome could not be recorded"),
                false => {
                    format!("{tool} returned without running, but its result could not be recorded")
                }
            };
            outcome.result = Err(CallFailure::record_failed(&message, &error));
        }
        // Observers learn the arguments of a call that returned without running.
        let details = outcome.start_details.as_ref();
        if let Some(details) = details.filter(|_| outcome.record.reused) {
            scope.events.emit(RuntimeEvent::CallStarted {
                parent_id: scope.id.clone(),
                call_id: outcome.record.id.clone(),
                tool: outcome.record.tool.clone(),
                args_summary: summarise_args(&details.args, &[]),
            });
        }
        scope.events.emit(RuntimeEvent::CallFinished {
            parent_id: scope.id.clone(),
            call: outcome.record.clone(),
            result_failure: outcome.result_failure(),
        });
        let _ = reports.send(BatchReport::Finished(outcome));
    }

    async fn record_outcome(
        &self,
        scope: &Scope,
        outcome: &CallOutcome,
    ) -> Result<(), LedgerError> {
        let Some(ledger) = &self.ledger else {
            return Ok(());
        };
        scope.note_resume_as(&outcome.record.id, outcome.resume_as);
        let value = outcome.result.as_ref().ok().map(|output| &output.value);
        // Without a script, a model reads the result. A cancelled call has no other result.
        let shown = match (&scope.source, &outcome.result) {
            (None, _) => outcome.model_text(),
            (Some(_), Err(failure)) => failure.partial_output.clone(),
            (Some(_), Ok(_)) => None,
        };
        let write = ledger.record_call_end(CallEnd {
            run: &scope.id,
            record: &outcome.record,
            value,
            shown: shown.as_deref(),
            resume_as: outcome.resume_as,
            start_details: outcome.start_details.as_ref(),
        });
        scope.wait_for_write(write).await
    }
}

/// Returns whether the call changes nothing. If `Tool::is_read_only` panics, the call may change
/// something.
pub(crate) fn is_read_only_call(tool: &RegisteredTool, args: &Value) -> bool {
    let determined = || std::panic::catch_unwind(AssertUnwindSafe(|| tool.tool.is_read_only(args)));
    tool.spec.read_only || determined().unwrap_or(false)
}

/// Returns whether a resumed run always makes a call again, because it changes nothing and costs
/// nothing.
pub(crate) fn always_reruns(tool: &RegisteredTool, read_only: bool) -> bool {
    read_only && !tool.tool.costs_money()
}

/// Returns what a call means to a run that resumes this one. If `Tool::resume_as` panics, the call
/// is undecided.
fn classify_for_resume(
    tool: &RegisteredTool,
    read_only: bool,
    result: &Result<ToolOutput, CallFailure>,
    status: CallStatus,
) -> ResumeAs {
    match (result, status) {
        (Ok(_), _) if always_reruns(tool, read_only) => ResumeAs::Rerun,
        (Ok(output), _) => {
            let classify = AssertUnwindSafe(|| tool.tool.resume_as(&output.value));
            std::panic::catch_unwind(classify).unwrap_or(ResumeAs::Undecided)
        }
        (Err(_), CallStatus::OutcomeUnknown | CallStatus::Aborted) if !read_only => {
            ResumeAs::Undecided
        }
        (Err(_), _) => ResumeAs::Rerun,
    }
}

/// Returns the risk of a call. If `Tool::risk` panics, the call needs approval.
fn risk_of(prepared: &PreparedCall) -> Risk {
    let determined =
        std::panic::catch_unwind(AssertUnwindSafe(|| prepared.tool.tool.risk(&prepared.args)));
    determined.unwrap_or_else(|_| Risk::NeedsApproval {
        reason: "its risk could not be determined".to_owned(),
    })
}

/// Returns the outcome of a call that never ran.
pub(crate) fn not_run_outcome(
    request: &CallRequest,
    tool: String,
    failure: CallFailure,
) -> Box<CallOutcome> {
    let status = if failure.code == ErrorCode::ToolAbortedError {
        CallStatus::NotStarted
    } else {
        CallStatus::Failed
    };
    Box::new(CallOutcome {
        requested_id: request.id.clone(),
        record: CallRecord {
            id: request.id.clone(),
            tool,
            status,
            reused: false,
            duration_ms: 0.0,
            args_digest: String::new(),
            line: request.line,
            error: Some(call_error(&failure)),
            exit_code: None,
        },
        result: Err(failure),
        warnings: Vec::new(),
        ignored_cancel: false,
        tool_invoked: false,
        resume_as: ResumeAs::Rerun,
        start_details: None,
    })
}

/// Returns the failure of a call with invalid arguments.
fn invalid_arguments(tool: &RegisteredTool, errors: &[ArgumentError]) -> CallFailure {
    let messages: Vec<&str> = errors
        .iter()
        .take(4)
        .map(|error| error.message.as_str())
        .collect();
    let mut failure = CallFailure::new(
        ErrorCode::ToolValidationError,
        format!("{}: {}", tool.spec.js_name, messages.join("; ")),
    );
    failure.suggestions = errors
        .iter()
        .flat_map(|error| error.suggestions.clone())
        .take(8)
        .collect();
    failure
}

fn elapsed_ms(since: Instant) -> f64 {
    (since.elapsed().as_secs_f64() * 1e6).round() / 1e3
}
