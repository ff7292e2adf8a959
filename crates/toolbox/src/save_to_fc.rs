//! The tool `save_to_fc`: stores a document in the File Cabinet.

use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_protocol::{DocumentInfo, DocumentKind, DocumentStore, NewDocument, ToolSpec};
use selvedge_text::count_noun;
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Workspace;
use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::cabinet::{emit_document_event, store_document};
use crate::text_file::read_limited;

/// The document to store: a text or a file.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SaveToFcArgs {
    /// Text to store.
    content: Option<String>,
    /// File to store instead, relative to the workspace or absolute; its bytes are not returned.
    path: Option<String>,
    /// Short description of the document.
    title: Option<String>,
}

/// The stored document.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SaveToFcOutput {
    /// Key for fetch_from_fc and write_file; valid for 30 days.
    file_key: String,
    title: String,
    bytes: u64,
}

/// The tool `save_to_fc`.
pub(crate) struct SaveToFc(pub(crate) Workspace, pub(crate) Arc<dyn DocumentStore>);

impl Tool for SaveToFc {
    fn spec(&self) -> ToolSpec {
        let description = "Stores a text or a file in the File Cabinet for 30 days.";
        built_in_spec::<SaveToFcArgs, SaveToFcOutput>(
            "save_to_fc",
            &["content", "title"],
            description,
        )
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let (workspace, cabinet) = (self.0.clone(), self.1.clone());
        let run = async move |args| {
            let entry = run_blocking(move || save(&workspace, &cabinet, args)).await?;
            emit_document_event(&call, &entry);
            Ok(SaveToFcOutput {
                file_key: entry.key,
                title: entry.title,
                bytes: entry.bytes,
            })
        };
        typed_call(args, run, |output: &SaveToFcOutput| {
            Some(format!(
                "saved as {} ({})",
                output.file_key,
                count_noun(output.bytes, "byte")
            ))
        })
    }
}

fn save(
    workspace: &Workspace,
    cabinet: &Arc<dyn DocumentStore>,
    args: SaveToFcArgs,
) -> Result<DocumentInfo, ToolError> {
    let (content, name, media_type) = read_source(workspace, &args)?;
    let document = NewDocument {
        kind: DocumentKind::Saved,
        title: &args.title.unwrap_or(name),
        source: &args.path.unwrap_or_default(),
        media_type,
        content: &content,
    };
    store_document(cabinet, &document)
}

/// Returns the bytes to store, a default title and the media type.
fn read_source(
    workspace: &Workspace,
    args: &SaveToFcArgs,
) -> Result<(Vec<u8>, String, &'static str), ToolError> {
    match (&args.content, &args.path) {
        (Some(content), None) => {
            let first_line = content
                .lines()
                .map(|line| line.trim_start_matches('#').trim())
                .find(|line| !line.is_empty());
            let name = first_line.unwrap_or("untitled").chars().take(80).collect();
            Ok((content.as_bytes().to_vec(), name, "text/plain"))
        }
        (None, Some(path)) => {
            let path = workspace.absolute(path, None);
            let display_path = workspace.display_path(&path);
            let file = workspace.open_file(&path)?;
            let bytes = read_limited(file, &display_path)?;
            let is_text = !bytes.contains(&0) && std::str::from_utf8(&bytes).is_ok();
            Ok((
                bytes,
                display_path,
                if is_text {
                    "text/plain"
                } else {
                    "application/octet-stream"
                },
            ))
        }
        _ => Err(ToolError::new(
            "save_to_fc takes either `content` or `path`",
        )),
    }
}
