//! HTTP as tools speak it: no more is read than is wanted, nobody is reached that should not be, and no key travels on.

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

use super::address::{self, Reach};
use super::names::{Guarded, NameError, Names, SystemNames};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How often a server may send us on.
const MOST_REDIRECTS: usize = 10;
/// Variables that name a file of certificates to trust besides the system's.
const CERTIFICATES: [&str; 2] = ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"];
/// Variables that name a proxy.
const PROXIES: [&str; 6] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
];
/// What pages are asked for as.
const READABLE: &str =
    "text/markdown, text/html;q=0.9, application/xhtml+xml;q=0.9, text/*;q=0.8, */*;q=0.5";

/// Speaks HTTP. The connections are made on first use.
pub(crate) struct Client {
    guarded: Guarded,
    proxies: Vec<String>,
    /// Where a caller's word leads: private addresses are refused.
    strangers: OnceLock<reqwest::Client>,
    /// Private addresses that somebody chose by name: without any proxy.
    neighbours: OnceLock<reqwest::Client>,
    /// Services of the configuration.
    services: OnceLock<reqwest::Client>,
    pub(crate) max_bytes: usize,
}

/// Who is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Whoever a caller names.
    Stranger,
    /// A service of the configuration.
    Service,
}

/// One request.
pub(crate) struct Ask {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) url: Url,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    /// Whether there was more than is read.
    pub(crate) cut: bool,
}

impl Ask {
    /// A page, in a form that can be read.
    pub(crate) fn page(url: Url) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(READABLE));
        Self {
            method: Method::GET,
            url,
            headers,
            body: Vec::new(),
        }
    }
}

impl Answered {
    pub(crate) fn content_type(&self) -> &str {
        self.headers
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or_default()
    }
}

impl Client {
    /// `trusted` are hosts that may have private addresses.
    pub(crate) fn new(names: Option<Arc<dyn Names>>, trusted: &[String], max_bytes: usize) -> Self {
        // Whoever brings names of their own has no use for a proxy that has others.
        let proxies = if names.is_some() {
            Vec::new()
        } else {
            proxies()
        };
        let trusted = trusted.iter().chain(&proxies).cloned().collect();
        let guarded = Guarded {
            names: names.unwrap_or_else(|| Arc::new(SystemNames)),
            trusted,
        };
        Self {
            guarded,
            proxies,
            strangers: OnceLock::new(),
            neighbours: OnceLock::new(),
            services: OnceLock::new(),
            max_bytes,
        }
    }

    /// What a host tells by itself. The proxy is nobody's business either.
    pub(crate) fn evident(&self, url: &Url) -> Reach {
        match address::evident(url) {
            Reach::Public
                if self
                    .proxies
                    .iter()
                    .any(|proxy| url.host_str() == Some(proxy.as_str())) =>
            {
                Reach::Private
            }
            reach => reach,
        }
    }

    /// A page, wherever it is by now. `may` says whether a server may send us to an address.
    pub(crate) async fn follow(
        &self,
        ask: Ask,
        may: impl Fn(&Url, &Url) -> Result<(), ToolError>,
    ) -> Result<Answered, ToolError> {
        let first = ask.url.clone();
        let (mut url, headers) = (ask.url.clone(), ask.headers.clone());
        let mut ask = ask;
        for _ in 0..=MOST_REDIRECTS {
            let answered = self.exchange(Peer::Stranger, ask).await?;
            let target = answered
                .headers
                .get(LOCATION)
                .filter(|_| answered.status.is_redirection());
            let Some(target) = target else {
                return Ok(answered);
            };
            let wrong = |why: &str| ToolError::new(format!("{url} sends us on to nowhere: {why}"));
            let target = target
                .to_str()
                .map_err(|_| wrong("its answer cannot be read"))?;
            let mut next = url
                .join(target)
                .map_err(|error| wrong(&error.to_string()))?;
            address::check(&next).map_err(|why| wrong(&why))?;
            next.set_fragment(None);
            may(&first, &next)?;
            url = next.clone();
            ask = Ask {
                method: Method::GET,
                url: next,
                headers: headers.clone(),
                body: Vec::new(),
            };
        }
        Err(ToolError::new(format!("{first} sends us on and on")))
    }

