//! The tool `fetch_url`: fetches web pages as Markdown and stores each in the File Cabinet.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream;
use schemars::JsonSchema;
use selvedge_protocol::{CallReach, DocumentStore, Preview, RuleScope, ToolSpec};
use selvedge_tools::{CallContext, CallFuture, Risk, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::built_in_spec;
use crate::cabinet::emit_document_event;
use crate::one_or_many::OneOrMany;
use crate::web::{PageCaching, StoredPage, WebAccess, parse_url};

/// Maximum number of pages in one call.
const MAX_URLS: usize = 20;
/// Maximum number of pages of one call that are fetched at the same time.
const MAX_CONCURRENT_FETCHES: usize = 4;
/// Bytes of each page that are returned if the call sets no `max_length`.
const DEFAULT_LENGTH_BYTES: usize = 50 << 10;
/// The largest accepted `max_length`, in bytes.
const MAX_LENGTH_BYTES: usize = 1 << 20;

/// The pages to fetch.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct FetchUrlArgs {
    /// URL of a page, or several URLs.
    urls: OneOrMany,
    /// Maximum bytes of each page in the result; 51,200 by default. The whole page is stored.
    max_length: Option<usize>,
    /// Fetch pages again even if they were fetched within the last day.
    #[serde(default)]
    fresh: bool,
    /// Reason shown to the person who approves the call.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// The fetched pages, and those that failed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FetchUrlOutput {
    /// In the order of `urls`.
    fetches: Vec<FetchUrlPage>,
    /// Pages that could not be fetched, if at least one other could.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<FetchUrlFailure>,
}

/// A fetched page.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FetchUrlPage {
    /// Key of the whole page for fetch_from_fc and write_file; valid for 30 days.
    file_key: String,
    url: String,
    title: String,
    /// Markdown if the page is HTML; empty if it is not text.
    content: String,
    media_type: String,
    /// Estimated number of tokens of the whole page.
    tokens: u64,
    /// Whether the page was fetched earlier, within the last day.
    cached: bool,
    /// Whether the whole page is longer than `content`.
    truncated: bool,
}

/// A page that could not be fetched.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FetchUrlFailure {
    url: String,
    error: String,
}

const DESCRIPTION: &str = "Fetches web pages as Markdown. \
    Each page is stored under a fileKey: write_file({fileKey, path}) saves it without reading it.";

/// The tool `fetch_url`.
pub(crate) struct FetchUrl(pub(crate) WebAccess, pub(crate) Arc<dyn DocumentStore>);

impl Tool for FetchUrl {
    fn spec(&self) -> ToolSpec {
        let spec =
            built_in_spec::<FetchUrlArgs, FetchUrlOutput>("fetch_url", &["urls"], DESCRIPTION);
        // Each page has the time limit.
        let rounds = MAX_URLS.div_ceil(MAX_CONCURRENT_FETCHES) as u32;
        let timeout = self.0.call_timeout();
        spec.as_read_only()
            .approval_by_arguments()
            .with_reach(CallReach::Web)
            .with_timeout(timeout.enforced_by_tool(timeout.default * rounds))
    }

    fn costs_money(&self) -> bool {
        self.0.uses_firecrawl()
    }

    fn risk(&self, args: &Value) -> Risk {
        self.0.risk(&urls_in_args(args), "fetches")
    }

    fn preview(&self, args: &Value) -> Preview {
        let urls = urls_in_args(args);
        let lines: Vec<&str> = urls.iter().map(reqwest::Url::as_str).collect();
        self.0.preview(&urls, lines.join("\n"))
    }

    fn approval_key(&self, args: &Value) -> Option<String> {
        self.0.approval_scope_key(&urls_in_args(args))
    }

    fn add_rule(&self, args: &Value, scope: RuleScope) {
        self.0.add_rule(&urls_in_args(args), scope);
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let Self(web, cabinet) = self;
        let run = async move |args| fetch(web, cabinet, args, &call).await;
        typed_call(args, run, |output: &FetchUrlOutput| Some(render(output)))
    }
}

