//! The one path of every call: found, checked, judged, asked for, queued, run.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use selvedge_protocol::{
    Answered, ApprovalPolicy, CallRecord, CallStatus, ErrorCode, Event, Intent, Ledger,
    LedgerError, ResumeAs, Settled, ToolSpec,
};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::digest::digest;
use crate::failure::{CallFailure, call_error};
use crate::gate::{Approver, Gate, NobodyToAsk, WaitsFor};
use crate::registry::{Found, Registered, Registry};
use crate::supervise::supervise;
use crate::words::about;
use crate::{ArgumentError, Call, FieldCase, Risk, Scope, ToolOutput, Verdict, judge};

/// A call somebody wants made.
#[derive(Debug)]
pub struct CallRequest {
    /// Unique in its scope: `tool_1`, or the model's own.
    pub id: String,
    /// Any spelling of the tool's name.
    pub tool: String,
    /// Its arguments.
    pub args: Arguments,
    /// Line in the script, from one.
    pub line: Option<u32>,
    /// Stops this call alone. A child of the scope's.
    pub cancel: CancellationToken,
}

/// Arguments as they come.
#[derive(Debug)]
pub enum Arguments {
    /// From a script: what stands between the parentheses.
    List(Vec<Value>),
    /// From a structured call.
    Object(Value),
    /// From a structured call whose arguments could not be read, and why.
    Unreadable(String),
}

/// What is told of a batch while it runs.
#[derive(Debug)]
pub enum Report {
    /// These calls wait for a person.
    Asking {
        /// The question.
        request_id: String,
        /// The calls.
        calls: Vec<String>,
        /// What was done of them before.
        so_far: SoFar,
    },
    /// The person has answered for them, or will not.
    Answered(Vec<String>),
    /// A call that runs waits for somebody: it cannot be hurried.
    Waits(String, WaitsFor),
    /// It waits for them no longer; told as often as it waited.
    GoesOn(String, WaitsFor),
    /// A call is over, but not its work: it is done again, and that call settles both.
    Repeated(CallRecord),
    /// A call is over.
    Finished(Box<CallOutcome>),
    /// The question will be answered later: the scope is to be put away.
    Later,
    /// Another process goes on with the scope: nothing more is done here.
    TakenOver,
}

/// What was done of a call before a person was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SoFar {
    /// Nothing: it can be asked for again, elsewhere and later.
    Nothing,
    /// It ran once, and may run again.
    OneAttempt,
}

/// A call that is over.
#[derive(Debug)]
pub struct CallOutcome {
    /// The call that was made: the record's own, or the one it repeats.
    pub settles: String,
    /// Its line in the ledger.
    pub record: CallRecord,
    /// Its output, or why there is none.
    pub result: Result<ToolOutput, CallFailure>,
    /// It was told to stop and had not when its time was up.
    pub stubborn: bool,
    /// Whether the tool was entered.
    pub dispatched: bool,
    /// What a run that resumes this one makes of it.
    pub resume_as: ResumeAs,
    /// What was asked, if the call was answered without running.
    pub answered: Option<Answered>,
}

/// Takes batches of calls through registry, policy and gate to their tools.
#[derive(Clone)]
pub struct Orchestrator {
    registry: Registry,
    pub(crate) approver: Arc<dyn Approver>,
    policy: ApprovalPolicy,
    pub(crate) ledger: Option<Arc<dyn Ledger>>,
    digest_key: [u8; 32],
}

/// A call that was found and whose arguments fit.
pub(crate) struct Prepared {
    pub(crate) request: CallRequest,
    pub(crate) args: Value,
    pub(crate) tool: Arc<Registered>,
    pub(crate) digest: String,
    /// Whether it leaves the world as it was.
    pub(crate) read_only: bool,
    /// The recorded call of the resumed run that this one repeats.
    pub(crate) origin: Option<String>,
    /// Sent instead of a key of its own.
    pub(crate) idempotency_key: Option<String>,
}

impl Prepared {
    /// What "for this script" covers: this very call, and what its tool says is the same.
    pub(crate) fn agreement(&self) -> String {
        let agreement = self.tool.tool.agreement(&self.args);
        let words = agreement.unwrap_or_else(|| {
            let fields = self.tool.tool.field_case();
            digest(&[0; 32], &self.tool.spec.name, &self.args, fields)
        });
        format!("{}\n{words}", self.tool.spec.name)
    }
}

impl Orchestrator {
    /// An orchestrator that asks nobody: what needs a person is denied.
    pub fn new(registry: Registry) -> Self {
        let nobody = NobodyToAsk {
            because: "nobody can be asked here".to_owned(),
        };
        Self {
            registry,
            approver: Arc::new(nobody),
            policy: ApprovalPolicy::default(),
            ledger: None,
            digest_key: [0; 32],
        }
    }

