//! The approval gate: one request for all calls of a batch that need approval, and its decisions.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use futures_util::future::join_all;
use selvedge_protocol::{
    ApprovalRequest, ApprovalResponse, CallDecision, ErrorCode, GatedCall, LedgerError, Preview,
    RuntimeEvent, new_id,
};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;

use crate::failure::{CallFailure, aborted_failure};
use crate::orchestrator::{
    ApprovalTiming, BatchReport, Orchestrator, PreparedCall, not_run_outcome,
};
use crate::scope::{Scope, SuspendPolicy};

impl Orchestrator {
    /// Requests approval for these calls, each with the reason why it needs one. Returns the calls
    /// that may run; the others end here as denied, timed out or cancelled.
    pub(crate) async fn approve_calls(
        &self,
        scope: &Scope,
        gated: Vec<(PreparedCall, String)>,
        reports: &UnboundedSender<BatchReport>,
    ) -> Vec<PreparedCall> {
        let (gated, cancelled): (Vec<_>, Vec<_>) = gated
            .into_iter()
            .partition(|(prepared, _)| !prepared.request.cancel.is_cancelled());
        for (prepared, _) in cancelled {
            let name = prepared.tool.spec.name.clone();
            let outcome = not_run_outcome(&prepared.request, name.clone(), aborted_failure(&name));
            self.finish(scope, reports, outcome).await;
        }
        if gated.is_empty() {
            return Vec::new();
        }
        let ids: Vec<String> = gated
            .iter()
            .map(|(prepared, _)| prepared.request.id.clone())
            .collect();
        let decision = self
            .request_approval_for_calls(scope, &gated, ids, ApprovalTiming::BeforeStart, reports)
            .await;
        let mut allowed = Vec::new();
        for ((prepared, risk), decision) in gated.into_iter().zip(decision) {
            let tool = &prepared.tool.spec.name;
            let failure = match decision {
                ApprovalOutcome::ApprovedOnce => {
                    allowed.push(prepared);
                    continue;
                }
                ApprovalOutcome::ApprovedForScript => {
                    scope.remember_approval(prepared.approval_key());
                    allowed.push(prepared);
                    continue;
                }
                ApprovalOutcome::ApprovedAlways => {
                    prepared.tool.tool.allow_always(&prepared.args);
                    scope.remember_approval(prepared.approval_key());
                    allowed.push(prepared);
                    continue;
                }
                ApprovalOutcome::Denied(None) => {
                    CallFailure::new(ErrorCode::ApprovalDeniedError, format!("{tool} was denied"))
                }
                ApprovalOutcome::Denied(Some(reason)) => CallFailure::new(
                    ErrorCode::ApprovalDeniedError,
                    format!("{tool} was denied: {reason}"),
                ),
                ApprovalOutcome::Unavailable(why) => CallFailure::new(
                    ErrorCode::ApprovalDeniedError,
                    format!("{tool} needs approval: {risk}; {why}"),
                ),
                ApprovalOutcome::TimedOut => {
                    let limit = scope.limits.approval_timeout.unwrap_or_default();
                    let seconds = limit.as_secs_f64();
                    CallFailure::new(
                        ErrorCode::ApprovalTimeoutError,
                        format!("approval of {tool} timed out after {seconds} s"),
                    )
                }
                ApprovalOutcome::Cancelled => aborted_failure(tool),
                ApprovalOutcome::TakenOver => continue,
            };
            let outcome = not_run_outcome(&prepared.request, tool.clone(), failure);
            self.finish(scope, reports, outcome).await;
        }
        allowed
    }

    /// Requests approval to retry a call outside the confinement that seems to have blocked it.
    /// `first` is the id of the first attempt.
    pub(crate) async fn approve_retry(
        &self,
        scope: &Scope,
        prepared: PreparedCall,
        reason: String,
        first: &str,
        reports: &UnboundedSender<BatchReport>,
    ) -> Option<PreparedCall> {
        let gated = [(prepared, reason)];
        let decision = self
            .request_approval_for_calls(
                scope,
                &gated,
                vec![first.to_owned()],
                ApprovalTiming::AfterStart,
                reports,
            )
            .await;
        let [(prepared, _)] = gated;
        match decision.first() {
            Some(ApprovalOutcome::ApprovedOnce) => Some(prepared),
            Some(ApprovalOutcome::ApprovedForScript) => {
                scope.remember_approval(prepared.approval_key());
                Some(prepared)
            }
            Some(ApprovalOutcome::ApprovedAlways) => {
                prepared.tool.tool.allow_always(&prepared.args);
                scope.remember_approval(prepared.approval_key());
                Some(prepared)
            }
            _ => None,
        }
    }

