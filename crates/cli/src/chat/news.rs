//! What the chat hears of the turn that runs beside it. Everything comes the same way, so that it comes in order.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_agent::{Session, TurnOutcome};
use selvedge_mcp::{AskError, AskPerson, Elicitation, Elicited, Form, ServerStatus, Shows};
use selvedge_protocol::{ApprovalDecision, ApprovalRequest, CallStatus, Event};
use selvedge_toolbox::{Diff, TurnDiff};
use selvedge_tools::Approver;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::form::FormQuestion;
use super::question::Question;

pub(crate) enum News {
    Event(Event),
    Question(Question),
    Form(FormQuestion),
    /// The turn is over, and the session is free again.
    Over(Box<(Session, TurnOutcome)>),
    /// The turn panicked.
    Broke,
    /// Files whose names have these letters.
    Files {
        letters: String,
        paths: Vec<String>,
    },
    /// What the servers have is known, as far as they answer.
    Prepared,
    Servers(Vec<ServerStatus>),
    Diff(Box<Diff>),
}

/// The two ends of the way: what is sent to the first comes out of the second, and behind a call that changed a file
/// comes what has changed.
pub(crate) fn news(turn_diff: TurnDiff) -> (UnboundedSender<News>, UnboundedReceiver<News>) {
    let (sender, mut raw) = unbounded_channel();
    let (forward, receiver) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(news) = raw.recv().await {
            let changed = matches!(&news, News::Event(Event::CallFinished { call, .. }) if changes(&call.tool, call.status));
            if forward.send(news).is_err() {
                return;
            }
            if changed {
                let turn_diff = turn_diff.clone();
                let diff = tokio::task::spawn_blocking(move || turn_diff.diff().text).await;
                let diff = diff.unwrap_or_default();
                // The next message ends the loop if the chat is over.
                let _ = forward.send(News::Event(Event::DiffUpdated { diff }));
            }
        }
    });
    (sender, receiver)
}

/// Whether a call is known to have changed files.
fn changes(tool: &str, status: CallStatus) -> bool {
    status == CallStatus::Done && matches!(tool, "apply_patch" | "write_file")
}

pub(crate) struct InTheChat(pub(crate) UnboundedSender<News>);

impl Approver for InTheChat {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision> {
        async move {
            let (reply, answer) = oneshot::channel();
            let question = Question {
                request: request.clone(),
                reply,
            };
            if self.0.send(News::Question(question)).is_err() {
                return ApprovalDecision::Later;
            }
            // A chat that is gone answers later.
            answer.await.unwrap_or(ApprovalDecision::Later)
        }
        .boxed()
    }
}

impl AskPerson for InTheChat {
    fn elicit<'a>(&'a self, wanted: &'a Elicitation) -> BoxFuture<'a, Result<Elicited, AskError>> {
        async move {
            let form = Form::read(&wanted.request)?;
            let (reply, answer) = oneshot::channel();
            let question = FormQuestion {
                server: wanted.server.clone(),
                form,
                reply,
            };
            // A chat that is gone answers nothing.
            let gone = || AskError::Unavailable("the chat is over".to_owned());
            self.0.send(News::Form(question)).map_err(|_| gone())?;
            answer.await.map_err(|_| gone())
        }
        .boxed()
    }

    fn shows(&self) -> Shows {
        Shows::Addresses
    }
}
