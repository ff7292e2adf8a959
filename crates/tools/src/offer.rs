//! What a model is offered for structured calls: the same tools, in the flavours its family was trained on.

use serde_json::{Map, Value, json};

use crate::Registry;
use crate::registry::Registered;

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

/// A tool as a model sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Offered {
    /// What the model calls it.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// How it is called.
    pub shape: Shape,
    /// The tool behind it.
    pub(crate) tool: String,
}

/// How a tool is called.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// With a JSON object.
    Function {
        /// Its schema.
        parameters: Value,
        /// Whether a server may hold the model to it.
        strict: bool,
    },
    /// With plain text.
    Freeform,
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
    /// What a model is offered of these tools. Those of servers, which may be hundreds, are reached through
    /// `mcp_call_tool`.
    pub fn offer(&self, registry: &Registry) -> Vec<Offered> {
        let ours = registry
            .iter()
            .filter(|tool| !tool.spec.name.starts_with("mcp."));
        ours.filter_map(|tool| self.one(tool)).collect()
    }

    fn one(&self, tool: &Registered) -> Option<Offered> {
        let spec = &tool.spec;
        let mut name = spec.name.clone();
        let mut schema = spec.input_schema.clone();
        match (spec.name.as_str(), self.shell, self.patch) {
            ("exec", ShellFlavour::Words, _) => name = "shell".to_owned(),
            ("exec", ShellFlavour::Line, _) => {
                name = "shell_command".to_owned();
                schema = only(schema, &LINE_FIELDS, &["command"]);
                schema["properties"]["command"] =
                    json!({"type": "string", "description": "A line for bash."});
            }
            ("exec", _, _) => return None,
            ("exec_command" | "write_stdin", flavour, _) if flavour != ShellFlavour::Terminal => {
                return None;
            }
            ("apply_patch", _, None) => return None,
            ("apply_patch", _, Some(PatchFlavour::Freeform)) => {
                return Some(Offered {
                    name,
                    description: spec.description.clone(),
                    shape: Shape::Freeform,
                    tool: spec.name.clone(),
                });
            }
            ("apply_patch", _, Some(PatchFlavour::Text)) => {
                schema = only(schema, &["patch"], &["patch"])
            }
            ("apply_patch", _, Some(PatchFlavour::Json)) => {
                let fields = ["path", "original_content", "updated_content"];
                schema = only(schema, &fields, &["path", "updated_content"]);
            }
            ("view_image", _, _) if !self.view_image => return None,
            // A task is started by a script, and belongs to it.
            (name, _, _) if name.starts_with("spawn.") => return None,
            _ => {}
        }
        let parameters = if self.strict { strict(schema) } else { schema };
        let shape = Shape::Function {
            parameters,
            strict: self.strict,
        };
        Some(Offered {
            name,
            description: spec.description.clone(),
            shape,
            tool: spec.name.clone(),
        })
    }
}

/// A schema with these fields alone.
fn only(mut schema: Value, fields: &[&str], required: &[&str]) -> Value {
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.retain(|name, _| fields.contains(&name.as_str()));
    }
    schema["required"] = json!(required);
    schema
}

/// The schema in the form strict servers take: every object closed, every field required, absent ones null.
fn strict(schema: Value) -> Value {
    match schema {
        Value::Object(mut object) => {
            // These say what servers refuse to enforce.
            for key in [
                "default", "format", "minimum", "maximum", "$schema", "title",
            ] {
                object.remove(key);
            }
            let required: Vec<Value> = object
                .get("required")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            let mut object: Map<String, Value> = object
                .into_iter()
                .map(|(key, value)| (key, strict(value)))
                .collect();
            if let Some(Value::Object(properties)) = object.get_mut("properties") {
                let names: Vec<Value> = properties.keys().map(|name| json!(name)).collect();
                for (name, property) in properties.iter_mut() {
                    if !required.contains(&json!(name)) {
                        *property = nullable(std::mem::take(property));
                    }
                }
                object.insert("required".to_owned(), Value::Array(names));
                object.insert("additionalProperties".to_owned(), json!(false));
            }
            Value::Object(object)
        }
        Value::Array(items) => Value::Array(items.into_iter().map(strict).collect()),
        other => other,
    }
}

fn nullable(mut schema: Value) -> Value {
    let null = json!("null");
    match &mut schema["type"] {
        Value::String(kind) => schema["type"] = json!([kind, "null"]),
        Value::Array(kinds) if kinds.contains(&null) => {}
        Value::Array(kinds) => kinds.push(null),
        _ => {
            if let Some(object) = schema.as_object_mut() {
                object.remove("type");
            }
            schema = json!({"anyOf": [schema, {"type": "null"}]});
        }
    }
    schema
}
