//! `fetch_from_fc`: reads a document of the File Cabinet.

use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_protocol::{Cabinet, Document, ToolSpec};
use selvedge_tools::{Call, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::spec;
use crate::blocking::blocking;
use crate::cabinet::{open, tell};

/// Characters that are returned where the call does not say.
const DEFAULT_LIMIT: usize = 50_000;
/// Characters a call may say.
const MOST: usize = 1_000_000;

/// What to read.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Its key.
    file_key: String,
    /// First character, from zero.
    offset: Option<usize>,
    /// Characters at most; 50,000 where it is not said.
    limit: Option<usize>,
}

/// The document, or part of it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Output {
    file_key: String,
    title: String,
    /// Where it came from, such as an address; empty where nobody said.
    source: String,
    media_type: String,
    content: String,
    /// Characters in all.
    total: usize,
    /// Whether more follows.
    truncated: bool,
}

const DESCRIPTION: &str = "Reads a document of the File Cabinet by its key. write_file({fileKey, path}) saves one without reading it.";

/// The tool `fetch_from_fc`.
pub(crate) struct FetchFromFc(pub(crate) Arc<dyn Cabinet>);

impl Tool for FetchFromFc {
    fn spec(&self) -> ToolSpec {
        spec::<Args, Output>(
            "fetch_from_fc",
            &["file_key", "offset", "limit"],
            DESCRIPTION,
        )
        .as_read_only()
    }

    fn call(&self, args: Value, call: Call) -> CallFuture<'_> {
        let cabinet = self.0.clone();
        let run = async move |args: Args| {
            let key = args.file_key.clone();
            let document = blocking(move || open(&cabinet, &key)).await?;
            let entry = document.entry.clone();
            let output = read(document, &args)?;
            tell(&call, &entry);
            Ok(output)
        };
        typed_call(args, run, |output: &Output| {
            let more = match output.truncated {
                true => format!(", {} characters in all", output.total),
                false => String::new(),
            };
            let (title, key) = (&output.title, &output.file_key);
            Some(format!("# {title} ({key}{more})\n\n{}", output.content))
        })
    }
}

/// The part of a document that is asked for.
fn read(Document { entry, content }: Document, args: &Args) -> Result<Output, ToolError> {
    let key = &entry.key;
    let text = String::from_utf8(content).map_err(|_| {
        let hint = format!("writeFile({{ fileKey: \"{key}\", path: … }}) saves it as it is");
        ToolError::new(format!("{key} is no text but {}", entry.media_type)).suggest(hint)
    })?;
    let total = text.chars().count();
    let offset = args.offset.unwrap_or(0);
    let limit = args.limit.unwrap_or(DEFAULT_LIMIT).min(MOST);
    Ok(Output {
        content: text.chars().skip(offset).take(limit).collect(),
        file_key: entry.key,
        title: entry.title,
        source: entry.source,
        media_type: entry.media_type,
        total,
        truncated: offset.saturating_add(limit) < total,
    })
}
