//! The approval gate: one request for all calls of a batch that need approval, and its decisions.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use futures_util::future::join_all;
use selvedge_protocol::{
    ApprovalRequest, ApprovalResponse, CallDecision, ErrorCode, GatedCall, LedgerError, Preview,
    RuleScope, RuntimeEvent, new_id, since_epoch,
};
use tokio::sync::mpsc::UnboundedSender;

use crate::call_gate::ApprovalTimeLimit;
use crate::failure::{CallFailure, aborted_failure, denied_failure};
use crate::orchestrator::{
    ApprovalTiming, BatchReport, Orchestrator, PreparedCall, not_run_outcome,
};
use crate::scope::{Scope, SuspendPolicy};

impl Orchestrator {
    /// Requests approval for these calls, each with the reason why it needs one. Returns the calls
    /// that may run; the others end here as denied, timed out or cancelled.
    pub(crate) async fn gate_batch(
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
            self.record_and_report(scope, reports, outcome).await;
        }
        if gated.is_empty() {
            return Vec::new();
        }
        let ids: Vec<String> = gated
            .iter()
            .map(|(prepared, _)| prepared.request.id.clone())
            .collect();
        let decisions = self
            .gate_calls(scope, &gated, ids, ApprovalTiming::BeforeStart, reports)
            .await;
        let mut allowed = Vec::new();
        for ((prepared, reason), decision) in gated.into_iter().zip(decisions) {
            let tool = &prepared.tool.spec.name;
            let failure = match decision {
                ApprovalResult::ApprovedOnce => {
                    allowed.push(prepared);
                    continue;
                }
                ApprovalResult::ApprovedSimilarCalls => {
                    scope.remember_approval(prepared.approval_key());
                    allowed.push(prepared);
                    continue;
                }
                ApprovalResult::ApprovedAllLaterCalls => {
                    scope.approve_all_later_calls();
                    allowed.push(prepared);
                    continue;
                }
                ApprovalResult::ApprovedByRule(rule_scope) => {
                    prepared.tool.tool.add_rule(&prepared.args, rule_scope);
                    scope.remember_approval(prepared.approval_key());
                    allowed.push(prepared);
                    continue;
                }
                ApprovalResult::Denied(None) => denied_failure(format!("{tool} was denied")),
                ApprovalResult::Denied(Some(reason)) => {
                    denied_failure(format!("{tool} was denied: {reason}"))
                }
                ApprovalResult::Unavailable(why) => {
                    denied_failure(format!("{tool} needs approval: {reason}; {why}"))
                }
                ApprovalResult::TimedOut => {
                    let limit = scope.limits.approval_timeout.unwrap_or_default();
                    let seconds = limit.as_secs_f64();
                    CallFailure::new(
                        ErrorCode::ApprovalTimeoutError,
                        format!("approval of {tool} timed out after {seconds} s"),
                    )
                }
                ApprovalResult::Cancelled => aborted_failure(tool),
                ApprovalResult::ClaimedByOther => continue,
            };
            let outcome = not_run_outcome(&prepared.request, tool.clone(), failure);
            self.record_and_report(scope, reports, outcome).await;
        }
        allowed
    }

    /// Requests approval to retry a call outside the confinement that seems to have blocked it.
    /// `first` is the id of the first attempt.
    pub(crate) async fn gate_retry(
        &self,
        scope: &Scope,
        prepared: PreparedCall,
        reason: String,
        first: &str,
        reports: &UnboundedSender<BatchReport>,
    ) -> Option<PreparedCall> {
        let gated = [(prepared, reason)];
        let decisions = self
            .gate_calls(
                scope,
                &gated,
                vec![first.to_owned()],
                ApprovalTiming::AfterStart,
                reports,
            )
            .await;
        let [(prepared, _)] = gated;
        match decisions.first() {
            Some(ApprovalResult::ApprovedOnce) => Some(prepared),
            Some(ApprovalResult::ApprovedSimilarCalls) => {
                scope.remember_approval(prepared.approval_key());
                Some(prepared)
            }
            Some(ApprovalResult::ApprovedAllLaterCalls) => {
                scope.approve_all_later_calls();
                Some(prepared)
            }
            Some(ApprovalResult::ApprovedByRule(rule_scope)) => {
                prepared.tool.tool.add_rule(&prepared.args, *rule_scope);
                scope.remember_approval(prepared.approval_key());
                Some(prepared)
            }
            _ => None,
        }
    }

    /// Creates the approval request for these calls, and returns one decision per call.
    async fn gate_calls(
        &self,
        scope: &Scope,
        gated: &[(PreparedCall, String)],
        waiting: Vec<String>,
        timing: ApprovalTiming,
        reports: &UnboundedSender<BatchReport>,
    ) -> Vec<ApprovalResult> {
        let request = ApprovalRequest {
            id: new_id("apr"),
            scope_id: Some(scope.id.clone()),
            calls: gated
                .iter()
                .map(|(prepared, reason)| gated_call(scope, prepared, reason))
                .collect(),
            expires_ms: None,
        };
        let cancelled = join_all(
            gated
                .iter()
                .map(|(prepared, _)| prepared.request.cancel.cancelled()),
        )
        .map(drop);
        self.ask_approver(scope, request, cancelled, waiting, timing, reports)
            .await
    }

    /// Submits an approval request to the approver, with its records, events and reports. Returns
    /// one decision per call. The request ends when `cancelled` completes.
    pub(crate) async fn ask_approver(
        &self,
        scope: &Scope,
        request: ApprovalRequest,
        cancelled: impl Future<Output = ()>,
        waiting: Vec<String>,
        timing: ApprovalTiming,
        reports: &UnboundedSender<BatchReport>,
    ) -> Vec<ApprovalResult> {
        let calls = request.calls.len();
        // If the receiver is gone, the batch has ended and the report is not needed.
        let _ = reports.send(BatchReport::ApprovalRequested {
            request_id: request.id.clone(),
            calls: waiting.clone(),
            timing,
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
            self.await_decisions(scope, &request, cancelled, timing, reports)
                .await
        };
        let ((), mut decisions) = tokio::join!(biased; record_request, decide);
        if let Some(ledger) = ledger {
            // If a snapshot of the run was saved meanwhile, another process may have claimed the
            // run.
            match scope.wait_for_write(ledger.claim_run(&scope.id)).await {
                Err(LedgerError::ClaimedByOther) => {
                    let _ = reports.send(BatchReport::ClaimedByOther);
                    return vec![ApprovalResult::ClaimedByOther; calls];
                }
                Err(error) => {
                    let reason = format!("cannot claim the run in the journal: {error}");
                    decisions = vec![ApprovalResult::Denied(Some(reason)); calls];
                }
                Ok(()) => {}
            }
        }
        let _ = reports.send(BatchReport::ApprovalEnded(waiting));
        let answers: Vec<String> = decisions.iter().map(ApprovalResult::to_text).collect();
        if let Some(ledger) = ledger {
            let _ = scope
                .wait_for_write(ledger.record_approval_answers(&request.id, &answers))
                .await;
        }
        scope.events.emit(RuntimeEvent::ApprovalAnswered {
            id: request.id,
            answers,
        });
        decisions
    }

    /// Waits for the response or a cancellation, and returns one decision per call.
    async fn await_decisions(
        &self,
        scope: &Scope,
        request: &ApprovalRequest,
        cancelled: impl Future<Output = ()>,
        timing: ApprovalTiming,
        reports: &UnboundedSender<BatchReport>,
    ) -> Vec<ApprovalResult> {
        let all = |decision: ApprovalResult| vec![decision; request.calls.len()];
        tokio::select! {
            biased;
            () = cancelled => all(ApprovalResult::Cancelled),
            response = self.await_response(scope, request, timing, reports) => match response {
                None => all(ApprovalResult::TimedOut),
                Some(ApprovalResponse::Decided(answers)) => {
                    let mut answers = answers.into_iter();
                    request.calls.iter().map(|_| match answers.next() {
                        Some(CallDecision::Once) => ApprovalResult::ApprovedOnce,
                        Some(CallDecision::SimilarCalls) => ApprovalResult::ApprovedSimilarCalls,
                        Some(CallDecision::AllLaterCalls) => ApprovalResult::ApprovedAllLaterCalls,
                        Some(CallDecision::UntilExit) => {
                            ApprovalResult::ApprovedByRule(RuleScope::Process)
                        }
                        Some(CallDecision::AlwaysInFolder) => {
                            ApprovalResult::ApprovedByRule(RuleScope::Folder)
                        }
                        Some(CallDecision::Always) => {
                            ApprovalResult::ApprovedByRule(RuleScope::Everywhere)
                        }
                        Some(CallDecision::Deny(reason)) => ApprovalResult::Denied(reason),
                        None => ApprovalResult::Denied(None),
                    }).collect()
                }
                Some(ApprovalResponse::Cancelled) => all(ApprovalResult::Cancelled),
                Some(ApprovalResponse::Unavailable(why)) => all(ApprovalResult::Unavailable(why)),
                Some(ApprovalResponse::Deferred) => {
                    all(ApprovalResult::Unavailable("no approver is available".to_owned()))
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
        timing: ApprovalTiming,
        reports: &UnboundedSender<BatchReport>,
    ) -> Option<ApprovalResponse> {
        let limit = match self.approver.time_limit() {
            ApprovalTimeLimit::Limited => scope.limits.approval_timeout,
            ApprovalTimeLimit::Unlimited => None,
        };
        let request = ApprovalRequest {
            expires_ms: limit.map(|limit| (since_epoch() + limit).as_millis() as i64),
            ..request.clone()
        };
        let asked = self.approver.ask(&request);
        let response = match limit {
            Some(limit) => tokio::time::timeout(limit, asked).await.ok()?,
            None => asked.await,
        };
        let can_suspend = scope.suspend_policy == SuspendPolicy::OnDeferredApproval
            && timing == ApprovalTiming::BeforeStart;
        if response == ApprovalResponse::Deferred
            && can_suspend
            && reports.send(BatchReport::ApprovalDeferred).is_ok()
        {
            std::future::pending::<()>().await;
        }
        Some(response)
    }
}

/// Result of an approval request for one call.
#[derive(Debug, Clone)]
pub(crate) enum ApprovalResult {
    ApprovedOnce,
    ApprovedSimilarCalls,
    ApprovedAllLaterCalls,
    /// Approved, with everything that the call's rule describes.
    ApprovedByRule(RuleScope),
    Denied(Option<String>),
    /// No approver is available. The text says why.
    Unavailable(String),
    TimedOut,
    Cancelled,
    ClaimedByOther,
}

impl ApprovalResult {
    /// Returns the text that the journal and events contain.
    fn to_text(&self) -> String {
        match self {
            Self::ApprovedOnce => "yes".into(),
            Self::ApprovedSimilarCalls => "yes, and similar calls of this script".into(),
            Self::ApprovedAllLaterCalls => "yes, and all later calls of this script".into(),
            Self::ApprovedByRule(RuleScope::Process) => "yes, until the process ends".into(),
            Self::ApprovedByRule(RuleScope::Folder) => "yes, always in this folder".into(),
            Self::ApprovedByRule(RuleScope::Everywhere) => "yes, always".into(),
            Self::Denied(None) => "no".into(),
            Self::Denied(Some(reason)) | Self::Unavailable(reason) => format!("no: {reason}"),
            Self::TimedOut => "no answer".into(),
            Self::Cancelled => "cancelled".into(),
            Self::ClaimedByOther => "answered by another process".into(),
        }
    }
}

/// Describes a call for the approver.
fn gated_call(scope: &Scope, prepared: &PreparedCall, reason: &str) -> GatedCall {
    let explanatory = prepared.tool.spec.explanatory.iter();
    let words: Vec<&str> = explanatory
        .filter_map(|field| prepared.args.get(*field)?.as_str())
        .filter(|words| !words.trim().is_empty())
        .collect();
    let context = (!words.is_empty()).then(|| words.join("; "));
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
        folder: prepared.granted_folder(),
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