    /// One request and its answer. Nobody is followed.
    pub(crate) async fn exchange(&self, peer: Peer, ask: Ask) -> Result<Answered, ToolError> {
        let Ask {
            method,
            url,
            mut headers,
            body,
        } = ask;
        let local = self.evident(&url) != Reach::Public;
        let client = match peer {
            _ if local => self.neighbours()?,
            Peer::Stranger => self.strangers()?,
            Peer::Service if self.proxies.is_empty() => self.neighbours()?,
            Peer::Service => made(&self.services, builder)?,
        };
        // Where a proxy connects for us, it also finds out what names stand for; what can be seen from here is seen to.
        if peer == Peer::Stranger && !local && !self.proxies.is_empty() {
            self.refuse_private_names(&url).await?;
        }
        headers
            .entry(ACCEPT_ENCODING)
            .or_insert(HeaderValue::from_static("gzip"));
        let shown = shown(&url);
        let broken = |error: reqwest::Error| broken(&shown, error);
        let request = client.request(method, url.clone()).headers(headers);
        let request = if body.is_empty() {
            request
        } else {
            request.body(body)
        };
        let mut response = request.send().await.map_err(broken)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let (mut body, mut cut) = (Vec::new(), false);
        while let Some(chunk) = response.chunk().await.map_err(broken)? {
            let room = self.max_bytes - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() > room {
                cut = true;
                break;
            }
        }
        // Whatever else comes is not waited for.
        drop(response);
        let mut answered = Answered {
            url,
            status,
            headers,
            body,
            cut,
        };
        self.unpack(&mut answered)?;
        Ok(answered)
    }

    /// Unpacks what was packed, no further than is wanted. Whoever answers has heard the request: what it did then,
    /// nobody knows.
    fn unpack(&self, answered: &mut Answered) -> Result<(), ToolError> {
        if answered.body.is_empty() {
            return Ok(());
        }
        let unread = |why: String| {
            ToolError::new(format!("{} answered {why}", shown(&answered.url))).outcome_unknown()
        };
        let packed = answered
            .headers
            .get(CONTENT_ENCODING)
            .and_then(|packed| packed.to_str().ok());
        match packed
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase()
            .as_str()
        {
            "" | "identity" => Ok(()),
            "gzip" | "x-gzip" => {
                let mut body = Vec::new();
                let unpacked = flate2::read::MultiGzDecoder::new(&answered.body[..])
                    .take(self.max_bytes as u64 + 1)
                    .read_to_end(&mut body);
                // The end is missing where the packed text was cut; what came before it is good.
                if unpacked.is_err() && (!answered.cut || body.is_empty()) {
                    return Err(unread("with something damaged".to_owned()));
                }
                answered.cut |= body.len() > self.max_bytes;
                body.truncate(self.max_bytes);
                answered.body = body;
                Ok(())
            }
            other => {
                let other: String = other.chars().take(40).collect();
                Err(unread(format!("in an encoding nobody asked for: {other}")))
            }
        }
    }

    /// Refuses a name that is seen from here to stand for a private address, where somebody else would connect.
    pub(super) async fn refuse_private_names(&self, url: &Url) -> Result<(), ToolError> {
        let Some(name) = url.domain() else {
            return Ok(());
        };
        match self.guarded.look_up(name).await {
            Err(error @ NameError::Private { .. }) => Err(private(&shown(url), &error)),
            _ => Ok(()),
        }
    }

    fn strangers(&self) -> Result<&reqwest::Client, ToolError> {
        let direct = self.proxies.is_empty();
        made(&self.strangers, || {
            let builder = builder().dns_resolver(self.guarded.clone());
            if direct { builder.no_proxy() } else { builder }
        })
    }

