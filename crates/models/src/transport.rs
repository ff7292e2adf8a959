//! One HTTP exchange: how a request is sent, and what becomes of an answer that is no answer.

use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use selvedge_protocol::WireApi;

use crate::{ModelError, Provider, Secret, classify};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(15);
/// How much of an error's body is read.
const MAX_ERROR_BYTES: usize = 256 << 10;
/// Variables that name a file of certificates to trust besides the system's.
const CERTIFICATES: [&str; 2] = ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"];

/// An HTTP client: proxies and certificates as the environment has them, no redirects (a key must not travel on).
pub(crate) fn http_client(provider: &Provider) -> Result<reqwest::Client, ModelError> {
    // Whoever came first decides for the process; both will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("selvedge/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT);
    builder = match provider.is_local() && provider.base_url.starts_with("http://") {
        // Nobody's certificate will be looked at, and reading them all takes a while.
        true => builder.tls_certs_only([]),
        false => builder.tls_certs_merge(certificates()),
    };
    if provider.is_local() {
        builder = builder.no_proxy();
    }
    builder
        .build()
        .map_err(|error| ModelError::network(format!("cannot speak HTTP: {}", why(&error))))
}

/// Certificates named by the environment. A file that is not there or not readable is as good as not named.
fn certificates() -> Vec<reqwest::Certificate> {
    let files = CERTIFICATES.iter().filter_map(std::env::var_os);
    let read = files.filter_map(|file| std::fs::read(file).ok());
    read.filter_map(|pem| reqwest::Certificate::from_pem_bundle(&pem).ok())
        .flatten()
        .collect()
}

/// The address of one of the API's resources.
pub(crate) fn address(provider: &Provider, resource: &str) -> Result<reqwest::Url, ModelError> {
    let base = &provider.base_url;
    let invalid = |why: String| ModelError::invalid(format!("`{base}` is no address: {why}"));
    let mut url = reqwest::Url::parse(base).map_err(|error| invalid(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid("it must begin with http:// or https://".to_owned()));
    }
    url.set_path(&format!("{}/{resource}", url.path().trim_end_matches('/')));
    if !provider.query.is_empty() {
        url.query_pairs_mut().extend_pairs(&provider.query);
    }
    Ok(url)
}

/// What is added to the address for a request.
pub(crate) fn resource(wire: WireApi) -> &'static str {
    match wire {
        WireApi::Responses => "responses",
        WireApi::Chat => "chat/completions",
        WireApi::Messages => "messages",
    }
}

/// The headers every request of this provider has.
pub(crate) fn headers(provider: &Provider) -> Result<HeaderMap, ModelError> {
    let mut headers = HeaderMap::new();
    if provider.wire == WireApi::Messages {
        headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
    }
    match (&provider.key, &provider.key_header) {
        (Some(key), Some(header)) => insert(&mut headers, header, key)?,
        (Some(key), None) if provider.wire == WireApi::Messages => {
            insert(&mut headers, "x-api-key", key)?
        }
        (Some(key), None) => {
            let bearer = Secret::new(format!("Bearer {}", key.reveal()));
            insert(&mut headers, "authorization", &bearer)?;
        }
        (None, _) => {}
    }
    for (name, value) in &provider.headers {
        insert(&mut headers, name, value)?;
    }
    Ok(headers)
}

fn insert(headers: &mut HeaderMap, name: &str, value: &Secret) -> Result<(), ModelError> {
    let invalid = |what: &str| {
        let why = format!("the {what} of header `{name}` has characters no header may have");
        ModelError::invalid(why)
    };
    let header: HeaderName = name.parse().map_err(|_| invalid("name"))?;
    let mut value = HeaderValue::from_str(value.reveal().trim()).map_err(|_| invalid("value"))?;
    value.set_sensitive(true);
    headers.insert(header, value);
    Ok(())
}

/// The answer if it is one, else why not.
pub(crate) async fn accepted(response: reqwest::Response) -> Result<reqwest::Response, ModelError> {
    let status = response.status().as_u16();
    if response.status().is_success() {
        let kind = response.headers().get("content-type");
        if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/html")) {
            let message = "the server answered with a web page: the address is not that of an API";
            return Err(ModelError::invalid(message));
        }
        return Ok(response);
    }
    let told = response.headers().clone();
    let body = tokio::time::timeout(CONNECT, beginning(response)).await;
    let mut error = classify::of_status(status, &body.unwrap_or_default());
    if let (300..400, Some(place)) = (status, told.get("location")) {
        let place = place.to_str().unwrap_or("elsewhere");
        error.message = format!("the server sends to {place}: name that address instead");
    }
    error.retry_after = delay(&told, SystemTime::now()).or(error.retry_after);
    let mut names = ["x-request-id", "request-id"].iter();
    let id = names.find_map(|name| told.get(*name)?.to_str().ok());
    error.request_id = id.map(str::to_owned).or(error.request_id);
    Err(error)
}

async fn beginning(mut response: reqwest::Response) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ERROR_BYTES {
            break;
        }
    }
    body
}

/// How long the provider asks to wait.
fn delay(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
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

/// Why an exchange failed, without the address, which may hold a key.
pub(crate) fn broken(error: reqwest::Error) -> ModelError {
    ModelError::network(why(&error.without_url()))
}

/// The last cause: the ones before only say that something failed.
fn why(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    match error.is_connect() {
        true => format!("cannot connect: {cause}"),
        false => cause.to_string(),
    }
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
            delay(&headers, now)
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
        for nonsense in ["-1", "soon", "1e400", "Sun, 06 Nov 1990 08:49:37 GMT"] {
            assert_eq!(read("retry-after", nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn addresses_keep_their_version_segment() {
        let mut provider = Provider::new("x", "https://host/api/v1/", WireApi::Chat);
        provider.query.insert("api-version".into(), "2026 1".into());
        let url = address(&provider, resource(provider.wire)).unwrap();
        assert_eq!(
            url.as_str(),
            "https://host/api/v1/chat/completions?api-version=2026+1"
        );
        for wrong in ["host/v1", "ftp://host/v1", "https://"] {
            assert!(
                address(&Provider::new("x", wrong, WireApi::Chat), "models").is_err(),
                "{wrong}"
            );
        }
    }
}
