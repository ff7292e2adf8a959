//! The web: who may be reached, and what is remembered of it. [`Web`] is what all web tools share.

mod address;
mod clean;
mod client;
mod names;
mod page;
mod pages;
mod search;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::Url;
use selvedge_protocol::{Preview, View};
use selvedge_tools::{Call, Risk, ToolError};

pub use names::Names;
pub use search::SearchService;

use address::Reach;
pub(crate) use address::parse;
use client::Client;
pub(crate) use client::{Answered, Ask, Peer, shown};
pub(crate) use page::text_of;
use pages::UnderWay;
pub(crate) use pages::{Freshness, Got};
pub(crate) use search::Hit;

/// What can be said about the web.
pub struct WebSettings {
    /// Whether the network is on: then nobody is asked for a public host.
    pub network: bool,
    /// Who searches.
    pub search: Option<SearchService>,
    /// Reads pages for us.
    pub firecrawl: Option<Service>,
    /// Hosts that need no question although the network is off.
    pub allow_hosts: Vec<String>,
    /// Hosts that may have private addresses.
    pub allow_private_hosts: Vec<String>,
    /// Told when a person allows a host for ever, to remember it.
    pub save_host: Option<SaveHost>,
    /// How long a page or an answer may take.
    pub timeout: Duration,
    /// How much of an answer is read.
    pub max_bytes: usize,
    /// Says what names stand for, instead of the system.
    pub names: Option<Arc<dyn Names>>,
}

/// Keeps a host for the next time.
pub type SaveHost = Box<dyn Fn(&str) + Send + Sync>;

/// A service on the web that wants a key.
#[derive(Clone)]
pub struct Service {
    /// Where it is.
    pub base_url: String,
    /// What it wants.
    pub key: String,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service")
            .field("base_url", &self.base_url)
            .finish_non_exhaustive()
    }
}

impl Default for WebSettings {
    fn default() -> Self {
        Self {
            network: false,
            search: None,
            firecrawl: None,
            allow_hosts: Vec::new(),
            allow_private_hosts: Vec::new(),
            save_host: None,
            timeout: Duration::from_secs(30),
            max_bytes: 10 << 20,
            names: None,
        }
    }
}

/// The web, as far as it may be reached. Clones share what is learned.
#[derive(Clone)]
pub struct Web {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    settings: WebSettings,
    hosts: Mutex<Vec<String>>,
    under_way: UnderWay,
}

impl Web {
    /// The web under these settings.
    pub fn new(mut settings: WebSettings) -> Self {
        let client = Client::new(
            settings.names.take(),
            &settings.allow_private_hosts,
            settings.max_bytes,
        );
        let hosts = Mutex::new(std::mem::take(&mut settings.allow_hosts));
        Self {
            inner: Arc::new(Inner {
                client,
                settings,
                hosts,
                under_way: UnderWay::default(),
            }),
        }
    }

    /// What it risks to reach these.
    pub(crate) fn risk(&self, urls: &[Url], doing: &str) -> Risk {
        let asked = self.asked(urls);
        let why = match asked
            .iter()
            .any(|url| self.inner.client.evident(url) == Reach::Private)
        {
            true => "a private address",
            false => "the network is off",
        };
        match (asked.as_slice(), urls) {
            ([], []) => Risk::Harmless,
            ([], _) if urls.iter().all(|url| self.has_rule(url)) => Risk::Harmless,
            ([], _) => Risk::Guarded {
                reason: format!("{doing} {}", in_one_line(urls)),
            },
            (asked, _) => {
                let asked: Vec<Url> = asked.iter().map(|url| (*url).clone()).collect();
                Risk::Ask {
                    reason: format!("{doing} {} ({why})", in_one_line(&asked)),
                }
            }
        }
    }

    /// The same where what was allowed for reading does not count.
    pub(crate) fn risk_without_rules(&self, urls: &[Url], doing: &str) -> Risk {
        match self.risk(urls, doing) {
            Risk::Harmless
                if urls.is_empty() || urls.iter().any(|url| self.refuse_nobodys(url).is_err()) =>
            {
                Risk::Harmless
            }
            Risk::Harmless if !self.inner.settings.network => Risk::Ask {
                reason: format!("{doing} {} (the network is off)", in_one_line(urls)),
            },
            Risk::Harmless => Risk::Guarded {
                reason: format!("{doing} {}", in_one_line(urls)),
            },
            risk => risk,
        }
    }

    /// One request and its answer.
    pub(crate) async fn exchange(&self, peer: Peer, ask: Ask) -> Result<Answered, ToolError> {
        self.inner.client.exchange(peer, ask).await
    }

