//! Web search through Perplexity, which needs an API key, or through a SearXNG server.

use reqwest::Url;
use selvedge_tools::ToolError;
use serde_json::{Value, json};

use super::pages::endpoint_url;
use super::{WebAccess, WebService};

/// The service that performs searches.
#[derive(Debug, Clone)]
pub enum SearchService {
    /// Perplexity's search API.
    Perplexity(WebService),
    /// A SearXNG server with JSON output enabled.
    Searxng {
        /// Base URL of the server.
        base_url: String,
    },
}

/// One search result.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WebSearchHit {
    pub(crate) url: String,
    pub(crate) title: String,
    pub(crate) snippet: String,
    /// Relevance, if the service reports one.
    pub(crate) score: Option<f64>,
}

/// Maximum length of a snippet in characters.
const MAX_SNIPPET_CHARS: usize = 2000;

impl SearchService {
    /// Returns the URL that a query is sent to.
    fn request_url(&self, query: &str) -> Result<Url, ToolError> {
        match self {
            Self::Perplexity(service) => endpoint_url(&service.base_url, "search"),
            Self::Searxng { base_url } => {
                let mut url = endpoint_url(base_url, "search")?;
                url.query_pairs_mut()
                    .append_pair("q", query)
                    .append_pair("format", "json");
                Ok(url)
            }
        }
    }
}

impl WebAccess {
    /// Returns the URLs that queries are sent to; empty if no service is configured.
    pub(crate) fn search_urls(&self, queries: &[String]) -> Vec<Url> {
        let service = self.inner.settings.search.as_ref();
        queries
            .iter()
            .filter_map(|query| service?.request_url(query).ok())
            .collect()
    }

    /// Returns at most `max_results` results for a query, best first.
    pub(crate) async fn search(
        &self,
        query: &str,
        max_results: usize,
    ) -> Result<Vec<WebSearchHit>, ToolError> {
        let Some(service) = &self.inner.settings.search else {
            return Err(ToolError::new("no search service is configured").suggest(
                "set PERPLEXITY_API_KEY, or `web.searxng_url` to the address of a SearXNG server",
            ));
        };
        let (answer, snippet) = match service {
            SearchService::Perplexity(service) => {
                let body = json!({"query": query, "max_results": max_results});
                (self.post_json(service, "search", &body).await?, "snippet")
            }
            SearchService::Searxng { .. } => {
                let answer =
                    self.get_json(service.request_url(query)?).await.map_err(
                        |error| match error.metadata.get("status").and_then(Value::as_u64) {
                            Some(403) => error.suggest(
                                "enable `json` under `search.formats` in the server's settings.yml",
                            ),
                            _ => error,
                        },
                    )?;
                (answer, "content")
            }
        };
        let Some(results) = answer["results"].as_array() else {
            return Err(ToolError::new(
                "the response of the search service has no `results`",
            ));
        };
        Ok(results
            .iter()
            .filter_map(|result| parse_hit(result, snippet))
            .take(max_results)
            .collect())
    }
}

/// Parses a result; `None` if it has no valid URL.
fn parse_hit(result: &Value, snippet: &str) -> Option<WebSearchHit> {
    let text = |name: &str| result[name].as_str().unwrap_or_default().trim();
    let url = super::parse_url(text("url")).ok()?;
    let title = if text("title").is_empty() {
        url.as_str()
    } else {
        text("title")
    };
    Some(WebSearchHit {
        title: title.to_owned(),
        snippet: text(snippet).chars().take(MAX_SNIPPET_CHARS).collect(),
        score: result["score"].as_f64(),
        url: url.into(),
    })
}
