//! Access to the web, shared by all web tools: which hosts may be reached, approvals, and timeouts.

mod address;
mod client;
mod html_cleaner;
mod page;
mod pages;
mod resolver;
mod search;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::Url;
use selvedge_protocol::{CallReach, CallTimeout, Preview, PreviewContent, RuleScope};
use selvedge_tools::{CallContext, Risk, ToolError};

pub use resolver::NameResolver;
pub use search::SearchService;

use address::AddressClass;
pub(crate) use address::parse_url;
use client::WebClient;
pub(crate) use client::{RequestDestination, WebRequest, WebResponse, display_url};
pub(crate) use page::decode_text;
use pages::InFlightPages;
pub(crate) use pages::{PageCaching, StoredPage};
pub(crate) use search::WebSearchHit;

/// Settings for access to the web.
pub struct WebSettings {
    /// Whether network access is enabled: public hosts then need no approval.
    pub network_enabled: bool,
    /// The service for `web_search`; `None` if none is configured.
    pub search: Option<SearchService>,
    /// Firecrawl, which fetches public pages if it is configured.
    pub firecrawl: Option<WebService>,
    /// Hosts that need no approval although the network is off.
    pub allow_hosts: Vec<String>,
    /// Hosts that may have private addresses.
    pub allow_private_hosts: Vec<String>,
    /// Called when a person allows a host in a folder or everywhere, to store the rule.
    pub save_host: Option<SaveHost>,
    /// Time limit for a page or a request.
    pub timeout: Duration,
    /// Maximum bytes of a response body that are read.
    pub max_body_bytes: usize,
    /// Resolver to use instead of the system's.
    pub resolver: Option<Arc<dyn NameResolver>>,
}

/// Time that a web tool has after its time limit to return the error.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(5);

/// Stores a host that is allowed in a folder or everywhere.
pub type SaveHost = Box<dyn Fn(&str, RuleScope) + Send + Sync>;

/// A web service with an API key. `Debug` does not print the key.
#[derive(Clone)]
pub struct WebService {
    /// Base URL of the service.
    pub base_url: String,
    /// API key, sent as a bearer token.
    pub api_key: String,
}

impl std::fmt::Debug for WebService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebService")
            .field("base_url", &self.base_url)
            .finish_non_exhaustive()
    }
}

impl Default for WebSettings {
    fn default() -> Self {
        Self {
            network_enabled: false,
            search: None,
            firecrawl: None,
            allow_hosts: Vec::new(),
            allow_private_hosts: Vec::new(),
            save_host: None,
            timeout: CallReach::Web.default_timeout(),
            max_body_bytes: 10 << 20,
            resolver: None,
        }
    }
}

/// Access to the web under [`WebSettings`]. Clones share rules and connections.
#[derive(Clone)]
pub struct WebAccess {
    inner: Arc<WebAccessInner>,
}

struct WebAccessInner {
    client: WebClient,
    settings: WebSettings,
    /// Hosts that need no approval: from the settings, and those allowed since.
    allowed_hosts: Mutex<Vec<String>>,
    in_flight_pages: InFlightPages,
}

impl WebAccess {
    /// Creates access under these settings.
    pub fn new(mut settings: WebSettings) -> Self {
        let client = WebClient::new(
            settings.resolver.take(),
            &settings.allow_private_hosts,
            settings.max_body_bytes,
        );
        let hosts = Mutex::new(std::mem::take(&mut settings.allow_hosts));
        Self {
            inner: Arc::new(WebAccessInner {
                client,
                settings,
                allowed_hosts: hosts,
                in_flight_pages: InFlightPages::default(),
            }),
        }
    }

