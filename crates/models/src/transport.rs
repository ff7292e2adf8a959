//! HTTP details: the client, URLs, headers, and the conversion of failed responses to errors.

use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use selvedge_protocol::{ModelErrorKind, WireApi};

use crate::{ModelError, Provider, Secret, classify};

/// Time limit for connecting, and for reading the body of an error response.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How much of the body of an error response is read, in bytes.
const MAX_ERROR_BYTES: usize = 256 << 10;
/// Environment variables that name a file of certificates to trust besides those of the system.
const CERTIFICATE_VARIABLES: [&str; 2] = ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"];

/// Creates an HTTP client with the proxies and certificates of the environment. It follows no
/// redirects, because the key must not be sent to another host.
pub(crate) fn http_client(provider: &Provider) -> Result<reqwest::Client, ModelError> {
    // Fails if the process has already installed a crypto provider, which is then used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("selvedge/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT);
    builder = match provider.is_local() && provider.base_url.starts_with("http://") {
        // Plain HTTP needs no certificates, and loading those of the system takes time.
        true => builder.tls_certs_only([]),
        false => builder.tls_certs_merge(extra_certificates()),
    };
    if provider.is_local() {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| {
        let cause = root_cause(&error);
        ModelError::network(format!("cannot create an HTTP client: {cause}"))
    })
}

/// Loads the certificates that the environment names. A file that cannot be read is ignored.
fn extra_certificates() -> Vec<reqwest::Certificate> {
    let files = CERTIFICATE_VARIABLES.iter().filter_map(std::env::var_os);
    let contents = files.filter_map(|file| std::fs::read(file).ok());
    contents
        .filter_map(|pem| reqwest::Certificate::from_pem_bundle(&pem).ok())
        .flatten()
        .collect()
}

/// Returns the URL of a resource of the provider's API.
pub(crate) fn resource_url(
    provider: &Provider,
    resource: &str,
) -> Result<reqwest::Url, ModelError> {
    let base = &provider.base_url;
    let wrong_scheme = || {
        ModelError::base_url(format!(
            "base_url must start with http:// or https://, got `{base}`"
        ))
    };
    let mut url = reqwest::Url::parse(base).map_err(|error| match base.contains("://") {
        true => ModelError::base_url(format!("invalid base_url `{base}`: {error}")),
        false => wrong_scheme(),
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong_scheme());
    }
    url.set_path(&format!("{}/{resource}", url.path().trim_end_matches('/')));
    if !provider.query.is_empty() {
        url.query_pairs_mut().extend_pairs(&provider.query);
    }
    Ok(url)
}

/// Returns the path of the resource that answers prompts, relative to the base URL.
pub(crate) fn prompt_resource_path(wire: WireApi) -> &'static str {
    match wire {
        WireApi::Responses => "responses",
        WireApi::Chat => "chat/completions",
        WireApi::Messages => "messages",
    }
}

/// Returns the headers of every request to the provider.
pub(crate) fn request_headers(provider: &Provider) -> Result<HeaderMap, ModelError> {
    let mut headers = HeaderMap::new();
    if provider.wire_api == WireApi::Messages {
        headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
    }
    if let Some(key) = &provider.key {
        let key = Secret::new(key.reveal().trim());
        if HeaderValue::from_str(key.reveal()).is_err() {
            return Err(invalid_key_error(provider));
        }
        match &provider.key_header {
            _ if provider.access_tokens.is_some() => {
                let bearer = Secret::new(format!("Bearer {}", key.reveal()));
                insert_header(&mut headers, "authorization", &bearer)?;
            }
            Some(header) => insert_header(&mut headers, header, &key)?,
            None if provider.wire_api == WireApi::Messages => {
                insert_header(&mut headers, "x-api-key", &key)?;
            }
            None => {
                let bearer = Secret::new(format!("Bearer {}", key.reveal()));
                insert_header(&mut headers, "authorization", &bearer)?;
            }
        }
    }
    for (name, value) in &provider.headers {
        insert_header(&mut headers, name, value)?;
    }
    Ok(headers)
}

/// Returns the error for a key that cannot be sent in a header.
fn invalid_key_error(provider: &Provider) -> ModelError {
    let place = match &provider.env_key {
        Some(variable) => format!(" in {variable}"),
        None => String::new(),
    };
    ModelError::new(
        ModelErrorKind::Auth,
        format!(
            "the API key{place} contains a line break or another character that a key cannot have"
        ),
    )
}

fn insert_header(headers: &mut HeaderMap, name: &str, value: &Secret) -> Result<(), ModelError> {
    let invalid = |part: &str| {
        let message = format!("the {part} of header `{name}` contains invalid characters");
        ModelError::invalid(message)
    };
    let header: HeaderName = name.parse().map_err(|_| invalid("name"))?;
    let mut value = HeaderValue::from_str(value.reveal().trim()).map_err(|_| invalid("value"))?;
    value.set_sensitive(true);
    headers.insert(header, value);
    Ok(())
}

/// Returns a successful response. A response with another status, or a web page, is an error.
pub(crate) async fn check_response(
    response: reqwest::Response,
) -> Result<reqwest::Response, ModelError> {
    let status = response.status().as_u16();
    if response.status().is_success() {
        let content_type = response.headers().get("content-type");
        if content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/html")) {
            let message = "the server returned a web page, not an API response: check base_url";
            return Err(ModelError::base_url(message));
        }
        return Ok(response);
    }
    let headers = response.headers().clone();
    let url = without_secrets(response.url());
    let body = tokio::time::timeout(CONNECT_TIMEOUT, read_error_body(response)).await;
    let body = body.unwrap_or_default();
    let mut error = classify::error_from_status(status, &body);
    if let (300..400, Some(location)) = (status, headers.get("location")) {
        let location = location.to_str().unwrap_or("another address");
        error.kind = ModelErrorKind::BaseUrl;
        error.message = format!("the server redirects to {location}: change base_url");
    }
    // An API reports an unknown model as JSON.
    if status == 404 && serde_json::from_slice::<serde_json::Value>(&body).is_err() {
        error.kind = ModelErrorKind::BaseUrl;
        error.message = format!("there is no API at {url} (HTTP status 404)");
    }
    error.retry_after = parse_retry_after(&headers, SystemTime::now()).or(error.retry_after);
    let mut names = ["x-request-id", "request-id"].iter();
    let id = names.find_map(|name| headers.get(*name)?.to_str().ok());
    error.request_id = id.map(str::to_owned).or(error.request_id);
    Err(error)
}

