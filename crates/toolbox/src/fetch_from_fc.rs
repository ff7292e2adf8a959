//! The tool `fetch_from_fc`: reads a document of the File Cabinet.

use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_protocol::{Cabinet, Document, ToolSpec};
use selvedge_tools::{Call, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::spec;
use crate::blocking::blocking;
use crate::cabinet::{open, tell};

/// Characters returned if the call sets no `limit`.
const DEFAULT_LIMIT: usize = 50_000;
/// The largest accepted `limit`, in characters.
const MOST: usize = 1_000_000;

/// The document and the part of it to read.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Key of the document.
    file_key: String,
    /// Index of the first character, starting at 0.
    offset: Option<usize>,
    /// Maximum number of characters; 50,000 by default.
    limit: Option<usize>,
}

/// A document, or a part of it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Output {
    file_key: String,
    title: String,
    /// Origin of the document, such as a URL; empty if unknown.
    source: String,
    media_type: String,
    content: String,
    /// Number of characters in the whole document.
    total: usize,
    /// Whether more characters follow.
    truncated: bool,
}

const DESCRIPTION: &str = "Reads a document of the File Cabinet by its key. \
    To save it to a file without reading it, use write_file({fileKey, path}).";

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
            let total = match output.truncated {
                true => format!(", {} characters in total", output.total),
                false => String::new(),
            };
            let (title, key) = (&output.title, &output.file_key);
            Some(format!("# {title} ({key}{total})\n\n{}", output.content))
        })
    }
}

/// Returns the requested part of a document. Fails if the document is not UTF-8 text.
fn read(Document { entry, content }: Document, args: &Args) -> Result<Output, ToolError> {
    let key = &entry.key;
    let text = String::from_utf8(content).map_err(|_| {
        let hint = format!("save it to a file: writeFile({{ fileKey: \"{key}\", path: … }})");
        ToolError::new(format!("{key} is not text but {}", entry.media_type)).suggest(hint)
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
