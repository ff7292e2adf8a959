//! The tool `write_file`: writes a whole file from a text or from a document of the File Cabinet.

use std::path::Path;
use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_protocol::{DocumentStore, Preview, PreviewContent, ToolSpec};
use selvedge_text::count_noun;
use selvedge_tools::{CallContext, CallFuture, Risk, Tool, ToolError, parse_args, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::cabinet::get_document;
use crate::commit::{FileWrite, commit};
use crate::preview::file_diff;
use crate::read_coverage::refuse_overwriting;
use crate::target_file::{FileMode, LinkMode};
use crate::{TurnDiffTracker, Workspace};

/// The file to write and its content.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct WriteFileArgs {
    /// File to write, relative to the workspace or absolute; missing folders are created.
    path: String,
    /// The whole text of the file.
    content: Option<String>,
    /// Key of a document in the File Cabinet to write instead; its bytes are not returned.
    file_key: Option<String>,
    /// Reason shown to the person who approves the call.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// The written file.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WriteFileOutput {
    path: String,
    bytes: usize,
    /// Whether the file is new.
    created: bool,
}

/// The tool `write_file`.
pub(crate) struct WriteFile(
    pub(crate) Workspace,
    pub(crate) TurnDiffTracker,
    pub(crate) Arc<dyn DocumentStore>,
);

impl Tool for WriteFile {
    fn spec(&self) -> ToolSpec {
        let description = "Writes a whole file from a text or from a document of the File Cabinet. \
                           Change parts of a file with edit_file.";
        built_in_spec::<WriteFileArgs, WriteFileOutput>(
            "write_file",
            &["file_key", "path"],
            description,
        )
        .approval_by_arguments()
    }

    fn risk(&self, args: &Value) -> Risk {
        write_risk(args)
    }

    /// A diff of the current and the new content; no view if the file cannot be read or written.
    fn preview(&self, args: &Value) -> Preview {
        let Self(workspace, _, cabinet) = self;
        let Ok(args) = parse_args::<WriteFileArgs>(args.clone()) else {
            return Preview::default();
        };
        let path = args.path.clone();
        write_preview(workspace, &path, || load_content(cabinet, args))
    }

    /// The path of the file with symbolic links resolved now.
    fn approval_key(&self, args: &Value) -> Option<String> {
        self.0.write_approval_key(args["path"].as_str()?)
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let Self(workspace, turn_diff, cabinet) = self;
        let (workspace, turn_diff, cabinet) =
            (workspace.clone(), turn_diff.clone(), cabinet.clone());
        let run = |args: WriteFileArgs| {
            run_blocking(move || {
                let path = workspace.absolute(&args.path, None);
                let content = load_content(&cabinet, args)?;
                write_content(&workspace, &turn_diff, &path, &content, &call)
            })
        };
        typed_call(args, run, |output: &WriteFileOutput| Some(output.summary()))
    }
}

impl WriteFileOutput {
    /// Returns what was done, for models.
    pub(crate) fn summary(&self) -> String {
        let done = if self.created { "created" } else { "wrote" };
        let bytes = count_noun(self.bytes, "byte");
        format!("{done} {} ({bytes})", self.path)
    }
}

/// Returns the risk of a call that writes the file in its field `path`.
pub(crate) fn write_risk(args: &Value) -> Risk {
    Risk::Moderate {
        reason: format!("writes {}", args["path"].as_str().unwrap_or_default()),
    }
}

/// Returns a diff of the current and the new content of a file; no view if the file cannot be read
/// or written.
pub(crate) fn write_preview(
    workspace: &Workspace,
    path: &str,
    content: impl FnOnce() -> Result<Vec<u8>, ToolError>,
) -> Preview {
    let target_file = workspace.target_file(&workspace.absolute(path, None), LinkMode::Follow);
    let view = target_file.and_then(|target_file| {
        let (old, new) = (target_file.read()?.map(|(bytes, _)| bytes), content()?);
        Ok(PreviewContent::Diff(file_diff(
            &target_file.display_path,
            &target_file.display_path,
            old.as_deref(),
            Some(&new),
        )))
    });
    Preview {
        view: view.ok(),
        rule: None,
    }
}

/// Returns the new content of the file.
fn load_content(
    cabinet: &Arc<dyn DocumentStore>,
    args: WriteFileArgs,
) -> Result<Vec<u8>, ToolError> {
    match (args.content, args.file_key) {
        (Some(content), None) => Ok(content.into_bytes()),
        (None, Some(key)) => Ok(get_document(cabinet, &key)?.content),
        _ => Err(
            ToolError::new("write_file takes either `content` or `file_key`").suggest(
                "writeFile({ path: …, content: … }) or writeFile({ path: …, fileKey: … })",
            ),
        ),
    }
}

/// Replaces a file as a whole, or creates it. Fails if the policy does not allow it, or if the run
/// has read the file incompletely.
pub(crate) fn write_content(
    workspace: &Workspace,
    turn_diff: &TurnDiffTracker,
    path: &Path,
    content: &[u8],
    call: &CallContext,
) -> Result<WriteFileOutput, ToolError> {
    let _write_lock = workspace.lock_changes();
    let target_file = workspace.target_file(path, LinkMode::Follow)?;
    target_file.check_writable()?;
    refuse_overwriting(call, &target_file)?;
    let mode = target_file.existing_mode()?;
    turn_diff.before_write(path);
    let bytes = (content, mode.unwrap_or(FileMode::New { executable: false }));
    commit(&[FileWrite {
        target_file: &target_file,
        content: Some(bytes),
    }])?;
    Ok(WriteFileOutput {
        path: target_file.display_path,
        bytes: content.len(),
        created: mode.is_none(),
    })
}