/// Reads the body of an error response, up to [`MAX_ERROR_BYTES`] and until the first failure.
async fn read_error_body(mut response: reqwest::Response) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ERROR_BYTES {
            break;
        }
    }
    body
}

/// Reads the delay that the provider asks for from the headers.
fn parse_retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    if let Some(millis) = text("retry-after-ms").and_then(|text| text.parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(millis / 1000.0).ok();
    }
    let after = text("retry-after")?;
    match after.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => {
            let date = httpdate::parse_http_date(after).ok()?;
            date.duration_since(now).ok()
        }
    }
}

/// Converts a failure of the connection. The message names the provider and its URL.
pub(crate) fn connection_error(provider: &Provider, error: reqwest::Error) -> ModelError {
    let error = error.without_url();
    let (name, url, cause) = (&provider.name, shown_url(provider), root_cause(&error));
    // The text of rustls for a server that answers the greeting of TLS with plain HTTP.
    if cause.contains("InvalidContentType") {
        return ModelError::base_url(format!(
            "the server at {url} does not speak TLS: base_url must start with http://"
        ));
    }
    ModelError::network(match (error.is_connect(), provider.proxy_variable()) {
        (true, Some(variable)) => format!(
            "cannot connect to provider `{name}` at {url} through the proxy of {variable}: {cause}"
        ),
        (true, None) => format!("cannot connect to provider `{name}` at {url}: {cause}"),
        (false, _) => format!("the connection to provider `{name}` at {url} failed: {cause}"),
    })
}

impl Provider {
    /// Returns the environment variable that names the proxy of this provider; `None` if there is
    /// no proxy, or if `NO_PROXY` may exclude the provider.
    pub fn proxy_variable(&self) -> Option<&'static str> {
        let is_set =
            |name: &&'static str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if self.is_local() || ["NO_PROXY", "no_proxy"].iter().any(is_set) {
            return None;
        }
        let of_scheme = match self.base_url.starts_with("https://") {
            true => ["HTTPS_PROXY", "https_proxy"],
            false => ["HTTP_PROXY", "http_proxy"],
        };
        let mut variables = of_scheme.into_iter().chain(["ALL_PROXY", "all_proxy"]);
        variables.find(is_set)
    }
}

/// Returns the error for a request that took longer than `limit`.
pub(crate) fn timeout_error(provider: &Provider, limit: Duration) -> ModelError {
    let (name, url) = (&provider.name, shown_url(provider));
    let seconds = limit.as_secs();
    ModelError::timeout(format!(
        "provider `{name}` at {url} did not answer within {seconds} s"
    ))
}

/// Returns the base URL without user information and query, which may contain a key.
fn shown_url(provider: &Provider) -> String {
    match reqwest::Url::parse(&provider.base_url) {
        Ok(url) => without_secrets(&url),
        Err(_) => "an invalid URL".to_owned(),
    }
}

/// Returns a URL without user information and query, which may contain a key.
fn without_secrets(url: &reqwest::Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path())
}

/// Returns the last cause of an error. Those before it only say that the request failed.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_read_from_headers() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        let read = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
            parse_retry_after(&headers, now)
        };
        assert_eq!(read("retry-after", "2"), Some(Duration::from_secs(2)));
        assert_eq!(read("retry-after", "0.5"), Some(Duration::from_millis(500)));
        assert_eq!(
            read("retry-after-ms", "250"),
            Some(Duration::from_millis(250))
        );
        assert_eq!(
            read("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"),
            Some(Duration::from_secs(7))
        );
        for invalid in ["-1", "soon", "1e400", "Sun, 06 Nov 1990 08:49:37 GMT"] {
            assert_eq!(read("retry-after", invalid), None, "{invalid}");
        }
    }

    #[test]
    fn a_url_keeps_its_version_segment() {
        let mut provider = Provider::new("x", "https://host/api/v1/", WireApi::Chat);
        provider.query.insert("api-version".into(), "2026 1".into());
        let url = resource_url(&provider, prompt_resource_path(provider.wire_api)).unwrap();
        assert_eq!(
            url.as_str(),
            "https://host/api/v1/chat/completions?api-version=2026+1"
        );
    }

    #[test]
    fn an_invalid_base_url_is_an_error() {
        let error = |base: &str| {
            let provider = Provider::new("x", base, WireApi::Chat);
            resource_url(&provider, "models").unwrap_err().message
        };
        for base in ["host/v1", "127.0.0.1:1", "localhost:1/v1", "ftp://host/v1"] {
            let expected = format!("base_url must start with http:// or https://, got `{base}`");
            assert_eq!(error(base), expected);
        }
        assert_eq!(error("https://"), "invalid base_url `https://`: empty host");
    }

    #[test]
    fn a_shown_url_has_no_secrets() {
        let base = "https://user:secret@host:8443/v1?key=secret";
        let provider = Provider::new("x", base, WireApi::Chat);
        assert_eq!(shown_url(&provider), "https://host:8443/v1");
    }
}
