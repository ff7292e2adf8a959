//! `POST /v1/responses`: an agent's turn for clients of OpenAI's Responses API, streaming and not.

use std::collections::VecDeque;

use axum::Json;
use axum::extract::State;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use selvedge_protocol::{Usage, since_epoch};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiJson, Caller};
use crate::client_conversation::{ClientConversation, function_output, messages_of_input};
use crate::event_stream::event_response;
use crate::openai::{ClientSession, start_turn};
use crate::running_answer::{AnswerUpdate, ClientCallView, CollectedAnswer, RunningAnswer};
use crate::state::SharedState;

/// How the id of a response begins. The session and the number of the message follow.
const RESPONSE_PREFIX: &str = "resp_";

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new().routes(routes!(create_response))
}

/// A request for a response. Parameters of sampling are ignored: the environment decides.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ResponseRequest {
    /// Name of an environment, or `default`.
    model: String,
    /// A text, or a list of messages, calls of functions and their results.
    #[schema(value_type = Object)]
    input: Value,
    /// Instructions that precede the input.
    instructions: Option<String>,
    /// Id of a response whose session is continued.
    previous_response_id: Option<String>,
    /// Whether to send the response as Server-Sent Events.
    #[serde(default)]
    stream: bool,
    /// `session` is the id of a session to continue.
    #[serde(default)]
    #[schema(value_type = Object)]
    metadata: Value,
    /// Tools of the type `function` that the client runs. The agent has its own tools as well.
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    tools: Value,
}

/// Let an agent answer an input (OpenAI)
#[utoipa::path(
    post, path = "/v1/responses", tag = "openai", request_body = ResponseRequest,
    responses((status = 200, body = Object), (status = "4XX", body = ErrorBody)),
)]
async fn create_response(
    State(state): State<SharedState>,
    caller: Caller,
    ApiJson(request): ApiJson<ResponseRequest>,
) -> Result<Response, ApiError> {
    let results = function_outputs(&request.input);
    let mut answer = match results.is_empty() {
        false => state.client_tools.resume(&caller.token.id, &results)?,
        true => start_response(&state, &caller, &request).await?,
    };
    let head = ResponseHead {
        id: format!("{RESPONSE_PREFIX}{}", answer.response_id()),
        session: answer.session.clone(),
        model: request.model,
        created: since_epoch().as_secs(),
        previous: request.previous_response_id,
    };
    if request.stream {
        let parking = (state, caller.token.id.clone());
        return Ok(ResponseStream::new(head, answer, parking).into_response());
    }
    let answered = answer.collect().await?;
    if !answered.calls.is_empty() {
        state.client_tools.park(&caller.token.id, answer);
    }
    Ok(Json(head.finished(&answered)).into_response())
}

/// Starts the turn that answers the input of a request.
async fn start_response(
    state: &SharedState,
    caller: &Caller,
    request: &ResponseRequest,
) -> Result<RunningAnswer, ApiError> {
    let messages = messages_of_input(&request.input)?;
    let conversation = ClientConversation::parse(request.instructions.clone(), &messages)?;
    let previous = request.previous_response_id.as_deref();
    let session = match (previous, request.metadata["session"].as_str()) {
        (Some(id), _) => ClientSession::Existing(session_of(id)?),
        (None, Some(id)) => ClientSession::Existing(id.to_owned()),
        (None, None) => ClientSession::New {
            model: request.model.clone(),
        },
    };
    start_turn(state, caller, session, conversation, &request.tools).await
}

/// Returns the results of tools at the end of an input, with the ids of their calls.
fn function_outputs(input: &Value) -> Vec<(String, String)> {
    let items = input.as_array().into_iter().flatten().rev();
    let outputs = items.take_while(|item| item["type"] == "function_call_output");
    let outputs = outputs.map(|item| {
        let id = item["call_id"].as_str().unwrap_or_default().to_owned();
        (id, function_output(item))
    });
    outputs.collect()
}

/// Returns the session of an earlier response.
fn session_of(response: &str) -> Result<String, ApiError> {
    let session = response
        .strip_prefix(RESPONSE_PREFIX)
        .and_then(|rest| rest.rsplit_once('_'));
    match session {
        Some((session, _)) => Ok(session.to_owned()),
        None => Err(ApiError::not_found(format!("response `{response}`"))),
    }
}

/// The fields that a response has from its beginning.
struct ResponseHead {
    id: String,
    session: String,
    model: String,
    created: u64,
    previous: Option<String>,
}

