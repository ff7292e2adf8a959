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
    pub fn with_brief_description(mut self, declared_as: &str) -> Self {
        self.description = format!("`tools.{declared_as}` as a structured call.");
        if let OfferedShape::Function { parameters, strict } = &mut self.shape {
            let strict = *strict;
            shorten_schema(parameters, strict);
            // `justification` says the same.
            if !strict && let Some(fields) = parameters.get_mut("properties") {
                fields
                    .as_object_mut()
                    .map(|fields| fields.remove("approval_context"));
            }
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

/// Keywords that only describe or bound a value.
const ANNOTATION_KEYWORDS: [&str; 6] = [
    "description",
    "default",
    "format",
    "minimum",
    "maximum",
    "title",
];

/// Keywords that providers reject, because they do not enforce them.
const UNENFORCED_KEYWORDS: [&str; 6] = [
    "default", "format", "minimum", "maximum", "$schema", "title",
];

/// Keywords whose value maps names to schemas. The names may equal keywords.
const SCHEMA_MAPS: [&str; 3] = ["properties", "$defs", "definitions"];

/// Removes what a model does not need if it knows the tool: descriptions, defaults and formats,
/// and, unless the schema is strict, null as an alternative.
fn shorten_schema(schema: &mut Value, strict: bool) {
    match schema {
        Value::Object(object) => {
            for key in ANNOTATION_KEYWORDS {
                object.remove(key);
            }
            if let Some(names) = object.get("oneOf").and_then(string_constants) {
                object.remove("oneOf");
                object.insert("type".to_owned(), json!("string"));
                object.insert("enum".to_owned(), names);
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
            for (key, value) in object.iter_mut() {
                match value {
                    Value::Object(schemas) if SCHEMA_MAPS.contains(&key.as_str()) => {
                        let schemas = schemas.values_mut();
                        schemas.for_each(|schema| shorten_schema(schema, strict));
                    }
                    value => shorten_schema(value, strict),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                shorten_schema(item, strict);
            }
        }
        _ => {}
    }
}

/// Returns the strings of alternatives that are one string each. Described variants of an `enum` in
/// Rust have this form.
fn string_constants(alternatives: &Value) -> Option<Value> {
    let constants = alternatives
        .as_array()?
        .iter()
        .map(|one| one.get("const").filter(|constant| constant.is_string()));
    constants.map(|constant| constant.cloned()).collect()
}

/// Converts a schema to strict form: no additional fields, every field required, optional fields
/// nullable.
fn strict_schema(schema: Value) -> Value {
    match schema {
        Value::Object(mut object) => {
            for key in UNENFORCED_KEYWORDS {
                object.remove(key);
            }
            let required: Vec<Value> = object
                .get("required")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            let convert = |(key, value): (String, Value)| match value {
                Value::Object(schemas) if SCHEMA_MAPS.contains(&key.as_str()) => {
                    let schemas = schemas.into_iter();
                    let schemas = schemas.map(|(name, schema)| (name, strict_schema(schema)));
                    (key, Value::Object(schemas.collect()))
                }
                value => (key, strict_schema(value)),
            };
            let mut object: Map<String, Value> = object.into_iter().map(convert).collect();
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
