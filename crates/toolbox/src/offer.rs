//! Adapts the tools for structured calls to the names and schemas that a model family was trained
//! on.

use selvedge_protocol::{PatchFlavour, ShellFlavour};
use selvedge_tools::{
    OfferInScriptMode, OfferedShape, OfferedTool, RegisteredTool, Registry, offerable_tools,
};
use serde_json::{Value, json};

use crate::command_request::shell_argv;

/// How the tools are offered to one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolsConfig {
    /// The tool that runs commands.
    pub shell: ShellFlavour,
    /// The format of patches. `None` does not offer `apply_patch`.
    pub patch: Option<PatchFlavour>,
    /// Whether to offer `view_image`, for models that accept images.
    pub view_image: bool,
    /// Whether to use strict schemas: every field is required, and optional fields accept null.
    pub strict: bool,
}

impl Default for ToolsConfig {
    fn default() -> Self {
        Self {
            shell: ShellFlavour::Argv,
            patch: Some(PatchFlavour::Text),
            view_image: true,
            strict: false,
        }
    }
}

/// The tools that are defined for structured calls even if scripts can call them.
const DIRECT_TOOLS: [&str; 7] = [
    "apply_patch",
    "exec",
    "exec_command",
    "read_file",
    "update_plan",
    "view_image",
    "write_stdin",
];

/// The fields of `exec` that `shell_command` offers.
const SHELL_COMMAND_FIELDS: [&str; 5] = [
    "command",
    "cwd",
    "timeout_ms",
    "with_escalated_permissions",
    "justification",
];

impl ToolsConfig {
    /// Returns the tools to offer to a model.
    pub fn offer(&self, registry: &Registry) -> Vec<OfferedTool> {
        offerable_tools(registry)
            .filter_map(|tool| self.offer_tool(tool))
            .map(|offered| match self.strict {
                true => offered.strict(),
                false => offered,
            })
            .collect()
    }

    fn offer_tool(&self, tool: &RegisteredTool) -> Option<OfferedTool> {
        let mut offered = OfferedTool::unmodified(tool);
        if !DIRECT_TOOLS.contains(&offered.tool.as_str()) {
            offered.in_script_mode = OfferInScriptMode::DeclareOnly;
        }
        match (tool.spec.name.as_str(), self.shell, self.patch) {
            ("exec", ShellFlavour::Argv, _) => offered.name = "shell".to_owned(),
            ("exec", ShellFlavour::CommandLine, _) => {
                offered.name = "shell_command".to_owned();
                let mut schema = schema_with_fields(tool, &SHELL_COMMAND_FIELDS, &["command"]);
                schema["properties"]["command"] =
                    json!({"type": "string", "description": "Command line for bash."});
                offered.shape = function_shape(schema);
                offered.adapt = line_to_argv;
            }
            ("exec", _, _) => return None,
            ("exec_command" | "write_stdin", ShellFlavour::None, _) => return None,
            ("apply_patch", _, None) => return None,
            ("apply_patch", _, Some(PatchFlavour::Freeform)) => {
                offered.shape = OfferedShape::Freeform {
                    argument: "patch".to_owned(),
                    description: "The text of the patch.".to_owned(),
                };
            }
            ("apply_patch", _, Some(PatchFlavour::Text)) => {
                offered.shape = function_shape(schema_with_fields(tool, &["patch"], &["patch"]));
            }
            ("apply_patch", _, Some(PatchFlavour::Json)) => {
                let fields = ["path", "original_content", "updated_content"];
                offered.shape = function_shape(schema_with_fields(
                    tool,
                    &fields,
                    &["path", "updated_content"],
                ));
            }
            ("view_image", _, _) if !self.view_image => return None,
            _ => {}
        }
        Some(offered)
    }
}

fn function_shape(parameters: Value) -> OfferedShape {
    OfferedShape::Function {
        parameters,
        strict: false,
    }
}

/// Returns a tool's schema with only these fields.
fn schema_with_fields(tool: &RegisteredTool, fields: &[&str], required: &[&str]) -> Value {
    let mut schema = tool.spec.input_schema.clone();
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.retain(|name, _| fields.contains(&name.as_str()));
    }
    schema["required"] = json!(required);
    schema
}

/// Turns the line of a `shell_command` call into the list that `exec` takes.
fn line_to_argv(args: &mut Value) {
    if let Some(line) = args["command"].as_str() {
        args["command"] = json!(shell_argv(None, true, line.to_owned()));
    }
}