    fn neighbours(&self) -> Result<&reqwest::Client, ToolError> {
        let names = Unguarded(self.guarded.names.clone());
        made(&self.neighbours, || {
            builder().no_proxy().dns_resolver(names)
        })
    }
}

/// Names as they are: for hosts that somebody chose by name. Those of this machine stand for nothing else.
struct Unguarded(Arc<dyn Names>);

impl Resolve for Unguarded {
    fn resolve(&self, name: Name) -> Resolving {
        let found = self.0.resolve(name.as_str().to_owned());
        let here = address::is_this_machine(name.as_str());
        Box::pin(async move {
            let found = found
                .await?
                .into_iter()
                .filter(move |ip| !here || ip.to_canonical().is_loopback());
            Ok(Box::new(found.map(|ip| SocketAddr::new(ip, 0))) as Addrs)
        })
    }
}

fn made(
    place: &OnceLock<reqwest::Client>,
    builder: impl FnOnce() -> reqwest::ClientBuilder,
) -> Result<&reqwest::Client, ToolError> {
    if place.get().is_none() {
        let client = builder().build();
        let client = client
            .map_err(|error| ToolError::new(format!("cannot speak HTTP: {}", why(&error))))?;
        // Another call may have been faster; one will do.
        let _ = place.set(client);
    }
    place
        .get()
        .ok_or_else(|| ToolError::new("cannot speak HTTP"))
}

fn builder() -> reqwest::ClientBuilder {
    // Whoever came first decides for the process; both will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .user_agent(concat!("selvedge/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT)
        .tls_certs_merge(certificates())
}

/// Certificates named by the environment. A file that is not there or not readable is as good as not named.
fn certificates() -> Vec<reqwest::Certificate> {
    let files = CERTIFICATES.iter().filter_map(std::env::var_os);
    let read = files.filter_map(|file| std::fs::read(file).ok());
    read.filter_map(|pem| reqwest::Certificate::from_pem_bundle(&pem).ok())
        .flatten()
        .collect()
}

/// The hosts of the proxies that the environment names.
fn proxies() -> Vec<String> {
    let named = PROXIES
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

/// An address for people to read.
pub(crate) fn shown(url: &Url) -> String {
    selvedge_text::with_ellipsis(url.as_str(), 300).into_owned()
}

fn broken(shown: &str, error: reqwest::Error) -> ToolError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        if let Some(name @ NameError::Private { .. }) = error.downcast_ref::<NameError>() {
            return private(shown, name);
        }
        cause = error.source();
    }
    let failed = ToolError::new(format!("cannot fetch {shown}: {}", why(&error)));
    let failed = if error.is_connect() || error.is_timeout() || error.is_body() {
        failed.retryable()
    } else {
        failed
    };
    // Whoever was reached may have done what was asked.
    if error.is_connect() || error.is_builder() {
        failed
    } else {
        failed.outcome_unknown()
    }
}

fn private(shown: &str, error: &NameError) -> ToolError {
    ToolError::new(format!("{shown} is not fetched: {error}")).suggest(
        "the setting `web.allow_private_hosts` lists hosts that may be reached all the same",
    )
}

/// The last cause: the ones before only say that something failed.
fn why(error: &reqwest::Error) -> String {
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

    struct Liar;

    impl Names for Liar {
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
    fn a_name_of_this_machine_stands_for_this_machine_only() {
        let found = |name: &str| {
            let found = Unguarded(Arc::new(Liar)).resolve(name.parse().unwrap());
            let found = found
                .now_or_never()
                .unwrap()
                .unwrap_or_else(|error| panic!("{error}"));
            found
                .map(|address| address.ip().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(found("app.localhost"), ["127.0.0.1"]);
        assert_eq!(found("proxy.test").len(), 3);
    }
}
