//! The approver interface, and the gate through which a running call requests approvals.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::{
    ApprovalPolicy, ApprovalRequest, ApprovalResponse, GatedCall, Preview, new_id,
};
use serde_json::Value;
use tokio::sync::mpsc::WeakUnboundedSender;
use tokio_util::sync::CancellationToken;

use crate::batch_gate::ApprovalResult;
use crate::call_clock::{CallClock, CallClockPause};
use crate::orchestrator::{ApprovalTiming, BatchReport, Orchestrator};
use crate::{PolicyVerdict, Risk, Scope, ToolError, apply_policy};

/// Decides approval requests: a person in the terminal, an MCP client, or stored decisions.
pub trait Approver: Send + Sync {
    /// Returns the response to a request for one or more calls. The future is dropped if the calls
    /// are cancelled or the request times out.
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalResponse>;

    /// Returns whether a request to this approver has a time limit.
    fn time_limit(&self) -> ApprovalTimeLimit {
        ApprovalTimeLimit::Limited
    }
}

/// How long an approval request waits for its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalTimeLimit {
    /// At most for the time limit of the scope.
    Limited,
    /// Until there is one: a person sees the question as long as it is open.
    Unlimited,
}

/// An approver that defers every decision: the run is suspended until one is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeferringApprover;

impl Approver for DeferringApprover {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalResponse> {
        std::future::ready(ApprovalResponse::Deferred).boxed()
    }
}

/// Answers every request with the reason why no approver is available.
#[derive(Debug, Clone)]
pub struct NoApprover {
    /// Why no approver is available, such as `there is no terminal`.
    pub reason: String,
}

impl Approver for NoApprover {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalResponse> {
        std::future::ready(ApprovalResponse::Unavailable(self.reason.clone())).boxed()
    }
}

/// Requests approvals for a call that is already running, under the same policy and from the same
/// approver as calls that have not started.
#[derive(Clone, Default)]
pub struct CallGate(Option<Arc<CallGateContext>>);

struct CallGateContext {
    orchestrator: Orchestrator,
    scope: Scope,
    call: String,
    line: Option<u32>,
    cancel: CancellationToken,
    clock: CallClock,
    /// Weak, so that a gate that outlives its call does not keep the batch open.
    reports: WeakUnboundedSender<BatchReport>,
}

/// An action for which a running call requests approval, on behalf of an MCP server for example.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedAction {
    /// Name of the requester, shown in place of the tool's name.
    pub requester: String,
    /// Why approval is needed, in one line.
    pub reason: String,
    /// What an approver is shown of the action.
    pub preview: Preview,
    /// Key shared by all actions that an approval of similar calls covers.
    pub approval_key: String,
}

impl CallGate {
    pub(crate) fn new(
        orchestrator: &Orchestrator,
        scope: &Scope,
        (call, line, cancel): (&str, Option<u32>, &CancellationToken),
        clock: &CallClock,
        reports: WeakUnboundedSender<BatchReport>,
    ) -> Self {
        Self(Some(Arc::new(CallGateContext {
            orchestrator: orchestrator.clone(),
            scope: scope.clone(),
            call: call.to_owned(),
            line,
            cancel: cancel.clone(),
            clock: clock.clone(),
            reports,
        })))
    }

