//! The tool `fetch_from_fc`: reads a document of the File Cabinet.

use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_protocol::{Document, DocumentStore, ToolSpec};
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::cabinet::{emit_document_event, get_document};

/// Characters returned if the call sets no `limit`.
const DEFAULT_LIMIT_CHARS: usize = 50_000;
/// The largest accepted `limit`, in characters.
const MAX_LIMIT_CHARS: usize = 1_000_000;

/// The document and the part of it to read.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct FetchFromFcArgs {
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
pub(crate) struct FetchFromFcOutput {
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

const DESCRIPTION: &str = "Reads a document of the File Cabinet by its key.";

/// The tool `fetch_from_fc`.
pub(crate) struct FetchFromFc(pub(crate) Arc<dyn DocumentStore>);

impl Tool for FetchFromFc {
    fn spec(&self) -> ToolSpec {
        built_in_spec::<FetchFromFcArgs, FetchFromFcOutput>(
            "fetch_from_fc",
            &["file_key", "offset", "limit"],
            DESCRIPTION,
        )
        .as_read_only()
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let cabinet = self.0.clone();
        let run = async move |args: FetchFromFcArgs| {
            let key = args.file_key.clone();
            let document = run_blocking(move || get_document(&cabinet, &key)).await?;
            let entry = document.info.clone();
            let output = slice_document(document, &args)?;
            emit_document_event(&call, &entry);
            Ok(output)
        };
        typed_call(args, run, |output: &FetchFromFcOutput| {
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
fn slice_document(
    Document {
        info: entry,
        content,
    }: Document,
    args: &FetchFromFcArgs,
) -> Result<FetchFromFcOutput, ToolError> {
    let key = &entry.key;
    let text = String::from_utf8(content).map_err(|_| {
        let hint = format!("save it to a file: writeFile({{ fileKey: \"{key}\", path: … }})");
        ToolError::new(format!("{key} is not text but {}", entry.media_type)).suggest(hint)
    })?;
    let total = text.chars().count();
    let offset = args.offset.unwrap_or(0);
    let limit = args
        .limit
        .unwrap_or(DEFAULT_LIMIT_CHARS)
        .min(MAX_LIMIT_CHARS);
    Ok(FetchFromFcOutput {
        content: text.chars().skip(offset).take(limit).collect(),
        file_key: entry.key,
        title: entry.title,
        source: entry.source,
        media_type: entry.media_type,
        total,
        truncated: offset.saturating_add(limit) < total,
    })
}
