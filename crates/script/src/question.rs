//! What a run that goes on needs a person for: put to whoever waits for it, now or later.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::{ApprovalDecision, ApprovalRequest};
use selvedge_tools::Approver;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::live::{Asked, Entry, Shared};

/// Something a run needs a person for.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Names it.
    pub id: String,
    /// What it is.
    pub kind: QuestionKind,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum QuestionKind {
    /// Whether calls may run.
    Approval(ApprovalRequest),
    /// To fill in a form of somebody else's; who asks, and the form.
    Form {
        /// Who asks.
        from: String,
        /// The form, in the words of whoever asks.
        form: Value,
    },
}

/// What was answered.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Reply {
    /// To [`QuestionKind::Approval`].
    Approval(ApprovalDecision),
    /// To [`QuestionKind::Form`].
    Form(Value),
}

/// Whether an answer was still wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// It was.
    InTime,
    /// The question was answered, given up or forgotten before.
    TooLate,
}

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
    let _withdrawn = Withdraw {
        entry: &entry,
        id: &id,
    };
    entry.news.notify_waiters();
    answered.await.ok()
}

/// Takes back a question that nobody waits for any more.
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

/// Asks a person through whoever waits for the run.
pub(crate) struct ThroughTheWaiting(pub(crate) Weak<Shared>);

impl Approver for ThroughTheWaiting {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision> {
        async move {
            let unavailable =
                || ApprovalDecision::Unavailable("nobody waits for this script".to_owned());
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
