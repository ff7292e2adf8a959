//! The channel from background tasks to the chat. All updates use one channel so that they stay in
//! order.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_agent::{Session, TurnOutcome};
use selvedge_mcp::{
    ElicitationHandler, ElicitationModes, ElicitationRequest, ElicitationResponse, ServerForm,
    ServerRequestError, ServerStatus,
};
use selvedge_protocol::{ApprovalRequest, ApprovalResponse, CallStatus, RuntimeEvent};
use selvedge_toolbox::{FILE_CHANGING_TOOLS, TurnDiffTracker, WorkspaceDiff};
use selvedge_tools::{ApprovalTimeLimit, Approver};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::app::Chat;
use super::approval_prompt::ChatApprovalRequest;
use super::form_prompt::ChatFormRequest;
use crate::problem::Problem;
use crate::prompt_images::PromptImage;

/// A message from a background task to the chat.
pub(crate) enum ChatUpdate {
    Event(RuntimeEvent),
    ApprovalRequested(ChatApprovalRequest),
    FormRequested(ChatFormRequest),
    /// The turn ended. Returns the session to the chat.
    TurnFinished(Box<(Session, TurnOutcome)>),
    /// The turn panicked. Its session is lost and must be read again.
    TurnPanicked,
    /// The result of a file search.
    FilesFound {
        /// The text that was searched for.
        query: String,
        paths: Vec<String>,
    },
    /// The catalogues of all MCP servers that answer are loaded.
    ServersReady,
    /// Shows what was read from the journal.
    JournalRead(Box<dyn FnOnce(&mut Chat) + Send>),
    /// The result of `/mcp`.
    ServersChecked(Vec<ServerStatus>),
    /// The image that was on the clipboard.
    ClipboardRead(Result<Box<PromptImage>, Problem>),
    /// The file that a pasted text names was read.
    ImageFileRead {
        text: String,
        image: Result<Box<PromptImage>, Problem>,
    },
    /// The result of `/diff`.
    SessionDiffReady(Box<WorkspaceDiff>),
}

/// Creates the channel. After each call that changed files it inserts an
/// [`RuntimeEvent::DiffUpdated`].
pub(crate) fn update_channel(
    turn_diff: TurnDiffTracker,
) -> (UnboundedSender<ChatUpdate>, UnboundedReceiver<ChatUpdate>) {
    let (sender, mut raw) = unbounded_channel();
    let (forward, receiver) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(update) = raw.recv().await {
            let changed = matches!(
                &update,
                ChatUpdate::Event(RuntimeEvent::CallFinished { call, .. }) if changes_files(&call.tool, call.status)
            );
            if forward.send(update).is_err() {
                return;
            }
            if changed {
                let turn_diff = turn_diff.clone();
                let diff = tokio::task::spawn_blocking(move || turn_diff.diff().text).await;
                let diff = diff.unwrap_or_default();
                // If the chat has ended, sending the next update ends the loop.
                let _ = forward.send(ChatUpdate::Event(RuntimeEvent::DiffUpdated { diff }));
            }
        }
    });
    (sender, receiver)
}

/// Whether the call is known to have changed files.
fn changes_files(tool: &str, status: CallStatus) -> bool {
    status == CallStatus::Done && FILE_CHANGING_TOOLS.contains(&tool)
}

/// Asks the user of the chat for approvals and shows the forms of MCP servers.
pub(crate) struct ChatApprover(pub(crate) UnboundedSender<ChatUpdate>);

impl Approver for ChatApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalResponse> {
        async move {
            let (reply, answer) = oneshot::channel();
            let question = ChatApprovalRequest {
                request: request.clone(),
                reply,
            };
            if self
                .0
                .send(ChatUpdate::ApprovalRequested(question))
                .is_err()
            {
                return ApprovalResponse::Deferred;
            }
            // If the chat ends first, the approval can be answered in a later process.
            answer.await.unwrap_or(ApprovalResponse::Deferred)
        }
        .boxed()
    }

    fn time_limit(&self) -> ApprovalTimeLimit {
        ApprovalTimeLimit::Unlimited
    }
}

impl ElicitationHandler for ChatApprover {
    fn elicit<'a>(
        &'a self,
        elicitation: &'a ElicitationRequest,
    ) -> BoxFuture<'a, Result<ElicitationResponse, ServerRequestError>> {
        async move {
            let form = ServerForm::parse(&elicitation.request)?;
            let (reply, answer) = oneshot::channel();
            let question = ChatFormRequest {
                server: elicitation.server.clone(),
                form,
                reply,
            };
            let ended = || ServerRequestError::Unavailable("the chat has ended".to_owned());
            self.0
                .send(ChatUpdate::FormRequested(question))
                .map_err(|_| ended())?;
            answer.await.map_err(|_| ended())
        }
        .boxed()
    }

    fn supported_modes(&self) -> ElicitationModes {
        ElicitationModes::FormAndUrl
    }
}
