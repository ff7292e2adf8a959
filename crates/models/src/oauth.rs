//! OAuth 2.0 login of a provider: the device flow (RFC 8628), the authorization code flow with PKCE
//! (RFC 7636), and the refresh of access tokens.
//!
//! The crate `oauth2` builds and reads the messages; this module sends them with the HTTP client of
//! the models. It stores nothing and opens no browser.

use std::time::Duration;

use oauth2::basic::{BasicClient, BasicTokenResponse};
use oauth2::{
    AuthType, AuthUrl, AuthorizationCode, ClientId, CsrfToken, DeviceAuthorizationUrl,
    DeviceCodeErrorResponseType, ErrorResponse, HttpRequest, HttpResponse, PkceCodeChallenge,
    PkceCodeVerifier, RedirectUrl, RefreshToken, RequestTokenError, Scope,
    StandardDeviceAuthorizationResponse, TokenResponse, TokenUrl,
};
use selvedge_protocol::{OAuthSettings, WireApi, since_epoch};
use serde_json::{Value, json};

use crate::transport::http_client;
use crate::{Provider, Secret};

/// Largest response of an authorization server that is read, in bytes.
const MAX_RESPONSE_BYTES: usize = 1 << 20;
/// Time limit of a request to the authorization server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// An access token is refreshed this long before it expires, so that it lasts for a request.
const EXPIRY_MARGIN: Duration = Duration::from_secs(60);

/// Failure of a login or of a refresh.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OAuthError {
    /// The settings cannot be used.
    #[error("{0}")]
    Settings(String),
    /// The authorization server cannot be reached, or its response cannot be read.
    #[error("the authorization server cannot be used: {0}")]
    Server(String),
    /// The user declined, or the server refuses the client.
    #[error("the authorization server refused the login: {0}")]
    Refused(String),
    /// The user did not log in in time.
    #[error("the code has expired")]
    Expired,
    /// The browser returned with another state than it was sent away with.
    #[error("the browser returned from another login")]
    WrongState,
}

/// The tokens of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OAuthTokens {
    access_token: Secret,
    refresh_token: Option<Secret>,
    /// Seconds since the epoch; `None` if the server does not tell.
    expires_at: Option<u64>,
}

impl OAuthTokens {
    /// The token for requests to the provider.
    pub fn access_token(&self) -> &Secret {
        &self.access_token
    }

    /// Whether the access token has expired, or will before a request is answered.
    pub fn is_expired(&self) -> bool {
        let now = since_epoch().as_secs();
        self.expires_at
            .is_some_and(|at| at <= now.saturating_add(EXPIRY_MARGIN.as_secs()))
    }

    /// Whether the access token can be refreshed.
    pub fn can_refresh(&self) -> bool {
        self.refresh_token.is_some()
    }

    /// Returns the tokens as a text to store. Tokens are for one client of one server, so the text
    /// names both.
    pub fn to_stored_text(&self, settings: &OAuthSettings) -> String {
        json!({
            "client_id": settings.client_id,
            "token_url": settings.token_url,
            "access_token": self.access_token.reveal(),
            "refresh_token": self.refresh_token.as_ref().map(Secret::reveal),
            "expires_at": self.expires_at,
        })
        .to_string()
    }

    /// Reads a stored text; `None` if it is damaged, or for another client or server.
    pub fn from_stored_text(text: &str, settings: &OAuthSettings) -> Option<Self> {
        let stored: Value = serde_json::from_str(text).ok()?;
        let is_for_settings = stored["client_id"] == *settings.client_id
            && stored["token_url"] == *settings.token_url;
        let token = |key: &str| stored[key].as_str().map(Secret::new);
        is_for_settings.then_some(Self {
            access_token: token("access_token")?,
            refresh_token: token("refresh_token"),
            expires_at: stored["expires_at"].as_u64(),
        })
    }

    /// Takes the tokens of a response. A server that issues no new refresh token keeps the old one
    /// valid.
    fn from_response(response: &BasicTokenResponse, before: Option<&Secret>) -> Self {
        let refresh = response.refresh_token();
        let refresh = refresh.map(|token| Secret::new(token.secret()));
        let expires_at = response
            .expires_in()
            .map(|lifetime| since_epoch().as_secs().saturating_add(lifetime.as_secs()));
        Self {
            access_token: Secret::new(response.access_token().secret()),
            refresh_token: refresh.or_else(|| before.cloned()),
            expires_at,
        }
    }
}