    /// Returns why no approval can be requested, or `None` if it can.
    pub fn unavailable_reason(&self) -> Option<&'static str> {
        match &self.0 {
            None => Some("no approver is available"),
            Some(context) if context.orchestrator.policy() == ApprovalPolicy::Never => {
                Some("the approval policy is `never`")
            }
            Some(_) => None,
        }
    }

    /// Requests approval. The error says why it was not given.
    ///
    /// The request is cancelled with the call, or when `withdrawn` completes. Do not drop the
    /// future instead: the request would stay open in the journal.
    pub async fn request_approval(
        &self,
        action: GatedAction,
        withdrawn: impl Future<Output = ()>,
    ) -> Result<(), ToolError> {
        let Some(context) = &self.0 else {
            return Err(ToolError::new("no approver is available"));
        };
        let CallGateContext {
            orchestrator,
            scope,
            call,
            line,
            cancel,
            clock,
            reports,
        } = &**context;
        if scope.is_approved(&action.approval_key) {
            return Ok(());
        }
        if let PolicyVerdict::Deny { reason } = apply_policy(
            orchestrator.policy(),
            Risk::NeedsApproval {
                reason: action.reason.clone(),
            },
        ) {
            return Err(ToolError::new(reason));
        }
        let Some(reports) = reports.upgrade() else {
            return Err(ToolError::new("the call has ended"));
        };
        let request = ApprovalRequest {
            id: new_id("apr"),
            scope_id: Some(scope.id.clone()),
            calls: vec![GatedCall {
                call_id: call.clone(),
                tool: action.requester,
                args: Value::Null,
                reason: action.reason,
                context: None,
                line: *line,
                snippet: scope
                    .source
                    .as_ref()
                    .zip(*line)
                    .map(|(source, line)| source.excerpt(line)),
                folder: None,
                preview: action.preview,
            }],
            expires_ms: None,
        };
        let cancelled = async {
            tokio::select! {
                () = cancel.cancelled() => {}
                () = withdrawn => {}
            }
        };
        let waiting = vec![call.clone()];
        let _paused = clock.pause();
        let decisions = orchestrator
            .ask_approver(
                scope,
                request,
                cancelled,
                waiting,
                ApprovalTiming::AfterStart,
                &reports,
            )
            .await;
        match decisions.into_iter().next() {
            Some(ApprovalResult::ApprovedOnce) => Ok(()),
            Some(ApprovalResult::ApprovedAllLaterCalls) => {
                scope.approve_all_later_calls();
                Ok(())
            }
            Some(ApprovalResult::ApprovedSimilarCalls | ApprovalResult::ApprovedByRule(_)) => {
                scope.remember_approval(action.approval_key);
                Ok(())
            }
            Some(ApprovalResult::Denied(Some(reason)) | ApprovalResult::Unavailable(reason)) => {
                Err(ToolError::new(reason))
            }
            Some(ApprovalResult::TimedOut) => {
                let limit = scope.limits.approval_timeout.unwrap_or_default();
                Err(ToolError::new(format!(
                    "approval timed out after {} s",
                    limit.as_secs_f64()
                )))
            }
            Some(ApprovalResult::Cancelled) => {
                Err(ToolError::new("the approval request was cancelled"))
            }
            Some(ApprovalResult::Denied(None) | ApprovalResult::ClaimedByOther) | None => {
                Err(ToolError::new("the request was denied"))
            }
        }
    }

    /// Reports that the call waits for a person, until the returned guard is dropped. Meanwhile
    /// neither the time limit of the call nor that of the run counts.
    pub fn wait_for_person(&self) -> WaitGuard {
        let wait = self.0.as_ref().map(|context| PersonWait {
            call: context.call.clone(),
            reports: context.reports.clone(),
            _paused: context.clock.pause(),
        });
        let guard = WaitGuard(wait);
        guard.send(BatchReport::WaitStarted);
        guard
    }
}

impl std::fmt::Debug for CallGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CallGate")
    }
}

/// Guard of a wait of a running call.
#[must_use = "the wait is over when this is dropped"]
pub struct WaitGuard(Option<PersonWait>);

struct PersonWait {
    call: String,
    reports: WeakUnboundedSender<BatchReport>,
    _paused: CallClockPause,
}

impl WaitGuard {
    fn send(&self, report: impl FnOnce(String) -> BatchReport) {
        if let Some(wait) = &self.0
            && let Some(reports) = wait.reports.upgrade()
        {
            // If the receiver is gone, the batch has ended and the report is not needed.
            let _ = reports.send(report(wait.call.clone()));
        }
    }
}

impl Drop for WaitGuard {
    fn drop(&mut self) {
        self.send(BatchReport::WaitEnded);
    }
}