impl ResponseHead {
    fn body(&self, status: &str, output: Value) -> Value {
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "instructions": null,
            "max_output_tokens": null,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": true,
            "previous_response_id": self.previous,
            "temperature": null,
            "tool_choice": "auto",
            "tools": [],
            "top_p": null,
            "metadata": {"session": self.session},
        })
    }

    fn item_id(&self) -> String {
        format!("msg_{}", self.id.trim_start_matches(RESPONSE_PREFIX))
    }

    fn item(&self, status: &str, content: Value) -> Value {
        json!({
            "id": self.item_id(),
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        })
    }

    fn finished(&self, answered: &CollectedAnswer) -> Value {
        let is_cut = answered.is_cut;
        let status = if is_cut { "incomplete" } else { "completed" };
        let item = self.item(status, json!([text_part(&answered.text)]));
        let calls = answered.calls.iter().map(call_item);
        let output: Value = std::iter::once(item).chain(calls).collect();
        let mut body = self.body(status, output);
        if is_cut {
            body["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        let usage = &answered.usage;
        body["usage"] = json!({
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_output_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        });
        body
    }
}

/// Returns a call of the client's tools as an item.
fn call_item(call: &ClientCallView) -> Value {
    json!({
        "id": format!("fc_{}", call.id),
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    })
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": []})
}

/// The events of a streamed response.
struct ResponseStream {
    head: ResponseHead,
    /// `None` if the turn waits for the client's next request.
    answer: Option<RunningAnswer>,
    /// Where the turn is kept then, and the token of the client.
    parking: (SharedState, String),
    ready: VecDeque<Value>,
    text: String,
    /// Number of the next event.
    sequence: u64,
    has_ended: bool,
}

impl ResponseStream {
    fn new(head: ResponseHead, answer: RunningAnswer, parking: (SharedState, String)) -> Self {
        let mut stream = Self {
            head,
            answer: Some(answer),
            parking,
            ready: VecDeque::new(),
            text: String::new(),
            sequence: 0,
            has_ended: false,
        };
        let begun = stream.head.body("in_progress", json!([]));
        stream.push("response.created", json!({"response": begun}));
        stream.push("response.in_progress", json!({"response": begun}));
        let item = stream.head.item("in_progress", json!([]));
        stream.push(
            "response.output_item.added",
            json!({"output_index": 0, "item": item}),
        );
        stream.push_part(
            "response.content_part.added",
            json!({"part": text_part("")}),
        );
        stream
    }

    fn push(&mut self, kind: &str, mut event: Value) {
        event["type"] = json!(kind);
        event["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        self.ready.push_back(event);
    }

    /// Adds an event about the text of the message.
    fn push_part(&mut self, kind: &str, mut event: Value) {
        event["item_id"] = json!(self.head.item_id());
        event["output_index"] = json!(0);
        event["content_index"] = json!(0);
        self.push(kind, event);
    }

    /// Returns the next event; `None` at the end.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.has_ended {
                return None;
            }
            match self.answer.as_mut()?.next().await {
                AnswerUpdate::Text(delta) => {
                    self.text.push_str(&delta);
                    let event = json!({"delta": delta, "logprobs": []});
                    self.push_part("response.output_text.delta", event);
                }
                AnswerUpdate::Ended { is_cut, usage } => self.end(is_cut, usage, Vec::new()),
                AnswerUpdate::Calls(calls) => {
                    if let Some(answer) = self.answer.take() {
                        self.parking.0.client_tools.park(&self.parking.1, answer);
                    }
                    self.end(false, Usage::default(), calls);
                }
                AnswerUpdate::Failed(message) => {
                    self.has_ended = true;
                    let mut body = self.head.body("failed", json!([]));
                    body["error"] = json!({"code": "server_error", "message": message});
                    self.push("response.failed", json!({"response": body}));
                }
            }
        }
    }

    fn end(&mut self, is_cut: bool, usage: Usage, calls: Vec<ClientCallView>) {
        self.has_ended = true;
        let answered = CollectedAnswer {
            text: std::mem::take(&mut self.text),
            is_cut,
            usage,
            calls,
        };
        let done = json!({"text": answered.text, "logprobs": []});
        self.push_part("response.output_text.done", done);
        let part = json!({"part": text_part(&answered.text)});
        self.push_part("response.content_part.done", part);
        let body = self.head.finished(&answered);
        let items = body["output"].as_array().cloned().unwrap_or_default();
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                let added = json!({"output_index": index, "item": item});
                self.push("response.output_item.added", added);
                let arguments = json!({
                    "output_index": index,
                    "item_id": item["id"],
                    "name": item["name"],
                    "arguments": item["arguments"],
                });
                self.push("response.function_call_arguments.done", arguments);
            }
            let done = json!({"output_index": index, "item": item});
            self.push("response.output_item.done", done);
        }
        let kind = match is_cut {
            true => "response.incomplete",
            false => "response.completed",
        };
        self.push(kind, json!({"response": body}));
    }

    fn into_response(self) -> Response {
        event_response(unfold(self, async |mut stream| {
            let event = stream.next().await?;
            let kind = event["type"].as_str().unwrap_or_default().to_owned();
            let sse = Event::default().event(kind).data(event.to_string());
            Some((Ok(sse), stream))
        }))
    }
}
