//! Asking a provider.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{BoxStream, Stream, StreamExt, unfold};
use serde_json::Value;

use crate::asking::{Acted, Asking};
use crate::batch::Exchange;
use crate::transport::{accepted, address, broken, headers, http_client};
use crate::{Model, ModelError, ModelEvent, Prompt, Provider, request};

/// How long a list of models may take.
const LIST: Duration = Duration::from_secs(20);

/// Asks one provider. Cheap to clone; connections are kept and used again.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    provider: Arc<Provider>,
}

/// An answer while it arrives. Dropping it ends the request.
pub struct ModelStream {
    events: BoxStream<'static, Result<ModelEvent, ModelError>>,
    acted: Acted,
}

impl Client {
    /// A client for this provider.
    pub fn new(provider: Provider) -> Result<Self, ModelError> {
        let http = http_client(&provider)?;
        Ok(Self {
            http,
            provider: Arc::new(provider),
        })
    }

    pub(crate) fn exchange(&self) -> Exchange {
        Exchange {
            http: self.http.clone(),
            provider: self.provider.clone(),
        }
    }

    /// Who is asked.
    pub fn provider(&self) -> &Provider {
        &self.provider
    }

    /// Asks a model. What fails in passing is tried again as often as the provider's settings say: one count for
    /// requests, one for answers that break off, each for the whole question.
    pub fn stream(&self, prompt: &Prompt, model: &Model) -> ModelStream {
        let body = request(prompt, model, &self.provider).to_string();
        let acted = Acted::default();
        let (http, provider) = (self.http.clone(), self.provider.clone());
        let asking = Asking::new(http, provider, &model.name, body, acted.clone());
        let events = unfold(asking, |mut asking| async {
            asking.next().await.map(|event| (event, asking))
        });
        ModelStream {
            events: events.boxed(),
            acted,
        }
    }

    /// The names of the models there are, in the provider's order.
    pub async fn models(&self) -> Result<Vec<String>, ModelError> {
        let provider = &*self.provider;
        provider.check_key()?;
        let asked = async {
            let request = self.http.get(address(provider, "models")?);
            let request = request.headers(headers(provider)?);
            let response = accepted(request.send().await.map_err(broken)?).await?;
            response.bytes().await.map_err(broken)
        };
        let body = tokio::time::timeout(LIST, asked).await;
        let body = body.map_err(|_| ModelError::network("no answer in time"));
        let body = body.flatten().map_err(|error| provider.discreet(error))?;
        let list: Value = serde_json::from_slice(&body)
            .map_err(|_| ModelError::protocol("the list of models is not JSON"))?;
        let names = list["data"].as_array().or(list["models"].as_array());
        let names = names
            .ok_or_else(|| ModelError::protocol("there is no list of models in the answer"))?;
        let name = |model: &Value| {
            let name = model["id"].as_str().or(model["name"].as_str());
            name.map(str::to_owned)
        };
        Ok(names.iter().filter_map(name).collect())
    }
}

impl ModelStream {
    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        self.events.next().await
    }

    /// Says that something was done because of what came so far, such as running a script from the text: from now on
    /// the answer is not asked for again. A call that was handed over complete says so by itself.
    pub fn acted(&self) {
        self.acted.set();
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
