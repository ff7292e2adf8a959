//! `write_file`: a whole file, written at once: a text, or a document of the File Cabinet that nobody has to read.

use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_protocol::{Cabinet, Preview, View};
use selvedge_tools::{Risk, Tool, ToolError, tool};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::aliases_of;
use crate::blocking::blocking;
use crate::cabinet::open;
use crate::commit::{Write, commit};
use crate::preview::{bounded, file_diff};
use crate::slot::{Links, Mode};
use crate::{TurnDiff, Workspace};

/// What to write.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// File to write, relative to the workspace or absolute; missing folders are made.
    path: String,
    /// All of its text.
    content: Option<String>,
    /// Or the key of a document in the File Cabinet, whose bytes become the file without passing through the caller.
    file_key: Option<String>,
    /// Told to the person who is asked.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// What was written.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    path: String,
    bytes: usize,
    /// Whether the file was not there before.
    created: bool,
}

pub(crate) fn write_file(
    workspace: &Workspace,
    turn_diff: &TurnDiff,
    cabinet: &Arc<dyn Cabinet>,
) -> impl Tool + use<> {
    let (workspace, turn_diff, cabinet) = (workspace.clone(), turn_diff.clone(), cabinet.clone());
    let ([showing, agreeing], documents) = ([(); 2].map(|()| workspace.clone()), cabinet.clone());
    let run = move |args: Args| {
        let (workspace, turn_diff, cabinet) =
            (workspace.clone(), turn_diff.clone(), cabinet.clone());
        blocking(move || write(&workspace, &turn_diff, &cabinet, args))
    };
    tool(
        "write_file",
        "Writes a file as a whole, from a text or from a document of the File Cabinet.",
        run,
    )
    .risk(|args| Risk::Guarded {
        reason: format!("writes {}", args["path"].as_str().unwrap_or_default()),
    })
    .preview(move |args| preview(&showing, &documents, args))
    .agreement(move |args| agreement(&agreeing, args))
    .render(|output: &Output| {
        format!(
            "{} {} ({} bytes)",
            if output.created { "created" } else { "wrote" },
            output.path,
            output.bytes
        )
    })
    .aliases(aliases_of("write_file"))
    .positional(&["file_key", "path"])
}

/// What the file is to be.
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
    let _alone = workspace.changing();
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

/// What "for this script" covers: the same file, wherever a link leads now.
fn agreement(workspace: &Workspace, args: &Value) -> Option<String> {
    let path = workspace.absolute(args["path"].as_str()?, None);
    let real = workspace
        .slot(&path, Links::Follow)
        .map_or(path, |slot| slot.real());
    Some(real.to_string_lossy().into_owned())
}

/// What the file is now against what it would be; nothing where it cannot be read or written.
fn preview(workspace: &Workspace, cabinet: &Arc<dyn Cabinet>, args: &Value) -> Preview {
    let Ok(args) = serde_json::from_value::<Args>(args.clone()) else {
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
