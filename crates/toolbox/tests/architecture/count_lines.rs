//! The tool `count_lines`, which counts the lines of a file.

use schemars::JsonSchema;
use selvedge_protocol::ToolSpec;
use selvedge_toolbox::Workspace;
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, spec_of, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Arguments of `count_lines`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct CountLinesArgs {
    /// File to count, relative to the workspace.
    path: String,
}

/// Result of `count_lines`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CountLinesOutput {
    total_lines: usize,
}

/// The tool `count_lines`.
pub(crate) struct CountLines(pub(crate) Workspace);

impl Tool for CountLines {
    fn spec(&self) -> ToolSpec {
        spec_of::<CountLinesArgs, CountLinesOutput>("count_lines", "Counts the lines of a file.")
            .as_read_only()
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        let run = async |args: CountLinesArgs| count(&self.0, &args);
        typed_call(args, run, |output: &CountLinesOutput| {
            Some(format!("{} lines", output.total_lines))
        })
    }
}

fn count(workspace: &Workspace, args: &CountLinesArgs) -> Result<CountLinesOutput, ToolError> {
    let path = workspace.root().join(&args.path);
    let text = std::fs::read_to_string(&path)
        .map_err(|error| ToolError::new(format!("cannot read {}: {error}", args.path)))?;
    Ok(CountLinesOutput {
        total_lines: text.lines().count(),
    })
}
