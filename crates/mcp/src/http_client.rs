//! Connects to MCP servers over streamable HTTP.

use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;

use http::{HeaderName, HeaderValue};
use rmcp::model::ProtocolVersion;
use rmcp::service::{ClientInitializeError, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::auth::AuthClient;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransportConfig, StreamableHttpError,
};
use rmcp::{ClientLifecycleMode, RoleClient, serve_client_with_lifecycle};

use crate::bounded_http::BoundedHttpClient;
use crate::client_handler::McpClientHandler;
use crate::connection::{ServerStartFailure, shorten};
use crate::process::MAX_MESSAGE_BYTES;
use crate::settings::{McpTransport, ServerSettings};

/// Most redirects of one request that are followed, all at the same origin.
const MAX_REDIRECTS: usize = 5;

/// Connects to an HTTP server, with the stored login if there is one in `folder`.
pub(crate) async fn connect_http(
    handler: impl Fn() -> McpClientHandler,
    settings: &ServerSettings,
    folder: Option<&Path>,
) -> Result<RunningService<RoleClient, McpClientHandler>, ServerStartFailure> {
    let config = transport_config(&settings.transport)?;
    let client = BoundedHttpClient(shared_http_client()?);
    let mut first_error = None;
    // A server may support only the newer protocol, which has no `initialize` handshake.
    let modern = ClientLifecycleMode::Discover {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
    };
    for lifecycle in [ClientLifecycleMode::Initialize, modern] {
        let connected = match crate::login::load_login(settings, folder).await {
            Some(manager) => {
                let client = AuthClient::new(client.clone(), manager);
                let transport = StreamableHttpClientTransport::with_client(client, config.clone());
                serve_client_with_lifecycle(handler(), transport, lifecycle).await
            }
            None => {
                let transport =
                    StreamableHttpClientTransport::with_client(client.clone(), config.clone());
                serve_client_with_lifecycle(handler(), transport, lifecycle).await
            }
        };
        match connected {
            Ok(service) => return Ok(service),
            Err(error) if error.is_authorization_required() => {
                return Err(unauthorized(settings, &shown_url(&config.uri)));
            }
            Err(error) => _ = first_error.get_or_insert_with(|| HttpFailure::of(&error)),
        }
    }
    let failure = first_error.unwrap_or(HttpFailure::Other(String::new()));
    let name = &settings.name;
    let correct_url = format!("correct url under [mcp_servers.{name}] in config.toml");
    Err(ServerStartFailure {
        reason: failure.describe(&shown_url(&config.uri)),
        hint: match failure {
            HttpFailure::Status(404) => Some(correct_url),
            HttpFailure::Connect(_) => Some(format!("start the server, or {correct_url}")),
            HttpFailure::Status(401 | 403) => unauthorized(settings, "").hint,
            HttpFailure::Status(500..) => {
                Some("read the log of the server, then try again".to_owned())
            }
            HttpFailure::Status(_) | HttpFailure::Other(_) => Some(correct_url),
        },
    })
}

/// Returns the failure of a server that did not accept the token, or that needs one.
fn unauthorized(settings: &ServerSettings, url: &str) -> ServerStartFailure {
    let name = &settings.name;
    let (reason, hint) = match &settings.transport {
        McpTransport::Http {
            bearer_token_env_var: Some(variable),
            ..
        } => (
            format!("{url} does not accept the token in {variable}"),
            format!("run `export {variable}=TOKEN` with a valid token"),
        ),
        _ => (
            format!("{url} needs a login"),
            format!(
                "run `selvedge mcp login {name}`, or set bearer_token_env_var under \
                 [mcp_servers.{name}] in config.toml"
            ),
        ),
    };
    ServerStartFailure {
        reason,
        hint: Some(hint),
    }
}

/// Why an HTTP server could not be used.
#[derive(Debug)]
enum HttpFailure {
    /// It cannot be reached: the cause.
    Connect(String),
    /// It answered with this status.
    Status(u16),
    /// Anything else, in one line.
    Other(String),
}

