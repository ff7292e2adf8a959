//! Route that shows what the server does now: MCP servers, the queue, and recent errors.

use axum::Json;
use axum::extract::State;
use selvedge_protocol::{FailedMessage, InboxState, SessionError, SessionState};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiQuery, Caller};
use crate::host::HostedMcpServer;
use crate::state::{ApiState, SharedState};

/// Most sessions whose queues a response has.
const MAX_LISTED_QUEUES: usize = 50;
/// Most errors of a response.
const MAX_LISTED_ERRORS: u32 = 20;
/// Characters of a message in the queue that a response has.
const MAX_MESSAGE_CHARS: usize = 200;

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new().routes(routes!(get_status))
}

/// Which workspace to show.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetStatus {
    /// Workspace whose MCP servers are shown, one of the token's. Defaults to the first one.
    workspace: Option<String>,
}

/// What the server does now in the workspaces of the token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatusReport {
    /// The MCP servers of the workspace.
    mcp_servers: Vec<HostedMcpServer>,
    /// The messages that are not answered yet, by session, at most those of 50 sessions.
    queue: Vec<WaitingMessage>,
    /// Most turns at once that a token pays for. Further ones wait.
    max_running_turns: usize,
    /// The turns that failed last, the newest first. Those that were stopped are not among them.
    errors: Vec<TurnFailure>,
}

/// A message whose turn runs or waits.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WaitingMessage {
    /// Id of the session.
    session: String,
    /// Title of the session.
    title: Option<String>,
    /// Position in the queue of the session.
    number: u32,
    /// Who sent it.
    author: String,
    /// The beginning of the message.
    text: String,
    /// Whether its turn runs, and for what it waits otherwise.
    state: WaitingMessageState,
}

/// What an open message waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WaitingMessageState {
    /// Its turn runs.
    Running,
    /// Its turn waits until another turn of the same sender ends, or starts at once.
    WaitingToRun,
    /// It waits until the message before it is answered.
    WaitingForTurn,
    /// It waits until a server runs that serves the folder of the session.
    WaitingForServer,
}

/// A turn that failed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TurnFailure {
    /// Id of the session.
    session: String,
    /// Title of the session.
    title: Option<String>,
    /// Number of the turn; missing if it did not begin.
    turn: Option<u32>,
    /// Why it failed.
    message: String,
    /// When it failed, in milliseconds since 1970.
    at_ms: i64,
}

impl From<FailedMessage> for TurnFailure {
    fn from(failed: FailedMessage) -> Self {
        Self {
            session: failed.session,
            title: failed.title,
            turn: failed.turn,
            message: failed.error,
            at_ms: failed.ended_ms,
        }
    }
}

/// Show the MCP servers of a workspace, the queue, and recent errors
///
/// Starts no MCP server.
#[utoipa::path(
    get, path = "/status", tag = "health", params(GetStatus),
    responses((status = 200, body = StatusReport), (status = "4XX", body = ErrorBody)),
)]
async fn get_status(
    State(state): State<SharedState>,
    caller: Caller,
    ApiQuery(query): ApiQuery<GetStatus>,
) -> Result<Json<StatusReport>, ApiError> {
    let workspace = state.session_workspace(&caller, query.workspace.as_deref())?;
    let mcp_servers = match state.host.serves(&workspace) {
        true => state.host.mcp_servers(&workspace).await?,
        false => Vec::new(),
    };
    let folders = &caller.token.workspaces;
    let failed = state
        .stores
        .queues
        .failed_messages(folders, MAX_LISTED_ERRORS);
    let errors = failed.await?.into_iter();
    Ok(Json(StatusReport {
        mcp_servers,
        queue: open_messages(&state, &caller).await?,
        max_running_turns: state.limits.concurrent_turns,
        errors: errors.map(TurnFailure::from).collect(),
    }))
}

/// Returns the messages of the caller's sessions that are not answered yet.
async fn open_messages(state: &ApiState, caller: &Caller) -> Result<Vec<WaitingMessage>, ApiError> {
    let waiting = state.stores.queues.waiting_sessions().await?.into_iter();
    let own = waiting.filter(|session| caller.token.works_in(&session.directory));
    let mut messages = Vec::new();
    for session in own.take(MAX_LISTED_QUEUES) {
        let info = match state.stores.sessions.get(&session.id).await {
            // It was deleted meanwhile.
            Err(SessionError::NotFound(_)) => continue,
            info => info?,
        };
        let queue = state.stores.sessions.queue(&session.id).await?;
        for (position, message) in queue.into_iter().enumerate() {
            messages.push(WaitingMessage {
                session: message.session,
                title: info.title.clone(),
                number: message.number,
                author: message.author.id,
                text: message.text.chars().take(MAX_MESSAGE_CHARS).collect(),
                state: match (message.state, position) {
                    _ if info.state == SessionState::Unserved => {
                        WaitingMessageState::WaitingForServer
                    }
                    (InboxState::Claimed, _) => WaitingMessageState::Running,
                    (_, 0) => WaitingMessageState::WaitingToRun,
                    _ => WaitingMessageState::WaitingForTurn,
                },
            });
        }
    }
    Ok(messages)
}