    /// What a person is shown, and what "always" would mean.
    pub(crate) fn preview(&self, urls: &[Url], view: String) -> Preview {
        let hosts = self.hosts_of(urls);
        let rule = (!hosts.is_empty()).then(|| format!("requests to {}", hosts.join(", ")));
        Preview {
            view: Some(View::Addresses(view)),
            rule,
        }
    }

    /// What "for this script" covers: the same hosts.
    pub(crate) fn agreement(&self, urls: &[Url]) -> Option<String> {
        Some(self.hosts_of(urls).join(" "))
    }

    /// Remembers that these hosts need no question.
    pub(crate) fn allow_always(&self, urls: &[Url]) {
        for host in self.hosts_of(urls) {
            let mut hosts = self
                .inner
                .hosts
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if !hosts.contains(&host) {
                hosts.push(host.clone());
                drop(hosts);
                if let Some(save) = &self.inner.settings.save_host {
                    save(&host);
                }
            }
        }
    }

    /// Whether somebody may be reached without a question.
    pub(crate) fn is_free(&self, url: &Url) -> bool {
        let private = self.inner.client.evident(url) != Reach::Public && !self.is_trusted(url);
        self.has_rule(url) || !private && self.inner.settings.network
    }

    /// Refuses what is nobody's business. A private address that was asked for by name is somebody's.
    pub(crate) fn refuse_nobodys(&self, url: &Url) -> Result<(), ToolError> {
        match self.inner.client.evident(url) {
            Reach::Never if !self.is_trusted(url) => Err(ToolError::new(format!(
                "{} is not fetched: no public address",
                shown(url)
            ))),
            _ => Ok(()),
        }
    }

    /// Whether a server may send us on to another address: nobody was asked for that one.
    fn may_be_sent(&self, from: &Url, to: &Url) -> Result<(), ToolError> {
        let (first, next) = (address::host(from), address::host(to));
        let same = address::same_site(&first, &next) && from.host_str().is_some();
        let (from, to_shown) = (shown(from), shown(to));
        if self.inner.client.evident(to) != Reach::Public && !self.is_trusted(to) && first != next {
            return Err(ToolError::new(format!(
                "{from} sends us on to {to_shown}, a private address: not followed"
            )));
        }
        if same || self.is_free(to) {
            return Ok(());
        }
        Err(ToolError::new(format!(
            "{from} sends us on to {to_shown}, another host: not followed unasked"
        ))
        .suggest(format!("fetchUrl({{ urls: \"{to_shown}\" }}) asks for it")))
    }

    /// Runs until it is done, told to stop, or too late.
    pub(crate) async fn within_time<T>(
        &self,
        call: &Call,
        limit: Option<Duration>,
        work: impl Future<Output = Result<T, ToolError>>,
    ) -> Result<T, ToolError> {
        tokio::select! {
            () = call.cancel.cancelled() => Err(ToolError::new("the request was stopped")),
            done = self.timed(limit, work) => done,
        }
    }

    async fn timed<T>(
        &self,
        limit: Option<Duration>,
        work: impl Future<Output = Result<T, ToolError>>,
    ) -> Result<T, ToolError> {
        let limit = limit.unwrap_or(self.inner.settings.timeout);
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
            let seconds = limit.as_secs_f64();
            Err(
                ToolError::new(format!("no whole answer within {seconds} s"))
                    .retryable()
                    .outcome_unknown(),
            )
        })
    }

    /// Those a person is asked for.
    fn asked<'a>(&self, urls: &'a [Url]) -> Vec<&'a Url> {
        urls.iter()
            .filter(|url| !self.is_free(url) && self.refuse_nobodys(url).is_ok())
            .collect()
    }

    fn hosts_of(&self, urls: &[Url]) -> Vec<String> {
        let asked = self.asked(urls);
        let all: Vec<&Url> = if asked.is_empty() {
            urls.iter().collect()
        } else {
            asked
        };
        let hosts: BTreeSet<String> = all.into_iter().map(address::host).collect();
        hosts.into_iter().collect()
    }

    fn has_rule(&self, url: &Url) -> bool {
        let hosts = self
            .inner
            .hosts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        address::listed(&hosts, url)
    }

    fn is_trusted(&self, url: &Url) -> bool {
        let trusted = &self.inner.settings.allow_private_hosts;
        url.host_str().is_some_and(|host| {
            trusted
                .iter()
                .any(|trusted| trusted.eq_ignore_ascii_case(host))
        })
    }
}

fn in_one_line(urls: &[Url]) -> String {
    match urls {
        [url] => shown(url),
        urls => {
            let hosts: BTreeSet<String> = urls.iter().map(address::host).collect();
            let hosts: Vec<String> = hosts.into_iter().collect();
            format!("{} addresses of {}", urls.len(), hosts.join(", "))
        }
    }
}
