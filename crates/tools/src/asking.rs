//! The approval gate: one request for all calls of a batch that need approval, and its decisions.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use futures_util::future::join_all;
use selvedge_protocol::{
    Answer, ApprovalDecision, ApprovalRequest, ErrorCode, Event, GatedCall, LedgerError, Preview,
    new_id,
};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;

use crate::failure::{CallFailure, aborted};
use crate::orchestrator::{Orchestrator, Prepared, Report, SoFar, refused};
use crate::scope::{Rest, Scope};

impl Orchestrator {
    /// Requests approval for calls with their reasons, and returns those that may run. The others
    /// are finished.
    pub(crate) async fn ask(
        &self,
        scope: &Scope,
        gated: Vec<(Prepared, String)>,
        reports: &UnboundedSender<Report>,
    ) -> Vec<Prepared> {
        let (gated, cancelled): (Vec<_>, Vec<_>) = gated
            .into_iter()
            .partition(|(prepared, _)| !prepared.request.cancel.is_cancelled());
        for (prepared, _) in cancelled {
            let name = prepared.tool.spec.name.clone();
            let outcome = refused(&prepared.request, name.clone(), aborted(&name));
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
            .question(scope, &gated, ids, SoFar::Nothing, reports)
            .await;
        let mut allowed = Vec::new();
        for ((prepared, _), decision) in gated.into_iter().zip(decision) {
            let tool = &prepared.tool.spec.name;
            let failure = match decision {
                Decision::Run => {
                    allowed.push(prepared);
                    continue;
                }
                Decision::RunAll => {
                    scope.agree(prepared.agreement());
                    allowed.push(prepared);
                    continue;
                }
                Decision::RunAlways => {
                    prepared.tool.tool.allow_always(&prepared.args);
                    scope.agree(prepared.agreement());
                    allowed.push(prepared);
                    continue;
                }
                Decision::Denied(None) => {
                    CallFailure::new(ErrorCode::ApprovalDeniedError, format!("{tool} was denied"))
                }
                Decision::Denied(Some(reason)) => CallFailure::new(
                    ErrorCode::ApprovalDeniedError,
                    format!("{tool} was denied: {reason}"),
                ),
                Decision::TimedOut => {
                    let limit = scope.limits.approval_timeout.unwrap_or_default();
                    let seconds = limit.as_secs_f64();
                    CallFailure::new(
                        ErrorCode::ApprovalTimeoutError,
                        format!("approval of {tool} timed out after {seconds} s"),
                    )
                }
                Decision::Cancelled => aborted(tool),
                Decision::TakenOver => continue,
            };
            let outcome = refused(&prepared.request, tool.clone(), failure);
            self.finish(scope, reports, outcome).await;
        }
        allowed
    }

    /// Requests approval to retry a call outside the confinement that seems to have blocked it.
    /// `first` is the id of the first attempt.
    pub(crate) async fn ask_again(
        &self,
        scope: &Scope,
        prepared: Prepared,
        reason: String,
        first: &str,
        reports: &UnboundedSender<Report>,
    ) -> Option<Prepared> {
        let gated = [(prepared, reason)];
        let decision = self
            .question(
                scope,
                &gated,
                vec![first.to_owned()],
                SoFar::OneAttempt,
                reports,
            )
            .await;
        let [(prepared, _)] = gated;
        match decision.first() {
            Some(Decision::Run) => Some(prepared),
            Some(Decision::RunAll) => {
                scope.agree(prepared.agreement());
                Some(prepared)
            }
            Some(Decision::RunAlways) => {
                prepared.tool.tool.allow_always(&prepared.args);
                scope.agree(prepared.agreement());
                Some(prepared)
            }
            _ => None,
        }
    }

    /// Creates the approval request for these calls, and returns one decision per call.
    async fn question(
        &self,
        scope: &Scope,
        gated: &[(Prepared, String)],
        waiting: Vec<String>,
        so_far: SoFar,
        reports: &UnboundedSender<Report>,
    ) -> Vec<Decision> {
        let request = ApprovalRequest {
            id: new_id("apr"),
            script_id: Some(scope.id.clone()),
            calls: gated
                .iter()
                .map(|(prepared, reason)| describe(scope, prepared, reason))
                .collect(),
        };
        let cancelled = join_all(
            gated
                .iter()
                .map(|(prepared, _)| prepared.request.cancel.cancelled()),
        )
        .map(drop);
        self.put(scope, request, cancelled, waiting, so_far, reports)
            .await
    }

    /// Submits an approval request to the approver, with its records, events and reports. Returns
    /// one decision per call. The request ends when `cancelled` completes.
    pub(crate) async fn put(
        &self,
        scope: &Scope,
        request: ApprovalRequest,
        cancelled: impl Future<Output = ()>,
        waiting: Vec<String>,
        so_far: SoFar,
        reports: &UnboundedSender<Report>,
    ) -> Vec<Decision> {
        let calls = request.calls.len();
        // If the receiver is gone, the batch has ended and the report is not needed.
        let _ = reports.send(Report::Asking {
            request_id: request.id.clone(),
            calls: waiting.clone(),
            so_far,
        });
        let ledger = self.ledger.as_ref();
        let record_request = async {
            if let Some(ledger) = ledger {
                // A failure is ignored: the approver can still decide.
                let _ = scope.written(ledger.ask(&scope.id, &request)).await;
            }
        };
        let decide = async {
            scope.events.emit(Event::ApprovalRequested {
                request: request.clone(),
            });
            self.decide(scope, &request, cancelled, so_far, reports)
                .await
        };
        let ((), mut decision) = tokio::join!(biased; record_request, decide);
        if let Some(ledger) = ledger {
            // If the scope was suspended meanwhile, another process may have resumed it.
            match scope.written(ledger.go_on(&scope.id)).await {
                Err(LedgerError::TakenOver) => {
                    let _ = reports.send(Report::TakenOver);
                    return vec![Decision::TakenOver; calls];
                }
                Err(error) => {
                    let reason = format!("that the run continues could not be recorded: {error}");
                    decision = vec![Decision::Denied(Some(reason)); calls];
                }
                Ok(()) => {}
            }
        }
        let _ = reports.send(Report::Answered(waiting));
        let answers: Vec<String> = decision.iter().map(Decision::words).collect();
        if let Some(ledger) = ledger {
            let _ = scope.written(ledger.answer(&request.id, &answers)).await;
        }
        scope.events.emit(Event::ApprovalAnswered {
            id: request.id,
            answers,
        });
        decision
    }

    /// Waits for the response or a cancellation, and returns one decision per call.
    async fn decide(
        &self,
        scope: &Scope,
        request: &ApprovalRequest,
        cancelled: impl Future<Output = ()>,
        so_far: SoFar,
        reports: &UnboundedSender<Report>,
    ) -> Vec<Decision> {
        let all = |decision: Decision| vec![decision; request.calls.len()];
        tokio::select! {
            biased;
            () = cancelled => all(Decision::Cancelled),
            decision = self.answer(scope, request, so_far, reports) => match decision {
                None => all(Decision::TimedOut),
                Some(ApprovalDecision::Answered(answers)) => {
                    let mut answers = answers.into_iter();
                    request.calls.iter().map(|_| match answers.next() {
                        Some(Answer::Once) => Decision::Run,
                        Some(Answer::ThisScript) => Decision::RunAll,
                        Some(Answer::Always) => Decision::RunAlways,
                        Some(Answer::No(reason)) => Decision::Denied(reason),
                        None => Decision::Denied(None),
                    }).collect()
                }
                Some(ApprovalDecision::Cancelled) => all(Decision::Cancelled),
                Some(ApprovalDecision::Unavailable(reason)) => all(Decision::Denied(Some(reason))),
                Some(ApprovalDecision::Later) => {
                    all(Decision::Denied(Some("approval is not possible here".to_owned())))
                }
            },
        }
    }
}

impl Orchestrator {
    /// Returns the approver's response, or `None` if the request timed out. If the response is
    /// deferred and the scope can be suspended, it never returns: the owner drops the future.
    async fn answer(
        &self,
        scope: &Scope,
        request: &ApprovalRequest,
        so_far: SoFar,
        reports: &UnboundedSender<Report>,
    ) -> Option<ApprovalDecision> {
        let asked = self.approver.ask(request);
        let decision = match scope.limits.approval_timeout {
            Some(limit) => tokio::time::timeout(limit, asked).await.ok()?,
            None => asked.await,
        };
        let can_suspend = scope.rest == Rest::AtQuestions && so_far == SoFar::Nothing;
        if decision == ApprovalDecision::Later && can_suspend && reports.send(Report::Later).is_ok()
        {
            std::future::pending::<()>().await;
        }
        Some(decision)
    }
}

/// Result of an approval request for one call.
#[derive(Debug, Clone)]
pub(crate) enum Decision {
    Run,
    RunAll,
    RunAlways,
    Denied(Option<String>),
    TimedOut,
    Cancelled,
    TakenOver,
}

impl Decision {
    /// Returns the text that the journal and events contain.
    fn words(&self) -> String {
        match self {
            Self::Run => "yes".into(),
            Self::RunAll => "yes, for this script".into(),
            Self::RunAlways => "yes, always".into(),
            Self::Denied(None) => "no".into(),
            Self::Denied(Some(reason)) => format!("no: {reason}"),
            Self::TimedOut => "no answer".into(),
            Self::Cancelled => "cancelled".into(),
            Self::TakenOver => "answered elsewhere".into(),
        }
    }
}

/// Describes a call for the approver.
fn describe(scope: &Scope, prepared: &Prepared, reason: &str) -> GatedCall {
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
            .map(|(source, line)| source.around(line)),
        preview: preview(prepared),
    }
}

/// Returns the tool's preview of the call, or an empty one if the tool panics.
fn preview(prepared: &Prepared) -> Preview {
    std::panic::catch_unwind(AssertUnwindSafe(|| {
        prepared.tool.tool.preview(&prepared.args)
    }))
    .unwrap_or_default()
}