impl HttpFailure {
    fn of(error: &ClientInitializeError) -> Self {
        let ClientInitializeError::TransportError {
            error: transport, ..
        } = error
        else {
            return Self::Other(shorten(&error.to_string()));
        };
        let cause = transport.error.as_ref();
        match cause.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
            Some(StreamableHttpError::HttpStatus(error)) => Self::Status(error.status),
            Some(StreamableHttpError::UnexpectedServerResponse(text)) => match status_in(text) {
                Some(status) => Self::Status(status),
                None => Self::Other(shorten(text)),
            },
            Some(StreamableHttpError::Client(error)) => match (error.status(), root_cause(error)) {
                (Some(status), _) => Self::Status(status.as_u16()),
                (None, cause) if error.is_connect() => Self::Connect(cause),
                (None, cause) => Self::Other(cause),
            },
            Some(other) => Self::Other(shorten(&other.to_string())),
            None => Self::Other(shorten(&cause.to_string())),
        }
    }

    fn describe(&self, url: &str) -> String {
        match self {
            Self::Connect(cause) => format!("cannot connect to {url}: {cause}"),
            Self::Status(status) => format!("{url} answered with HTTP status {status}"),
            Self::Other(reason) => format!("the request to {url} failed: {reason}"),
        }
    }
}

/// Returns the status in a text of the MCP library such as `HTTP 404 Not Found: …`.
fn status_in(text: &str) -> Option<u16> {
    let status = text.strip_prefix("HTTP ")?.get(..3)?;
    status.parse().ok()
}

/// Returns the last cause of an error. Those before it only say that the request failed.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    shorten(&cause.to_string())
}

/// Returns a URL without user information and query, which may contain a token.
fn shown_url(url: &str) -> String {
    match reqwest::Url::parse(url) {
        Ok(url) => format!("{}{}", url.origin().ascii_serialization(), url.path()),
        Err(_) => "an invalid URL".to_owned(),
    }
}

/// Returns the `WWW-Authenticate` challenge of the server, which may be empty; `None` if it
/// requires no login.
pub(crate) async fn fetch_auth_challenge(
    transport: &McpTransport,
) -> Result<Option<String>, String> {
    let config = transport_config(transport)?;
    let url = shown_url(&config.uri);
    let client = BoundedHttpClient(shared_http_client()?);
    let transport = StreamableHttpClientTransport::with_client(client, config);
    match serve_client_with_lifecycle((), transport, ClientLifecycleMode::Initialize).await {
        Ok(_) => Ok(None),
        Err(error) if error.is_authorization_required() => {
            Ok(Some(error.auth_challenge().unwrap_or_default().to_owned()))
        }
        Err(error) => Err(HttpFailure::of(&error).describe(&url)),
    }
}

/// Converts the settings of an HTTP server to those of the transport.
fn transport_config(
    transport: &McpTransport,
) -> Result<StreamableHttpClientTransportConfig, String> {
    let McpTransport::Http {
        url,
        bearer_token_env_var,
        headers,
    } = transport
    else {
        return Err("not an HTTP server".to_owned());
    };
    let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
    config.max_sse_event_size = MAX_MESSAGE_BYTES;
    if let Some(variable) = bearer_token_env_var {
        let token = std::env::var(variable)
            .map_err(|_| format!("the environment variable {variable} is not set"))?;
        config = config.auth_header(token);
    }
    let mut custom = HashMap::new();
    for (name, value) in headers {
        let header = HeaderName::try_from(name.as_str())
            .ok()
            .zip(HeaderValue::try_from(value.as_str()).ok());
        let (name, value) =
            header.ok_or_else(|| format!("the header `{name}` has an invalid name or value"))?;
        custom.insert(name, value);
    }
    config.custom_headers = custom;
    Ok(config)
}

/// Returns the HTTP client of this process, whose connection pool all servers share.
pub(crate) fn shared_http_client() -> Result<reqwest::Client, String> {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client.clone());
    }
    // Fails if the process has already installed a crypto provider, which is then used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A redirect to another origin would take the headers and the message of a request there.
    let same_origin = reqwest::redirect::Policy::custom(|attempt| {
        let is_same = attempt
            .previous()
            .first()
            .is_some_and(|first| first.origin() == attempt.url().origin());
        match is_same && attempt.previous().len() <= MAX_REDIRECTS {
            true => attempt.follow(),
            false => attempt.stop(),
        }
    });
    let client = reqwest::Client::builder()
        .connect_timeout(std::time::Duration::from_secs(10))
        .redirect(same_origin)
        .referer(false)
        // A small compressed body can become a large one.
        .no_brotli()
        .no_deflate()
        .no_gzip()
        .no_zstd()
        .build();
    let client = client.map_err(|error| format!("cannot create an HTTP client: {error}"))?;
    Ok(CLIENT.get_or_init(|| client).clone())
}
