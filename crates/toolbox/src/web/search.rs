//! Searching: Perplexity with a key, or a SearXNG server of one's own.

use reqwest::Url;
use selvedge_tools::ToolError;
use serde_json::{Value, json};

use super::pages::endpoint;
use super::{Service, Web};

/// Who searches.
#[derive(Debug, Clone)]
pub enum SearchService {
    /// Perplexity's search.
    Perplexity(Service),
    /// A SearXNG server that answers in JSON.
    Searxng {
        /// Where it is.
        base_url: String,
    },
}

/// One result.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hit {
    pub(crate) url: String,
    pub(crate) title: String,
    pub(crate) snippet: String,
    pub(crate) score: Option<f64>,
}

/// Characters of a snippet.
const LONGEST_SNIPPET: usize = 2000;

impl SearchService {
    /// Where a query goes.
    fn address(&self, query: &str) -> Result<Url, ToolError> {
        match self {
            Self::Perplexity(service) => endpoint(&service.base_url, "search"),
            Self::Searxng { base_url } => {
                let mut url = endpoint(base_url, "search")?;
                url.query_pairs_mut()
                    .append_pair("q", query)
                    .append_pair("format", "json");
                Ok(url)
            }
        }
    }
}

impl Web {
    /// Where queries go.
    pub(crate) fn search_addresses(&self, queries: &[String]) -> Vec<Url> {
        let service = self.inner.settings.search.as_ref();
        queries
            .iter()
            .filter_map(|query| service?.address(query).ok())
            .collect()
    }

    /// What is found for a query, the best first.
    pub(crate) async fn search(&self, query: &str, most: usize) -> Result<Vec<Hit>, ToolError> {
        let Some(service) = &self.inner.settings.search else {
            return Err(ToolError::new("no search service is set up").suggest(
                "set PERPLEXITY_API_KEY, or `web.searxng_url` to the address of a SearXNG server",
            ));
        };
        let (answer, snippet) =
            match service {
                SearchService::Perplexity(service) => {
                    let body = json!({"query": query, "max_results": most});
                    (self.asked_of(service, "search", &body).await?, "snippet")
                }
                SearchService::Searxng { .. } => {
                    let answer =
                        self.got_from(service.address(query)?).await.map_err(
                            |error| match error.metadata.get("status").and_then(Value::as_u64) {
                                Some(403) => error.suggest(
                                    "switch `json` on under `search.formats` in its settings.yml",
                                ),
                                _ => error,
                            },
                        )?;
                    (answer, "content")
                }
            };
        let Some(results) = answer["results"].as_array() else {
            return Err(ToolError::new(
                "the search service answered without results",
            ));
        };
        Ok(results
            .iter()
            .filter_map(|result| hit(result, snippet))
            .take(most)
            .collect())
    }
}

/// A result, if it leads somewhere.
fn hit(result: &Value, snippet: &str) -> Option<Hit> {
    let text = |name: &str| result[name].as_str().unwrap_or_default().trim();
    let url = super::parse(text("url")).ok()?;
    let title = if text("title").is_empty() {
        url.as_str()
    } else {
        text("title")
    };
    Some(Hit {
        title: title.to_owned(),
        snippet: text(snippet).chars().take(LONGEST_SNIPPET).collect(),
        score: result["score"].as_f64(),
        url: url.into(),
    })
}
