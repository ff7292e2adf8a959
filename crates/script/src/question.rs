//! Questions of live runs to a person: delivered to the client that waits for the run, now or
//! later.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::{ApprovalDecision, ApprovalRequest};
use selvedge_tools::Approver;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::live::{Asked, Entry, Shared};

/// A question of a live run to a person.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Id of the question, for [`LiveRun::answer`](crate::LiveRun::answer).
    pub id: String,
    /// What the person is asked.
    pub kind: QuestionKind,
}

/// What a person is asked.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum QuestionKind {
    /// Whether calls may run.
    Approval(ApprovalRequest),
    /// To fill in a form of an MCP server.
    Form {
        /// Name of the server.
        from: String,
        /// The elicitation request, as the server sent it.
        form: Value,
    },
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Reply {
    /// Answers [`QuestionKind::Approval`].
    Approval(ApprovalDecision),
    /// Answers [`QuestionKind::Form`], with the result of the elicitation.
    Form(Value),
}

/// Whether an answer was delivered to the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// The question was open.
    InTime,
    /// The question had been answered or withdrawn before.
    TooLate,
}

/// Adds a question to a live run and waits for the answer. Returns `None` if the run has ended or
/// the question is closed without an answer.
pub(crate) async fn ask(
    shared: &Arc<Shared>,
    run: &str,
    id: String,
    kind: QuestionKind,
) -> Option<Reply> {
    let entry = {
        let runs = shared.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.running.iter().find(|entry| entry.id == run)?.clone()
    };
    let (answer, answered) = oneshot::channel();
    let question = Question {
        id: id.clone(),
        kind,
    };
    entry.now().questions.push(Asked {
        question,
        taken: false,
        since: Instant::now(),
        answer,
    });
    let _withdraw = Withdraw {
        entry: &entry,
        id: &id,
    };
    entry.news.notify_waiters();
    answered.await.ok()
}

/// Withdraws a question when it is dropped: its asker no longer waits.
struct Withdraw<'a> {
    entry: &'a Entry,
    id: &'a str,
}

impl Drop for Withdraw<'_> {
    fn drop(&mut self) {
        drop(self.entry.now().close(self.id));
        self.entry.news.notify_waiters();
    }
}

/// Asks a person through the client that waits for the run.
pub(crate) struct ThroughTheWaiting(pub(crate) Weak<Shared>);

impl Approver for ThroughTheWaiting {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision> {
        async move {
            let unavailable =
                || ApprovalDecision::Unavailable("no client waits for this script".to_owned());
            let (Some(shared), Some(run)) = (self.0.upgrade(), &request.script_id) else {
                return unavailable();
            };
            match ask(
                &shared,
                run,
                request.id.clone(),
                QuestionKind::Approval(request.clone()),
            )
            .await
            {
                Some(Reply::Approval(decision)) => decision,
                _ => unavailable(),
            }
        }
        .boxed()
    }
}
