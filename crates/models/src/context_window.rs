//! Asks a server how large the context window of a model is. Servers that a user runs decide it
//! when they start, and gateways know models that the built-in table does not have.
//!
//! Each server is asked once per process and model, in the background. Until it answers, and if it
//! does not report a size, `Model::context_window` applies.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::transport::{request_headers, resource_url};
use crate::{Model, ModelClient, Provider, WindowSource};

/// Time limit of a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// Largest answer that is read, in bytes. The list of a gateway with hundreds of models is the
/// longest.
const MAX_BODY_BYTES: usize = 4 << 20;
/// Smallest and largest size that is accepted from a server, in tokens.
const PLAUSIBLE_WINDOWS: std::ops::RangeInclusive<u64> = 512..=100_000_000;
/// Hosts whose APIs do not report the window. Their models are in the table.
const HOSTS_WITHOUT_WINDOW_API: [&str; 2] = ["api.openai.com", "api.anthropic.com"];

/// The state of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WindowQueryState {
    Running,
    /// `None` if the server reported no size.
    Answered(Option<u64>),
}

/// Queries by base URL and name of the model.
type WindowQueries = HashMap<(String, String), watch::Receiver<WindowQueryState>>;

/// The queries of this process.
static QUERIES: LazyLock<Mutex<WindowQueries>> = LazyLock::new(Mutex::default);

impl ModelClient {
    /// Starts to ask the server for the context window of a model, unless that was done before or
    /// the configuration sets the window. Does nothing outside of a tokio runtime.
    pub fn start_window_query(&self, model: &Model) {
        let provider = self.provider();
        if model.window_source == WindowSource::Configured || has_no_window_api(provider) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let mut queries = QUERIES.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (provider.base_url.clone(), model.name.clone());
        if queries.contains_key(&key) {
            return;
        }
        let (answer, receiver) = watch::channel(WindowQueryState::Running);
        queries.insert(key, receiver);
        drop(queries);
        let (client, name) = (self.clone(), model.name.clone());
        runtime.spawn(async move {
            let asked = tokio::time::timeout(QUERY_TIMEOUT, client.fetch_window(&name));
            let window = asked.await.ok().flatten();
            let _ = answer.send(WindowQueryState::Answered(window));
        });
    }

    /// Returns the context window of a model in tokens: what its server reported, else what is
    /// known about the model.
    pub fn context_window(&self, model: &Model) -> u64 {
        match self.window_query(model).map(|query| *query.borrow()) {
            Some(WindowQueryState::Answered(Some(window))) => window,
            _ => model.context_window,
        }
    }

    /// Waits until the query for a model is answered, at most this long.
    pub async fn wait_for_window(&self, model: &Model, timeout: Duration) {
        let Some(mut query) = self.window_query(model) else {
            return;
        };
        let answered = query.wait_for(|query| *query != WindowQueryState::Running);
        let _ = tokio::time::timeout(timeout, answered).await;
    }

    fn window_query(&self, model: &Model) -> Option<watch::Receiver<WindowQueryState>> {
        if model.window_source == WindowSource::Configured {
            return None;
        }
        let key = (self.provider().base_url.clone(), model.name.clone());
        let queries = QUERIES.lock().unwrap_or_else(PoisonError::into_inner);
        queries.get(&key).cloned()
    }

    /// Sends all known queries at once. The answer of a running server (llama.cpp) is preferred to
    /// that of a model file (Ollama), and this one to a list of models (vLLM, OpenRouter).
    async fn fetch_window(&self, model: &str) -> Option<u64> {
        let root = self.provider().base_url.trim_end_matches('/');
        let root = root.strip_suffix("/v1").unwrap_or(root);
        let at_root = Arc::new(Provider {
            base_url: root.to_owned(),
            ..self.provider().clone()
        });
        let (props, show, list) = tokio::join!(
            self.fetch_json(&at_root, "props", None),
            self.fetch_from_ollama(&at_root, model),
            self.fetch_json(self.provider(), "models", None),
        );
        let window = props
            .and_then(|props| llama_cpp_window(&props))
            .or_else(|| ollama_window(&show?))
            .or_else(|| find_listed_window(&list?, model));
        window.filter(|window| PLAUSIBLE_WINDOWS.contains(window))
    }

    /// Fetches the description of a model from Ollama. No other server gets the POST request, which
    /// some would take for a prompt.
    async fn fetch_from_ollama(&self, root: &Provider, model: &str) -> Option<Value> {
        let version = self.fetch_json(root, "api/version", None).await?;
        version["version"].as_str()?;
        let body = json!({"model": model});
        self.fetch_json(root, "api/show", Some(body)).await
    }

    /// Fetches a small JSON document; with `body` by POST. `None` if anything fails.
    async fn fetch_json(
        &self,
        provider: &Provider,
        resource: &str,
        body: Option<Value>,
    ) -> Option<Value> {
        let provider = &*provider.authorized().await.ok()?;
        let url = resource_url(provider, resource).ok()?;
        let request = match body {
            Some(body) => self.http().post(url).body(body.to_string()),
            None => self.http().get(url),
        };
        let request = request.headers(request_headers(provider).ok()?);
        let request = request.header("content-type", "application/json");
        let mut response = request.send().await.ok()?;
        if !response.status().is_success() {
            return None;
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.ok()? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MAX_BODY_BYTES {
                return None;
            }
        }
        serde_json::from_slice(&bytes).ok()
    }
}

fn has_no_window_api(provider: &Provider) -> bool {
    let host = reqwest::Url::parse(&provider.base_url);
    let host = host.as_ref().ok().and_then(|url| url.host_str());
    host.is_none_or(|host| HOSTS_WITHOUT_WINDOW_API.contains(&host))
}

/// Reads `/props` of llama.cpp.
fn llama_cpp_window(props: &Value) -> Option<u64> {
    let settings = &props["default_generation_settings"];
    settings["n_ctx"].as_u64().or(props["n_ctx"].as_u64())
}

/// Reads `/api/show` of Ollama: the parameter `num_ctx` of the model, else what its file says.
fn ollama_window(show: &Value) -> Option<u64> {
    let parameters = show["parameters"].as_str().unwrap_or_default();
    let mut set = parameters.lines().filter_map(|line| {
        let value = line.trim().strip_prefix("num_ctx")?;
        value.trim().parse().ok()
    });
    let fields = show["model_info"].as_object();
    let mut fields = fields.into_iter().flatten();
    let from_file = || {
        fields
            .find_map(|(name, value)| name.ends_with(".context_length").then(|| value.as_u64())?)
    };
    set.next().or_else(from_file)
}

/// Reads `/v1/models`: the entry of a model.
fn find_listed_window(list: &Value, model: &str) -> Option<u64> {
    let entries = list["data"].as_array().or(list["models"].as_array())?;
    let entry = entries.iter().find(|entry| entry["id"] == model)?;
    listed_window(entry)
}

/// Returns the context window in an entry of a list of models: `max_model_len` of vLLM,
/// `context_length` of OpenRouter.
pub(crate) fn listed_window(entry: &Value) -> Option<u64> {
    let served = entry["top_provider"]["context_length"].as_u64();
    let window = served
        .or(entry["max_model_len"].as_u64())
        .or(entry["context_length"].as_u64());
    window.filter(|window| PLAUSIBLE_WINDOWS.contains(window))
}
