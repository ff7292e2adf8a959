//! Who is asked: where, how, and with which key.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use selvedge_protocol::{Mode, Origin, RetryLimits, WireApi};

/// A provider of models.
#[derive(Debug, Clone, PartialEq)]
pub struct Provider {
    /// Its name in the configuration.
    pub name: String,
    /// Where it is, with its version segment: `/responses`, `/chat/completions` or `/messages` is added.
    pub base_url: String,
    /// How it is spoken to.
    pub wire: WireApi,
    /// The environment variable that holds the key, where it wants one.
    pub env_key: Option<String>,
    /// The key itself, once it was found.
    pub key: Option<Secret>,
    /// The header the key goes into; `Authorization: Bearer` where nothing is said (Messages: `x-api-key`).
    pub key_header: Option<String>,
    /// More headers.
    pub headers: BTreeMap<String, Secret>,
    /// What is added to the address as a query.
    pub query: BTreeMap<String, String>,
    /// How often a request is repeated, and how long an answer may be silent.
    pub retries: RetryLimits,
    /// What the limit of an answer is called (Chat).
    pub output_limit: OutputLimit,
    /// The model that is asked where none is named.
    pub default_model: Option<String>,
    /// Whether scripts run with its models; where nothing is said, as everywhere.
    pub script_mode: Option<Mode>,
    /// The pack of tools its models get; where nothing is said, as everywhere.
    pub tool_pack: Option<String>,
}

/// What Chat servers call the limit of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputLimit {
    /// `max_tokens`, as most do.
    #[default]
    MaxTokens,
    /// `max_completion_tokens`, as OpenAI insists on for models that think.
    MaxCompletionTokens,
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a text to itself.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl Provider {
    /// A provider of which only name, address and API are said.
    pub fn new(name: impl Into<String>, base_url: impl Into<String>, wire: WireApi) -> Self {
        Self {
            name: name.into(),
            base_url: base_url.into(),
            wire,
            env_key: None,
            key: None,
            key_header: None,
            headers: BTreeMap::new(),
            query: BTreeMap::new(),
            retries: RetryLimits::default(),
            output_limit: OutputLimit::default(),
            default_model: None,
            script_mode: None,
            tool_pack: None,
        }
    }

    /// The providers that need no configuration, in the order they are listed.
    pub fn built_in() -> Vec<Self> {
        // OPENAI_API_KEY, ANTHROPIC_API_KEY, OPENROUTER_API_KEY.
        let with_key = |name: &str, url, wire| Self {
            env_key: Some(format!("{}_API_KEY", name.to_uppercase())),
            ..Self::new(name, format!("https://{url}"), wire)
        };
        let local =
            |name, port: u16| Self::new(name, format!("http://127.0.0.1:{port}/v1"), WireApi::Chat);
        vec![
            Self {
                output_limit: OutputLimit::MaxCompletionTokens,
                default_model: Some("gpt-5.5".to_owned()),
                ..with_key("openai", "api.openai.com/v1", WireApi::Responses)
            },
            Self {
                default_model: Some("claude-sonnet-5".to_owned()),
                ..with_key("anthropic", "api.anthropic.com/v1", WireApi::Messages)
            },
            with_key("openrouter", "openrouter.ai/api/v1", WireApi::Chat),
            local("ollama", 11434),
            local("lmstudio", 1234),
            local("llamacpp", 8080),
            local("vllm", 8000),
        ]
    }

    /// The built-in provider of this name.
    pub fn named(name: &str) -> Option<Self> {
        let mut built_in = Self::built_in().into_iter();
        built_in.find(|provider| provider.name == name)
    }

    pub(crate) fn stream_idle_timeout(&self) -> Duration {
        Duration::from_millis(self.retries.stream_idle_timeout_ms)
    }

    /// The mark of what one of its models made.
    pub fn origin(&self, model: &str) -> Origin {
        Origin {
            wire: self.wire,
            provider: self.name.clone(),
            model: model.to_owned(),
        }
    }

    /// Whether it runs on this machine.
    pub fn is_local(&self) -> bool {
        let Ok(url) = reqwest::Url::parse(&self.base_url) else {
            return false;
        };
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let address = host.parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_shown() {
        let mut provider = Provider::new("x", "http://localhost:1/v1", WireApi::Chat);
        provider.key = Some(Secret::new("sk-very-secret"));
        provider
            .headers
            .insert("authorization".into(), Secret::new("sk-very-secret"));
        assert!(!format!("{provider:?}").contains("secret-"), "{provider:?}");
        assert!(!format!("{provider:#?}").contains("sk-very"));
    }

    #[test]
    fn loopback_is_local() {
        let local = |url: &str| Provider::new("x", url, WireApi::Chat).is_local();
        assert!(
            local("http://127.0.0.1:1/v1")
                && local("http://localhost/v1")
                && local("http://[::1]:3/v1")
        );
        assert!(
            !local("https://api.openai.com/v1")
                && !local("http://localhost.example.com/v1")
                && !local("nonsense")
        );
    }
}
