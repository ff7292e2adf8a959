//! `POST /v1/chat/completions`: an agent's turn for OpenAI clients, streaming and not.

use axum::Json;
use axum::extract::State;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use selvedge_protocol::{TokenScope, Usage, since_epoch};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiJson, Caller};
use crate::event_stream::event_response;
use crate::openai::{
    AnswerUpdate, ClientConversation, ClientMessage, ClientSession, RunningAnswer,
    refuse_client_tools, start_turn, stream_error,
};
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
    /// Must be empty: client-side tools are not supported.
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
    caller.require(TokenScope::Sessions)?;
    refuse_client_tools(&request.tools)?;
    let conversation = ClientConversation::parse(None, &request.messages)?;
    let session = match request.metadata["session"].as_str() {
        Some(id) => ClientSession::Existing(id.to_owned()),
        None => ClientSession::New {
            model: request.model.clone(),
        },
    };
    let answer = start_turn(&state, &caller, session, conversation).await?;
    let completion = ChatCompletion {
        id: format!("chatcmpl-{}-{}", answer.session, answer.number),
        session: answer.session.clone(),
        model: request.model,
        created: since_epoch().as_secs(),
        streams_usage: request.stream_options["include_usage"] == true,
    };
    if request.stream {
        return Ok(completion.into_stream(answer));
    }
    let (text, is_cut, usage) = answer.collect().await?;
    let message = json!({"role": "assistant", "content": text, "refusal": null});
    let choice = json!({
        "index": 0,
        "message": message,
        "logprobs": null,
        "finish_reason": finish_reason(is_cut),
    });
    let mut body = completion.body("chat.completion", json!([choice]));
    body["usage"] = usage_json(usage);
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
enum ChatStreamState {
    Start,
    Text,
    Usage(Usage),
    Done,
    End,
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

    fn into_stream(self, answer: RunningAnswer) -> Response {
        let state = (self, answer, ChatStreamState::Start);
        event_response(unfold(state, async |(completion, mut answer, state)| {
            let (data, next) = match state {
                ChatStreamState::Start => {
                    let start = json!({"role": "assistant", "content": ""});
                    let start = completion.chunk(start, None);
                    (start.to_string(), ChatStreamState::Text)
                }
                ChatStreamState::Text => match answer.next().await {
                    AnswerUpdate::Text(delta) => {
                        let chunk = completion.chunk(json!({"content": delta}), None);
                        (chunk.to_string(), ChatStreamState::Text)
                    }
                    AnswerUpdate::Ended { is_cut, usage } => {
                        let chunk = completion.chunk(json!({}), Some(finish_reason(is_cut)));
                        let next = match completion.streams_usage {
                            true => ChatStreamState::Usage(usage),
                            false => ChatStreamState::Done,
                        };
                        (chunk.to_string(), next)
                    }
                    AnswerUpdate::Failed(message) => {
                        (stream_error(&message).to_string(), ChatStreamState::Done)
                    }
                },
                ChatStreamState::Usage(usage) => {
                    let mut chunk = completion.body("chat.completion.chunk", json!([]));
                    chunk["usage"] = usage_json(usage);
                    (chunk.to_string(), ChatStreamState::Done)
                }
                ChatStreamState::Done => ("[DONE]".to_owned(), ChatStreamState::End),
                ChatStreamState::End => return None,
            };
            Some((Ok(Event::default().data(data)), (completion, answer, next)))
        }))
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
