//! The channel from background tasks to the chat. All updates use one channel so that they stay in
//! order.

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

/// A message from a background task to the chat.
pub(crate) enum News {
    Event(Event),
    Question(Question),
    Form(FormQuestion),
    /// The turn ended. Returns the session to the chat.
    Over(Box<(Session, TurnOutcome)>),
    /// The turn panicked. Its session is lost and must be read again.
    Broke,
    /// The result of a file search.
    Files {
        /// The text that was searched for.
        letters: String,
        paths: Vec<String>,
    },
    /// The catalogues of all MCP servers that answer are loaded.
    Prepared,
    /// The result of `/mcp`.
    Servers(Vec<ServerStatus>),
    /// The result of `/diff`.
    Diff(Box<Diff>),
}

/// Creates the channel. After each call that changed files it inserts an [`Event::DiffUpdated`].
pub(crate) fn news(turn_diff: TurnDiff) -> (UnboundedSender<News>, UnboundedReceiver<News>) {
    let (sender, mut raw) = unbounded_channel();
    let (forward, receiver) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(update) = raw.recv().await {
            let changed = matches!(
                &update,
                News::Event(Event::CallFinished { call, .. }) if changes(&call.tool, call.status)
            );
            if forward.send(update).is_err() {
                return;
            }
            if changed {
                let turn_diff = turn_diff.clone();
                let diff = tokio::task::spawn_blocking(move || turn_diff.diff().text).await;
                let diff = diff.unwrap_or_default();
                // If the chat has ended, sending the next update ends the loop.
                let _ = forward.send(News::Event(Event::DiffUpdated { diff }));
            }
        }
    });
    (sender, receiver)
}

/// Whether the call is known to have changed files.
fn changes(tool: &str, status: CallStatus) -> bool {
    status == CallStatus::Done && matches!(tool, "apply_patch" | "write_file")
}

/// Asks the user of the chat for approvals and shows the forms of MCP servers.
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
            // If the chat ends first, the approval can be answered in a later process.
            answer.await.unwrap_or(ApprovalDecision::Later)
        }
        .boxed()
    }
}

impl AskPerson for InTheChat {
    fn elicit<'a>(
        &'a self,
        elicitation: &'a Elicitation,
    ) -> BoxFuture<'a, Result<Elicited, AskError>> {
        async move {
            let form = Form::read(&elicitation.request)?;
            let (reply, answer) = oneshot::channel();
            let question = FormQuestion {
                server: elicitation.server.clone(),
                form,
                reply,
            };
            let ended = || AskError::Unavailable("the chat has ended".to_owned());
            self.0.send(News::Form(question)).map_err(|_| ended())?;
            answer.await.map_err(|_| ended())
        }
        .boxed()
    }

    fn shows(&self) -> Shows {
        Shows::Addresses
    }
}
