//! The port through which a person is asked: before calls run, and by a call that runs.

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

/// Asks a person. One request carries every call that waits at the same await.
pub trait Approver: Send + Sync {
    /// Resolves when the person has answered. Dropped when the call is cancelled or times out.
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision>;
}

/// An approver for places where a person answers later: the script is put away until then.
#[derive(Debug, Clone, Copy, Default)]
pub struct AskLater;

impl Approver for AskLater {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision> {
        std::future::ready(ApprovalDecision::Later).boxed()
    }
}

/// An approver for places without a person: every question is answered with why nobody was asked.
#[derive(Debug, Clone)]
pub struct NobodyToAsk {
    /// Such as `there is no terminal`.
    pub because: String,
}

impl Approver for NobodyToAsk {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision> {
        std::future::ready(ApprovalDecision::Unavailable(self.because.clone())).boxed()
    }
}

/// The gate as a call finds it that runs already: what only turns out on the way is asked about here, by the same policy
/// and of the same person as everything else.
#[derive(Clone, Default)]
pub struct Gate(Option<Arc<Inside>>);

struct Inside {
    orchestrator: Orchestrator,
    scope: Scope,
    call: String,
    line: Option<u32>,
    cancel: CancellationToken,
    /// Whoever keeps the gate longer than its call holds up nobody.
    reports: WeakUnboundedSender<Report>,
}

/// Something that a call wants to do on somebody else's behalf.
#[derive(Debug, Clone, PartialEq)]
pub struct Wish {
    /// Who wishes it, in the place of a tool's name.
    pub who: String,
    /// What it is, in one line.
    pub reason: String,
    /// What a person is shown of it.
    pub preview: Preview,
    /// What "for this script" covers.
    pub agreement: String,
}

/// Whom a call waits for that cannot be hurried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// Nobody's time runs meanwhile.
    Person,
    /// Which has limits of its own.
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

    /// Why nobody is asked anything here, where that is so.
    pub fn why_shut(&self) -> Option<&'static str> {
        match &self.0 {
            None => Some("nobody can be asked here"),
            Some(inside) if inside.orchestrator.policy() == ApprovalPolicy::Never => {
                Some("the approval policy is `never`, so nobody is asked")
            }
            Some(_) => None,
        }
    }

    /// Whether a person agrees; the error is why not. Given up with the call, or when `given_up` says so: better than
    /// dropping this, which would leave the question open for whoever looks at the journal.
    pub async fn agree(
        &self,
        wish: Wish,
        given_up: impl Future<Output = ()>,
    ) -> Result<(), ToolError> {
        let Some(inside) = &self.0 else {
            return Err(ToolError::new("nobody can be asked here"));
        };
        let Inside {
            orchestrator,
            scope,
            call,
            line,
            cancel,
            reports,
        } = &**inside;
        if scope.has_agreed(&wish.agreement) {
            return Ok(());
        }
        if let Verdict::Refuse { reason } = judge(
            orchestrator.policy(),
            Risk::Ask {
                reason: wish.reason.clone(),
            },
        ) {
            return Err(ToolError::new(reason));
        }
        let Some(reports) = reports.upgrade() else {
            return Err(ToolError::new("the call is over"));
        };
        let request = ApprovalRequest {
            id: new_id("apr"),
            script_id: Some(scope.id.clone()),
            calls: vec![GatedCall {
                call_id: call.clone(),
                tool: wish.who,
                args: Value::Null,
                reason: wish.reason,
                context: None,
                line: *line,
                snippet: scope
                    .source
                    .as_ref()
                    .zip(*line)
                    .map(|(source, line)| source.around(line)),
                preview: wish.preview,
            }],
        };
        let cancelled = async {
            tokio::select! {
                () = cancel.cancelled() => {}
                () = given_up => {}
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
                scope.agree(wish.agreement);
                Ok(())
            }
            Some(Decision::Denied(Some(words))) => Err(ToolError::new(words)),
            Some(Decision::TimedOut) => Err(ToolError::new("nobody answered in time")),
            Some(Decision::Cancelled) => Err(ToolError::new("the question was left unanswered")),
            Some(Decision::Denied(None) | Decision::TakenOver) | None => {
                Err(ToolError::new("it was not wanted"))
            }
        }
    }

    /// The call waits for somebody until this is dropped.
    pub fn wait(&self, whom: WaitsFor) -> Waiting {
        let told = self
            .0
            .as_ref()
            .map(|inside| (inside.call.clone(), inside.reports.clone()));
        let waiting = Waiting { told, whom };
        waiting.tell(Report::Waits);
        waiting
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate")
    }
}

/// A call waits for somebody.
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
            // The harness may be gone already; then nobody needs to know.
            let _ = reports.send(report(call.clone(), self.whom));
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.tell(Report::GoesOn);
    }
}
