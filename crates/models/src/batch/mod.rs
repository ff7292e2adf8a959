//! Batches: many prompts that a provider answers within a day, at a lower price.
//!
//! Each API is a module that implements [`BatchApi`]. This module does HTTP and puts the answers in
//! the order of their prompts. The provider gives a batch an id, with which another process can ask
//! for its results.

mod anthropic;
mod openai;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use selvedge_protocol::{ModelErrorKind, WireApi};
use serde_json::Value;

use crate::transport::{
    check_response, connection_error, request_headers, resource_url, timeout_error,
};
use crate::{Decoder, Model, ModelClient, ModelError, ModelEvent, Prompt, Provider, request_body};

/// Time limit of one HTTP request. It is long because the files of prompts and answers are large.
const BATCH_REQUEST_TIMEOUT: Duration = Duration::from_secs(600);
/// Largest response, in bytes.
const MAX_BATCH_RESPONSE_BYTES: usize = 256 << 20;

/// Client of a provider's batch API.
#[derive(Debug, Clone)]
pub struct BatchClient {
    http: BatchHttp,
    api: &'static dyn BatchApi,
}

/// State of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum BatchState {
    /// The provider has not finished the batch.
    InProgress,
    /// The answer to each prompt, in the order of the prompts. A prompt that failed or was not
    /// processed in time is an error.
    Ended(Vec<Result<String, ModelError>>),
    /// The batch has no results: it expired, was cancelled or rejected, or is no longer known. The
    /// text is the reason.
    Failed(String),
}

impl ModelClient {
    /// Returns a client of the batch API of OpenAI (Responses, Chat) or Anthropic (Messages). A
    /// provider without this API returns an error when it is used.
    pub fn batches(&self) -> BatchClient {
        let api: &'static dyn BatchApi = match self.provider().wire_api {
            WireApi::Responses | WireApi::Chat => &openai::OpenAiBatches,
            WireApi::Messages => &anthropic::AnthropicBatches,
        };
        BatchClient {
            http: self.batch_http(),
            api,
        }
    }
}

impl BatchClient {
    /// Submits prompts and returns the id of the batch.
    ///
    /// A failure is not retried, because the provider may have accepted and charged the batch.
    pub async fn submit(&self, prompts: &[Prompt], model: &Model) -> Result<String, ModelError> {
        let provider = &*self.http.provider;
        let bodies = prompts.iter().map(|prompt| {
            let mut body = request_body(prompt, model, provider);
            if let Value::Object(fields) = &mut body {
                // Answers of a batch are not streamed.
                fields.retain(|name, _| !matches!(name.as_str(), "stream" | "stream_options"));
            }
            body
        });
        let bodies = bodies
            .enumerate()
            .map(|(index, body)| (prompt_id(index), body));
        let batch = self.api.submit(&self.http, bodies.collect()).await;
        batch.map_err(|error| provider.redact_secrets(error))
    }

    /// Returns the state of a batch. `prompts` is the number of its prompts, `model` their model.
    pub async fn poll(
        &self,
        batch: &str,
        prompts: usize,
        model: &Model,
    ) -> Result<BatchState, ModelError> {
        let provider = &*self.http.provider;
        let lines = match self.api.poll(&self.http, batch).await {
            Ok(BatchPoll::InProgress) => return Ok(BatchState::InProgress),
            Ok(BatchPoll::Failed(why)) => return Ok(BatchState::Failed(why)),
            Ok(BatchPoll::Ended(lines)) => lines,
            Err(error) if error.status == Some(404) => {
                let why = format!("the provider does not know the batch: {error}");
                return Ok(BatchState::Failed(why));
            }
            Err(error) => return Err(provider.redact_secrets(error)),
        };
        let mut answers: HashMap<_, _> = lines.into_iter().collect();
        let answer = |index: usize| match answers.remove(&prompt_id(index)) {
            Some(answer) => answer.and_then(|body| answer_text(&body, provider, model)),
            None => Err(ModelError::protocol(
                "the batch has no answer to this prompt",
            )),
        };
        Ok(BatchState::Ended((0..prompts).map(answer).collect()))
    }
}

/// Returns the id of a prompt in its batch.
fn prompt_id(index: usize) -> String {
    format!("prompt-{index}")
}

