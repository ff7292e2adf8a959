//! The HTTP client of the web tools. It limits the size of responses, refuses private addresses,
//! and does not send API keys to redirect targets.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION,
};
use reqwest::{Method, StatusCode, Url};
use selvedge_tools::ToolError;

use super::address::{self, AddressClass};
use super::resolver::{FilteringResolver, NameResolver, ResolveError, SystemNameResolver};

/// Time limit for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of redirects that are followed.
const MAX_REDIRECTS: usize = 10;
/// Environment variables that name a file of additional trusted certificates.
const CERTIFICATE_ENV_VARS: [&str; 2] = ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"];
/// Environment variables that name a proxy.
const PROXY_ENV_VARS: [&str; 6] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
];
/// `Accept` header for pages.
const PAGE_ACCEPT: &str =
    "text/markdown, text/html;q=0.9, application/xhtml+xml;q=0.9, text/*;q=0.8, */*;q=0.5";

/// An HTTP client. The underlying clients are built on first use.
pub(crate) struct WebClient {
    resolver: FilteringResolver,
    /// Hosts of the proxies that the environment names.
    proxy_hosts: Vec<String>,
    /// For URLs of callers: private addresses are refused.
    caller_client: OnceLock<reqwest::Client>,
    /// For private addresses that were approved or configured: without a proxy.
    private_client: OnceLock<reqwest::Client>,
    /// For configured services, through a proxy.
    service_client: OnceLock<reqwest::Client>,
    /// Maximum bytes of a response body, before and after decompression.
    pub(crate) max_body_bytes: usize,
}

/// Who chose the destination of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestDestination {
    /// A URL from a call.
    CallerUrl,
    /// A service from the configuration.
    ConfiguredService,
}

/// An HTTP request.
pub(crate) struct WebRequest {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct WebResponse {
    /// URL of the request, after redirects.
    pub(crate) url: Url,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    /// Whether the body was longer than `max_body_bytes`.
    pub(crate) truncated: bool,
}

impl WebRequest {
    /// Creates a GET request for a page.
    pub(crate) fn for_page(url: Url) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(PAGE_ACCEPT));
        Self {
            method: Method::GET,
            url,
            headers,
            body: Vec::new(),
        }
    }
}

/// Most members of a gzip body. Each costs time even if it is empty; servers send one.
const MAX_GZIP_MEMBERS: usize = 1000;

/// Decompresses gzip data up to one byte more than `max_bytes`. Returns what was decompressed, and
/// whether it is all of the data or reaches the limit.
fn gunzip(data: &[u8], max_bytes: usize) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    let mut rest = data;
    for _ in 0..MAX_GZIP_MEMBERS {
        let mut member = flate2::bufread::GzDecoder::new(rest);
        let left = (max_bytes + 1).saturating_sub(body.len()) as u64;
        if member.by_ref().take(left).read_to_end(&mut body).is_err() {
            return (body, false);
        }
        rest = member.into_inner();
        if rest.is_empty() || body.len() > max_bytes {
            return (body, true);
        }
    }
    (body, false)
}

impl WebResponse {
    /// Returns the `Content-Type` header; empty if it is missing.
    pub(crate) fn content_type(&self) -> &str {
        self.headers
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or_default()
    }
}

impl WebClient {
    /// Creates a client. `trusted` hosts may have private addresses.
    pub(crate) fn new(
        names: Option<Arc<dyn NameResolver>>,
        trusted: &[String],
        max_bytes: usize,
    ) -> Self {
        // A custom resolver excludes proxies, which resolve names themselves.
        let proxies = if names.is_some() {
            Vec::new()
        } else {
            proxy_hosts()
        };
        let trusted = trusted.iter().chain(&proxies).cloned().collect();
        let guarded = FilteringResolver {
            inner: names.unwrap_or_else(|| Arc::new(SystemNameResolver)),
            trusted_names: trusted,
        };
        Self {
            resolver: guarded,
            proxy_hosts: proxies,
            caller_client: OnceLock::new(),
            private_client: OnceLock::new(),
            service_client: OnceLock::new(),
            max_body_bytes: max_bytes,
        }
    }

