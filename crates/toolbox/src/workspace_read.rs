//! The tool `workspace_read`: reads one document of the workspace.

use std::io::Read;

use schemars::JsonSchema;
use selvedge_documents::{MAX_DOCUMENT_BYTES, WorkspaceDocument};
use selvedge_protocol::ToolSpec;
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, similar_names, typed_call};
use serde::Deserialize;
use serde_json::Value;

use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::read_coverage::{FileRead, OpenedFile, note_read};
use crate::workspace_documents::DocumentOutput;
use crate::{Workspace, WorkspaceDocuments};

/// The document to read.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct WorkspaceReadArgs {
    /// Markdown file, relative to the workspace.
    path: String,
}

/// The tool `workspace_read`.
pub(crate) struct WorkspaceRead(pub(crate) Workspace, pub(crate) WorkspaceDocuments);

impl Tool for WorkspaceRead {
    fn spec(&self) -> ToolSpec {
        let spec = built_in_spec::<WorkspaceReadArgs, DocumentOutput>(
            "workspace_read",
            &["path"],
            "Reads a document.",
        );
        ToolSpec {
            js_name: "workspace.read".to_owned(),
            ..spec.as_read_only()
        }
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let Self(workspace, documents) = self;
        let (workspace, documents) = (workspace.clone(), documents.clone());
        let run = |args: WorkspaceReadArgs| {
            run_blocking(move || read(&workspace, &documents, &args.path, &call))
        };
        typed_call(args, run, |output: &DocumentOutput| Some(output.render()))
    }
}

fn read(
    workspace: &Workspace,
    documents: &WorkspaceDocuments,
    path: &str,
    call: &CallContext,
) -> Result<DocumentOutput, ToolError> {
    let DocumentText {
        shown,
        opened,
        text,
    } = read_text(workspace, documents, path)?;
    let total_lines = text.lines().count() as u64;
    note_read(
        call,
        opened,
        &FileRead {
            lines: (total_lines > 0).then_some((1, total_lines)),
            total_lines,
            lossy: false,
            has_cut_line: false,
        },
    );
    Ok((&WorkspaceDocument::from_text(&shown, &text)).into())
}

/// The text of a document, as the file has it.
pub(crate) struct DocumentText {
    /// The path relative to the workspace.
    shown: String,
    opened: OpenedFile,
    pub(crate) text: String,
}

/// Reads the whole text of a document.
pub(crate) fn read_text(
    workspace: &Workspace,
    documents: &WorkspaceDocuments,
    path: &str,
) -> Result<DocumentText, ToolError> {
    let absolute = workspace.absolute(path, None);
    let shown = workspace.display_path(&absolute);
    let file = documents.open(workspace, &absolute).map_err(|error| {
        match absolute.symlink_metadata().is_err() {
            true => suggest_similar(error, documents, &shown),
            false => error,
        }
    })?;
    let opened = OpenedFile::new(&file, &absolute);
    let mut bytes = Vec::new();
    file.take(MAX_DOCUMENT_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| ToolError::new(format!("{shown} cannot be read: {error}")))?;
    if bytes.len() > MAX_DOCUMENT_BYTES {
        let limit = MAX_DOCUMENT_BYTES >> 10;
        return Err(
            ToolError::new(format!("{shown} is larger than {limit} KiB"))
                .suggest("read a part of it with tools.readFile"),
        );
    }
    let text = String::from_utf8(bytes).map_err(|_| {
        ToolError::new(format!("{shown} is not UTF-8 text")).suggest("read it with tools.readFile")
    })?;
    Ok(DocumentText {
        shown,
        opened,
        text,
    })
}

/// Suggests documents with a similar path.
fn suggest_similar(error: ToolError, documents: &WorkspaceDocuments, path: &str) -> ToolError {
    let paths = documents.index().paths();
    let similar = similar_names(path, paths.iter().map(String::as_str));
    similar.iter().fold(error, |error, path| {
        error.suggest(format!("did you mean {path}?"))
    })
}
