//! `fetch_from_fc`: reads a document of the File Cabinet.

use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_protocol::Cabinet;
use selvedge_tools::{Tool, ToolError, tool_with_call};
use serde::{Deserialize, Serialize};

use crate::aliases::aliases_of;
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

pub(crate) fn fetch_from_fc(cabinet: &Arc<dyn Cabinet>) -> impl Tool + use<> {
    let cabinet = cabinet.clone();
    let description = "Reads a document of the File Cabinet by its key. write_file({fileKey, path}) saves one without reading it.";
    tool_with_call("fetch_from_fc", description, move |args: Args, call| {
        let cabinet = cabinet.clone();
        async move {
            let (entry, output) = blocking(move || {
                let document = open(&cabinet, &args.file_key)?;
                let key = &document.entry.key;
                let text = String::from_utf8(document.content).map_err(|_| {
                    ToolError::new(format!(
                        "{key} is no text but {}",
                        document.entry.media_type
                    ))
                    .suggest(format!(
                        "writeFile({{ fileKey: \"{key}\", path: … }}) saves it as it is"
                    ))
                })?;
                let total = text.chars().count();
                let (offset, limit) = (
                    args.offset.unwrap_or(0),
                    args.limit.unwrap_or(DEFAULT_LIMIT).min(MOST),
                );
                let content: String = text.chars().skip(offset).take(limit).collect();
                let entry = document.entry;
                let output = Output {
                    file_key: entry.key.clone(),
                    title: entry.title.clone(),
                    source: entry.source.clone(),
                    media_type: entry.media_type.clone(),
                    content,
                    total,
                    truncated: offset.saturating_add(limit) < total,
                };
                Ok((entry, output))
            })
            .await?;
            tell(&call, &entry);
            Ok(output)
        }
    })
    .read_only()
    .render(|output: &Output| {
        let more = if output.truncated {
            format!(", {} characters in all", output.total)
        } else {
            String::new()
        };
        format!(
            "# {} ({}{more})\n\n{}",
            output.title, output.file_key, output.content
        )
    })
    .aliases(aliases_of("fetch_from_fc"))
    .positional(&["file_key", "offset", "limit"])
}