/// Client of one authorization server.
#[derive(Debug, Clone)]
pub struct OAuthClient {
    settings: OAuthSettings,
    http: reqwest::Client,
}

/// A login in the browser of another device: the user opens a page and enters a code.
#[derive(Debug)]
pub struct DeviceLogin<'c> {
    client: &'c OAuthClient,
    details: StandardDeviceAuthorizationResponse,
}

/// A login in the browser of this machine, which returns to an address on loopback.
#[derive(Debug)]
pub struct BrowserLogin<'c> {
    client: &'c OAuthClient,
    authorization_url: String,
    redirect_url: RedirectUrl,
    state: CsrfToken,
    verifier: PkceCodeVerifier,
}

impl OAuthClient {
    /// Creates a client. Fails if an address is invalid, or would send tokens without encryption to
    /// another machine.
    pub fn new(settings: &OAuthSettings) -> Result<Self, OAuthError> {
        let urls = [
            ("token_url", Some(&settings.token_url)),
            (
                "device_authorization_url",
                settings.device_authorization_url.as_ref(),
            ),
            ("authorization_url", settings.authorization_url.as_ref()),
        ];
        for (key, url) in urls {
            let Some(url) = url else { continue };
            let parsed = reqwest::Url::parse(url);
            let provider = Provider::new("oauth", url, WireApi::Chat);
            let is_safe = parsed.is_ok_and(|url| url.scheme() == "https")
                || url.starts_with("http://") && provider.is_local();
            if !is_safe {
                return Err(OAuthError::Settings(format!(
                    "{key} must start with https://, got `{url}`"
                )));
            }
        }
        let server = Provider::new("oauth", &settings.token_url, WireApi::Chat);
        let http = http_client(&server).map_err(|error| OAuthError::Server(error.message))?;
        Ok(Self {
            settings: settings.clone(),
            http,
        })
    }

    /// Starts the device flow. Fails if the settings have no `device_authorization_url`.
    pub async fn start_device_login(&self) -> Result<DeviceLogin<'_>, OAuthError> {
        let url = self.settings.device_authorization_url.as_ref();
        let url = url.ok_or_else(|| missing("device_authorization_url"))?;
        let url = DeviceAuthorizationUrl::new(url.clone()).map_err(invalid_url)?;
        let client = BasicClient::new(ClientId::new(self.settings.client_id.clone()))
            .set_auth_type(AuthType::RequestBody)
            .set_device_authorization_url(url);
        let send = |request| send(self.http.clone(), request);
        let details = client
            .exchange_device_code()
            .add_scopes(self.scopes())
            .request_async(&send)
            .await
            .map_err(token_error)?;
        Ok(DeviceLogin {
            client: self,
            details,
        })
    }

    /// Starts a login in the browser, which returns to `redirect_url`. Fails if the settings have
    /// no `authorization_url`.
    pub fn start_browser_login(&self, redirect_url: &str) -> Result<BrowserLogin<'_>, OAuthError> {
        let url = self.settings.authorization_url.as_ref();
        let url = url.ok_or_else(|| missing("authorization_url"))?;
        let redirect_url = RedirectUrl::new(redirect_url.to_owned()).map_err(invalid_url)?;
        let client = BasicClient::new(ClientId::new(self.settings.client_id.clone()))
            .set_auth_uri(AuthUrl::new(url.clone()).map_err(invalid_url)?)
            .set_redirect_uri(redirect_url.clone());
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let (authorization_url, state) = client
            .authorize_url(CsrfToken::new_random)
            .add_scopes(self.scopes())
            .set_pkce_challenge(challenge)
            .url();
        Ok(BrowserLogin {
            client: self,
            authorization_url: authorization_url.to_string(),
            redirect_url,
            state,
            verifier,
        })
    }

    /// Gets a new access token. Fails with [`OAuthError::Refused`] if the login has ended.
    pub async fn refresh(&self, tokens: &OAuthTokens) -> Result<OAuthTokens, OAuthError> {
        let Some(refresh) = &tokens.refresh_token else {
            let message = "it issued no refresh token".to_owned();
            return Err(OAuthError::Refused(message));
        };
        let client = BasicClient::new(ClientId::new(self.settings.client_id.clone()))
            .set_auth_type(AuthType::RequestBody)
            .set_token_uri(self.token_url()?);
        let send = |request| send(self.http.clone(), request);
        let response = client
            .exchange_refresh_token(&RefreshToken::new(refresh.reveal().to_owned()))
            .request_async(&send)
            .await
            .map_err(token_error)?;
        Ok(OAuthTokens::from_response(&response, Some(refresh)))
    }

    fn scopes(&self) -> impl Iterator<Item = Scope> {
        self.settings.scopes.iter().cloned().map(Scope::new)
    }

    fn token_url(&self) -> Result<TokenUrl, OAuthError> {
        TokenUrl::new(self.settings.token_url.clone()).map_err(invalid_url)
    }
}