/// Decodes an answer that was not streamed, and returns its text.
fn answer_text(body: &Value, provider: &Provider, model: &Model) -> Result<String, ModelError> {
    let mut decoder = Decoder::new(provider.origin(&model.name));
    let mut events = Vec::new();
    decoder.feed(body.to_string().as_bytes(), &mut events)?;
    decoder.finish(&mut events)?;
    let texts = events.into_iter().filter_map(|event| match event {
        ModelEvent::Text { text, .. } => Some(text),
        _ => None,
    });
    Ok(texts.collect())
}

/// The batch API of one provider.
trait BatchApi: Send + Sync + std::fmt::Debug {
    /// Submits request bodies with their ids, and returns the id of the batch.
    fn submit<'a>(
        &'a self,
        wire: &'a BatchHttp,
        bodies: Vec<(String, Value)>,
    ) -> BoxFuture<'a, Result<String, ModelError>>;

    /// Returns the state of a batch, with the results if it has ended.
    fn poll<'a>(
        &'a self,
        wire: &'a BatchHttp,
        batch: &'a str,
    ) -> BoxFuture<'a, Result<BatchPoll, ModelError>>;
}

/// State of a batch, before its answers are decoded and ordered.
enum BatchPoll {
    InProgress,
    Ended(Vec<BatchResultLine>),
    Failed(String),
}

/// Result of one prompt: its id, and the body of the answer or an error.
type BatchResultLine = (String, Result<Value, ModelError>);

/// Sends requests that are not streamed to one provider.
#[derive(Debug, Clone)]
pub(crate) struct BatchHttp {
    pub(crate) http: reqwest::Client,
    pub(crate) provider: Arc<Provider>,
}

impl BatchHttp {
    async fn get(&self, resource: &str) -> Result<Vec<u8>, ModelError> {
        let request = self.http.get(resource_url(&self.provider, resource)?);
        self.send(request).await
    }

    async fn post(
        &self,
        resource: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<Value, ModelError> {
        let request = self.http.post(resource_url(&self.provider, resource)?);
        let request = request.header("content-type", content_type).body(body);
        parse_json(&self.send(request).await?)
    }

    async fn post_json(&self, resource: &str, body: &Value) -> Result<Value, ModelError> {
        let body = body.to_string().into();
        self.post(resource, "application/json", body).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Vec<u8>, ModelError> {
        let provider = &*self.provider.authorized().await?;
        provider.require_key()?;
        provider.require_accepted_user()?;
        let request = request.headers(request_headers(provider)?);
        let failed = |error| connection_error(provider, error);
        let response = async {
            let mut response = check_response(request.send().await.map_err(failed)?).await?;
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(failed)? {
                if body.len() + chunk.len() > MAX_BATCH_RESPONSE_BYTES {
                    let limit = MAX_BATCH_RESPONSE_BYTES >> 20;
                    let why = format!("the response is larger than {limit} MB");
                    return Err(ModelError::protocol(why));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(body)
        };
        let body = tokio::time::timeout(BATCH_REQUEST_TIMEOUT, response).await;
        let body = body.unwrap_or_else(|_| Err(timeout_error(provider, BATCH_REQUEST_TIMEOUT)));
        body.map_err(|error| provider.redact_secrets(error))
    }
}

/// Returns the id of a batch or file if it can be part of a URL.
fn valid_id(id: &Value) -> Result<&str, ModelError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let is_valid = |id: &&str| !id.is_empty() && id.bytes().all(is_allowed);
    let id = id.as_str().filter(is_valid);
    id.ok_or_else(|| ModelError::protocol("the response has no valid batch or file id"))
}

fn batch_status(status: &Value) -> Result<&str, ModelError> {
    let missing = || ModelError::protocol("the response has no batch status");
    status.as_str().ok_or_else(missing)
}

fn parse_json(body: &[u8]) -> Result<Value, ModelError> {
    serde_json::from_slice(body).map_err(|_| ModelError::protocol("the response is not JSON"))
}

/// Parses JSON lines. Invalid lines are skipped, so that their prompts have no answer.
fn json_lines(body: &[u8]) -> impl Iterator<Item = Value> {
    body.split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
}

/// Returns the error of a prompt, with the provider's message or else the fallback.
fn prompt_error(error: &Value, fallback: &str) -> ModelError {
    let messages = [&error["message"], &error["error"]["message"]];
    let message = messages.into_iter().find_map(Value::as_str);
    ModelError::new(ModelErrorKind::Server, message.unwrap_or(fallback))
}
