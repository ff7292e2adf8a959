//! What the OpenAI-compatible endpoints share: models, sessions from messages, and the text of a
//! turn as it is written.
//!
//! A model is an environment of the workspace; `default` is the workspace without one. The messages
//! of a request are the history of a new session, unless the request names a session.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use selvedge_protocol::{NewSession, SessionStore, TokenScope, Usage};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::Caller;
use crate::client_tools::{ClientCall, ClientTool};
use crate::feed::{FeedEvent, LiveEvent, SessionFeed};
use crate::message_routes::queue_message;
use crate::metrics::GaugeGuard;
use crate::session_routes::check_queue_limit;
use crate::state::{ApiState, SharedState};

/// The model that is the workspace without an environment.
pub(crate) const DEFAULT_MODEL: &str = "default";
/// How long further calls of a client's tools may take to be part of the same response.
const CALL_BATCH_DELAY: Duration = Duration::from_millis(50);
/// Between two messages of a turn.
const MESSAGE_SEPARATOR: &str = "\n\n";

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
    caller.require(TokenScope::Sessions)?;
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
fn text_of(content: &Value) -> Result<String, ApiError> {
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
    let (sender, client_calls) = unbounded_channel();
    let tools = ClientTool::parse_all(tools, &sender)?;
    // Held until the message is stored, so that requests at the same time do not exceed the limit.
    let _queueing = state.queueing.lock().await;
    check_queue_limit(state, caller).await?;
    let (id, is_new) = match session {
        ClientSession::Existing(id) => (state.session(caller, &id).await?.id, false),
        ClientSession::New { model } => {
            let turns = conversation.turns;
            (create_session(state, caller, model, turns).await?, true)
        }
    };
    state.client_tools.set(&id, tools);
    let feed = state.feeds.feed(&id);
    let live = feed.follow().await;
    let message = queue_message(state, caller, &id, conversation.prompt).await?;
    Ok(RunningAnswer {
        state: state.clone(),
        feed,
        live,
        ready: VecDeque::new(),
        session: id,
        number: message.number,
        last_event: 0,
        turn: None,
        texts: HashMap::new(),
        repeated_item: None,
        has_text: false,
        interrupt_on_drop: is_new,
        client_calls,
        _calls: sender,
        ready_calls: Vec::new(),
        waiting_calls: HashMap::new(),
        part: 0,
        _open: state.metrics.open_streams.enter(),
    })
}

async fn create_session(
    state: &ApiState,
    caller: &Caller,
    model: String,
    turns: Vec<(String, String)>,
) -> Result<String, ApiError> {
    let environment = (model != DEFAULT_MODEL).then_some(model);
    let workspace = state.workspace(caller, None).await?;
    let place = state
        .host
        .session_place(&workspace, environment.as_deref(), None);
    let place = place.await?;
    if !caller.token.allows_directory(&place.directory) {
        return Err(ApiError::not_found("such model"));
    }
    let session = NewSession {
        title: None,
        environment,
        directory: place.directory,
        folder: place.folder,
        creator: caller.author(),
        permissions: None,
        prompt: None,
        idempotency_key: None,
    };
    let session = SessionStore::create(&*state.stores.sessions, session).await?;
    if !turns.is_empty() {
        state.host.add_history(&session.id, turns).await?;
    }
    Ok(session.id)
}

/// What a turn did.
#[derive(Debug, PartialEq)]
pub(crate) enum AnswerUpdate {
    /// Text was added to the answer.
    Text(String),
    /// The turn has ended.
    Ended {
        /// Whether a limit ended it.
        is_cut: bool,
        usage: Usage,
    },
    /// The turn failed.
    Failed(String),
    /// The turn waits for results of the client's tools.
    Calls(Vec<ClientCallView>),
}

/// A call of a client's tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientCallView {
    pub(crate) id: String,
    pub(crate) name: String,
    /// The arguments, as JSON.
    pub(crate) arguments: String,
}

/// A whole answer, or the part up to calls of the client's tools.
pub(crate) struct CollectedAnswer {
    pub(crate) text: String,
    pub(crate) is_cut: bool,
    pub(crate) usage: Usage,
    /// Calls of the client's tools. If there are any, the turn waits for their results.
    pub(crate) calls: Vec<ClientCallView>,
}