    /// The same with somebody to ask.
    pub fn with_approver(mut self, approver: Arc<dyn Approver>) -> Self {
        self.approver = approver;
        self
    }

    /// The same, with everything written down before and after it happens.
    pub fn with_ledger(mut self, ledger: Arc<dyn Ledger>) -> Self {
        self.digest_key = ledger.digest_key();
        self.ledger = Some(ledger);
        self
    }

    /// Where things are written down.
    pub fn ledger(&self) -> Option<&Arc<dyn Ledger>> {
        self.ledger.as_ref()
    }

    /// The same under another policy.
    pub fn with_policy(mut self, policy: ApprovalPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The same with these tools alone.
    pub fn only(mut self, keep: impl Fn(&ToolSpec) -> bool) -> Self {
        self.registry = self.registry.filtered(keep);
        self
    }

    /// The same with other tools.
    pub fn with_registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// The digest that identifies calls of a tool with these canonical arguments.
    pub(crate) fn digest_of(&self, tool: &str, args: &Value, fields: FieldCase) -> String {
        digest(&self.digest_key, tool, args, fields)
    }

    /// The tools there are.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// When a person is asked.
    pub fn policy(&self) -> ApprovalPolicy {
        self.policy
    }

    /// Takes a batch to its end. Everything it starts is inside this future and ends with it.
    ///
    /// The gate sees the whole batch at once, before the queue does: calls that need a person become
    /// one question, and those that do not are not held up by it.
    pub async fn run_batch(
        &self,
        scope: &Scope,
        batch: Vec<CallRequest>,
        reports: UnboundedSender<Report>,
    ) {
        let reports = &reports;
        let mut free = Vec::new();
        let mut gated = Vec::new();
        for request in batch {
            match self
                .prepare(scope, request)
                .and_then(|prepared| self.check_prior(scope, prepared))
            {
                Err(outcome) => self.finish(scope, reports, outcome).await,
                Ok(prepared) => match judge(self.policy, risk(&prepared)) {
                    Verdict::Ask { .. } if scope.has_agreed(&prepared.agreement()) => {
                        free.push(prepared)
                    }
                    Verdict::Run => free.push(prepared),
                    Verdict::Ask { reason } => gated.push((prepared, reason)),
                    Verdict::Refuse { reason } => {
                        let name = prepared.tool.spec.name.clone();
                        let failure = CallFailure::new(
                            ErrorCode::ApprovalDeniedError,
                            format!("{name} was not allowed: {reason}"),
                        );
                        let outcome = refused(&prepared.request, name, failure);
                        self.finish(scope, reports, outcome).await;
                    }
                },
            }
        }
        let free = join_all(
            free.into_iter()
                .map(|prepared| self.run(scope, prepared, reports)),
        );
        let gated = async {
            if !gated.is_empty() {
                let allowed = self.ask(scope, gated, reports).await;
                join_all(
                    allowed
                        .into_iter()
                        .map(|prepared| self.run(scope, prepared, reports)),
                )
                .await;
            }
        };
        tokio::join!(free, gated);
    }

    fn prepare(
        &self,
        scope: &Scope,
        mut request: CallRequest,
    ) -> Result<Prepared, Box<CallOutcome>> {
        let tool = match self.registry.find(&request.tool) {
            Found::Tool(tool) => tool.clone(),
            Found::Namespace | Found::Nothing(_) => {
                let failure = self.not_found(&request.tool);
                return Err(refused(&request, request.tool.clone(), failure));
            }
        };
        let name = tool.spec.name.clone();
        if let Err(failure) = scope.take_call() {
            return Err(refused(&request, name, failure));
        }
        let args = std::mem::replace(&mut request.args, Arguments::List(Vec::new()));
        match tool.accept(args) {
            Ok(args) => {
                let digest = self.digest_of(&name, &args, tool.tool.field_case());
                let read_only = reads_only(&tool, &args);
                Ok(Prepared {
                    request,
                    args,
                    tool,
                    digest,
                    read_only,
                    origin: None,
                    idempotency_key: scope.idempotency_key.clone(),
                })
            }
            Err(errors) => Err(refused(&request, name, invalid(&tool, &errors))),
        }
    }

    /// The error for a name that is no tool.
    pub fn not_found(&self, name: &str) -> CallFailure {
        let name = &name.chars().take(80).collect::<String>();
        let near = match self.registry.find(name) {
            Found::Nothing(near) => near,
            Found::Tool(_) | Found::Namespace => self
                .registry
                .names_below(&format!("{name}."))
                .into_iter()
                .map(|below| format!("{name}.{below}"))
                .take(3)
                .collect(),
        };
        let hint = if near.is_empty() {
            let names: Vec<String> = self.registry.names_below("").into_iter().take(20).collect();
            if names.is_empty() {
                ": no tools are registered".to_owned()
            } else {
                format!(": there are {}", names.join(", "))
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

    /// Runs a call; one that its confinement seems to have stopped may run again where a person agrees.
    async fn run(&self, scope: &Scope, prepared: Prepared, reports: &UnboundedSender<Report>) {
        let (tool, line, cancel) = (
            prepared.tool.clone(),
            prepared.request.line,
            prepared.request.cancel.clone(),
        );
        let digest = prepared.digest.clone();
        let outcome = self.attempt(scope, prepared, reports).await;
        let again = match &outcome.result {
            Ok(ToolOutput {
                again: Some(again), ..
            }) if self.policy == ApprovalPolicy::OnFailure => again.clone(),
            _ => return self.finish(scope, reports, outcome).await,
        };
        // It is over before anybody is asked: whatever happens while the question is open, this is known.
        if self.write_down(scope, &outcome).await == Err(LedgerError::TakenOver) {
            let _ = reports.send(Report::TakenOver);
            return;
        }
        let id = format!("{}.again", outcome.record.id);
        let request = CallRequest {
            id,
            tool: tool.spec.name.clone(),
            args: Arguments::List(Vec::new()),
            line,
            cancel,
        };
        let read_only = reads_only(&tool, &again.args);
        let second = Prepared {
            request,
            args: again.args,
            tool,
            // Both attempts are the same call of the script: either answers it in a resumed run.
            digest,
            read_only,
            origin: None,
            idempotency_key: None,
        };
        // Somebody may have agreed to this before.
        let agreed = judge(self.policy, risk(&second)) == Verdict::Run
            || scope.has_agreed(&second.agreement());
        let second = match agreed {
            true => Some(second),
            false => {
                self.ask_again(scope, second, again.reason, &outcome.record.id, reports)
                    .await
            }
        };
        match second {
            None => self.finish(scope, reports, outcome).await,
            Some(second) => {
                let settles = outcome.record.id.clone();
                scope.events.emit(Event::CallFinished {
                    parent_id: scope.id.clone(),
                    call: outcome.record.clone(),
                });
                let _ = reports.send(Report::Repeated(outcome.record));
                let second = self.attempt(scope, second, reports).await;
                let second = Box::new(CallOutcome { settles, ..*second });
                self.finish(scope, reports, second).await;
            }
        }
    }

    async fn attempt(
        &self,
        scope: &Scope,
        prepared: Prepared,
        reports: &UnboundedSender<Report>,
    ) -> Box<CallOutcome> {
        let Prepared {
            request,
            args,
            tool,
            digest,
            read_only,
            origin,
            idempotency_key,
        } = prepared;
        let name = tool.spec.name.clone();
        let place = tokio::select! {
            biased;
            () = request.cancel.cancelled() => None,
            place = scope.places.acquire() => place.ok(),
        };
        let stopped = |request: &CallRequest, name: String, digest: String| {
            let failure = CallFailure::new(
                ErrorCode::ToolAbortedError,
                format!("{name} was stopped before it ran"),
            );
            let mut outcome = refused(request, name, failure);
            outcome.record.args_digest = digest;
            outcome
        };
        let Some(_place) = place else {
            return stopped(&request, name, digest);
        };
        // Nothing is done that was not written down before.
        let intent = Intent {
            run: &scope.id,
            id: &request.id,
            tool: &name,
            args: &args,
            digest: &digest,
            read_only,
            line: request.line,
            origin: origin.as_deref(),
        };
        let intended = match &self.ledger {
            Some(ledger) => tokio::select! {
                biased;
                intended = ledger.intend(intent) => intended,
                () = request.cancel.cancelled() => return stopped(&request, name, digest),
            },
            None => Ok(()),
        };
        if let Err(error) = intended {
            let message =
                format!("{name} did not run, because that could not be written down: {error}");
            return refused(
                &request,
                name,
                CallFailure::new(ErrorCode::HarnessInternalError, message),
            );
        }
        scope.events.emit(Event::CallStarted {
            parent_id: scope.id.clone(),
            call_id: request.id.clone(),
            tool: name.clone(),
            about: about(&args),
        });
        let started = Instant::now();
        let call = Call {
            id: request.id.clone(),
            scope_id: scope.id.clone(),
            idempotency_key: idempotency_key.unwrap_or_else(|| {
                format!("{}.{}", scope.id, request.id.trim_end_matches(".again"))
            }),
            cancel: request.cancel.clone(),
            events: scope.events.clone(),
            belongings: scope.belongings.clone(),
            gate: Gate::new(
                self,
                scope,
                (&request.id, request.line, &request.cancel),
                reports.downgrade(),
            ),
        };
        let span = tracing::info_span!("tool_call", tool = name, call = request.id, run = scope.id);
        let (result, stubborn) = supervise(scope, &tool, args, call).instrument(span).await;
        let status = match &result {
            Ok(_) => CallStatus::Done,
            Err(_) if stubborn => CallStatus::OutcomeUnknown,
            Err(failure) if failure.code == ErrorCode::ToolAbortedError => CallStatus::Aborted,
            Err(failure) if failure.outcome_unknown && !read_only => CallStatus::OutcomeUnknown,
            Err(_) => CallStatus::Failed,
        };
        let resume_as = resume_as(&tool, read_only, &result, status);
        let record = CallRecord {
            id: request.id,
            tool: name,
            status,
            reused: false,
            duration_ms: millis(started),
            args_digest: digest,
            line: request.line,
            error: result.as_ref().err().map(call_error),
        };
        let settles = record.id.clone();
        Box::new(CallOutcome {
            settles,
            record,
            result,
            stubborn,
            dispatched: true,
            resume_as,
            answered: None,
        })
    }
}

impl Orchestrator {
    /// A call is over: written down, told, reported.
    pub(crate) async fn finish(
        &self,
        scope: &Scope,
        reports: &UnboundedSender<Report>,
        mut outcome: Box<CallOutcome>,
    ) {
        let was_refused = !outcome.dispatched && !outcome.record.reused;
        if let Some(prior) = scope.prior.as_ref().filter(|_| was_refused) {
            prior.release(&outcome.settles);
        }
        let written = self.write_down(scope, &outcome).await;
        if written == Err(LedgerError::TakenOver) {
            let _ = reports.send(Report::TakenOver);
            return;
        }
        if let Err(error) = written {
            let tool = &outcome.record.tool;
            let message =
                format!("{tool} ran, but what came of it could not be written down: {error}");
            outcome.result = Err(CallFailure::new(ErrorCode::HarnessInternalError, message));
        }
        scope.events.emit(Event::CallFinished {
            parent_id: scope.id.clone(),
            call: outcome.record.clone(),
        });
        let _ = reports.send(Report::Finished(outcome));
    }

    async fn write_down(&self, scope: &Scope, outcome: &CallOutcome) -> Result<(), LedgerError> {
        let Some(ledger) = &self.ledger else {
            return Ok(());
        };
        let value = outcome.result.as_ref().ok().map(|output| &output.value);
        // Where there is no script, it is a model that reads the result.
        let shown = match (&scope.source, &outcome.result) {
            (None, Ok(output)) => output.rendering.clone(),
            (None, Err(failure)) => Some(failure.in_words()),
            (Some(_), _) => None,
        };
        let settle = ledger.settle(Settled {
            run: &scope.id,
            record: &outcome.record,
            value,
            shown: shown.as_deref(),
            resume_as: outcome.resume_as,
            answered: outcome.answered.as_ref(),
        });
        scope.written(settle).await
    }
}

/// Whether the call leaves the world as it was; a tool that breaks over that changes it.
pub(crate) fn reads_only(tool: &Registered, args: &Value) -> bool {
    let asked = || std::panic::catch_unwind(AssertUnwindSafe(|| tool.tool.reads_only(args)));
    tool.spec.read_only || asked().unwrap_or(false)
}

/// What a run that resumes this one makes of a call. If the tool panics over its own value, the
/// outcome counts as unknown.
fn resume_as(
    tool: &Registered,
    read_only: bool,
    result: &Result<ToolOutput, CallFailure>,
    status: CallStatus,
) -> ResumeAs {
    match (result, status) {
        (Ok(_), _) if read_only && !tool.tool.costs_money() => ResumeAs::Rerun,
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

/// What the tool makes of the arguments; one that breaks over them is asked for.
fn risk(prepared: &Prepared) -> Risk {
    let judged =
        std::panic::catch_unwind(AssertUnwindSafe(|| prepared.tool.tool.risk(&prepared.args)));
    judged.unwrap_or_else(|_| Risk::Ask {
        reason: "its risk could not be judged".to_owned(),
    })
}

/// The outcome of a call that never ran.
pub(crate) fn refused(
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
        settles: request.id.clone(),
        record: CallRecord {
            id: request.id.clone(),
            tool,
            status,
            reused: false,
            duration_ms: 0.0,
            args_digest: String::new(),
            line: request.line,
            error: Some(call_error(&failure)),
        },
        result: Err(failure),
        stubborn: false,
        dispatched: false,
        resume_as: ResumeAs::Rerun,
        answered: None,
    })
}

fn invalid(tool: &Registered, errors: &[ArgumentError]) -> CallFailure {
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

fn millis(since: Instant) -> f64 {
    (since.elapsed().as_secs_f64() * 1e6).round() / 1e3
}
