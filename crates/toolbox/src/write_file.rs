//! `write_file`: a whole file, written at once.

use std::io::Write;

use schemars::JsonSchema;
use selvedge_tools::{Risk, Tool, ToolError, tool};
use serde::{Deserialize, Serialize};

use crate::Workspace;
use crate::aliases::aliases_of;
use crate::blocking::blocking;

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

pub(crate) fn write_file(workspace: &Workspace) -> impl Tool + use<> {
    let workspace = workspace.clone();
    let run = move |args: Args| {
        let workspace = workspace.clone();
        blocking(move || write(&workspace, &args))
    };
    tool("write_file", "Writes a file as a whole.", run)
        .risk(|args| Risk::Guarded { reason: format!("writes {}", args["path"].as_str().unwrap_or_default()) })
        .render(|output: &Output| {
            format!("{} {} ({} bytes)", if output.created { "created" } else { "wrote" }, output.path, output.bytes)
        })
        .aliases(aliases_of("write_file"))
}

fn write(workspace: &Workspace, args: &Args) -> Result<Output, ToolError> {
    let target = workspace.writable(&workspace.absolute(&args.path, None))?;
    let created = !target.exists();
    let mut file = target.create()?;
    file.write_all(args.content.as_bytes()).and_then(|()| file.sync_data()).map_err(|error| target.error(&error))?;
    Ok(Output { path: target.shown, bytes: args.content.len(), created })
}
