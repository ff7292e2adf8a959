//! Pages: fetched by whoever can, made readable, and kept under a key for a day's callers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use selvedge_protocol::{Cabinet, Document, DocumentKind, Entry, NewDocument};
use selvedge_tools::ToolError;
use serde_json::{Value, json};

use super::address::Reach;
use super::client::{Answered, Ask, Peer, shown};
use super::page::{Body, Page, readable};
use super::{Service, Web};
use crate::blocking::blocking;

/// How long a page counts as what is there now.
const FRESH: Duration = Duration::from_secs(24 * 3600);

/// A page that somebody got.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    pub(crate) entry: Entry,
    /// Its text; `None` where it is none.
    pub(crate) text: Option<String>,
    /// Whether it was fetched before.
    pub(crate) cached: bool,
}

/// Pages that are being fetched, so that nobody fetches them twice at the same time.
#[derive(Default)]
pub(crate) struct UnderWay(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl UnderWay {
    fn of(&self, url: &Url) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = all.get(url.as_str()).and_then(Weak::upgrade) {
            return there;
        }
        all.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        all.insert(url.as_str().to_owned(), Arc::downgrade(&turn));
        turn
    }
}

/// Whether what was fetched before will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Anything from the last day.
    OfToday,
    /// Only what is there now.
    OfNow,
}

impl Web {
    /// A page, from the cabinet or from the web, within its time.
    pub(crate) async fn page(
        &self,
        cabinet: &Arc<dyn Cabinet>,
        url: &Url,
        freshness: Freshness,
    ) -> Result<Got, ToolError> {
        self.refuse_nobodys(url)?;
        let got = async {
            let turn = self.inner.under_way.of(url);
            // Where another call fetches it, that one's page is what we want.
            let _turn = turn.lock().await;
            let remembered =
                self.inner.client.evident(url) == Reach::Public && freshness == Freshness::OfToday;
            if remembered && let Some(document) = look_up(cabinet, url).await? {
                return Ok(Got::from(document));
            }
            let page = match &self.inner.settings.firecrawl {
                // What others cannot see is none of their business.
                Some(firecrawl)
                    if self.inner.client.evident(url) == Reach::Public && !self.is_trusted(url) =>
                {
                    self.inner.client.refuse_private_names(url).await?;
                    self.scraped(firecrawl, url).await?
                }
                _ => self.direct(url).await?,
            };
            keep(cabinet, url, page).await
        };
        self.timed(None, got).await.map_err(|mut error| {
            if !error.message.contains(url.host_str().unwrap_or_default()) {
                error.message = format!("cannot fetch {}: {}", shown(url), error.message);
            }
            error
        })
    }

    async fn direct(&self, url: &Url) -> Result<Page, ToolError> {
        let may = |from: &Url, to: &Url| self.may_be_sent(from, to);
        let answered = self
            .inner
            .client
            .follow(Ask::page(url.clone()), may)
            .await?;
        if !answered.status.is_success() {
            return Err(refused(&answered));
        }
        let megabytes = self.inner.client.max_bytes as f64 / f64::from(1 << 20);
        blocking(move || {
            let cut = answered.cut;
            let (content_type, url) =
                (answered.content_type().to_owned(), answered.url.to_string());
            let mut page = readable(&content_type, answered.body, &url);
            match &mut page.body {
                Body::Bytes(_) if cut => {
                    return Err(
                        ToolError::new(format!("{url} is larger than {megabytes} MB"))
                            .suggest("the setting `web.max_mb` allows more"),
                    );
                }
                Body::Text(text) if cut => {
                    text.push_str(&format!("\n\n[cut here: more than {megabytes} MB]"))
                }
                _ => {}
            }
            Ok(page)
        })
        .await
    }

    /// A page as Firecrawl sees it.
    async fn scraped(&self, firecrawl: &Service, url: &Url) -> Result<Page, ToolError> {
        let body = json!({"url": url.as_str(), "formats": ["markdown"], "onlyMainContent": true});
        let answer = self.asked_of(firecrawl, "v2/scrape", &body).await?;
        let data = &answer["data"];
        let status = data["metadata"]["statusCode"].as_u64().unwrap_or(200);
        if answer["success"] == json!(false) || !(200..300).contains(&status) {
            let why = answer["error"]
                .as_str()
                .or(data["metadata"]["error"].as_str());
            let why = why.map_or_else(|| format!("the page answered {status}"), str::to_owned);
            return Err(ToolError::new(format!(
                "Firecrawl could not fetch {}: {why}",
                shown(url)
            )));
        }
        let Some(text) = data["markdown"].as_str() else {
            return Err(ToolError::new(format!(
                "Firecrawl's answer for {} has no Markdown",
                shown(url)
            )));
        };
        let title = match &data["metadata"]["title"] {
            Value::String(title) => title.as_str(),
            Value::Array(titles) => titles.first().and_then(Value::as_str).unwrap_or_default(),
            _ => "",
        };
        let title = if title.trim().is_empty() {
            shown(url)
        } else {
            title.trim().chars().take(200).collect()
        };
        Ok(Page {
            title,
            media_type: "text/markdown".to_owned(),
            body: Body::Text(text.to_owned()),
        })
    }

