//! Questions of live runs to a person: delivered to the client that waits for the run, now or
//! later.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::{ApprovalRequest, ApprovalResponse};
use selvedge_tools::Approver;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::live::{LiveRunEntry, LiveRunsShared, OpenQuestion};

/// A question of a live run to a person.
#[derive(Debug, Clone, PartialEq)]
pub struct RunQuestion {
    /// Id of the question, for [`LiveRun::answer`](crate::LiveRun::answer).
    pub id: String,
    /// What the person is asked.
    pub kind: RunQuestionKind,
}

/// What a person is asked.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RunQuestionKind {
    /// Whether calls may run.
    Approval(ApprovalRequest),
    /// To fill in a form of an MCP server.
    Form {
        /// Name of the server.
        server: String,
        /// The elicitation request, as the server sent it.
        form: Value,
    },
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum QuestionAnswer {
    /// The answer to [`RunQuestionKind::Approval`].
    Approval(ApprovalResponse),
    /// Answers [`RunQuestionKind::Form`]: the `ElicitResult` of the client.
    Form(Value),
}

/// Whether an answer was delivered to the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerDelivery {
    /// The question was open.
    Delivered,
    /// The question had been answered or withdrawn before.
    TooLate,
}

/// Adds a question to a live run and waits for the answer. Returns `None` if the run has ended or
/// the question is closed without an answer.
pub(crate) async fn ask_client(
    shared: &Arc<LiveRunsShared>,
    run: &str,
    id: String,
    kind: RunQuestionKind,
) -> Option<QuestionAnswer> {
    let entry = {
        let runs = shared.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.running.iter().find(|entry| entry.id == run)?.clone()
    };
    let (answer, answered) = oneshot::channel();
    let question = RunQuestion {
        id: id.clone(),
        kind,
    };
    entry.lock_state().questions.push(OpenQuestion {
        question,
        reported: false,
        asked_at: Instant::now(),
        answer_sender: answer,
    });
    let _withdraw = WithdrawOnDrop {
        entry: &entry,
        id: &id,
    };
    entry.changed.notify_waiters();
    answered.await.ok()
}

/// Withdraws a question when it is dropped: its asker no longer waits.
struct WithdrawOnDrop<'a> {
    entry: &'a LiveRunEntry,
    id: &'a str,
}

impl Drop for WithdrawOnDrop<'_> {
    fn drop(&mut self) {
        drop(self.entry.lock_state().close_question(self.id));
        self.entry.changed.notify_waiters();
    }
}

/// Asks a person through the client that waits for the run.
pub(crate) struct LiveRunApprover(pub(crate) Weak<LiveRunsShared>);

impl Approver for LiveRunApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalResponse> {
        async move {
            let unavailable =
                || ApprovalResponse::Unavailable("no client waits for this script".to_owned());
            let (Some(shared), Some(run)) = (self.0.upgrade(), &request.scope_id) else {
                return unavailable();
            };
            match ask_client(
                &shared,
                run,
                request.id.clone(),
                RunQuestionKind::Approval(request.clone()),
            )
            .await
            {
                Some(QuestionAnswer::Approval(decision)) => decision,
                _ => unavailable(),
            }
        }
        .boxed()
    }
}
