//! What the OpenAI-compatible endpoints share: models, sessions from messages, and the text of a
//! turn as it is written.
//!
//! A model is an environment of the workspace; `default` is the workspace without one. The messages
//! of a request are the history of a new session, unless the request names a session.

use axum::Json;
use axum::extract::State;
use selvedge_protocol::{InboxMessage, NewSession, SessionStore};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::Caller;
use crate::client_tools::ClientTool;
use crate::message_routes::queue_message;
use crate::running_answer::RunningAnswer;
use crate::session_routes::{check_queue_limit, check_session_limit};
use crate::state::{ApiState, SharedState};

/// The model that is the workspace without an environment.
pub(crate) const DEFAULT_MODEL: &str = "default";
/// Most earlier turns of a conversation that become the history of a new session.
const MAX_HISTORY_TURNS: usize = 1000;
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

/// A message of a request.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct ClientMessage {
    /// `system`, `developer`, `user` or `assistant`.
    pub(crate) role: String,
    /// Text, or a list of parts with text.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub(crate) content: Value,
    /// With the role `tool`, the call whose result the message is.
    #[serde(default)]
    pub(crate) tool_call_id: Option<String>,
}

/// Returns the results of tools at the end of a conversation, with the ids of their calls.
pub(crate) fn tool_results(messages: &[ClientMessage]) -> Result<Vec<(String, String)>, ApiError> {
    let results = messages.iter().rev();
    let results = results.take_while(|message| message.role == "tool");
    results
        .map(|message| {
            let id = message.tool_call_id.clone().unwrap_or_default();
            Ok((id, text_of(&message.content)?))
        })
        .collect()
}

/// A conversation of a request: earlier turns, and the message to answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClientConversation {
    turns: Vec<(String, String)>,
    prompt: String,
}

impl ClientConversation {
    /// Reads the messages of a request. Instructions precede the first message of the user.
    pub(crate) fn parse(
        instructions: Option<String>,
        messages: &[ClientMessage],
    ) -> Result<Self, ApiError> {
        let mut turns = Vec::new();
        let mut open: Vec<String> = instructions.into_iter().collect();
        for message in messages {
            let text = text_of(&message.content)?;
            match message.role.as_str() {
                "system" | "developer" | "user" => open.push(text),
                "assistant" => {
                    let said = std::mem::take(&mut open).join(MESSAGE_SEPARATOR);
                    turns.push((said, text));
                }
                role => {
                    let message = format!("messages with the role `{role}` are not supported");
                    return Err(ApiError::invalid(message)
                        .hint("use the roles system, developer, user and assistant"));
                }
            }
        }
        match open.join(MESSAGE_SEPARATOR) {
            prompt if prompt.trim().is_empty() => Err(ApiError::invalid(
                "the last message must be one of the user, with a text",
            )),
            prompt => Ok(Self { turns, prompt }),
        }
    }
}

/// Returns the text of a message: a string, or the parts with text.
pub(crate) fn text_of(content: &Value) -> Result<String, ApiError> {
    let unsupported = || {
        ApiError::invalid("only text is supported in messages")
            .hint("send content as a string, or as parts with `text`")
    };
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Null => Ok(String::new()),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| part["text"].as_str());
            let texts: Option<Vec<&str>> = texts.collect();
            Ok(texts.ok_or_else(unsupported)?.join("\n"))
        }
        _ => Err(unsupported()),
    }
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
            let turns = conversation.turns;
            let created = create_session(state, caller, model, turns, &tools).await?;
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
    turns: Vec<(String, String)>,
    tools: &[ClientTool],
) -> Result<String, ApiError> {
    if turns.len() > MAX_HISTORY_TURNS {
        let message = format!("the conversation has more than {MAX_HISTORY_TURNS} turns");
        return Err(ApiError::invalid(message)
            .hint("continue a session with `metadata.session` and the new messages only"));
    }
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
    if !turns.is_empty() {
        state.host.add_history(&session.id, turns).await?;
    }
    Ok(session.id)
}

/// Returns an error as OpenAI clients expect it in a stream.
pub(crate) fn stream_error(message: &str) -> Value {
    json!({"error": {"message": message, "type": "server_error", "code": "turn_failed"}})
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn parse(messages: Value) -> Result<ClientConversation, ApiError> {
        let messages: Vec<ClientMessage> = serde_json::from_value(messages).unwrap();
        ClientConversation::parse(Some("Be brief.".to_owned()), &messages)
    }

    #[test]
    fn messages_are_turns_and_a_prompt() {
        let parsed = parse(json!([
            {"role": "system", "content": "You fix bugs."},
            {"role": "user", "content": [{"type": "text", "text": "one"}]},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": "three"},
        ]));
        let expected = ClientConversation {
            turns: vec![(
                "Be brief.\n\nYou fix bugs.\n\none".to_owned(),
                "two".to_owned(),
            )],
            prompt: "three".to_owned(),
        };
        assert_eq!(parsed.unwrap(), expected);
        for wrong in [
            json!([{"role": "assistant", "content": "x"}]),
            json!([{"role": "tool", "content": "x"}]),
            json!([{"role": "user", "content": [{"type": "image_url"}]}]),
        ] {
            assert!(parse(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