/// A turn whose text is read while it is written. A turn of a new session is interrupted when this
/// is dropped before its end.
pub(crate) struct RunningAnswer {
    state: SharedState,
    feed: Arc<SessionFeed>,
    live: Receiver<LiveEvent>,
    ready: VecDeque<FeedEvent>,
    pub(crate) session: String,
    pub(crate) number: u32,
    /// Number of the last stored event that was read.
    last_event: u64,
    /// The turn of the message, once it has begun.
    turn: Option<u64>,
    /// Text of messages of the model that was returned, by item.
    texts: HashMap<String, String>,
    /// An item that began again because the client was too slow. Its next part is all of its text.
    repeated_item: Option<String>,
    /// Whether any text was returned.
    has_text: bool,
    interrupt_on_drop: bool,
    client_calls: UnboundedReceiver<ClientCall>,
    /// Keeps the receiver of calls open without tools.
    _calls: UnboundedSender<ClientCall>,
    /// Calls that the client has not received.
    ready_calls: Vec<ClientCallView>,
    /// Calls whose results the client has not sent.
    waiting_calls: HashMap<String, oneshot::Sender<String>>,
    /// Number of responses before this one that belong to the same turn.
    pub(crate) part: u32,
    _open: GaugeGuard,
}

impl Drop for RunningAnswer {
    fn drop(&mut self) {
        if self.interrupt_on_drop {
            self.state.workers.interrupt(&self.session);
        }
    }
}

impl RunningAnswer {
    /// Returns what happens next. After `Ended` and `Failed` nothing follows.
    pub(crate) async fn next(&mut self) -> AnswerUpdate {
        loop {
            let event = match self.ready.pop_front() {
                Some(event) => Ok(LiveEvent::Event(event)),
                // The text before a call comes first.
                None if !self.ready_calls.is_empty() => match self.live.try_recv() {
                    Ok(event) => Ok(event),
                    Err(_) => return AnswerUpdate::Calls(std::mem::take(&mut self.ready_calls)),
                },
                None => tokio::select! {
                    biased;
                    event = self.live.recv() => event,
                    Some(call) = self.client_calls.recv() => {
                        self.collect_calls(call).await;
                        continue;
                    }
                },
            };
            let event = match event {
                Ok(event) => match self.feed.load(event).await {
                    Ok(Some(event)) => event,
                    Ok(None) => continue,
                    Err(error) => return self.fail(error.to_string()),
                },
                Err(RecvError::Lagged(_)) => match self.feed.catch_up(self.last_event).await {
                    Ok(caught_up) => {
                        self.live = caught_up.live;
                        self.ready.extend(caught_up.events);
                        continue;
                    }
                    Err(error) => return self.fail(error.to_string()),
                },
                Err(RecvError::Closed) => return self.fail("the server stops".to_owned()),
            };
            self.last_event = event.number.unwrap_or(self.last_event);
            let body: Value = serde_json::from_str(&event.body).unwrap_or_default();
            if let Some(update) = self.read_event(&body).await {
                return update;
            }
        }
    }

    /// Keeps a call of the client's tools, and those that follow it at once.
    async fn collect_calls(&mut self, first: ClientCall) {
        let mut next = Some(first);
        while let Some(call) = next {
            self.ready_calls.push(ClientCallView {
                id: call.id.clone(),
                name: call.name,
                arguments: call.arguments,
            });
            self.waiting_calls.insert(call.id, call.reply);
            let more = tokio::time::timeout(CALL_BATCH_DELAY, self.client_calls.recv());
            next = more.await.ok().flatten();
        }
    }

    /// Returns an id for the response: session, number of the message, and part of the turn.
    pub(crate) fn response_id(&self) -> String {
        match self.part {
            0 => format!("{}_{}", self.session, self.number),
            part => format!("{}_{}.{part}", self.session, self.number),
        }
    }

    /// Whether the turn waits for the result of a call.
    pub(crate) fn waits_for(&self, call: &str) -> bool {
        self.waiting_calls.contains_key(call)
    }

    /// Passes the results of the client to the calls that wait. A call without a result fails.
    pub(crate) fn deliver(&mut self, results: &[(String, String)]) {
        for (id, result) in results {
            if let Some(reply) = self.waiting_calls.remove(id) {
                // A call that timed out waits no more.
                let _ = reply.send(result.clone());
            }
        }
        self.waiting_calls.clear();
        self.part += 1;
        self.has_text = false;
    }

