//! Tools as they are offered to models for structured calls.

use serde_json::{Map, Value, json};

use crate::Registry;
use crate::registry::RegisteredTool;

/// A tool as it is offered to a model.
#[derive(Debug, Clone)]
pub struct OfferedTool {
    /// Name under which the model calls it.
    pub name: String,
    /// Description for the model.
    pub description: String,
    /// Form of the arguments.
    pub shape: OfferedShape,
    /// Canonical name of the registered tool.
    pub tool: String,
    /// Converts the model's arguments to those of the tool, in place.
    pub adapt: fn(&mut Value),
    /// Whether requests define the tool for structured calls although scripts can call it.
    pub in_script_mode: OfferInScriptMode,
}

/// Whether a tool that scripts can call is also defined for structured calls. A structured call of
/// a tool that is not defined works as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferInScriptMode {
    /// The tool is worth a direct call.
    Define,
    /// The tool is only declared for scripts, which saves its definition.
    DeclareOnly,
}

/// Form of the arguments of an offered tool.
#[derive(Debug, Clone)]
pub enum OfferedShape {
    /// JSON object.
    Function {
        /// JSON Schema of the object.
        parameters: Value,
        /// Whether the provider enforces the schema.
        strict: bool,
    },
    /// Plain text.
    Freeform {
        /// Field of the tool's arguments that receives the text.
        argument: String,
        /// Description of the text, for the model.
        description: String,
    },
}

impl OfferedTool {
    /// Offers a tool under its own name, with its own arguments and the defaults of structured
    /// calls.
    pub fn unmodified(tool: &RegisteredTool) -> Self {
        let mut parameters = tool.spec.input_schema.clone();
        for (field, default) in tool.spec.structured_defaults {
            parameters["properties"][field]["default"] = json!(default);
        }
        Self {
            name: tool.spec.name.clone(),
            description: tool.spec.description.clone(),
            shape: OfferedShape::Function {
                parameters,
                strict: false,
            },
            tool: tool.spec.name.clone(),
            adapt: |_| {},
            in_script_mode: OfferInScriptMode::Define,
        }
    }

    /// Returns the offer for a prompt that already declares the tool in TypeScript: a short
    /// description, and a schema without descriptions.
    pub fn brief(mut self, declared_as: &str) -> Self {
        self.description = format!("`tools.{declared_as}` as a structured call.");
        if let OfferedShape::Function { parameters, strict } = &mut self.shape {
            let strict = *strict;
            remove_descriptions(parameters, strict);
        }
        self
    }

    /// Converts the schema to the form that providers can enforce: every field is required, and
    /// null represents an absent field.
    pub fn strict(mut self) -> Self {
        if let OfferedShape::Function { parameters, strict } = &mut self.shape {
            *parameters = strict_schema(std::mem::take(parameters));
            *strict = true;
        }
        self
    }
}

/// Returns the tools that can be offered for structured calls.
pub fn offerable_tools(registry: &Registry) -> impl Iterator<Item = &RegisteredTool> {
    let tools = registry.iter().map(AsRef::as_ref);
    tools.filter(|tool: &&RegisteredTool| !tool.tool.is_script_only())
}

/// Removes what a model does not need if it knows the tool: descriptions, defaults and formats,
/// and, unless the schema is strict, null as an alternative.
fn remove_descriptions(schema: &mut Value, strict: bool) {
    match schema {
        Value::Object(object) => {
            // The keys of a list of properties are names, and its values are schemas.
            let is_schema = object.values().any(|value| !value.is_object());
            for key in [
                "description",
                "default",
                "format",
                "minimum",
                "maximum",
                "title",
            ] {
                if is_schema {
                    object.remove(key);
                }
            }
            if !strict {
                if object.get("additionalProperties") == Some(&Value::Bool(false)) {
                    object.remove("additionalProperties");
                }
                if let Some(Value::Array(kinds)) = object.get_mut("type") {
                    kinds.retain(|kind| kind != "null");
                    if let [kind] = &kinds[..] {
                        let kind = kind.clone();
                        object.insert("type".to_owned(), kind);
                    }
                }
            }
            for value in object.values_mut() {
                remove_descriptions(value, strict);
            }
        }
        Value::Array(items) => {
            for item in items {
                remove_descriptions(item, strict);
            }
        }
        _ => {}
    }
}

/// Converts a schema to strict form: no additional fields, every field required, optional fields
/// nullable.
fn strict_schema(schema: Value) -> Value {
    match schema {
        Value::Object(mut object) => {
            // Providers reject keywords that they do not enforce.
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
                        *property = make_nullable(std::mem::take(property));
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

fn make_nullable(mut schema: Value) -> Value {
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
