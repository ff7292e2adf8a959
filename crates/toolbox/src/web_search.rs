//! The tool `web_search`: searches the web, and prefetches the first results so that a later
//! `fetch_url` finds them in the cache.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::try_join_all;
use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use selvedge_protocol::{CallReach, DocumentStore, Preview, RuleScope, ToolSpec};
use selvedge_tools::{CallContext, CallFuture, Risk, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::task::AbortHandle;

use crate::aliases::built_in_spec;
use crate::one_or_many::OneOrMany;
use crate::web::{PageCaching, WebAccess, WebSearchHit, parse_url};

/// Maximum number of queries in one call.
const MAX_QUERIES: usize = 5;
/// Results for each query if the call sets no `max_results`.
const DEFAULT_RESULTS: usize = 10;
/// The largest accepted `max_results`.
const MAX_RESULTS: usize = 20;
/// Prefetched pages if the call sets no `prefetch`.
const DEFAULT_PREFETCH_PAGES: usize = 3;
/// The largest accepted `prefetch`.
const MAX_PREFETCH_PAGES: usize = 10;

/// Arguments of `web_search`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct WebSearchArgs {
    /// Query, or several queries that are searched at once.
    query: OneOrMany,
    /// Maximum number of results for each query; 10 by default, at most 20.
    max_results: Option<usize>,
    /// Number of results to prefetch if no approval is needed; 3 by default, at most 10.
    prefetch: Option<usize>,
    /// Reason shown to the person who approves the call.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// The search results.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WebSearchOutput {
    /// Best first; the results of several queries alternate.
    results: Vec<WebSearchResult>,
}

/// A page that matches a query.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WebSearchResult {
    url: String,
    title: String,
    snippet: String,
    /// Relevance, if the search service reports one.
    #[serde(skip_serializing_if = "Option::is_none")]
    relevance_score: Option<f64>,
    /// The query of this result, if the call had several.
    #[serde(skip_serializing_if = "Option::is_none")]
    query: Option<String>,
}

/// The tool `web_search`.
pub(crate) struct WebSearch(pub(crate) WebAccess, pub(crate) Arc<dyn DocumentStore>);

impl WebSearch {
    /// Returns the URLs that the queries in a call's arguments are sent to.
    fn search_urls(&self, args: &Value) -> Vec<reqwest::Url> {
        self.0.search_urls(&queries_in_args(args))
    }
}

impl Tool for WebSearch {
    fn spec(&self) -> ToolSpec {
        let description = "Searches the web. Read the results with fetch_url.";
        let spec =
            built_in_spec::<WebSearchArgs, WebSearchOutput>("web_search", &["query"], description);
        spec.as_read_only()
            .approval_by_arguments()
            .with_reach(CallReach::Web)
            .with_timeout(self.0.call_timeout())
    }

    fn costs_money(&self) -> bool {
        true
    }

    fn risk(&self, args: &Value) -> Risk {
        self.0.risk(&self.search_urls(args), "searches at")
    }

    fn preview(&self, args: &Value) -> Preview {
        let (urls, queries) = (self.search_urls(args), queries_in_args(args));
        let requests = urls.iter().zip(&queries);
        let lines = requests.map(|(url, query)| format!("{url}\n  search for: {query}"));
        self.0.preview(&urls, lines.collect::<Vec<_>>().join("\n"))
    }

    fn approval_key(&self, args: &Value) -> Option<String> {
        self.0.approval_scope_key(&self.search_urls(args))
    }

    fn add_rule(&self, args: &Value, scope: RuleScope) {
        self.0.add_rule(&self.search_urls(args), scope);
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let Self(web, cabinet) = self;
        let run = async move |args| search(web, cabinet, args, &call).await;
        typed_call(args, run, |output: &WebSearchOutput| Some(render(output)))
    }
}

/// Returns the queries in a call's arguments.
fn queries_in_args(args: &Value) -> Vec<String> {
    OneOrMany::from_field(args, "query")
}

async fn search(
    web: &WebAccess,
    cabinet: &Arc<dyn DocumentStore>,
    args: WebSearchArgs,
    call: &CallContext,
) -> Result<WebSearchOutput, ToolError> {
    let queries: Vec<String> = args
        .query
        .into_vec()
        .iter()
        .map(|query| query.trim().to_owned())
        .collect();
    if queries.is_empty() || queries.len() > MAX_QUERIES || queries.iter().any(String::is_empty) {
        return Err(ToolError::new(format!(
            "`query` must have 1 to {MAX_QUERIES} entries, none of them empty"
        )));
    }
    let max_results = args
        .max_results
        .unwrap_or(DEFAULT_RESULTS)
        .clamp(1, MAX_RESULTS);
    let all = try_join_all(queries.iter().map(|query| web.search(query, max_results)));
    let all = web.run_cancellable(call, all).await?;
    let results = interleave(&queries, all);
    let first = results.iter().take(
        args.prefetch
            .unwrap_or(DEFAULT_PREFETCH_PAGES)
            .min(MAX_PREFETCH_PAGES),
    );
    prefetch(web, cabinet, first.map(|found| found.url.as_str()), call);
    Ok(WebSearchOutput { results })
}

/// Returns the first result of each query, then the second of each, and so on; each page once.
fn interleave(queries: &[String], all: Vec<Vec<WebSearchHit>>) -> Vec<WebSearchResult> {
    let longest = all.iter().map(Vec::len).max().unwrap_or(0);
    let mut seen = HashSet::new();
    let mut results = Vec::new();
    for rank in 0..longest {
        for (query, hits) in queries.iter().zip(&all) {
            let Some(hit) = hits.get(rank).filter(|hit| seen.insert(hit.url.clone())) else {
                continue;
            };
            results.push(WebSearchResult {
                url: hit.url.clone(),
                title: hit.title.clone(),
                snippet: hit.snippet.clone(),
                relevance_score: hit.score,
                query: (queries.len() > 1).then(|| query.clone()),
            });
        }
    }
    results
}

/// Aborts the prefetch when the scope that owns it ends.
struct PrefetchAbortGuard(AbortHandle);

impl Drop for PrefetchAbortGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Fetches, in the background, those pages that need no approval. Ends with the scope of the call.
fn prefetch<'a>(
    web: &WebAccess,
    cabinet: &Arc<dyn DocumentStore>,
    urls: impl Iterator<Item = &'a str>,
    call: &CallContext,
) {
    let urls: Vec<reqwest::Url> = urls
        .filter_map(|url| parse_url(url).ok())
        .filter(|url| web.is_preapproved(url))
        .collect();
    if urls.is_empty() {
        return;
    }
    let (web, cabinet, limit) = (web.clone(), cabinet.clone(), call.time_limit);
    let work = async move {
        let fetches = stream::iter(urls).for_each_concurrent(None, |url| {
            let (web, cabinet) = (&web, &cabinet);
            // Errors are ignored: a later `fetch_url` reports them.
            async move {
                _ = web
                    .fetch_page(cabinet, &url, PageCaching::AllowCached, limit)
                    .await
            }
        });
        fetches.await;
    };
    call.resources
        .add(PrefetchAbortGuard(tokio::spawn(work).abort_handle()));
}

fn render(output: &WebSearchOutput) -> String {
    if output.results.is_empty() {
        return "no results".to_owned();
    }
    let lines = output.results.iter().enumerate().map(|(index, found)| {
        let WebSearchResult {
            url,
            title,
            snippet,
            ..
        } = found;
        format!(
            "{}. {title}\n   {url}\n   {}\n",
            index + 1,
            snippet.replace('\n', " ")
        )
    });
    lines.collect::<String>().trim_end().to_owned()
}
