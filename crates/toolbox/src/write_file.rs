//! The tool `write_file`: writes a whole file from a text or from a document of the File Cabinet.

use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_protocol::{Cabinet, Preview, ToolSpec, View};
use selvedge_tools::{Call, CallFuture, Risk, Tool, ToolError, read_args, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::spec;
use crate::blocking::blocking;
use crate::cabinet::open;
use crate::commit::{Write, commit};
use crate::preview::{bounded, file_diff};
use crate::slot::{Links, Mode};
use crate::{TurnDiff, Workspace};

/// The file to write and its content.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
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
pub(crate) struct Output {
    path: String,
    bytes: usize,
    /// Whether the file is new.
    created: bool,
}

/// The tool `write_file`.
pub(crate) struct WriteFile(
    pub(crate) Workspace,
    pub(crate) TurnDiff,
    pub(crate) Arc<dyn Cabinet>,
);

impl Tool for WriteFile {
    fn spec(&self) -> ToolSpec {
        let description = "Writes a whole file from a text or from a document of the File Cabinet.";
        spec::<Args, Output>("write_file", &["file_key", "path"], description).judged_by_arguments()
    }

    fn risk(&self, args: &Value) -> Risk {
        Risk::Guarded {
            reason: format!("writes {}", args["path"].as_str().unwrap_or_default()),
        }
    }

    /// A diff of the current and the new content; no view if the file cannot be read or written.
    fn preview(&self, args: &Value) -> Preview {
        let Self(workspace, _, cabinet) = self;
        let Ok(args) = read_args::<Args>(args.clone()) else {
            return Preview::default();
        };
        let slot = workspace.slot(&workspace.absolute(&args.path, None), Links::Follow);
        let view = slot.and_then(|slot| {
            let (old, new) = (
                slot.read()?.map(|(bytes, _)| bytes),
                content(cabinet, args)?,
            );
            Ok(View::Diff(bounded([file_diff(
                &slot.shown,
                &slot.shown,
                old.as_deref(),
                Some(&new),
            )])))
        });
        Preview {
            view: view.ok(),
            rule: None,
        }
    }

    /// The path of the file with symbolic links resolved now.
    fn agreement(&self, args: &Value) -> Option<String> {
        let path = self.0.absolute(args["path"].as_str()?, None);
        let slot = self.0.slot(&path, Links::Follow);
        let real = slot.map_or(path, |slot| slot.real());
        Some(real.to_string_lossy().into_owned())
    }

    fn call(&self, args: Value, _: Call) -> CallFuture<'_> {
        let Self(workspace, turn_diff, cabinet) = self;
        let (workspace, turn_diff, cabinet) =
            (workspace.clone(), turn_diff.clone(), cabinet.clone());
        let run = |args| blocking(move || write(&workspace, &turn_diff, &cabinet, args));
        typed_call(args, run, |output: &Output| {
            let done = if output.created { "created" } else { "wrote" };
            Some(format!("{done} {} ({} bytes)", output.path, output.bytes))
        })
    }
}

/// Returns the new content of the file.
fn content(cabinet: &Arc<dyn Cabinet>, args: Args) -> Result<Vec<u8>, ToolError> {
    match (args.content, args.file_key) {
        (Some(content), None) => Ok(content.into_bytes()),
        (None, Some(key)) => Ok(open(cabinet, &key)?.content),
        _ => Err(
            ToolError::new("write_file takes either `content` or `file_key`").suggest(
                "writeFile({ path: …, content: … }) or writeFile({ path: …, fileKey: … })",
            ),
        ),
    }
}

fn write(
    workspace: &Workspace,
    turn_diff: &TurnDiff,
    cabinet: &Arc<dyn Cabinet>,
    args: Args,
) -> Result<Output, ToolError> {
    let path = workspace.absolute(&args.path, None);
    let content = content(cabinet, args)?;
    let _write_lock = workspace.changing();
    let slot = workspace.slot(&path, Links::Follow)?;
    slot.check_writable()?;
    let mode = slot.look()?;
    turn_diff.before_write(&path);
    let bytes = (
        content.as_slice(),
        mode.unwrap_or(Mode::New { executable: false }),
    );
    commit(&[Write {
        slot: &slot,
        content: Some(bytes),
    }])?;
    Ok(Output {
        path: slot.shown,
        bytes: content.len(),
        created: mode.is_none(),
    })
}
