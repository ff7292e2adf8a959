//! Fetches pages directly or through Firecrawl, makes them readable, and caches them in the File
//! Cabinet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use selvedge_protocol::{Document, DocumentInfo, DocumentKind, DocumentStore, NewDocument};
use selvedge_tools::ToolError;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::address::AddressClass;
use super::client::{RequestDestination, WebRequest, WebResponse, display_url};
use super::page::{PageBody, ReadablePage, make_readable};
use super::{WebAccess, WebService};
use crate::blocking::run_blocking;

/// How long a cached page is used instead of fetching it again.
const CACHE_MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// A page in the File Cabinet.
#[derive(Debug, Clone)]
pub(crate) struct StoredPage {
    pub(crate) entry: DocumentInfo,
    /// The text of the page; `None` if it is not text.
    pub(crate) text: Option<String>,
    /// Whether the page came from the cache.
    pub(crate) cached: bool,
}

/// Locks by URL, so that no page is fetched twice at the same time.
#[derive(Default)]
pub(crate) struct InFlightPages(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl InFlightPages {
    /// Returns the lock for a URL.
    fn lock_for(&self, url: &Url) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = all.get(url.as_str()).and_then(Weak::upgrade) {
            return lock;
        }
        all.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        all.insert(url.as_str().to_owned(), Arc::downgrade(&lock));
        lock
    }
}

/// Whether a cached page may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageCaching {
    /// Use a cached page that is at most one day old.
    AllowCached,
    /// Always fetch the page.
    Refetch,
}

impl WebAccess {
    /// Returns a page from the cache or from the web, within the time limit. Pages
    /// of private hosts are never taken from the cache.
    pub(crate) async fn fetch_page(
        &self,
        cabinet: &Arc<dyn DocumentStore>,
        url: &Url,
        freshness: PageCaching,
        limit: Duration,
    ) -> Result<StoredPage, ToolError> {
        self.refuse_blocked(url)?;
        let work = async {
            let lock = self.inner.in_flight_pages.lock_for(url);
            // If another call is fetching this page, wait and use its result from the cache.
            let _guard = lock.lock().await;
            let may_use_cache = self.inner.client.classify_url(url) == AddressClass::Public
                && freshness == PageCaching::AllowCached;
            if may_use_cache && let Some(document) = find_cached(cabinet, url).await? {
                return Ok(StoredPage::from(document));
            }
            let page = match &self.inner.settings.firecrawl {
                // Firecrawl gets no URL of a host that only this machine can reach.
                Some(firecrawl)
                    if self.inner.client.classify_url(url) == AddressClass::Public
                        && !self.may_be_private(url) =>
                {
                    self.inner.client.refuse_private_names(url).await?;
                    self.fetch_with_firecrawl(firecrawl, url).await?
                }
                _ => self.fetch_directly(url).await?,
            };
            store_page(cabinet, url, page).await
        };
        self.run_with_timeout(limit, work)
            .await
            .map_err(|mut error| {
                if !error.message.contains(url.host_str().unwrap_or_default()) {
                    error.message = format!("cannot fetch {}: {}", display_url(url), error.message);
                }
                error
            })
    }

    /// Fetches a page with the own client, following redirects.
    async fn fetch_directly(&self, url: &Url) -> Result<ReadablePage, ToolError> {
        let may = |from: &Url, to: &Url| self.check_redirect(from, to);
        let response = self
            .inner
            .client
            .send_following_redirects(WebRequest::for_page(url.clone()), may)
            .await?;
        if !response.status.is_success() {
            return Err(status_error(&response));
        }
        let megabytes = self.inner.client.max_body_bytes as f64 / f64::from(1 << 20);
        // The work stops when this future is dropped, such as after the time limit.
        let cancel = CancellationToken::new();
        let _stop = cancel.clone().drop_guard();
        run_blocking(move || {
            let truncated = response.truncated;
            let (content_type, url) =
                (response.content_type().to_owned(), response.url.to_string());
            let mut page = make_readable(&content_type, response.body, &url, &cancel);
            match &mut page.body {
                PageBody::Bytes(_) if truncated => {
                    return Err(
                        ToolError::new(format!("{url} is larger than {megabytes} MB"))
                            .suggest("raise `web.max_mb` in the configuration"),
                    );
                }
                PageBody::Text(text) if truncated => {
                    text.push_str(&format!("\n\n[truncated: more than {megabytes} MB]"))
                }
                _ => {}
            }
            Ok(page)
        })
        .await
    }

    /// Fetches a page through Firecrawl.
    async fn fetch_with_firecrawl(
        &self,
        firecrawl: &WebService,
        url: &Url,
    ) -> Result<ReadablePage, ToolError> {
        let body = json!({"url": url.as_str(), "formats": ["markdown"], "onlyMainContent": true});
        let answer = self.post_json(firecrawl, "v2/scrape", &body).await?;
        let data = &answer["data"];
        let status = data["metadata"]["statusCode"].as_u64().unwrap_or(200);
        if answer["success"] == json!(false) || !(200..300).contains(&status) {
            let reason = answer["error"]
                .as_str()
                .or(data["metadata"]["error"].as_str());
            let reason =
                reason.map_or_else(|| format!("the page answered {status}"), str::to_owned);
            return Err(ToolError::new(format!(
                "Firecrawl could not fetch {}: {reason}",
                display_url(url)
            )));
        }
        let Some(text) = data["markdown"].as_str() else {
            return Err(ToolError::new(format!(
                "the Firecrawl response for {} has no Markdown",
                display_url(url)
            )));
        };
        let title = match &data["metadata"]["title"] {
            Value::String(title) => title.as_str(),
            Value::Array(titles) => titles.first().and_then(Value::as_str).unwrap_or_default(),
            _ => "",
        };
        let title = if title.trim().is_empty() {
            display_url(url)
        } else {
            title.trim().chars().take(200).collect()
        };
        Ok(ReadablePage {
            title,
            media_type: "text/markdown".to_owned(),
            body: PageBody::Text(text.to_owned()),
        })
    }