    /// Creates the approval request for these calls, and returns one decision per call.
    async fn request_approval_for_calls(
        &self,
        scope: &Scope,
        gated: &[(PreparedCall, String)],
        waiting: Vec<String>,
        so_far: ApprovalTiming,
        reports: &UnboundedSender<BatchReport>,
    ) -> Vec<ApprovalOutcome> {
        let request = ApprovalRequest {
            id: new_id("apr"),
            script_id: Some(scope.id.clone()),
            calls: gated
                .iter()
                .map(|(prepared, reason)| gated_call(scope, prepared, reason))
                .collect(),
        };
        let cancelled = join_all(
            gated
                .iter()
                .map(|(prepared, _)| prepared.request.cancel.cancelled()),
        )
        .map(drop);
        self.submit_approval_request(scope, request, cancelled, waiting, so_far, reports)
            .await
    }

    /// Submits an approval request to the approver, with its records, events and reports. Returns
    /// one decision per call. The request ends when `cancelled` completes.
    pub(crate) async fn submit_approval_request(
        &self,
        scope: &Scope,
        request: ApprovalRequest,
        cancelled: impl Future<Output = ()>,
        waiting: Vec<String>,
        so_far: ApprovalTiming,
        reports: &UnboundedSender<BatchReport>,
    ) -> Vec<ApprovalOutcome> {
        let calls = request.calls.len();
        // If the receiver is gone, the batch has ended and the report is not needed.
        let _ = reports.send(BatchReport::ApprovalRequested {
            request_id: request.id.clone(),
            calls: waiting.clone(),
            progress: so_far,
        });
        let ledger = self.ledger.as_ref();
        let record_request = async {
            if let Some(ledger) = ledger {
                // A failure is ignored: the approver can still decide.
                let _ = scope
                    .wait_for_write(ledger.record_approval_request(&scope.id, &request))
                    .await;
            }
        };
        let decide = async {
            scope.events.emit(RuntimeEvent::ApprovalRequested {
                request: request.clone(),
            });
            self.await_decisions(scope, &request, cancelled, so_far, reports)
                .await
        };
        let ((), mut decision) = tokio::join!(biased; record_request, decide);
        if let Some(ledger) = ledger {
            // If a snapshot of the run was saved meanwhile, another process may have claimed the
            // run.
            match scope.wait_for_write(ledger.claim_run(&scope.id)).await {
                Err(LedgerError::TakenOver) => {
                    let _ = reports.send(BatchReport::TakenOver);
                    return vec![ApprovalOutcome::TakenOver; calls];
                }
                Err(error) => {
                    let reason = format!("cannot claim the run in the journal: {error}");
                    decision = vec![ApprovalOutcome::Denied(Some(reason)); calls];
                }
                Ok(()) => {}
            }
        }
        let _ = reports.send(BatchReport::ApprovalEnded(waiting));
        let answers: Vec<String> = decision.iter().map(ApprovalOutcome::to_text).collect();
        if let Some(ledger) = ledger {
            let _ = scope
                .wait_for_write(ledger.record_approval_answers(&request.id, &answers))
                .await;
        }
        scope.events.emit(RuntimeEvent::ApprovalAnswered {
            id: request.id,
            answers,
        });
        decision
    }

