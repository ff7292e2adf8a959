//! The client of one provider.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{BoxStream, Stream, StreamExt, unfold};
use serde_json::Value;

use crate::batch::BatchHttp;
use crate::context_window::listed_window;
use crate::request_loop::{NoRetryFlag, RequestLoop, RetryPolicy};
use crate::transport::{
    check_response, connection_error, http_client, request_headers, resource_url, timeout_error,
};
use crate::{Model, ModelError, ModelEvent, Prompt, Provider, request_body};

/// Largest list of models that is read, in bytes.
const MAX_MODEL_LIST_BYTES: usize = 16 << 20;

/// Time limit of a request for the list of models.
const LIST_MODELS_TIMEOUT: Duration = Duration::from_secs(20);

/// Client of one provider. Clones share its connections.
#[derive(Debug, Clone)]
pub struct ModelClient {
    http: reqwest::Client,
    provider: Arc<Provider>,
    retry_policy: RetryPolicy,
}

/// The events of an answer. Dropping the stream cancels the request.
pub struct ModelStream {
    events: BoxStream<'static, Result<ModelEvent, ModelError>>,
    no_retry: NoRetryFlag,
}

impl ModelClient {
    /// Creates a client. It does not connect yet.
    pub fn new(provider: Provider) -> Result<Self, ModelError> {
        let http = http_client(&provider)?;
        Ok(Self {
            http,
            provider: Arc::new(provider),
            retry_policy: RetryPolicy::Transient,
        })
    }

    /// Returns a client that sends a request again only if the provider certainly did not process
    /// it: the connection could not be made, or the provider is overloaded or limits the rate
    /// (HTTP status 429, 503 or 529).
    pub fn without_paid_retries(self) -> Self {
        Self {
            retry_policy: RetryPolicy::Unprocessed,
            ..self
        }
    }

    pub(crate) fn batch_http(&self) -> BatchHttp {
        BatchHttp {
            http: self.http.clone(),
            provider: self.provider.clone(),
        }
    }

    pub(crate) fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// The provider of this client.
    pub fn provider(&self) -> &Provider {
        &self.provider
    }

    /// Sends a prompt to a model and returns its answer.
    ///
    /// Transient failures are retried as often as [`Provider::retries`] allows: one limit for
    /// failed requests, one for answers that break off.
    pub fn stream(&self, prompt: &Prompt, model: &Model) -> ModelStream {
        let body = request_body(prompt, model, &self.provider).to_string();
        let no_retry = NoRetryFlag::default();
        let (http, provider) = (self.http.clone(), self.provider.clone());
        let request_loop = RequestLoop::new(http, provider, &model.name, body, no_retry.clone())
            .with_policy(self.retry_policy);
        let events = unfold(request_loop, |mut request_loop| async {
            request_loop.next().await.map(|event| (event, request_loop))
        });
        ModelStream {
            events: events.boxed(),
            no_retry,
        }
    }

    /// Fetches the names of the provider's models, in its order.
    pub async fn list_models(&self) -> Result<Vec<String>, ModelError> {
        let listed = self.list_models_with_windows().await?;
        Ok(listed.into_iter().map(|(name, _)| name).collect())
    }

    /// Fetches the names of the provider's models, in its order, each with its context window in
    /// tokens if the provider tells it.
    pub async fn list_models_with_windows(&self) -> Result<Vec<(String, Option<u64>)>, ModelError> {
        let provider = &*self.provider.authorized().await?;
        provider.require_key()?;
        provider.require_accepted_user()?;
        let failed = |error| connection_error(provider, error);
        let response = async {
            let request = self.http.get(resource_url(provider, "models")?);
            let request = request.headers(request_headers(provider)?);
            let mut response = check_response(request.send().await.map_err(failed)?).await?;
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(failed)? {
                if body.len() + chunk.len() > MAX_MODEL_LIST_BYTES {
                    return Err(ModelError::protocol("the list of models is too large"));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(body)
        };
        let body = tokio::time::timeout(LIST_MODELS_TIMEOUT, response).await;
        let body = body.map_err(|_| timeout_error(provider, LIST_MODELS_TIMEOUT));
        let body = body
            .flatten()
            .map_err(|error| provider.redact_secrets(error))?;
        let list: Value = serde_json::from_slice(&body)
            .map_err(|_| ModelError::protocol("the list of models is not JSON"))?;
        let names = list["data"].as_array().or(list["models"].as_array());
        let names =
            names.ok_or_else(|| ModelError::protocol("the response contains no list of models"))?;
        let name = |model: &Value| {
            let name = model["id"].as_str().or(model["name"].as_str())?;
            Some((name.to_owned(), listed_window(model)))
        };
        Ok(names.iter().filter_map(name).collect())
    }
}

impl ModelStream {
    /// Returns the next event; `None` after the last one or after an error.
    pub async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        self.events.next().await
    }

    /// Records that the caller has acted on the answer so far, such as by running a script in it.
    /// A failure is then not retried. A complete call in the answer has the same effect.
    pub fn forbid_retries(&self) {
        self.no_retry.set();
    }
}

impl Stream for ModelStream {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_next_unpin(context)
    }
}

impl std::fmt::Debug for ModelStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ModelStream")
    }
}
