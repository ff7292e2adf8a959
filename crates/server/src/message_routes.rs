//! Routes of the messages to a session: send, list, read with waiting, remove.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use selvedge_protocol::{InboxMessage, NewInboxMessage, RemovedMessage};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiJson, ApiPath, ApiQuery, Caller};
use crate::session_routes::check_spending;
use crate::state::{ApiState, SharedState};

/// Longest time that a request waits for an answer, in milliseconds.
const MAX_WAIT_MS: u64 = 60_000;
/// How often a request that waits looks for the answer, which another process may have stored. The
/// end of a turn of this process wakes it.
const WAIT_POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(send_message, list_messages))
        .routes(routes!(get_message, remove_message))
}

/// A message to send.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendMessage {
    /// Text of the message.
    text: String,
}

/// A message to a session.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessageView {
    /// Id of the session.
    session: String,
    /// Position in the queue of the session, counted from 1.
    number: u32,
    /// Who sent the message: the name of a token, or the id of a session or run.
    author: String,
    /// Text of the message.
    text: String,
    /// `queued`, `claimed` while its turn runs, `answered`, `failed` or `stopped`.
    #[schema(example = "queued")]
    state: String,
    /// Number of the turn that answers it.
    turn: Option<u32>,
    /// The final answer of the turn, or why it failed.
    answer: Option<String>,
}

impl From<InboxMessage> for MessageView {
    fn from(message: InboxMessage) -> Self {
        Self {
            session: message.session,
            number: message.number,
            author: message.author.id,
            text: message.text,
            state: message.state.as_str().to_owned(),
            turn: message.turn,
            answer: message.answer,
        }
    }
}

/// Messages to a session.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessageList {
    /// The messages that are not answered yet, oldest first.
    messages: Vec<MessageView>,
}

/// Send a message to a session: it starts a turn, or waits for the turns before it
///
/// When the response arrives, the message is stored and survives a crash of the server.
#[utoipa::path(
    post, path = "/sessions/{id}/messages", tag = "messages", params(("id" = String, Path)),
    request_body = SendMessage,
    responses((status = 202, body = MessageView), (status = "4XX", body = ErrorBody)),
)]
async fn send_message(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
    ApiJson(request): ApiJson<SendMessage>,
) -> Result<(StatusCode, Json<MessageView>), ApiError> {
    let session = state.session(&caller, &id).await?;
    check_spending(&caller)?;
    let message = queue_message(&state, &caller, &session.id, request.text).await?;
    Ok((StatusCode::ACCEPTED, Json(message.into())))
}

/// Stores a message of the caller and wakes a worker.
pub(crate) async fn queue_message(
    state: &ApiState,
    caller: &Caller,
    session: &str,
    text: String,
) -> Result<InboxMessage, ApiError> {
    let message = NewInboxMessage {
        session: session.to_owned(),
        author: caller.author(),
        text,
        permissions: None,
        idempotency_key: caller.message_key(),
        max_open_messages: Some(state.limits.queued_turns),
    };
    let message = state.stores.sessions.send(message).await?;
    state.workers.wake(session);
    Ok(message)
}

/// List the messages of a session that are not answered yet
#[utoipa::path(
    get, path = "/sessions/{id}/messages", tag = "messages", params(("id" = String, Path)),
    responses((status = 200, body = MessageList), (status = "4XX", body = ErrorBody)),
)]
async fn list_messages(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
) -> Result<Json<MessageList>, ApiError> {
    let session = state.session(&caller, &id).await?;
    let queue = state.stores.sessions.queue(&session.id).await?;
    let messages = queue.into_iter().map(MessageView::from).collect();
    Ok(Json(MessageList { messages }))
}

/// How long to wait for the answer.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitForAnswer {
    /// Wait up to this long until the message is answered, in milliseconds, up to 60000.
    wait_ms: Option<u64>,
}

/// Show a message, with the answer once its turn has ended
#[utoipa::path(
    get, path = "/sessions/{id}/messages/{number}", tag = "messages",
    params(("id" = String, Path), ("number" = u32, Path), WaitForAnswer),
    responses((status = 200, body = MessageView), (status = "4XX", body = ErrorBody)),
)]
async fn get_message(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath((id, number)): ApiPath<(String, u32)>,
    ApiQuery(query): ApiQuery<WaitForAnswer>,
) -> Result<Json<MessageView>, ApiError> {
    let session = state.session(&caller, &id).await?;
    let wait = Duration::from_millis(query.wait_ms.unwrap_or(0).min(MAX_WAIT_MS));
    let deadline = Instant::now() + wait;
    let ends = state.workers.message_ends.of_session(&session.id);
    let mut has_waited = false;
    loop {
        let ended = ends.notified();
        let message = state.stores.sessions.message(&session.id, number).await?;
        let is_open = message.state.is_open();
        if !is_open || Instant::now() >= deadline || state.stopping.is_cancelled() {
            // A token that was revoked meanwhile has stopped its turns.
            if has_waited && !state.token_watch.is_valid(&caller.token.id).await {
                return Err(ApiError::unauthorized());
            }
            return Ok(Json(message.into()));
        }
        let next_look = deadline.min(Instant::now() + WAIT_POLL_INTERVAL);
        tokio::select! {
            () = ended => {}
            () = tokio::time::sleep_until(next_look) => {}
            () = state.stopping.cancelled() => {}
        }
        has_waited = true;
    }
}

/// Remove a message from the queue, unless its turn has begun
#[utoipa::path(
    delete, path = "/sessions/{id}/messages/{number}", tag = "messages",
    params(("id" = String, Path), ("number" = u32, Path)),
    responses((status = 204), (status = "4XX", body = ErrorBody)),
)]
async fn remove_message(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath((id, number)): ApiPath<(String, u32)>,
) -> Result<StatusCode, ApiError> {
    let session = state.session(&caller, &id).await?;
    match state
        .stores
        .queues
        .remove_message(&session.id, number)
        .await?
    {
        RemovedMessage::Removed => {
            state.workers.message_ends.notify(&session.id);
            Ok(StatusCode::NO_CONTENT)
        }
        RemovedMessage::AlreadyStarted => {
            Err(ApiError::conflict("the turn of the message has begun")
                .hint("POST /api/v1/sessions/{id}/stop stops a running turn"))
        }
        RemovedMessage::NotFound => Err(ApiError::not_found(format!("message {number}"))),
    }
}