    /// Waits for the response or a cancellation, and returns one decision per call.
    async fn await_decisions(
        &self,
        scope: &Scope,
        request: &ApprovalRequest,
        cancelled: impl Future<Output = ()>,
        so_far: ApprovalTiming,
        reports: &UnboundedSender<BatchReport>,
    ) -> Vec<ApprovalOutcome> {
        let all = |decision: ApprovalOutcome| vec![decision; request.calls.len()];
        tokio::select! {
            biased;
            () = cancelled => all(ApprovalOutcome::Cancelled),
            decision = self.await_response(scope, request, so_far, reports) => match decision {
                None => all(ApprovalOutcome::TimedOut),
                Some(ApprovalResponse::Decided(answers)) => {
                    let mut answers = answers.into_iter();
                    request.calls.iter().map(|_| match answers.next() {
                        Some(CallDecision::Once) => ApprovalOutcome::ApprovedOnce,
                        Some(CallDecision::ThisScript) => ApprovalOutcome::ApprovedForScript,
                        Some(CallDecision::Always) => ApprovalOutcome::ApprovedAlways,
                        Some(CallDecision::Deny(reason)) => ApprovalOutcome::Denied(reason),
                        None => ApprovalOutcome::Denied(None),
                    }).collect()
                }
                Some(ApprovalResponse::Cancelled) => all(ApprovalOutcome::Cancelled),
                Some(ApprovalResponse::Unavailable(why)) => all(ApprovalOutcome::Unavailable(why)),
                Some(ApprovalResponse::Deferred) => {
                    all(ApprovalOutcome::Unavailable("approval is not possible here".to_owned()))
                }
            },
        }
    }
}

impl Orchestrator {
    /// Returns the approver's response, or `None` if the request timed out. If the response is
    /// deferred and the scope can be suspended, the future never completes: the run is suspended
    /// and drops it.
    async fn await_response(
        &self,
        scope: &Scope,
        request: &ApprovalRequest,
        so_far: ApprovalTiming,
        reports: &UnboundedSender<BatchReport>,
    ) -> Option<ApprovalResponse> {
        let asked = self.approver.ask(request);
        let decision = match scope.limits.approval_timeout {
            Some(limit) => tokio::time::timeout(limit, asked).await.ok()?,
            None => asked.await,
        };
        let can_suspend = scope.suspend_policy == SuspendPolicy::OnDeferredApproval
            && so_far == ApprovalTiming::BeforeStart;
        if decision == ApprovalResponse::Deferred
            && can_suspend
            && reports.send(BatchReport::ApprovalDeferred).is_ok()
        {
            std::future::pending::<()>().await;
        }
        Some(decision)
    }
}

/// Result of an approval request for one call.
#[derive(Debug, Clone)]
pub(crate) enum ApprovalOutcome {
    ApprovedOnce,
    ApprovedForScript,
    ApprovedAlways,
    Denied(Option<String>),
    /// No approver is available. The text says why.
    Unavailable(String),
    TimedOut,
    Cancelled,
    TakenOver,
}

impl ApprovalOutcome {
    /// Returns the text that the journal and events contain.
    fn to_text(&self) -> String {
        match self {
            Self::ApprovedOnce => "yes".into(),
            Self::ApprovedForScript => "yes, for this script".into(),
            Self::ApprovedAlways => "yes, always".into(),
            Self::Denied(None) => "no".into(),
            Self::Denied(Some(reason)) | Self::Unavailable(reason) => format!("no: {reason}"),
            Self::TimedOut => "no answer".into(),
            Self::Cancelled => "cancelled".into(),
            Self::TakenOver => "answered elsewhere".into(),
        }
    }
}

/// Describes a call for the approver.
fn gated_call(scope: &Scope, prepared: &PreparedCall, reason: &str) -> GatedCall {
    let context = prepared
        .args
        .get("approval_context")
        .and_then(Value::as_str)
        .map(str::to_owned);
    let line = prepared.request.line;
    GatedCall {
        call_id: prepared.request.id.clone(),
        tool: prepared.tool.spec.name.clone(),
        args: prepared.args.clone(),
        reason: reason.to_owned(),
        context,
        line,
        snippet: scope
            .source
            .as_ref()
            .zip(line)
            .map(|(source, line)| source.excerpt(line)),
        preview: preview_or_empty(prepared),
    }
}

/// Returns the tool's preview of the call, or an empty one if the tool panics.
fn preview_or_empty(prepared: &PreparedCall) -> Preview {
    std::panic::catch_unwind(AssertUnwindSafe(|| {
        prepared.tool.tool.preview(&prepared.args)
    }))
    .unwrap_or_default()
}
