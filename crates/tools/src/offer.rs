//! Tools as a model sees them in structured calls.

use serde_json::{Map, Value, json};

use crate::Registry;
use crate::registry::Registered;

/// A tool as a model sees it.
#[derive(Debug, Clone)]
pub struct Offered {
    /// What the model calls it.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// How it is called.
    pub shape: Shape,
    /// The canonical name of the tool behind it.
    pub tool: String,
    /// Turns the model's arguments into those of the tool.
    pub adapt: fn(&mut Value),
}

/// How a tool is called.
#[derive(Debug, Clone)]
pub enum Shape {
    /// With a JSON object.
    Function {
        /// Its schema.
        parameters: Value,
        /// Whether a server may hold the model to it.
        strict: bool,
    },
    /// With plain text.
    Freeform {
        /// The field of the tool's arguments that takes the text.
        argument: String,
        /// What the text is.
        description: String,
    },
}

impl Offered {
    /// The tool under its own name, with its own arguments.
    pub fn as_it_is(tool: &Registered) -> Self {
        Self {
            name: tool.spec.name.clone(),
            description: tool.spec.description.clone(),
            shape: Shape::Function {
                parameters: tool.spec.input_schema.clone(),
                strict: false,
            },
            tool: tool.spec.name.clone(),
            adapt: |_| {},
        }
    }

    /// The same, with a schema for servers that hold models to it: every field is required, and null
    /// stands for one that is absent.
    pub fn strict(mut self) -> Self {
        if let Shape::Function { parameters, strict } = &mut self.shape {
            *parameters = strict_schema(std::mem::take(parameters));
            *strict = true;
        }
        self
    }
}

/// The tools that are offered for structured calls, before any adaptation. Those of MCP servers, which
/// may be hundreds, are reached through `mcp_call_tool`; a task is started by a script, and belongs to
/// it.
pub fn offerable(registry: &Registry) -> impl Iterator<Item = &Registered> {
    let elsewhere = |name: &str| name.starts_with("mcp.") || name.starts_with("spawn.");
    let tools = registry.iter().map(AsRef::as_ref);
    tools.filter(move |tool: &&Registered| !elsewhere(&tool.spec.name))
}

/// The schema in the form strict servers take: every object closed, every field required, absent ones null.
fn strict_schema(schema: Value) -> Value {
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
                .map(|(key, value)| (key, strict_schema(value)))
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
        Value::Array(items) => Value::Array(items.into_iter().map(strict_schema).collect()),
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
