//! `POST /v1/chat/completions`: an agent's turn for OpenAI clients, streaming and not.

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
use crate::client_conversation::{ClientConversation, ClientMessage, tool_results};
use crate::event_stream::event_response;
use crate::openai::{ClientSession, start_turn, stream_error};
use crate::running_answer::{AnswerUpdate, ClientCallView, RunningAnswer};
use crate::state::SharedState;

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new().routes(routes!(create_chat_completion))
}

/// A request for a chat completion. Parameters of sampling are ignored: the environment decides.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ChatCompletionRequest {
    /// Name of an environment, or `default`.
    model: String,
    /// The conversation. With `metadata.session` only the messages since the last answer count.
    messages: Vec<ClientMessage>,
    /// Whether to send the answer as Server-Sent Events.
    #[serde(default)]
    stream: bool,
    /// Options of the stream: `include_usage`.
    #[serde(default)]
    #[schema(value_type = Object)]
    stream_options: Value,
    /// `session` is the id of a session to continue.
    #[serde(default)]
    #[schema(value_type = Object)]
    metadata: Value,
    /// Tools of the type `function` that the client runs. The agent has its own tools as well.
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    tools: Value,
}

/// Let an agent answer a conversation (OpenAI)
#[utoipa::path(
    post, path = "/v1/chat/completions", tag = "openai", request_body = ChatCompletionRequest,
    responses((status = 200, body = Object), (status = "4XX", body = ErrorBody)),
)]
async fn create_chat_completion(
    State(state): State<SharedState>,
    caller: Caller,
    ApiJson(request): ApiJson<ChatCompletionRequest>,
) -> Result<Response, ApiError> {
    let results = tool_results(&request.messages)?;
    let mut answer = match results.is_empty() {
        false => state.client_tools.resume(&caller.token.id, &results)?,
        true => {
            let conversation = ClientConversation::parse(None, &request.messages)?;
            let session = match request.metadata["session"].as_str() {
                Some(id) => ClientSession::Existing(id.to_owned()),
                None => ClientSession::New {
                    model: request.model.clone(),
                },
            };
            start_turn(&state, &caller, session, conversation, &request.tools).await?
        }
    };
    let completion = ChatCompletion {
        id: format!("chatcmpl-{}", answer.response_id()),
        session: answer.session.clone(),
        model: request.model,
        created: since_epoch().as_secs(),
        streams_usage: request.stream_options["include_usage"] == true,
    };
    if request.stream {
        let stream = ChatStream {
            completion,
            answer: Some(answer),
            place: ChatStreamPlace::Start,
            state,
            token: caller.token.id.clone(),
        };
        return Ok(stream.into_response());
    }
    let answered = answer.collect().await?;
    let mut message = json!({"role": "assistant", "content": answered.text, "refusal": null});
    let mut reason = finish_reason(answered.is_cut);
    if !answered.calls.is_empty() {
        message["tool_calls"] = calls_json(&answered.calls);
        reason = "tool_calls";
        state.client_tools.park(&caller.token.id, answer);
    }
    let choice = json!({
        "index": 0,
        "message": message,
        "logprobs": null,
        "finish_reason": reason,
    });
    let mut body = completion.body("chat.completion", json!([choice]));
    body["usage"] = usage_json(answered.usage);
    Ok(Json(body).into_response())
}

/// The fields that all parts of a completion have.
struct ChatCompletion {
    id: String,
    session: String,
    model: String,
    created: u64,
    /// Whether a stream ends with the usage.
    streams_usage: bool,
}

/// What a stream sends next.
enum ChatStreamPlace {
    Start,
    Text,
    /// The reason why the answer ends here, and the usage if the turn has ended.
    Finish(&'static str, Option<Usage>),
    Usage(Usage),
    Done,
    End,
}

/// The parts of a streamed completion.
struct ChatStream {
    completion: ChatCompletion,
    /// `None` if the turn waits for the client's next request.
    answer: Option<RunningAnswer>,
    place: ChatStreamPlace,
    state: SharedState,
    token: String,
}

impl ChatStream {
    fn into_response(self) -> Response {
        event_response(unfold(self, async |mut stream| {
            let data = stream.next().await?;
            Some((Ok(Event::default().data(data)), stream))
        }))
    }

    /// Returns the next part; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        let completion = &self.completion;
        let (data, next) = match std::mem::replace(&mut self.place, ChatStreamPlace::End) {
            ChatStreamPlace::Start => {
                let start = json!({"role": "assistant", "content": ""});
                (completion.chunk(start, None), ChatStreamPlace::Text)
            }
            ChatStreamPlace::Text => match self.answer.as_mut()?.next().await {
                AnswerUpdate::Text(delta) => {
                    let delta = json!({"content": delta});
                    (completion.chunk(delta, None), ChatStreamPlace::Text)
                }
                AnswerUpdate::Calls(calls) => {
                    let delta = json!({"tool_calls": calls_json(&calls)});
                    let chunk = completion.chunk(delta, None);
                    if let Some(answer) = self.answer.take() {
                        self.state.client_tools.park(&self.token, answer);
                    }
                    (chunk, ChatStreamPlace::Finish("tool_calls", None))
                }
                AnswerUpdate::Ended { is_cut, usage } => {
                    let usage = completion.streams_usage.then_some(usage);
                    let chunk = completion.chunk(json!({"content": ""}), None);
                    let next = ChatStreamPlace::Finish(finish_reason(is_cut), usage);
                    (chunk, next)
                }
                AnswerUpdate::Failed(message) => (stream_error(&message), ChatStreamPlace::Done),
            },
            ChatStreamPlace::Finish(reason, usage) => {
                let next = usage.map_or(ChatStreamPlace::Done, ChatStreamPlace::Usage);
                (completion.chunk(json!({}), Some(reason)), next)
            }
            ChatStreamPlace::Usage(usage) => {
                let mut chunk = completion.body("chat.completion.chunk", json!([]));
                chunk["usage"] = usage_json(usage);
                (chunk, ChatStreamPlace::Done)
            }
            ChatStreamPlace::Done => return Some("[DONE]".to_owned()),
            ChatStreamPlace::End => return None,
        };
        self.place = next;
        Some(data.to_string())
    }
}

/// Returns calls of the client's tools as clients expect them.
fn calls_json(calls: &[ClientCallView]) -> Value {
    let calls = calls.iter().enumerate().map(|(index, call)| {
        json!({
            "index": index,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        })
    });
    calls.collect()
}

impl ChatCompletion {
    fn body(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "metadata": {"session": self.session},
        })
    }

    fn chunk(&self, delta: Value, finish_reason: Option<&str>) -> Value {
        let choice = json!({
            "index": 0,
            "delta": delta,
            "logprobs": null,
            "finish_reason": finish_reason,
        });
        self.body("chat.completion.chunk", json!([choice]))
    }
}

fn finish_reason(is_cut: bool) -> &'static str {
    match is_cut {
        true => "length",
        false => "stop",
    }
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_output_tokens},
    })
}
