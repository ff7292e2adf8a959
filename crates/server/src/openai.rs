//! What the OpenAI-compatible endpoints share: models, sessions from messages, and the text of a
//! turn as it is written.
//!
//! A model is an environment of the workspace; `default` is the workspace without one. The messages
//! of a request are the history of a new session, unless the request names a session.

use axum::Json;
use axum::extract::State;
use selvedge_protocol::{ConversationItem, InboxMessage, MessageRole, NewSession, SessionStore};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::Caller;
use crate::client_conversation::ClientConversation;
use crate::client_tools::ClientTool;
use crate::message_routes::queue_message;
use crate::running_answer::RunningAnswer;
use crate::session_routes::{check_queue_limit, check_session_limit};
use crate::state::{ApiState, SharedState};

/// The model that is the workspace without an environment.
pub(crate) const DEFAULT_MODEL: &str = "default";
/// Most earlier turns of a conversation that become the history of a new session.
const MAX_HISTORY_TURNS: usize = 1000;
/// Most items of the earlier turns: messages, calls of tools and their results.
const MAX_HISTORY_ITEMS: usize = 10 * MAX_HISTORY_TURNS;
/// Between two messages of a turn.
pub(crate) const MESSAGE_SEPARATOR: &str = "\n\n";

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new().routes(routes!(list_models))
}

/// An environment, as a model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelView {
    /// Name of the environment, or `default`.
    id: String,
    /// The type, always `model`.
    object: String,
    /// The time, always 0.
    created: i64,
    /// The owner, always `selvedge`.
    owned_by: String,
}

/// The environments of a workspace, as models.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelsResponse {
    /// The type, always `list`.
    object: String,
    /// The models of the token.
    data: Vec<ModelView>,
}

/// List the environments of the first workspace as models (OpenAI)
#[utoipa::path(
    get, path = "/v1/models", tag = "openai",
    responses((status = 200, body = ModelsResponse), (status = "4XX", body = ErrorBody)),
)]
async fn list_models(
    State(state): State<SharedState>,
    caller: Caller,
) -> Result<Json<ModelsResponse>, ApiError> {
    let workspace = caller.workspace(None)?;
    let environments = state.host.environments(&workspace).await?;
    let names = [DEFAULT_MODEL.to_owned()].into_iter().chain(environments);
    let data = names.map(|id| ModelView {
        id,
        object: "model".to_owned(),
        created: 0,
        owned_by: "selvedge".to_owned(),
    });
    Ok(Json(ModelsResponse {
        object: "list".to_owned(),
        data: data.collect(),
    }))
}

/// The session of a request.
pub(crate) enum ClientSession {
    /// A new one with an environment.
    New { model: String },
    /// An existing one, to which only the last message is sent.
    Existing(String),
}

/// Starts the turn that answers a conversation.
pub(crate) async fn start_turn(
    state: &SharedState,
    caller: &Caller,
    session: ClientSession,
    conversation: ClientConversation,
    tools: &Value,
) -> Result<RunningAnswer, ApiError> {
    if let Some(repeated) = repeated_answer(state, caller, &conversation.prompt).await? {
        return Ok(repeated);
    }
    let (sender, client_calls) = unbounded_channel();
    let tools = ClientTool::parse_all(tools, &sender)?;
    check_queue_limit(state, caller).await?;
    let (id, is_new) = match session {
        ClientSession::Existing(id) => {
            let session = state.session(caller, &id).await?;
            check_tools(state, &session.directory, &tools).await?;
            (session.id, false)
        }
        ClientSession::New { model } => {
            let history = conversation.history;
            let created = create_session(state, caller, model, history, &tools).await?;
            (created, true)
        }
    };
    let feed = state.feeds.feed(&id);
    let live = feed.follow().await;
    let queue = queue_message(state, caller, &id, conversation.prompt);
    let place = |message: &InboxMessage| (message.session.clone(), message.number);
    let message = state.client_tools.queue_with(tools, queue, place).await?;
    let calls = (sender, client_calls);
    let answer = RunningAnswer::follow(state, feed, live, &message);
    let answer = answer.with_client_calls(calls);
    Ok(match is_new {
        true => answer.interrupted_on_drop(),
        false => answer,
    })
}

