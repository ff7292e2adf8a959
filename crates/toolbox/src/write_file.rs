//! `write_file`: a whole file, written at once.

use schemars::JsonSchema;
use selvedge_protocol::{Preview, View};
use selvedge_tools::{Risk, Tool, ToolError, tool};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::aliases_of;
use crate::blocking::blocking;
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
    content: String,
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

pub(crate) fn write_file(workspace: &Workspace, turn_diff: &TurnDiff) -> impl Tool + use<> {
    let (workspace, turn_diff) = (workspace.clone(), turn_diff.clone());
    let showing = workspace.clone();
    let run = move |args: Args| {
        let (workspace, turn_diff) = (workspace.clone(), turn_diff.clone());
        blocking(move || write(&workspace, &turn_diff, &args))
    };
    tool("write_file", "Writes a file as a whole.", run)
        .risk(|args| Risk::Guarded { reason: format!("writes {}", args["path"].as_str().unwrap_or_default()) })
        .preview(move |args| preview(&showing, args))
        .agreement(|args| args["path"].as_str().map(str::to_owned))
        .render(|output: &Output| {
            format!("{} {} ({} bytes)", if output.created { "created" } else { "wrote" }, output.path, output.bytes)
        })
        .aliases(aliases_of("write_file"))
}

fn write(workspace: &Workspace, turn_diff: &TurnDiff, args: &Args) -> Result<Output, ToolError> {
    let _alone = workspace.changing();
    let path = workspace.absolute(&args.path, None);
    let slot = workspace.slot(&path, Links::Follow)?;
    slot.check_writable()?;
    let mode = slot.look()?;
    turn_diff.before_write(&path);
    let content = (args.content.as_bytes(), mode.unwrap_or(Mode::New { executable: false }));
    commit(&[Write { slot: &slot, content: Some(content) }])?;
    Ok(Output { path: slot.shown, bytes: args.content.len(), created: mode.is_none() })
}

/// What the file is now against what it would be; nothing where it cannot be read or written.
fn preview(workspace: &Workspace, args: &Value) -> Preview {
    let Ok(args) = serde_json::from_value::<Args>(args.clone()) else { return Preview::default() };
    let slot = workspace.slot(&workspace.absolute(&args.path, None), Links::Follow);
    let view = slot.and_then(|slot| {
        let old = slot.read()?.map(|(bytes, _)| bytes);
        Ok(View::Diff(bounded([file_diff(&slot.shown, &slot.shown, old.as_deref(), Some(args.content.as_bytes()))])))
    });
    Preview { view: view.ok(), rule: None }
}
