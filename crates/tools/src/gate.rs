//! The approver interface, and the gate through which a running call requests approvals.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::{
    ApprovalDecision, ApprovalPolicy, ApprovalRequest, GatedCall, Preview, new_id,
};
use serde_json::Value;
use tokio::sync::mpsc::WeakUnboundedSender;
use tokio_util::sync::CancellationToken;

use crate::asking::Decision;
use crate::orchestrator::{Orchestrator, Report, SoFar};
use crate::{Risk, Scope, ToolError, Verdict, judge};

/// Decides approval requests: a person in the terminal, an MCP client, or stored decisions.
pub trait Approver: Send + Sync {
    /// Returns the response to a request for one or more calls. The future is dropped if the calls
    /// are cancelled or the request times out.
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision>;
}

/// An approver that defers every decision: the run is suspended until one is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct AskLater;

impl Approver for AskLater {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision> {
        std::future::ready(ApprovalDecision::Later).boxed()
    }
}

/// An approver for environments without one: every request is answered with the reason.
#[derive(Debug, Clone)]
pub struct NobodyToAsk {
    /// Why no approver is available, such as `there is no terminal`.
    pub because: String,
}

impl Approver for NobodyToAsk {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision> {
        std::future::ready(ApprovalDecision::Unavailable(self.because.clone())).boxed()
    }
}

/// Requests approvals for a call that is already running, under the same policy and from the same
/// approver as calls that have not started.
#[derive(Clone, Default)]
pub struct Gate(Option<Arc<Inside>>);

struct Inside {
    orchestrator: Orchestrator,
    scope: Scope,
    call: String,
    line: Option<u32>,
    cancel: CancellationToken,
    /// Weak, so that a gate that outlives its call does not keep the batch open.
    reports: WeakUnboundedSender<Report>,
}

/// An action for which a running call requests approval, on behalf of an MCP server for example.
#[derive(Debug, Clone, PartialEq)]
pub struct Wish {
    /// Name of the requester, shown in place of the tool's name.
    pub who: String,
    /// Why approval is needed, in one line.
    pub reason: String,
    /// What an approver is shown of the action.
    pub preview: Preview,
    /// Key shared by all actions that an approval "for this script" covers.
    pub agreement: String,
}

/// What a running call waits for while its script's clock is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// A person. No time limit applies.
    Person,
    /// A model, which has its own time limits.
    Model,
}

impl Gate {
    pub(crate) fn new(
        orchestrator: &Orchestrator,
        scope: &Scope,
        (call, line, cancel): (&str, Option<u32>, &CancellationToken),
        reports: WeakUnboundedSender<Report>,
    ) -> Self {
        Self(Some(Arc::new(Inside {
            orchestrator: orchestrator.clone(),
            scope: scope.clone(),
            call: call.to_owned(),
            line,
            cancel: cancel.clone(),
            reports,
        })))
    }

    /// Returns why no approval can be requested, or `None` if it can.
    pub fn why_shut(&self) -> Option<&'static str> {
        match &self.0 {
            None => Some("approval is not possible here"),
            Some(context) if context.orchestrator.policy() == ApprovalPolicy::Never => {
                Some("the approval policy is `never`")
            }
            Some(_) => None,
        }
    }

    /// Requests approval. The error says why it was not given.
    ///
    /// The request is cancelled with the call, or when `abandoned` completes. Do not drop the
    /// future instead: the request would stay open in the journal.
    pub async fn agree(
        &self,
        action: Wish,
        abandoned: impl Future<Output = ()>,
    ) -> Result<(), ToolError> {
        let Some(context) = &self.0 else {
            return Err(ToolError::new("approval is not possible here"));
        };
        let Inside {
            orchestrator,
            scope,
            call,
            line,
            cancel,
            reports,
        } = &**context;
        if scope.has_agreed(&action.agreement) {
            return Ok(());
        }
        if let Verdict::Refuse { reason } = judge(
            orchestrator.policy(),
            Risk::Ask {
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
            script_id: Some(scope.id.clone()),
            calls: vec![GatedCall {
                call_id: call.clone(),
                tool: action.who,
                args: Value::Null,
                reason: action.reason,
                context: None,
                line: *line,
                snippet: scope
                    .source
                    .as_ref()
                    .zip(*line)
                    .map(|(source, line)| source.around(line)),
                preview: action.preview,
            }],
        };
        let cancelled = async {
            tokio::select! {
                () = cancel.cancelled() => {}
                () = abandoned => {}
            }
        };
        let waiting = vec![call.clone()];
        let decision = orchestrator
            .put(
                scope,
                request,
                cancelled,
                waiting,
                SoFar::OneAttempt,
                &reports,
            )
            .await;
        match decision.into_iter().next() {
            Some(Decision::Run) => Ok(()),
            Some(Decision::RunAll | Decision::RunAlways) => {
                scope.agree(action.agreement);
                Ok(())
            }
            Some(Decision::Denied(Some(reason))) => Err(ToolError::new(reason)),
            Some(Decision::TimedOut) => Err(ToolError::new("approval timed out")),
            Some(Decision::Cancelled) => Err(ToolError::new("the approval request was cancelled")),
            Some(Decision::Denied(None) | Decision::TakenOver) | None => {
                Err(ToolError::new("it was denied"))
            }
        }
    }

    /// Reports that the call waits, until the returned guard is dropped.
    pub fn wait(&self, target: WaitsFor) -> Waiting {
        let channel = self
            .0
            .as_ref()
            .map(|context| (context.call.clone(), context.reports.clone()));
        let guard = Waiting {
            told: channel,
            whom: target,
        };
        guard.tell(Report::Waits);
        guard
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate")
    }
}

/// Guard of a wait of a running call.
#[must_use = "the wait is over when this is dropped"]
pub struct Waiting {
    told: Option<(String, WeakUnboundedSender<Report>)>,
    whom: WaitsFor,
}

impl Waiting {
    fn tell(&self, report: impl FnOnce(String, WaitsFor) -> Report) {
        if let Some((call, reports)) = &self.told
            && let Some(reports) = reports.upgrade()
        {
            // If the receiver is gone, the batch has ended and the report is not needed.
            let _ = reports.send(report(call.clone(), self.whom));
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.tell(Report::GoesOn);
    }
}
