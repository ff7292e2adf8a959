//! Servers behind HTTP.

use std::collections::HashMap;
use std::sync::OnceLock;

use http::{HeaderName, HeaderValue};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;

use crate::program::MAX_MESSAGE;
use crate::settings::Reach;

/// Makes the way to an HTTP server; the error is why it cannot be one.
pub(crate) fn transport(reach: &Reach) -> Result<StreamableHttpClientTransport<reqwest::Client>, String> {
    let Reach::Http { url, bearer_token_env_var, headers } = reach else {
        return Err("it has no address".to_owned());
    };
    let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
    config.max_sse_event_size = MAX_MESSAGE;
    if let Some(variable) = bearer_token_env_var {
        let token = std::env::var(variable).map_err(|_| format!("the variable {variable} is not set"))?;
        config = config.auth_header(token);
    }
    let mut custom = HashMap::new();
    for (name, value) in headers {
        let header = HeaderName::try_from(name.as_str()).ok().zip(HeaderValue::try_from(value.as_str()).ok());
        let (name, value) = header.ok_or_else(|| format!("`{name}` cannot be a header with that value"))?;
        custom.insert(name, value);
    }
    config.custom_headers = custom;
    Ok(StreamableHttpClientTransport::with_client(client()?, config))
}

/// One client for all: its connections are shared.
pub(crate) fn client() -> Result<reqwest::Client, String> {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client.clone());
    }
    // Where another part of the process has chosen one already, that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().connect_timeout(std::time::Duration::from_secs(10)).build();
    let client = client.map_err(|error| format!("there is no HTTP here: {error}"))?;
    Ok(CLIENT.get_or_init(|| client).clone())
}