    /// Returns the risk of requests to these URLs. `action` starts the reason, such as "fetches".
    pub(crate) fn risk(&self, urls: &[Url], action: &str) -> Risk {
        let needing_approval = self.urls_needing_approval(urls);
        let cause = match needing_approval
            .iter()
            .any(|url| self.inner.client.classify_url(url) == AddressClass::Private)
        {
            true => "a private address",
            false => "the network is off",
        };
        match (needing_approval.as_slice(), urls) {
            ([], []) => Risk::Harmless,
            ([], _) if urls.iter().all(|url| self.is_allowed_host(url)) => Risk::Harmless,
            ([], _) => Risk::Moderate {
                reason: format!("{action} {}", summarize_urls(urls)),
            },
            (urls, _) => {
                let urls: Vec<Url> = urls.iter().map(|url| (*url).clone()).collect();
                Risk::NeedsApproval {
                    reason: format!("{action} {} ({cause})", summarize_urls(&urls)),
                }
            }
        }
    }

    /// Returns the risk of requests that send data: rules that allow hosts do not apply.
    pub(crate) fn risk_without_rules(&self, urls: &[Url], action: &str) -> Risk {
        match self.risk(urls, action) {
            Risk::Harmless
                if urls.is_empty() || urls.iter().any(|url| self.refuse_blocked(url).is_err()) =>
            {
                Risk::Harmless
            }
            Risk::Harmless if !self.inner.settings.network_enabled => Risk::NeedsApproval {
                reason: format!("{action} {} (the network is off)", summarize_urls(urls)),
            },
            Risk::Harmless => Risk::Moderate {
                reason: format!("{action} {}", summarize_urls(urls)),
            },
            risk => risk,
        }
    }

    /// Whether public pages are fetched through Firecrawl, which costs money.
    pub(crate) fn uses_firecrawl(&self) -> bool {
        self.inner.settings.firecrawl.is_some()
    }

    /// Sends a request and reads the response. Redirects are not followed.
    pub(crate) async fn send(
        &self,
        peer: RequestDestination,
        request: WebRequest,
    ) -> Result<WebResponse, ToolError> {
        self.inner.client.send(peer, request).await
    }

    /// Returns the preview for an approval, with the rule that "always" would store.
    pub(crate) fn preview(&self, urls: &[Url], view: String) -> Preview {
        let hosts = self.hosts_of(urls);
        let rule = (!hosts.is_empty()).then(|| format!("requests to {}", hosts.join(", ")));
        Preview {
            view: Some(PreviewContent::Urls(view)),
            rule,
        }
    }

    /// Returns the key that an approval for the whole script is stored under: the hosts.
    pub(crate) fn approval_scope_key(&self, urls: &[Url]) -> Option<String> {
        Some(self.hosts_of(urls).join(" "))
    }

    /// Adds the hosts to those that need no approval, and stores them unless the rule ends with the
    /// process.
    pub(crate) fn add_rule(&self, urls: &[Url], scope: RuleScope) {
        for host in self.hosts_of(urls) {
            let mut hosts = self
                .inner
                .allowed_hosts
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if !hosts.contains(&host) {
                hosts.push(host.clone());
                drop(hosts);
                if let Some(save) = &self.inner.settings.save_host
                    && scope != RuleScope::Process
                {
                    save(&host, scope);
                }
            }
        }
    }

    /// Whether a URL needs no approval.
    pub(crate) fn is_preapproved(&self, url: &Url) -> bool {
        let is_private = self.inner.client.classify_url(url) != AddressClass::Public
            && !self.may_be_private(url);
        self.is_allowed_host(url) || !is_private && self.inner.settings.network_enabled
    }

    /// Fails if the host is a blocked address, such as link-local, that the settings do not list.
    /// Private addresses pass; they need approval instead.
    pub(crate) fn refuse_blocked(&self, url: &Url) -> Result<(), ToolError> {
        match self.inner.client.classify_url(url) {
            AddressClass::Blocked if !self.may_be_private(url) => Err(ToolError::new(format!(
                "refused to fetch {}: not a public address",
                display_url(url)
            ))),
            _ => Ok(()),
        }
    }