    /// Classifies the host of a URL without resolving names. Proxies count as private.
    pub(crate) fn classify_url(&self, url: &Url) -> AddressClass {
        match address::classify_url(url) {
            AddressClass::Public
                if self
                    .proxy_hosts
                    .iter()
                    .any(|proxy| url.host_str() == Some(proxy.as_str())) =>
            {
                AddressClass::Private
            }
            reach => reach,
        }
    }

    /// Sends a request and follows redirects. `may` decides whether a redirect from the first URL
    /// to another is allowed.
    pub(crate) async fn send_following_redirects(
        &self,
        ask: WebRequest,
        may: impl Fn(&Url, &Url) -> Result<(), ToolError>,
    ) -> Result<WebResponse, ToolError> {
        let first = ask.url.clone();
        let (mut url, headers) = (ask.url.clone(), ask.headers.clone());
        let mut request = ask;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(RequestDestination::CallerUrl, request).await?;
            let target = response
                .headers
                .get(LOCATION)
                .filter(|_| response.status.is_redirection());
            let Some(target) = target else {
                return Ok(response);
            };
            let invalid = |reason: &str| {
                ToolError::new(format!("{url} redirects to an invalid URL: {reason}"))
            };
            let target = target
                .to_str()
                .map_err(|_| invalid("the Location header is not text"))?;
            let mut next = url
                .join(target)
                .map_err(|error| invalid(&error.to_string()))?;
            address::check_url(&next).map_err(|reason| invalid(&reason))?;
            next.set_fragment(None);
            may(&first, &next)?;
            url = next.clone();
            request = WebRequest {
                method: Method::GET,
                url: next,
                headers: headers.clone(),
                body: Vec::new(),
            };
        }
        Err(ToolError::new(format!(
            "{first} caused more than {MAX_REDIRECTS} redirects"
        )))
    }

    /// Sends a request and reads the response. Redirects are not followed.
    pub(crate) async fn send(
        &self,
        peer: RequestDestination,
        ask: WebRequest,
    ) -> Result<WebResponse, ToolError> {
        let WebRequest {
            method,
            url,
            mut headers,
            body,
        } = ask;
        let is_local = self.classify_url(&url) != AddressClass::Public;
        let client = match peer {
            _ if is_local => self.private_client()?,
            RequestDestination::CallerUrl => self.caller_client()?,
            RequestDestination::ConfiguredService if self.proxy_hosts.is_empty() => {
                self.private_client()?
            }
            RequestDestination::ConfiguredService => {
                get_or_build(&self.service_client, client_builder)?
            }
        };
        // A proxy resolves names itself, so private names are refused here as far as this machine
        // can resolve them.
        if peer == RequestDestination::CallerUrl && !is_local && !self.proxy_hosts.is_empty() {
            self.refuse_private_names(&url).await?;
        }
        headers
            .entry(ACCEPT_ENCODING)
            .or_insert(HeaderValue::from_static("gzip"));
        let shown = display_url(&url);
        let failed = |error: reqwest::Error| request_error(&shown, error);
        let request = client.request(method, url.clone()).headers(headers);
        let request = if body.is_empty() {
            request
        } else {
            request.body(body)
        };
        let mut response = request.send().await.map_err(failed)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let (mut body, mut truncated) = (Vec::new(), false);
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            let room = self.max_body_bytes - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() > room {
                truncated = true;
                break;
            }
        }
        // Closes the connection instead of reading the rest.
        drop(response);
        let mut response = WebResponse {
            url,
            status,
            headers,
            body,
            truncated,
        };
        self.decompress(&mut response)?;
        Ok(response)
    }

    /// Decompresses the body, up to `max_body_bytes`. On failure, the outcome of the request is
    /// unknown: the server received it and may have acted on it.
    fn decompress(&self, response: &mut WebResponse) -> Result<(), ToolError> {
        if response.body.is_empty() {
            return Ok(());
        }
        let unreadable = |problem: String| {
            ToolError::new(format!(
                "{} answered with {problem}",
                display_url(&response.url)
            ))
            .outcome_unknown()
        };
        let encoding = response
            .headers
            .get(CONTENT_ENCODING)
            .and_then(|encoding| encoding.to_str().ok());
        match encoding
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase()
            .as_str()
        {
            "" | "identity" => Ok(()),
            "gzip" | "x-gzip" => {
                let (mut body, is_complete) = gunzip(&response.body, self.max_body_bytes);
                // A truncated body lacks the end of the gzip data; the part before it is valid.
                if !is_complete && (!response.truncated || body.is_empty()) {
                    return Err(unreadable("invalid gzip data".to_owned()));
                }
                response.truncated |= body.len() > self.max_body_bytes;
                body.truncate(self.max_body_bytes);
                response.body = body;
                Ok(())
            }
            other => {
                let other: String = other.chars().take(40).collect();
                Err(unreadable(format!(
                    "an unsupported content encoding: {other}"
                )))
            }
        }
    }

    /// Fails if the host resolves to a private address on this machine. Used when a proxy or
    /// service connects instead of this client.
    pub(super) async fn refuse_private_names(&self, url: &Url) -> Result<(), ToolError> {
        let Some(name) = url.domain() else {
            return Ok(());
        };
        match self.resolver.resolve_allowed(name).await {
            Err(error @ ResolveError::Private { .. }) => {
                Err(private_address_error(&display_url(url), &error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the client for URLs of callers.
    fn caller_client(&self) -> Result<&reqwest::Client, ToolError> {
        let direct = self.proxy_hosts.is_empty();
        get_or_build(&self.caller_client, || {
            let builder = client_builder().dns_resolver(self.resolver.clone());
            if direct { builder.no_proxy() } else { builder }
        })
    }

    /// Returns the client for private addresses.
    fn private_client(&self) -> Result<&reqwest::Client, ToolError> {
        let names = UnfilteredResolver(self.resolver.inner.clone());
        get_or_build(&self.private_client, || {
            client_builder().no_proxy().dns_resolver(names)
        })
    }
}

/// Resolves names to any address, for hosts that were approved or configured. Names reserved for
/// the loopback interface resolve only to loopback addresses.
struct UnfilteredResolver(Arc<dyn NameResolver>);

impl Resolve for UnfilteredResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let lookup = self.0.resolve(name.as_str().to_owned());
        let is_loopback_name = address::is_loopback_name(name.as_str());
        Box::pin(async move {
            let addresses = lookup
                .await?
                .into_iter()
                .filter(move |ip| !is_loopback_name || ip.to_canonical().is_loopback());
            Ok(Box::new(addresses.map(|ip| SocketAddr::new(ip, 0))) as Addrs)
        })
    }
}

/// Returns the client in a cell, and builds it first if needed.
fn get_or_build(
    cell: &OnceLock<reqwest::Client>,
    builder: impl FnOnce() -> reqwest::ClientBuilder,
) -> Result<&reqwest::Client, ToolError> {
    if cell.get().is_none() {
        let client = builder().build();
        let client = client.map_err(|error| {
            ToolError::new(format!(
                "cannot create an HTTP client: {}",
                root_cause(&error)
            ))
        })?;
        // If another call set the cell first, its client is used.
        let _ = cell.set(client);
    }
    cell.get()
        .ok_or_else(|| ToolError::new("cannot create an HTTP client"))
}

/// Returns the settings that all clients share.
fn client_builder() -> reqwest::ClientBuilder {
    // Fails if the process already has a provider, which is fine, too.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .user_agent(concat!("selvedge/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .tls_certs_merge(load_certificates())
}

/// Loads the certificates that the environment names. Missing and unreadable files are ignored.
fn load_certificates() -> Vec<reqwest::Certificate> {
    let files = CERTIFICATE_ENV_VARS.iter().filter_map(std::env::var_os);
    let read = files.filter_map(|file| std::fs::read(file).ok());
    read.filter_map(|pem| reqwest::Certificate::from_pem_bundle(&pem).ok())
        .flatten()
        .collect()
}

/// Returns the hosts of the proxies that the environment names.
fn proxy_hosts() -> Vec<String> {
    let named = PROXY_ENV_VARS
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .filter(|value| !value.is_empty());
    let urls = named.map(|value| {
        if value.contains("://") {
            value
        } else {
            format!("http://{value}")
        }
    });
    urls.filter_map(|url| Url::parse(&url).ok()?.host_str().map(str::to_owned))
        .collect()
}

/// Shortens a URL for messages.
pub(crate) fn display_url(url: &Url) -> String {
    selvedge_text::truncate_chars(url.as_str(), 300).into_owned()
}

/// Converts an error of reqwest. The outcome is unknown unless the request was never sent.
fn request_error(shown: &str, error: reqwest::Error) -> ToolError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        if let Some(name @ ResolveError::Private { .. }) = error.downcast_ref::<ResolveError>() {
            return private_address_error(shown, name);
        }
        cause = error.source();
    }
    let failed = ToolError::new(format!("cannot fetch {shown}: {}", root_cause(&error)));
    let failed = if error.is_connect() || error.is_timeout() || error.is_body() {
        failed.retryable()
    } else {
        failed
    };
    // A server that was reached may have acted on the request.
    if error.is_connect() || error.is_builder() {
        failed
    } else {
        failed.outcome_unknown()
    }
}