/// Returns the valid URLs in a call's arguments. Invalid ones are reported when the call runs.
fn urls_in_args(args: &Value) -> Vec<reqwest::Url> {
    OneOrMany::from_field(args, "urls")
        .iter()
        .filter_map(|url| parse_url(url).ok())
        .collect()
}

async fn fetch(
    web: &WebAccess,
    cabinet: &Arc<dyn DocumentStore>,
    args: FetchUrlArgs,
    call: &CallContext,
) -> Result<FetchUrlOutput, ToolError> {
    let urls = args.urls.into_vec();
    if urls.is_empty() || urls.len() > MAX_URLS {
        return Err(ToolError::new(format!(
            "`urls` must have 1 to {MAX_URLS} entries, not {}",
            urls.len()
        )));
    }
    let freshness = if args.fresh {
        PageCaching::Refetch
    } else {
        PageCaching::AllowCached
    };
    let length = args
        .max_length
        .unwrap_or(DEFAULT_LENGTH_BYTES)
        .min(MAX_LENGTH_BYTES);
    let mut seen = HashSet::new();
    let distinct = urls.into_iter().filter(|url| seen.insert(url.clone()));
    let fetch_one = |url: String| async move {
        let result = match parse_url(&url) {
            Ok(url) => {
                web.fetch_page(cabinet, &url, freshness, call.time_limit)
                    .await
            }
            Err(error) => Err(error),
        };
        (url, result)
    };
    let results = stream::iter(distinct)
        .map(fetch_one)
        .buffered(MAX_CONCURRENT_FETCHES)
        .collect::<Vec<_>>();
    let results = tokio::select! {
        () = call.cancel.cancelled() => return Err(ToolError::new("the request was cancelled")),
        results = results => results,
    };
    let mut output = FetchUrlOutput {
        fetches: Vec::new(),
        failed: Vec::new(),
    };
    let mut first_error = None;
    for (url, result) in results {
        match result {
            Ok(page) => {
                emit_document_event(call, &page.entry);
                output.fetches.push(FetchUrlPage::new(page, length));
            }
            Err(error) => {
                output.failed.push(FetchUrlFailure {
                    url,
                    error: error.message.clone(),
                });
                first_error = first_error.or(Some(error));
            }
        }
    }
    match first_error {
        Some(error) if output.fetches.is_empty() => Err(error),
        _ => Ok(output),
    }
}

impl FetchUrlPage {
    /// Truncates the text of a page to `length` bytes.
    fn new(page: StoredPage, length: usize) -> Self {
        let whole = page.text.unwrap_or_default();
        let content = whole[..whole.floor_char_boundary(length)].to_owned();
        Self {
            file_key: page.entry.key,
            url: page.entry.source,
            title: page.entry.title,
            truncated: content.len() < whole.len(),
            tokens: (whole.chars().count() as u64).div_ceil(4),
            content,
            media_type: page.entry.media_type,
            cached: page.cached,
        }
    }
}

fn render(output: &FetchUrlOutput) -> String {
    let mut text = String::new();
    for page in &output.fetches {
        let FetchUrlPage {
            file_key,
            url,
            title,
            content,
            media_type,
            tokens,
            cached,
            truncated,
        } = page;
        let fetched = if *cached { "cached" } else { "fetched" };
        text.push_str(&format!(
            "# {title}\n{url} ({fetched}, fileKey {file_key}, about {tokens} tokens)\n\n"
        ));
        match content.is_empty() {
            true => text.push_str(&format!(
                "[{media_type}: save it with write_file and this fileKey]\n"
            )),
            false => text.push_str(content),
        }
        if *truncated {
            text.push_str(&format!(
                "\n\n[truncated: read the rest with fetch_from_fc, fileKey {file_key}]"
            ));
        }
        text.push_str("\n\n");
    }
    for FetchUrlFailure { url, error } in &output.failed {
        text.push_str(&format!("failed: {url}: {error}\n"));
    }
    text.truncate(text.trim_end().len());
    text
}
