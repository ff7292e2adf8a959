//! `fetch_url`: web pages as Markdown, each kept under a key.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream;
use schemars::JsonSchema;
use selvedge_protocol::{Cabinet, Preview, ToolSpec};
use selvedge_tools::{Call, CallFuture, Risk, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::spec;
use crate::cabinet::tell;
use crate::one_or_many::OneOrMany;
use crate::web::{Freshness, Got, Web, parse};

/// Pages in one call.
const MOST: usize = 20;
/// Pages fetched at a time.
const AT_A_TIME: usize = 4;
/// Bytes of a page that are returned where the call does not say.
const DEFAULT_LENGTH: usize = 50 << 10;
/// Bytes a call may say.
const LONGEST: usize = 1 << 20;

/// What to fetch.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Address of a page, or several.
    urls: OneOrMany,
    /// Bytes of each page to return; 51,200 where it is not said. The whole page is kept under its key all the same.
    max_length: Option<usize>,
    /// Fetches a page although it was fetched within the last day.
    #[serde(default)]
    fresh: bool,
    /// Told to the person who is asked.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// The pages.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// In the order asked for.
    fetches: Vec<Fetch>,
    /// Pages that could not be fetched, where others could.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<Failed>,
}

/// A page.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Fetch {
    /// For fetch_from_fc and write_file: the whole page, for 30 days.
    file_key: String,
    url: String,
    title: String,
    /// As Markdown where it was HTML; empty where it is no text.
    content: String,
    media_type: String,
    /// Tokens of the whole page, estimated.
    tokens: u64,
    /// Whether it was fetched before, within a day.
    cached: bool,
    /// Whether the whole page is longer than its content here.
    truncated: bool,
}

/// A page that could not be fetched.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Failed {
    url: String,
    error: String,
}

const DESCRIPTION: &str = "Fetches web pages as Markdown, without navigation and advertisements. \
    Each is kept under a fileKey: write_file({fileKey, path}) saves it without its passing through here.";

/// The tool `fetch_url`.
pub(crate) struct FetchUrl(pub(crate) Web, pub(crate) Arc<dyn Cabinet>);

impl Tool for FetchUrl {
    fn spec(&self) -> ToolSpec {
        let spec = spec::<Args, Output>("fetch_url", &["urls"], DESCRIPTION);
        spec.as_read_only().judged_by_arguments()
    }

    fn risk(&self, args: &Value) -> Risk {
        self.0.risk(&addresses(args), "fetches")
    }

    fn preview(&self, args: &Value) -> Preview {
        let urls = addresses(args);
        let lines: Vec<&str> = urls.iter().map(reqwest::Url::as_str).collect();
        self.0.preview(&urls, lines.join("\n"))
    }

    fn agreement(&self, args: &Value) -> Option<String> {
        self.0.agreement(&addresses(args))
    }

    fn allow_always(&self, args: &Value) {
        self.0.allow_always(&addresses(args));
    }

    fn call(&self, args: Value, call: Call) -> CallFuture<'_> {
        let Self(web, cabinet) = self;
        let run = async move |args| fetch(web, cabinet, args, &call).await;
        typed_call(args, run, |output: &Output| Some(render(output)))
    }
}

/// The addresses in a call's arguments; those that are none are told when the call runs.
fn addresses(args: &Value) -> Vec<reqwest::Url> {
    OneOrMany::in_args(args, "urls")
        .iter()
        .filter_map(|url| parse(url).ok())
        .collect()
}

async fn fetch(
    web: &Web,
    cabinet: &Arc<dyn Cabinet>,
    args: Args,
    call: &Call,
) -> Result<Output, ToolError> {
    let written = args.urls.into_vec();
    if written.is_empty() || written.len() > MOST {
        return Err(ToolError::new(format!(
            "1 to {MOST} addresses can be fetched at once, not {}",
            written.len()
        )));
    }
    let freshness = if args.fresh {
        Freshness::OfNow
    } else {
        Freshness::OfToday
    };
    let length = args.max_length.unwrap_or(DEFAULT_LENGTH).min(LONGEST);
    let mut seen = HashSet::new();
    let distinct = written.into_iter().filter(|url| seen.insert(url.clone()));
    let one = |written: String| async move {
        let got = match parse(&written) {
            Ok(url) => web.page(cabinet, &url, freshness).await,
            Err(error) => Err(error),
        };
        (written, got)
    };
    let all = stream::iter(distinct)
        .map(one)
        .buffered(AT_A_TIME)
        .collect::<Vec<_>>();
    let all = tokio::select! {
        () = call.cancel.cancelled() => return Err(ToolError::new("the request was stopped")),
        all = all => all,
    };
    let mut output = Output {
        fetches: Vec::new(),
        failed: Vec::new(),
    };
    let mut first_error = None;
    for (url, got) in all {
        match got {
            Ok(got) => {
                tell(call, &got.entry);
                output.fetches.push(Fetch::new(got, length));
            }
            Err(error) => {
                output.failed.push(Failed {
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

impl Fetch {
    fn new(got: Got, length: usize) -> Self {
        let whole = got.text.unwrap_or_default();
        let content = whole[..whole.floor_char_boundary(length)].to_owned();
        Self {
            file_key: got.entry.key,
            url: got.entry.source,
            title: got.entry.title,
            truncated: content.len() < whole.len(),
            tokens: (whole.chars().count() as u64).div_ceil(4),
            content,
            media_type: got.entry.media_type,
            cached: got.cached,
        }
    }
}

fn render(output: &Output) -> String {
    let mut text = String::new();
    for page in &output.fetches {
        let Fetch {
            file_key,
            url,
            title,
            content,
            media_type,
            tokens,
            cached,
            truncated,
        } = page;
        let fetched = if *cached { "fetched before" } else { "fetched" };
        text.push_str(&format!(
            "# {title}\n{url} ({fetched}, fileKey {file_key}, about {tokens} tokens)\n\n"
        ));
        match content.is_empty() {
            true => text.push_str(&format!(
                "[{media_type}: write_file with this fileKey saves it]\n"
            )),
            false => text.push_str(content),
        }
        if *truncated {
            text.push_str(&format!(
                "\n\n[cut here: fetch_from_fc with fileKey {file_key} reads on]"
            ));
        }
        text.push_str("\n\n");
    }
    for Failed { url, error } in &output.failed {
        text.push_str(&format!("not fetched: {url}: {error}\n"));
    }
    text.truncate(text.trim_end().len());
    text
}