    /// Fails if a redirect leads to a private address, or to another host that would need approval.
    fn check_redirect(&self, from: &Url, to: &Url) -> Result<(), ToolError> {
        let (first, next) = (address::host_with_port(from), address::host_with_port(to));
        let is_same_site = address::is_same_site(&first, &next) && from.host_str().is_some();
        let (from, to_shown) = (display_url(from), display_url(to));
        if self.inner.client.classify_url(to) != AddressClass::Public
            && !self.may_be_private(to)
            && first != next
        {
            return Err(ToolError::new(format!(
                "{from} redirects to {to_shown}, a private address: not followed"
            )));
        }
        if is_same_site || self.is_preapproved(to) {
            return Ok(());
        }
        Err(ToolError::new(format!(
            "{from} redirects to {to_shown} on another host: not followed without approval"
        ))
        .suggest(format!(
            "fetch the target: fetchUrl({{ urls: \"{to_shown}\" }})"
        )))
    }

    /// Returns the time limit of calls, which the web tools enforce themselves.
    pub(crate) fn call_timeout(&self) -> CallTimeout {
        CallTimeout::new(self.inner.settings.timeout).enforced_by_tool(TIMEOUT_MARGIN)
    }

    /// Runs work until it ends, the call is cancelled, or its time limit is reached.
    pub(crate) async fn run_cancellable<T>(
        &self,
        call: &CallContext,
        work: impl Future<Output = Result<T, ToolError>>,
    ) -> Result<T, ToolError> {
        tokio::select! {
            () = call.cancel.cancelled() => Err(ToolError::new("the request was cancelled")),
            result = self.run_with_timeout(call.time_limit, work) => result,
        }
    }

    /// Runs work until it ends or the time limit is reached.
    async fn run_with_timeout<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, ToolError>>,
    ) -> Result<T, ToolError> {
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
            let seconds = limit.as_secs_f64();
            Err(
                ToolError::new(format!("no complete response within {seconds} s"))
                    .timed_out()
                    .suggest("set `web.timeout_ms` in config.toml to allow more")
                    .retryable()
                    .outcome_unknown(),
            )
        })
    }

    /// Returns the URLs that need approval.
    fn urls_needing_approval<'a>(&self, urls: &'a [Url]) -> Vec<&'a Url> {
        urls.iter()
            .filter(|url| !self.is_preapproved(url) && self.refuse_blocked(url).is_ok())
            .collect()
    }

    /// Returns the hosts of the URLs that need approval; of all URLs if none does.
    fn hosts_of(&self, urls: &[Url]) -> Vec<String> {
        let needing_approval = self.urls_needing_approval(urls);
        let relevant: Vec<&Url> = if needing_approval.is_empty() {
            urls.iter().collect()
        } else {
            needing_approval
        };
        let hosts: BTreeSet<String> = relevant.into_iter().map(address::host_with_port).collect();
        hosts.into_iter().collect()
    }

    /// Whether the host is in `allow_hosts` or was allowed always.
    fn is_allowed_host(&self, url: &Url) -> bool {
        let hosts = self
            .inner
            .allowed_hosts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        address::is_listed(&hosts, url)
    }

    /// Whether the host is in `allow_private_hosts`.
    fn may_be_private(&self, url: &Url) -> bool {
        let trusted = &self.inner.settings.allow_private_hosts;
        url.host_str().is_some_and(|host| {
            trusted
                .iter()
                .any(|trusted| trusted.eq_ignore_ascii_case(host))
        })
    }
}

/// Summarizes URLs for an approval: one URL, or the number of URLs and their hosts.
fn summarize_urls(urls: &[Url]) -> String {
    match urls {
        [url] => display_url(url),
        urls => {
            let hosts: BTreeSet<String> = urls.iter().map(address::host_with_port).collect();
            let hosts: Vec<String> = hosts.into_iter().collect();
            format!("{} URLs at {}", urls.len(), hosts.join(", "))
        }
    }
}