fn private_address_error(shown: &str, error: &ResolveError) -> ToolError {
    ToolError::new(format!("refused to fetch {shown}: {error}"))
        .suggest("add the host to `web.allow_private_hosts` in the configuration")
}

/// Returns the innermost cause; the outer ones only say that something failed.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;

    use super::*;

    #[test]
    fn a_gzip_body_of_very_many_members_is_not_decompressed_to_its_end() {
        let member = |text: &str| {
            let mut encoder = flate2::read::GzEncoder::new(text.as_bytes(), Default::default());
            let mut out = Vec::new();
            encoder.read_to_end(&mut out).unwrap();
            out
        };
        let two = [member("one "), member("two")].concat();
        assert_eq!(gunzip(&two, 100), (b"one two".to_vec(), true));
        assert_eq!(gunzip(&two, 3), (b"one ".to_vec(), true));
        assert!(!gunzip(&two[..two.len() - 4], 100).1);
        let started = std::time::Instant::now();
        assert_eq!(
            gunzip(&member("").repeat(450_000), 100),
            (Vec::new(), false)
        );
        assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
    }

    /// Resolves every name to the same private addresses.
    struct PrivateResolver;

    impl NameResolver for PrivateResolver {
        fn resolve(&self, _: String) -> BoxFuture<'static, std::io::Result<Vec<IpAddr>>> {
            async {
                Ok(["169.254.169.254", "127.0.0.1", "10.0.0.1"]
                    .map(|ip| ip.parse().unwrap())
                    .to_vec())
            }
            .boxed()
        }
    }

    #[test]
    fn localhost_names_resolve_only_to_loopback_addresses() {
        let resolve = |name: &str| {
            let lookup =
                UnfilteredResolver(Arc::new(PrivateResolver)).resolve(name.parse().unwrap());
            let addresses = lookup
                .now_or_never()
                .unwrap()
                .unwrap_or_else(|error| panic!("{error}"));
            addresses
                .map(|address| address.ip().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(resolve("app.localhost"), ["127.0.0.1"]);
        assert_eq!(resolve("proxy.test").len(), 3);
    }
}