impl DeviceLogin<'_> {
    /// The page that the user opens.
    pub fn verification_url(&self) -> &str {
        self.details.verification_uri().as_str()
    }

    /// The same page with the code filled in, if the server has one.
    pub fn complete_url(&self) -> Option<&str> {
        let url = self.details.verification_uri_complete()?;
        Some(url.secret())
    }

    /// The code that the user enters.
    pub fn user_code(&self) -> &str {
        self.details.user_code().secret()
    }

    /// Waits until the user has logged in or declined, or the code expires.
    pub async fn finish(self) -> Result<OAuthTokens, OAuthError> {
        let client = BasicClient::new(ClientId::new(self.client.settings.client_id.clone()))
            .set_auth_type(AuthType::RequestBody)
            .set_token_uri(self.client.token_url()?);
        let send = |request| send(self.client.http.clone(), request);
        let response = client
            .exchange_device_access_token(&self.details)
            .request_async(&send, tokio::time::sleep, None)
            .await;
        match response {
            Ok(response) => Ok(OAuthTokens::from_response(&response, None)),
            Err(RequestTokenError::ServerResponse(error)) => Err(match error.error() {
                DeviceCodeErrorResponseType::ExpiredToken => OAuthError::Expired,
                DeviceCodeErrorResponseType::AccessDenied => {
                    OAuthError::Refused("access was denied".to_owned())
                }
                _ => OAuthError::Refused(error.to_string()),
            }),
            Err(error) => Err(token_error(error)),
        }
    }
}

impl BrowserLogin<'_> {
    /// The page that the user opens.
    pub fn authorization_url(&self) -> &str {
        &self.authorization_url
    }

    /// Exchanges the code with which the browser returned. `target` is the path and the query of
    /// its request.
    pub async fn finish(self, target: &str) -> Result<OAuthTokens, OAuthError> {
        let url = reqwest::Url::parse("http://127.0.0.1").and_then(|base| base.join(target));
        let url = url.map_err(|error| OAuthError::Server(error.to_string()))?;
        let parameter = |name: &str| {
            let mut pairs = url.query_pairs();
            let pair = pairs.find(|(key, _)| key == name);
            pair.map(|(_, value)| value.into_owned())
        };
        if parameter("state").as_ref() != Some(self.state.secret()) {
            return Err(OAuthError::WrongState);
        }
        if let Some(error) = parameter("error") {
            let details = parameter("error_description");
            let details = details.map(|text| format!(": {text}")).unwrap_or_default();
            return Err(OAuthError::Refused(format!("{error}{details}")));
        }
        let code = parameter("code")
            .ok_or_else(|| OAuthError::Server("the browser returned without a code".to_owned()))?;
        let client = BasicClient::new(ClientId::new(self.client.settings.client_id.clone()))
            .set_auth_type(AuthType::RequestBody)
            .set_token_uri(self.client.token_url()?)
            .set_redirect_uri(self.redirect_url);
        let send = |request| send(self.client.http.clone(), request);
        let response = client
            .exchange_code(AuthorizationCode::new(code))
            .set_pkce_verifier(self.verifier)
            .request_async(&send)
            .await
            .map_err(token_error)?;
        Ok(OAuthTokens::from_response(&response, None))
    }
}