    /// Sends a POST request with the service's API key. Returns the response as JSON.
    pub(super) async fn post_json(
        &self,
        service: &WebService,
        resource: &str,
        body: &Value,
    ) -> Result<Value, ToolError> {
        let mut headers = HeaderMap::new();
        let mut key = HeaderValue::from_str(&format!("Bearer {}", service.api_key.trim()))
            .map_err(|_| ToolError::new("the API key of the service has invalid characters"))?;
        key.set_sensitive(true);
        headers.insert("authorization", key);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let url = endpoint_url(&service.base_url, resource)?;
        let request = WebRequest {
            method: reqwest::Method::POST,
            url,
            headers,
            body: body.to_string().into_bytes(),
        };
        parse_service_response(
            self.inner
                .client
                .send(RequestDestination::ConfiguredService, request)
                .await?,
        )
    }

    /// Sends a GET request to a service without an API key. Returns the response as JSON.
    pub(super) async fn get_json(&self, url: Url) -> Result<Value, ToolError> {
        let request = WebRequest {
            method: reqwest::Method::GET,
            url,
            headers: HeaderMap::new(),
            body: Vec::new(),
        };
        parse_service_response(
            self.inner
                .client
                .send(RequestDestination::ConfiguredService, request)
                .await?,
        )
    }
}

/// Returns the URL of a resource below the base URL of a service.
pub(super) fn endpoint_url(base: &str, resource: &str) -> Result<Url, ToolError> {
    let mut url = super::parse_url(base)?;
    url.set_path(&format!("{}/{resource}", url.path().trim_end_matches('/')));
    Ok(url)
}

/// Parses the response of a service as JSON. Fails if the status is not a success, with the message
/// of the service.
fn parse_service_response(response: WebResponse) -> Result<Value, ToolError> {
    let host = super::address::host_with_port(&response.url);
    let value: Option<Value> = serde_json::from_slice(&response.body).ok();
    if response.status.is_success() {
        return value.ok_or_else(|| ToolError::new(format!("{host} answered with invalid JSON")));
    }
    let message = value.as_ref().and_then(|value| {
        let error = &value["error"];
        error["message"]
            .as_str()
            .or(error.as_str())
            .or(value["message"].as_str())
            .or(value["detail"].as_str())
    });
    let mut error = status_error(&response);
    if let Some(message) = message {
        error.message = format!(
            "{}: {}",
            error.message,
            message.chars().take(300).collect::<String>()
        );
    }
    Err(match response.status.as_u16() {
        401 => error.suggest("check the API key of the service"),
        _ => error,
    })
}

/// Returns the error for a response whose status is not a success.
fn status_error(response: &WebResponse) -> ToolError {
    let mut error = ToolError::new(format!(
        "{} answered {}",
        display_url(&response.url),
        response.status
    ));
    error
        .metadata
        .insert("status".to_owned(), json!(response.status.as_u16()));
    error.retryable = matches!(response.status.as_u16(), 408 | 425 | 429 | 500..);
    error
}

/// Returns a page from the cache if it is recent enough.
async fn find_cached(
    cabinet: &Arc<dyn DocumentStore>,
    url: &Url,
) -> Result<Option<Document>, ToolError> {
    let (cabinet, source) = (cabinet.clone(), url.to_string());
    // Errors are ignored: without the cache, the page is fetched.
    run_blocking(move || {
        Ok(cabinet
            .find_latest(DocumentKind::Page, &source, CACHE_MAX_AGE)
            .unwrap_or_default())
    })
    .await
}

/// Stores a page in the File Cabinet.
async fn store_page(
    cabinet: &Arc<dyn DocumentStore>,
    url: &Url,
    page: ReadablePage,
) -> Result<StoredPage, ToolError> {
    let (cabinet, source) = (cabinet.clone(), url.to_string());
    run_blocking(move || {
        let content = match &page.body {
            PageBody::Text(text) => text.as_bytes(),
            PageBody::Bytes(bytes) => bytes,
        };
        let (kind, title, media_type) = (
            DocumentKind::Page,
            page.title.as_str(),
            page.media_type.as_str(),
        );
        let entry = cabinet
            .save(&NewDocument {
                kind,
                title,
                source: &source,
                media_type,
                content,
            })
            .map_err(|error| {
                ToolError::new(format!("fetched {source} but cannot store it: {error}"))
            })?;
        let text = match page.body {
            PageBody::Text(text) => Some(text),
            PageBody::Bytes(_) => None,
        };
        Ok(StoredPage {
            entry,
            text,
            cached: false,
        })
    })
    .await
}

impl From<Document> for StoredPage {
    fn from(document: Document) -> Self {
        Self {
            entry: document.info,
            text: String::from_utf8(document.content).ok(),
            cached: true,
        }
    }
}
