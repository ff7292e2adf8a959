//! Settings of a provider: URL, API, key, headers and retries.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::port_owner::port_owner;
use crate::{AccessTokens, ModelError};
use selvedge_protocol::{
    LimitOverrides, ModelOrigin, OAuthSettings, RetryLimits, ScriptMode, WireApi,
};

/// A provider of models.
#[derive(Debug, Clone, PartialEq)]
pub struct Provider {
    /// Name of the provider in the configuration.
    pub name: String,
    /// Base URL with the version segment, to which `/responses`, `/chat/completions` or
    /// `/messages` is appended.
    pub base_url: String,
    /// API of the provider.
    pub wire_api: WireApi,
    /// Environment variable that holds the key; `None` if the provider needs no key.
    pub env_key: Option<String>,
    /// The key; `None` if it was not found or is not needed.
    pub key: Option<Secret>,
    /// Where the key may be read from.
    pub key_source: KeySource,
    /// How to log in with OAuth 2.0; `None` if the provider has no such login.
    pub oauth: Option<OAuthSettings>,
    /// The access tokens of an OAuth login. They are sent as `Authorization: Bearer`, instead of a
    /// key.
    pub access_tokens: Option<AccessTokens>,
    /// The user whose process must listen at the address, for a server that was found on this
    /// machine and accepted. Checked before each request.
    pub accepted_user: Option<u32>,
    /// Header that contains the key. `None` means `Authorization: Bearer`, for Messages
    /// `x-api-key`.
    pub key_header: Option<String>,
    /// Further headers of every request.
    pub headers: BTreeMap<String, Secret>,
    /// Query parameters of every request.
    pub query: BTreeMap<String, String>,
    /// Limits of retries, and the idle timeout of an answer.
    pub retries: RetryLimits,
    /// Name of the field that limits the answer's tokens. Only Chat uses it.
    pub output_limit: OutputLimitField,
    /// Model to use if none is named.
    pub default_model: Option<String>,
    /// Whether scripts run with the provider's models; `None` uses the global setting.
    pub script_mode: Option<ScriptMode>,
    /// Limits of scripts with the provider's models that differ from the global ones.
    pub script_limits: LimitOverrides,
    /// Pack of tools for the provider's models; `None` uses the global setting.
    pub tool_pack: Option<String>,
}

/// Where the key of a provider may be read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeySource {
    /// The environment or the keys that the user stored.
    #[default]
    Any,
    /// The environment only, because the user did not configure the address.
    Environment,
}

/// Name of the field that limits an answer's tokens in Chat requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputLimitField {
    /// `max_tokens`, which most servers use.
    #[default]
    MaxTokens,
    /// `max_completion_tokens`, which OpenAI requires for reasoning models.
    MaxCompletionTokens,
}

/// A text that is never printed; its `Debug` output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
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
    /// Creates a provider without a key and with default settings.
    pub fn new(name: impl Into<String>, base_url: impl Into<String>, wire: WireApi) -> Self {
        Self {
            name: name.into(),
            base_url: base_url.into(),
            wire_api: wire,
            env_key: None,
            key: None,
            key_header: None,
            headers: BTreeMap::new(),
            query: BTreeMap::new(),
            retries: RetryLimits::default(),
            output_limit: OutputLimitField::default(),
            default_model: None,
            key_source: KeySource::Any,
            oauth: None,
            access_tokens: None,
            accepted_user: None,
            script_mode: None,
            script_limits: LimitOverrides::default(),
            tool_pack: None,
        }
    }

    /// Returns the providers that need no configuration, in the order in which they are listed.
    pub fn built_ins() -> Vec<Self> {
        // The variables are OPENAI_API_KEY, ANTHROPIC_API_KEY and OPENROUTER_API_KEY.
        let with_key = |name: &str, url, wire| Self {
            env_key: Some(format!("{}_API_KEY", name.to_uppercase())),
            ..Self::new(name, format!("https://{url}"), wire)
        };
        let local =
            |name, port: u16| Self::new(name, format!("http://127.0.0.1:{port}/v1"), WireApi::Chat);
        vec![
            Self {
                output_limit: OutputLimitField::MaxCompletionTokens,
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

    /// Returns the built-in provider with this name.
    pub fn find_built_in(name: &str) -> Option<Self> {
        let mut built_in = Self::built_ins().into_iter();
        built_in.find(|provider| provider.name == name)
    }

    pub(crate) fn stream_idle_timeout(&self) -> Duration {
        Duration::from_millis(self.retries.stream_idle_timeout_ms)
    }

    /// Returns the origin of items from one of this provider's models.
    pub fn origin(&self, model: &str) -> ModelOrigin {
        ModelOrigin {
            wire: self.wire_api,
            provider: self.name.clone(),
            model: model.to_owned(),
        }
    }

    /// Returns scheme, host and port of the base URL, without a password or path.
    pub fn address(&self) -> String {
        let url = reqwest::Url::parse(&self.base_url);
        let origin = url.map(|url| url.origin().ascii_serialization());
        origin.unwrap_or_default()
    }

    /// Returns the port of the base URL.
    pub(crate) fn port(&self) -> Option<u16> {
        let url = reqwest::Url::parse(&self.base_url).ok()?;
        url.port_or_known_default()
    }

    /// Fails if another user's process listens at the address than the one that was accepted.
    pub(crate) fn require_accepted_user(&self) -> Result<(), ModelError> {
        let Some(accepted) = self.accepted_user else {
            return Ok(());
        };
        if self.port().and_then(port_owner) == Some(accepted) {
            return Ok(());
        }
        Err(ModelError::invalid(format!(
            "the model server at {} is not run by the user whose server was accepted",
            self.base_url
        )))
    }

    /// Whether the base URL is on this machine.
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
    fn debug_output_contains_no_secrets() {
        let mut provider = Provider::new("x", "http://localhost:1/v1", WireApi::Chat);
        provider.key = Some(Secret::new("sk-very-secret"));
        provider
            .headers
            .insert("authorization".into(), Secret::new("sk-very-secret"));
        assert!(!format!("{provider:?}").contains("secret-"), "{provider:?}");
        assert!(!format!("{provider:#?}").contains("sk-very"));
    }

    #[test]
    fn only_loopback_urls_are_local() {
        let local = |url: &str| Provider::new("x", url, WireApi::Chat).is_local();
        assert!(
            local("http://127.0.0.1:1/v1")
                && local("http://localhost/v1")
                && local("http://[::1]:3/v1")
        );
        assert!(
            !local("https://api.openai.com/v1")
                && !local("http://localhost.example.com/v1")
                && !local("not a URL")
        );
    }
}
