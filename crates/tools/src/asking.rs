//! The gate: one question about all calls that wait for a person, and what becomes of the answer.

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
    /// Asks one question about all of them and returns those that may run.
    pub(crate) async fn ask(
        &self,
        scope: &Scope,
        gated: Vec<(Prepared, String)>,
        reports: &UnboundedSender<Report>,
    ) -> Vec<Prepared> {
        let (gated, given_up): (Vec<_>, Vec<_>) = gated
            .into_iter()
            .partition(|(prepared, _)| !prepared.request.cancel.is_cancelled());
        for (prepared, _) in given_up {
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
                Decision::Denied(Some(words)) => CallFailure::new(
                    ErrorCode::ApprovalDeniedError,
                    format!("{tool} was denied: {words}"),
                ),
                Decision::TimedOut => CallFailure::new(
                    ErrorCode::ApprovalTimeoutError,
                    format!("nobody answered in time whether {tool} may run"),
                ),
                Decision::Cancelled => aborted(tool),
                Decision::TakenOver => continue,
            };
            let outcome = refused(&prepared.request, tool.clone(), failure);
            self.finish(scope, reports, outcome).await;
        }
        allowed
    }

    /// Asks whether a call that seems to have been stopped by its confinement may run without it.
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

    /// Puts the question, and tells everybody that it was put and answered.
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

    /// The same for a question that is written already. Where it is cancelled, nobody needs the answer.
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
        // The harness may be gone already; then nobody needs to know.
        let _ = reports.send(Report::Asking {
            request_id: request.id.clone(),
            calls: waiting.clone(),
            so_far,
        });
        let ledger = self.ledger.as_ref();
        let written = async {
            if let Some(ledger) = ledger {
                // The question is put all the same: a person is there, and the answer is what counts.
                let _ = scope.written(ledger.ask(&scope.id, &request)).await;
            }
        };
        let decided = async {
            scope.events.emit(Event::ApprovalRequested {
                request: request.clone(),
            });
            self.decide(scope, &request, cancelled, so_far, reports)
                .await
        };
        let ((), mut decision) = tokio::join!(biased; written, decided);
        if let Some(ledger) = ledger {
            // Where the scope was suspended meanwhile, somebody else may have answered first.
            match scope.written(ledger.go_on(&scope.id)).await {
                Err(LedgerError::TakenOver) => {
                    let _ = reports.send(Report::TakenOver);
                    return vec![Decision::TakenOver; calls];
                }
                Err(error) => {
                    let because = format!("that it goes on could not be written down: {error}");
                    decision = vec![Decision::Denied(Some(because)); calls];
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
                        Some(Answer::No(words)) => Decision::Denied(words),
                        None => Decision::Denied(None),
                    }).collect()
                }
                Some(ApprovalDecision::Cancelled) => all(Decision::Cancelled),
                Some(ApprovalDecision::Unavailable(because)) => all(Decision::Denied(Some(because))),
                Some(ApprovalDecision::Later) => all(Decision::Denied(Some("nobody can be asked here".to_owned()))),
            },
        }
    }
}

impl Orchestrator {
    /// What the person says in time. Where that comes later and the scope can be put away, it never comes here.
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
        let rests = scope.rest == Rest::AtQuestions && so_far == SoFar::Nothing;
        if decision == ApprovalDecision::Later && rests && reports.send(Report::Later).is_ok() {
            std::future::pending::<()>().await;
        }
        Some(decision)
    }
}

/// What became of a question, for one call.
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
    fn words(&self) -> String {
        match self {
            Self::Run => "yes".into(),
            Self::RunAll => "yes, for this script".into(),
            Self::RunAlways => "yes, always".into(),
            Self::Denied(None) => "no".into(),
            Self::Denied(Some(words)) => format!("no: {words}"),
            Self::TimedOut => "no answer".into(),
            Self::Cancelled => "cancelled".into(),
            Self::TakenOver => "answered elsewhere".into(),
        }
    }
}

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

/// What the tool shows of the call; one that breaks over it shows nothing.
fn preview(prepared: &Prepared) -> Preview {
    std::panic::catch_unwind(AssertUnwindSafe(|| {
        prepared.tool.tool.preview(&prepared.args)
    }))
    .unwrap_or_default()
}
