//! What a model is offered for structured calls: the same tools, in the flavours its family was trained on.

use selvedge_tools::{Offered, Registered, Registry, Shape, offerable};
use serde_json::{Value, json};

/// How tools are shown to one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolsConfig {
    /// How commands are run.
    pub shell: ShellFlavour,
    /// How patches are given; `None` offers none.
    pub patch: Option<PatchFlavour>,
    /// Whether it can look at images.
    pub view_image: bool,
    /// Whether schemas are made for servers that hold models to them: every field required, absent ones null.
    pub strict: bool,
}

/// How a model runs commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShellFlavour {
    /// `shell` with a list of words.
    #[default]
    Words,
    /// `shell_command` with one line for a shell.
    Line,
    /// `exec_command` and `write_stdin`: terminals that go on.
    Terminal,
    /// Not at all.
    None,
}

/// How a model gives patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchFlavour {
    /// As plain text, not JSON, where the API has such tools.
    Freeform,
    /// As one string field.
    Text,
    /// As a path with the text before and after.
    Json,
}

impl Default for ToolsConfig {
    fn default() -> Self {
        Self {
            shell: ShellFlavour::Words,
            patch: Some(PatchFlavour::Text),
            view_image: true,
            strict: false,
        }
    }
}

/// The line for a shell, and where and how long it runs.
const LINE_FIELDS: [&str; 5] = [
    "command",
    "cwd",
    "timeout_ms",
    "with_escalated_permissions",
    "justification",
];

impl ToolsConfig {
    /// What a model is offered of these tools.
    pub fn offer(&self, registry: &Registry) -> Vec<Offered> {
        offerable(registry)
            .filter_map(|tool| self.one(tool))
            .map(|offered| match self.strict {
                true => offered.strict(),
                false => offered,
            })
            .collect()
    }

    fn one(&self, tool: &Registered) -> Option<Offered> {
        let mut offered = Offered::as_it_is(tool);
        match (tool.spec.name.as_str(), self.shell, self.patch) {
            ("exec", ShellFlavour::Words, _) => offered.name = "shell".to_owned(),
            ("exec", ShellFlavour::Line, _) => {
                offered.name = "shell_command".to_owned();
                let mut schema = only(tool, &LINE_FIELDS, &["command"]);
                schema["properties"]["command"] =
                    json!({"type": "string", "description": "A line for bash."});
                offered.shape = function(schema);
                offered.adapt = words_of_line;
            }
            ("exec", _, _) => return None,
            ("exec_command" | "write_stdin", flavour, _) if flavour != ShellFlavour::Terminal => {
                return None;
            }
            ("apply_patch", _, None) => return None,
            ("apply_patch", _, Some(PatchFlavour::Freeform)) => {
                offered.shape = Shape::Freeform {
                    argument: "patch".to_owned(),
                    description: "The patch.".to_owned(),
                };
            }
            ("apply_patch", _, Some(PatchFlavour::Text)) => {
                offered.shape = function(only(tool, &["patch"], &["patch"]));
            }
            ("apply_patch", _, Some(PatchFlavour::Json)) => {
                let fields = ["path", "original_content", "updated_content"];
                offered.shape = function(only(tool, &fields, &["path", "updated_content"]));
            }
            ("view_image", _, _) if !self.view_image => return None,
            _ => {}
        }
        Some(offered)
    }
}

fn function(parameters: Value) -> Shape {
    Shape::Function {
        parameters,
        strict: false,
    }
}

/// A tool's schema with these fields alone.
fn only(tool: &Registered, fields: &[&str], required: &[&str]) -> Value {
    let mut schema = tool.spec.input_schema.clone();
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.retain(|name, _| fields.contains(&name.as_str()));
    }
    schema["required"] = json!(required);
    schema
}

/// `shell_command` takes a line where `exec` takes words.
fn words_of_line(args: &mut Value) {
    if let Some(line) = args["command"].as_str() {
        args["command"] = json!(["bash", "-lc", line]);
    }
}