fn missing(key: &str) -> OAuthError {
    OAuthError::Settings(format!("{key} is not set"))
}

fn invalid_url(error: impl std::fmt::Display) -> OAuthError {
    OAuthError::Settings(error.to_string())
}

/// Failure to send a request or to read its response. Its text has no query, which may be secret.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct OAuthHttpError(String);

/// Sends a request of the crate `oauth2`.
async fn send(http: reqwest::Client, request: HttpRequest) -> Result<HttpResponse, OAuthHttpError> {
    let host = request.uri().host().unwrap_or("an unknown host").to_owned();
    let failed = |error: reqwest::Error| {
        let mut cause: &dyn std::error::Error = &error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        OAuthHttpError(format!("cannot reach {host}: {cause}"))
    };
    let answer = async {
        let request = reqwest::Request::try_from(request).map_err(failed)?;
        let mut response = http.execute(request).await.map_err(failed)?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
                return Err(OAuthHttpError(format!(
                    "the response of {host} is too large"
                )));
            }
            body.extend_from_slice(&chunk);
        }
        let mut read = HttpResponse::new(body);
        *read.status_mut() = response.status();
        *read.headers_mut() = response.headers().clone();
        Ok(read)
    };
    match tokio::time::timeout(REQUEST_TIMEOUT, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(OAuthHttpError(format!(
            "{host} did not answer within {} s",
            REQUEST_TIMEOUT.as_secs()
        ))),
    }
}

/// Converts an error of the crate `oauth2`.
fn token_error<T>(error: RequestTokenError<OAuthHttpError, T>) -> OAuthError
where
    T: ErrorResponse + 'static,
{
    match error {
        RequestTokenError::ServerResponse(response) => OAuthError::Refused(response.to_string()),
        RequestTokenError::Request(error) => OAuthError::Server(error.to_string()),
        // The body may contain tokens.
        RequestTokenError::Parse(..) => {
            OAuthError::Server("its response is not one of OAuth 2.0".to_owned())
        }
        RequestTokenError::Other(message) => OAuthError::Server(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(token_url: &str) -> OAuthSettings {
        OAuthSettings {
            client_id: "selvedge".to_owned(),
            token_url: token_url.to_owned(),
            ..OAuthSettings::default()
        }
    }

    #[test]
    fn stored_tokens_are_for_one_client_of_one_server() {
        let own = settings("https://login.example/token");
        let tokens = OAuthTokens {
            access_token: Secret::new("access"),
            refresh_token: Some(Secret::new("refresh")),
            expires_at: Some(7),
        };
        let text = tokens.to_stored_text(&own);
        assert_eq!(OAuthTokens::from_stored_text(&text, &own), Some(tokens));
        let other = settings("https://evil.example/token");
        assert_eq!(OAuthTokens::from_stored_text(&text, &other), None);
        let mut other = own.clone();
        other.client_id = "other".to_owned();
        assert_eq!(OAuthTokens::from_stored_text(&text, &other), None);
        assert_eq!(OAuthTokens::from_stored_text("{}", &own), None);
    }

    #[test]
    fn a_token_expires_a_minute_early() {
        let now = since_epoch().as_secs();
        let expires_at = |at| OAuthTokens {
            access_token: Secret::new("access"),
            refresh_token: None,
            expires_at: at,
        };
        assert!(!expires_at(None).is_expired());
        assert!(!expires_at(Some(now + 600)).is_expired());
        assert!(expires_at(Some(now + 30)).is_expired());
        assert!(expires_at(Some(u64::MAX)).expires_at.is_some());
        assert!(!expires_at(Some(u64::MAX)).is_expired());
    }

    #[test]
    fn tokens_are_never_sent_without_encryption_to_another_machine() {
        for (url, is_valid) in [
            ("https://login.example/token", true),
            ("http://127.0.0.1:1/token", true),
            ("http://login.example/token", false),
            ("login.example/token", false),
        ] {
            let client = OAuthClient::new(&settings(url));
            assert_eq!(client.is_ok(), is_valid, "{url}");
        }
    }
}
