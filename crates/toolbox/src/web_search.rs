//! `web_search`: pages that fit a query. The first of them are fetched meanwhile, for whoever wants to read them next.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::try_join_all;
use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use selvedge_protocol::{Cabinet, Preview, ToolSpec};
use selvedge_tools::{Call, CallFuture, Risk, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::task::AbortHandle;

use crate::aliases::spec;
use crate::one_or_many::OneOrMany;
use crate::web::{Freshness, Hit, Web, parse};

/// Queries in one call.
const MOST_QUERIES: usize = 5;
/// Results where the call does not say.
const DEFAULT_RESULTS: usize = 10;
/// Results a call may say.
const MOST_RESULTS: usize = 20;
/// Pages fetched meanwhile where the call does not say.
const DEFAULT_PREFETCH: usize = 3;
/// Pages a call may say.
const MOST_PREFETCHED: usize = 10;

/// What to search for.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// What to search for; several queries are searched at once.
    query: OneOrMany,
    /// Results for each query; 10 where it is not said, at most 20.
    max_results: Option<usize>,
    /// How many of the first results are fetched meanwhile, as far as the network policy lets them be; 3 where it is
    /// not said, at most 10.
    prefetch: Option<usize>,
    /// Told to the person who is asked.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// What was found.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The best first; of several queries in turn.
    results: Vec<Found>,
}

/// A page that fits.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Found {
    url: String,
    title: String,
    snippet: String,
    /// How well it fits, where the search service tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    relevance_score: Option<f64>,
    /// The query it fits, where there were several.
    #[serde(skip_serializing_if = "Option::is_none")]
    query: Option<String>,
}

/// The tool `web_search`.
pub(crate) struct WebSearch(pub(crate) Web, pub(crate) Arc<dyn Cabinet>);

impl WebSearch {
    /// The addresses that the queries in a call's arguments are sent to.
    fn addresses(&self, args: &Value) -> Vec<reqwest::Url> {
        self.0.search_addresses(&queries(args))
    }
}

impl Tool for WebSearch {
    fn spec(&self) -> ToolSpec {
        let description = "Searches the web. fetch_url reads what was found.";
        let spec = spec::<Args, Output>("web_search", &["query"], description);
        spec.as_read_only().judged_by_arguments()
    }

    fn costs_money(&self) -> bool {
        true
    }

    fn risk(&self, args: &Value) -> Risk {
        self.0.risk(&self.addresses(args), "searches at")
    }

    fn preview(&self, args: &Value) -> Preview {
        let (urls, queries) = (self.addresses(args), queries(args));
        let asked = urls.iter().zip(&queries);
        let asked = asked.map(|(url, query)| format!("{url}\n  search for: {query}"));
        self.0.preview(&urls, asked.collect::<Vec<_>>().join("\n"))
    }

    fn agreement(&self, args: &Value) -> Option<String> {
        self.0.agreement(&self.addresses(args))
    }

    fn allow_always(&self, args: &Value) {
        self.0.allow_always(&self.addresses(args));
    }

    fn call(&self, args: Value, call: Call) -> CallFuture<'_> {
        let Self(web, cabinet) = self;
        let run = async move |args| search(web, cabinet, args, &call).await;
        typed_call(args, run, |output: &Output| Some(render(output)))
    }
}

/// The queries in a call's arguments.
fn queries(args: &Value) -> Vec<String> {
    OneOrMany::in_args(args, "query")
}

async fn search(
    web: &Web,
    cabinet: &Arc<dyn Cabinet>,
    args: Args,
    call: &Call,
) -> Result<Output, ToolError> {
    let queries: Vec<String> = args
        .query
        .into_vec()
        .iter()
        .map(|query| query.trim().to_owned())
        .collect();
    if queries.is_empty() || queries.len() > MOST_QUERIES || queries.iter().any(String::is_empty) {
        return Err(ToolError::new(format!(
            "1 to {MOST_QUERIES} queries can be searched at once, none of them empty"
        )));
    }
    let most = args
        .max_results
        .unwrap_or(DEFAULT_RESULTS)
        .clamp(1, MOST_RESULTS);
    let all = try_join_all(queries.iter().map(|query| web.search(query, most)));
    let all = web.within_time(call, None, all).await?;
    let results = interleaved(&queries, all);
    let first = results.iter().take(
        args.prefetch
            .unwrap_or(DEFAULT_PREFETCH)
            .min(MOST_PREFETCHED),
    );
    prefetch(web, cabinet, first.map(|found| found.url.as_str()), call);
    Ok(Output { results })
}

/// The first of each query, then the second of each, and every page once.
fn interleaved(queries: &[String], all: Vec<Vec<Hit>>) -> Vec<Found> {
    let longest = all.iter().map(Vec::len).max().unwrap_or(0);
    let mut seen = HashSet::new();
    let mut results = Vec::new();
    for rank in 0..longest {
        for (query, hits) in queries.iter().zip(&all) {
            let Some(hit) = hits.get(rank).filter(|hit| seen.insert(hit.url.clone())) else {
                continue;
            };
            results.push(Found {
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

/// Stops a task when whoever wanted it is gone.
struct Stopping(AbortHandle);

impl Drop for Stopping {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Fetches pages that need no question while the caller reads the results. It ends with the caller's scope.
fn prefetch<'a>(
    web: &Web,
    cabinet: &Arc<dyn Cabinet>,
    urls: impl Iterator<Item = &'a str>,
    call: &Call,
) {
    let urls: Vec<reqwest::Url> = urls
        .filter_map(|url| parse(url).ok())
        .filter(|url| web.is_free(url))
        .collect();
    if urls.is_empty() {
        return;
    }
    let (web, cabinet) = (web.clone(), cabinet.clone());
    let work = async move {
        let each = stream::iter(urls).for_each_concurrent(None, |url| {
            let (web, cabinet) = (&web, &cabinet);
            // Whoever wants the page finds out what went wrong.
            async move { _ = web.page(cabinet, &url, Freshness::OfToday).await }
        });
        each.await;
    };
    call.belongings
        .keep(Stopping(tokio::spawn(work).abort_handle()));
}

fn render(output: &Output) -> String {
    if output.results.is_empty() {
        return "nothing was found".to_owned();
    }
    let lines = output.results.iter().enumerate().map(|(index, found)| {
        let Found {
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