    fn fail(&mut self, message: String) -> AnswerUpdate {
        self.interrupt_on_drop = false;
        AnswerUpdate::Failed(message)
    }

    async fn read_event(&mut self, event: &Value) -> Option<AnswerUpdate> {
        let kind = event["type"].as_str().unwrap_or_default();
        if self.turn.is_none() {
            return self.find_turn(event).await;
        }
        match kind {
            "item.started" if is_message(&event["item"]) => {
                let id = event["item_id"].as_str()?;
                match self.texts.contains_key(id) {
                    true => self.repeated_item = Some(id.to_owned()),
                    false => _ = self.texts.insert(id.to_owned(), String::new()),
                }
                None
            }
            "item.updated" => {
                let id = event["item_id"].as_str()?;
                let delta = event["delta"].as_str()?;
                match self.repeated_item.take_if(|repeated| repeated == id) {
                    Some(_) => {
                        let known = self.texts.get(id)?.clone();
                        self.add_text(id, delta.strip_prefix(known.as_str())?)
                    }
                    None => self.add_text(id, delta),
                }
            }
            "item.completed" if is_message(&event["item"]) => {
                let id = event["item_id"].as_str()?;
                let whole = text_of(&event["item"]["content"]).unwrap_or_default();
                let known = self.texts.entry(id.to_owned()).or_default().clone();
                // What was not received as parts.
                let rest = whole.strip_prefix(known.as_str())?;
                self.add_text(id, rest)
            }
            "turn.completed" if event["turn"].as_u64() == self.turn => {
                self.interrupt_on_drop = false;
                let usage = serde_json::from_value(event["usage"].clone());
                let end = event["finish_reason"].as_str().unwrap_or_default();
                Some(AnswerUpdate::Ended {
                    is_cut: !["stop", "interrupted"].contains(&end),
                    usage: usage.unwrap_or_default(),
                })
            }
            "turn.failed" if event["turn"].as_u64() == self.turn => {
                let message = event["error"]["message"]
                    .as_str()
                    .unwrap_or("the turn failed");
                Some(self.fail(message.to_owned()))
            }
            _ => None,
        }
    }

    /// Looks whether an event begins the turn of the message.
    async fn find_turn(&mut self, event: &Value) -> Option<AnswerUpdate> {
        let sessions = &self.state.stores.sessions;
        match event["type"].as_str()? {
            "turn.started" => {
                let message = sessions.message(&self.session, self.number).await.ok()?;
                let turn = event["turn"].as_u64();
                if message.turn.map(u64::from) == turn {
                    self.turn = turn;
                }
                None
            }
            _ => None,
        }
    }

    /// Adds text of an item, if the item is a message of the model.
    fn add_text(&mut self, item: &str, delta: &str) -> Option<AnswerUpdate> {
        let text = self.texts.get_mut(item)?;
        if delta.is_empty() {
            return None;
        }
        let separator = match text.is_empty() && self.has_text {
            true => MESSAGE_SEPARATOR,
            false => "",
        };
        text.push_str(delta);
        self.has_text = true;
        Some(AnswerUpdate::Text(format!("{separator}{delta}")))
    }

    /// Reads the answer up to its end, or up to calls of the client's tools.
    pub(crate) async fn collect(&mut self) -> Result<CollectedAnswer, ApiError> {
        let mut collected = CollectedAnswer {
            text: String::new(),
            is_cut: false,
            usage: Usage::default(),
            calls: Vec::new(),
        };
        loop {
            match self.next().await {
                AnswerUpdate::Text(delta) => collected.text.push_str(&delta),
                AnswerUpdate::Ended { is_cut, usage } => {
                    (collected.is_cut, collected.usage) = (is_cut, usage);
                    return Ok(collected);
                }
                AnswerUpdate::Calls(calls) => {
                    collected.calls = calls;
                    return Ok(collected);
                }
                AnswerUpdate::Failed(message) => return Err(ApiError::internal(message)),
            }
        }
    }
}

fn is_message(item: &Value) -> bool {
    item["type"] == "message" && item["role"] == "assistant"
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
