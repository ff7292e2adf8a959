//! Batches: many prompts that a provider answers within a day, at a lower price.
//!
//! Each API is a module that knows its addresses and shapes ([`BatchApi`]); this one knows HTTP, and puts answers in the
//! order of their prompts. A batch has a name at the provider: whoever keeps it can be ended and begun again, and asks
//! for the same batch.

mod anthropic;
mod openai;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use selvedge_protocol::{ModelErrorKind, WireApi};
use serde_json::Value;

use crate::transport::{accepted, address, broken, headers};
use crate::{Client, Decoder, Model, ModelError, ModelEvent, Prompt, Provider, request};

/// How long one exchange may take: files of prompts and answers are large.
const PATIENCE: Duration = Duration::from_secs(600);
/// The most bytes of answers that are read.
const MAX_BYTES: usize = 256 << 20;

/// A provider's batches.
#[derive(Debug, Clone)]
pub struct Batches {
    wire: Exchange,
    api: &'static dyn BatchApi,
}

/// Where a batch stands.
#[derive(Debug, Clone, PartialEq)]
pub enum BatchState {
    /// The provider is at it.
    Working,
    /// What each prompt came to, in their order. What failed or was not reached in time is an error.
    Ended(Vec<Result<String, ModelError>>),
    /// Nothing will come of it: it expired, was cancelled, was refused as a whole, or is not known any more.
    Lost(String),
}

impl Client {
    /// The provider's batches, as OpenAI (Responses, Chat) and Anthropic (Messages) have them. Whether this provider does,
    /// it tells when it is asked.
    pub fn batches(&self) -> Batches {
        let api: &'static dyn BatchApi = match self.provider().wire {
            WireApi::Responses | WireApi::Chat => &openai::OpenAi,
            WireApi::Messages => &anthropic::Anthropic,
        };
        Batches {
            wire: self.exchange(),
            api,
        }
    }
}

impl Batches {
    /// Hands prompts over and tells the batch's name. It is not tried again: whoever does not hear the answer cannot
    /// know whether it is paid for.
    pub async fn submit(&self, prompts: &[Prompt], model: &Model) -> Result<String, ModelError> {
        let provider = &*self.wire.provider;
        let bodies = prompts.iter().map(|prompt| {
            let mut body = request(prompt, model, provider);
            if let Value::Object(fields) = &mut body {
                // Answers come whole.
                fields.retain(|name, _| !matches!(name.as_str(), "stream" | "stream_options"));
            }
            body
        });
        let named = bodies.enumerate().map(|(at, body)| (id_of(at), body));
        let batch = self.api.submit(&self.wire, named.collect()).await;
        batch.map_err(|error| provider.discreet(error))
    }

    /// Where the batch of this name stands, which has so many prompts for this model.
    pub async fn look(
        &self,
        batch: &str,
        prompts: usize,
        model: &Model,
    ) -> Result<BatchState, ModelError> {
        let provider = &*self.wire.provider;
        let lines = match self.api.look(&self.wire, batch).await {
            Ok(Looked::Working) => return Ok(BatchState::Working),
            Ok(Looked::Lost(why)) => return Ok(BatchState::Lost(why)),
            Ok(Looked::Ended(lines)) => lines,
            Err(error) if error.status == Some(404) => {
                let why = format!("the provider does not know it: {error}");
                return Ok(BatchState::Lost(why));
            }
            Err(error) => return Err(provider.discreet(error)),
        };
        let mut answers: HashMap<_, _> = lines.into_iter().collect();
        let answer = |at: usize| match answers.remove(&id_of(at)) {
            Some(answer) => answer.and_then(|body| text_of(&body, provider, model)),
            None => Err(ModelError::protocol("the batch has no answer to it")),
        };
        Ok(BatchState::Ended((0..prompts).map(answer).collect()))
    }
}

/// The name of a prompt in its batch.
fn id_of(at: usize) -> String {
    format!("prompt-{at}")
}

/// The text of an answer that came whole.
fn text_of(body: &Value, provider: &Provider, model: &Model) -> Result<String, ModelError> {
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

/// One API's way with batches.
trait BatchApi: Send + Sync + std::fmt::Debug {
    /// Hands over bodies with their names; tells the batch's name.
    fn submit<'a>(
        &'a self,
        wire: &'a Exchange,
        bodies: Vec<(String, Value)>,
    ) -> BoxFuture<'a, Result<String, ModelError>>;

    /// Where a batch stands.
    fn look<'a>(
        &'a self,
        wire: &'a Exchange,
        batch: &'a str,
    ) -> BoxFuture<'a, Result<Looked, ModelError>>;
}

/// Where a batch stands, as its API tells.
enum Looked {
    Working,
    Ended(Vec<Line>),
    Lost(String),
}

/// What became of one prompt: its name, and the answer's body or why there is none.
type Line = (String, Result<Value, ModelError>);

/// Requests to one provider that are not streamed.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    pub(crate) http: reqwest::Client,
    pub(crate) provider: Arc<Provider>,
}

impl Exchange {
    async fn get(&self, resource: &str) -> Result<Vec<u8>, ModelError> {
        let request = self.http.get(address(&self.provider, resource)?);
        self.send(request).await
    }

    async fn post(&self, resource: &str, kind: &str, body: Vec<u8>) -> Result<Value, ModelError> {
        let request = self.http.post(address(&self.provider, resource)?);
        let request = request.header("content-type", kind).body(body);
        json(&self.send(request).await?)
    }

    async fn post_json(&self, resource: &str, body: &Value) -> Result<Value, ModelError> {
        let body = body.to_string().into();
        self.post(resource, "application/json", body).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Vec<u8>, ModelError> {
        self.provider.check_key()?;
        let request = request.headers(headers(&self.provider)?);
        let exchanged = async {
            let mut response = accepted(request.send().await.map_err(broken)?).await?;
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(broken)? {
                if body.len() + chunk.len() > MAX_BYTES {
                    let most = MAX_BYTES >> 20;
                    let why = format!("the answers are larger than {most} MB");
                    return Err(ModelError::protocol(why));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(body)
        };
        let in_time = tokio::time::timeout(PATIENCE, exchanged).await;
        in_time.unwrap_or_else(|_| Err(ModelError::network("no answer in time")))
    }
}

/// A name that can stand in an address.
fn checked(name: &Value) -> Result<&str, ModelError> {
    let may_be = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let is_name = |name: &&str| !name.is_empty() && name.bytes().all(may_be);
    let name = name.as_str().filter(is_name);
    name.ok_or_else(|| ModelError::protocol("the answer names no batch or file"))
}

fn status(status: &Value) -> Result<&str, ModelError> {
    let unsaid = || ModelError::protocol("the answer does not tell where the batch stands");
    status.as_str().ok_or_else(unsaid)
}

fn json(body: &[u8]) -> Result<Value, ModelError> {
    serde_json::from_slice(body).map_err(|_| ModelError::protocol("the answer is not JSON"))
}

/// Lines of JSON; what is none is left out, so that its prompt counts as not answered.
fn json_lines(body: &[u8]) -> impl Iterator<Item = Value> {
    body.split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
}

/// Why a prompt has no answer, in the provider's words where it had any.
fn refused(error: &Value, otherwise: &str) -> ModelError {
    let told = [&error["message"], &error["error"]["message"]];
    let message = told.into_iter().find_map(Value::as_str);
    ModelError::new(ModelErrorKind::Server, message.unwrap_or(otherwise))
}