    /// Asks a service, with its key, and reads its answer as JSON.
    pub(super) async fn asked_of(
        &self,
        service: &Service,
        resource: &str,
        body: &Value,
    ) -> Result<Value, ToolError> {
        let mut headers = HeaderMap::new();
        let mut key = HeaderValue::from_str(&format!("Bearer {}", service.key.trim()))
            .map_err(|_| ToolError::new("the service's key has characters no key may have"))?;
        key.set_sensitive(true);
        headers.insert("authorization", key);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let url = endpoint(&service.base_url, resource)?;
        let ask = Ask {
            method: reqwest::Method::POST,
            url,
            headers,
            body: body.to_string().into_bytes(),
        };
        answer(self.inner.client.exchange(Peer::Service, ask).await?)
    }

    /// Asks a service that wants no key.
    pub(super) async fn got_from(&self, url: Url) -> Result<Value, ToolError> {
        let ask = Ask {
            method: reqwest::Method::GET,
            url,
            headers: HeaderMap::new(),
            body: Vec::new(),
        };
        answer(self.inner.client.exchange(Peer::Service, ask).await?)
    }
}

/// The address of one of a service's resources.
pub(super) fn endpoint(base: &str, resource: &str) -> Result<Url, ToolError> {
    let mut url = super::parse(base)?;
    url.set_path(&format!("{}/{resource}", url.path().trim_end_matches('/')));
    Ok(url)
}

/// What a service answered, as JSON.
fn answer(answered: Answered) -> Result<Value, ToolError> {
    let host = super::address::host(&answered.url);
    let value: Option<Value> = serde_json::from_slice(&answered.body).ok();
    if answered.status.is_success() {
        return value.ok_or_else(|| {
            ToolError::new(format!("{host} answered with something that is no JSON"))
        });
    }
    let told = value.as_ref().and_then(|value| {
        let error = &value["error"];
        error["message"]
            .as_str()
            .or(error.as_str())
            .or(value["message"].as_str())
            .or(value["detail"].as_str())
    });
    let mut error = refused(&answered);
    if let Some(told) = told {
        error.message = format!(
            "{}: {}",
            error.message,
            told.chars().take(300).collect::<String>()
        );
    }
    Err(match answered.status.as_u16() {
        401 => error.suggest("check its key"),
        _ => error,
    })
}

/// An answer that is none.
fn refused(answered: &Answered) -> ToolError {
    let mut error = ToolError::new(format!(
        "{} answered {}",
        shown(&answered.url),
        answered.status
    ));
    error
        .metadata
        .insert("status".to_owned(), json!(answered.status.as_u16()));
    error.retryable = matches!(answered.status.as_u16(), 408 | 425 | 429 | 500..);
    error
}

async fn look_up(cabinet: &Arc<dyn Cabinet>, url: &Url) -> Result<Option<Document>, ToolError> {
    let (cabinet, source) = (cabinet.clone(), url.to_string());
    // A cabinet that cannot be opened is as good as none.
    blocking(move || {
        Ok(cabinet
            .newest(DocumentKind::Page, &source, FRESH)
            .unwrap_or_default())
    })
    .await
}

async fn keep(cabinet: &Arc<dyn Cabinet>, url: &Url, page: Page) -> Result<Got, ToolError> {
    let (cabinet, source) = (cabinet.clone(), url.to_string());
    blocking(move || {
        let content = match &page.body {
            Body::Text(text) => text.as_bytes(),
            Body::Bytes(bytes) => bytes,
        };
        let (kind, title, media_type) = (
            DocumentKind::Page,
            page.title.as_str(),
            page.media_type.as_str(),
        );
        let entry = cabinet
            .keep(&NewDocument {
                kind,
                title,
                source: &source,
                media_type,
                content,
            })
            .map_err(|error| {
                ToolError::new(format!(
                    "{source} was fetched and could not be kept: {error}"
                ))
            })?;
        let text = match page.body {
            Body::Text(text) => Some(text),
            Body::Bytes(_) => None,
        };
        Ok(Got {
            entry,
            text,
            cached: false,
        })
    })
    .await
}

impl From<Document> for Got {
    fn from(document: Document) -> Self {
        Self {
            entry: document.entry,
            text: String::from_utf8(document.content).ok(),
            cached: true,
        }
    }
}