/// Returns the answer to a request that was sent before with the same idempotency key, and whose
/// reply is not stored: the server was killed, or its turn failed.
async fn repeated_answer(
    state: &SharedState,
    caller: &Caller,
    prompt: &str,
) -> Result<Option<RunningAnswer>, ApiError> {
    let Some(key) = caller.message_key() else {
        return Ok(None);
    };
    let Some(sent) = state.stores.queues.message_by_key(&key).await? else {
        return Ok(None);
    };
    if sent.text != prompt {
        return Err(ApiError::key_reused());
    }
    let feed = state.feeds.feed(&sent.session);
    let caught_up = feed.catch_up(0).await?;
    let answer = RunningAnswer::follow(state, feed, caught_up.live, &sent);
    // Earlier turns are not of interest.
    let started = caught_up.events.iter().rposition(|event| {
        let body: Value = serde_json::from_str(&event.body).unwrap_or_default();
        body["type"] == "turn.started" && body["turn"] == json!(sent.turn)
    });
    let events = caught_up.events.into_iter();
    let missed = events.skip(started.unwrap_or(usize::MAX)).collect();
    Ok(Some(answer.after(missed)))
}

async fn check_tools(state: &ApiState, folder: &str, tools: &[ClientTool]) -> Result<(), ApiError> {
    match tools.is_empty() {
        true => Ok(()),
        false => Ok(state.host.check_client_tools(folder, tools).await?),
    }
}

async fn create_session(
    state: &ApiState,
    caller: &Caller,
    model: String,
    history: Vec<ConversationItem>,
    tools: &[ClientTool],
) -> Result<String, ApiError> {
    check_history(&history)?;
    check_session_limit(state, caller).await?;
    let environment = (model != DEFAULT_MODEL).then_some(model);
    let workspace = state.session_workspace(caller, None)?;
    let place = state
        .host
        .session_place(&workspace, environment.as_deref(), None);
    let place = place.await?;
    if !caller.token.works_in(&place.directory) {
        return Err(ApiError::not_found("such model"));
    }
    check_tools(state, &place.directory, tools).await?;
    let session = NewSession {
        title: None,
        environment,
        directory: place.directory,
        folder: place.folder,
        creator: caller.author(),
        permissions: None,
        prompt: None,
        idempotency_key: None,
        max_open_messages: None,
        max_client_sessions: Some(state.limits.sessions),
    };
    let session = SessionStore::create(&*state.stores.sessions, session).await?;
    if !history.is_empty() {
        state.host.add_history(&session.id, history).await?;
    }
    Ok(session.id)
}

/// Fails if the messages of a conversation before the last one are too many.
fn check_history(history: &[ConversationItem]) -> Result<(), ApiError> {
    let prompts = history.iter().filter(|item| is_prompt(item));
    let message = if prompts.count() > MAX_HISTORY_TURNS {
        format!("the conversation has more than {MAX_HISTORY_TURNS} turns")
    } else if history.len() > MAX_HISTORY_ITEMS {
        format!("the conversation has more than {MAX_HISTORY_ITEMS} messages, calls and results")
    } else {
        return Ok(());
    };
    Err(ApiError::invalid(message)
        .hint("continue a session with `metadata.session` and the new messages only"))
}

/// Whether an item begins a turn.
fn is_prompt(item: &ConversationItem) -> bool {
    matches!(item, ConversationItem::Message(message) if message.role == MessageRole::User)
}

/// Returns an error as OpenAI clients expect it in a stream.
pub(crate) fn stream_error(message: &str) -> Value {
    json!({"error": {"message": message, "type": "server_error", "code": "turn_failed"}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_has_a_limit_of_turns_and_of_items() {
        let items = |turns: usize, others: usize| {
            let prompts = vec![ConversationItem::message(MessageRole::User, "x"); turns];
            let rest = vec![ConversationItem::function_call_output("a", "x"); others];
            check_history(&[prompts, rest].concat()).is_ok()
        };
        assert!(items(1_000, 9_000));
        assert!(!items(1_001, 0));
        assert!(items(1, 9_999));
        assert!(!items(1, 10_000));
    }
}
