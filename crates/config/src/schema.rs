//! The JSON Schema of `config.toml`, and the reference table that is generated from it.

use schemars::Schema;
use schemars::transform::RecursiveTransform;
use serde_json::{Value, json};

use crate::Config;

/// Returns the JSON Schema (draft 2020-12) of `config.toml`, without `$ref`.
pub fn schema() -> Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings
            .transforms
            .push(Box::new(RecursiveTransform(normalise)) as _);
    });
    let mut schema = settings.into_generator().into_root_schema_for::<Config>();
    schema.insert("title".to_owned(), json!("Selvedge configuration"));
    schema.to_value()
}

/// Disallows unknown keys, joins the lines of descriptions, and removes `null`, which TOML does not
/// have.
fn normalise(schema: &mut Schema) {
    if schema.get("properties").is_some() {
        schema.insert("additionalProperties".to_owned(), json!(false));
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
    if schema.get("default") == Some(&Value::Null) {
        schema.remove("default");
    }
    if let Some(Value::Array(kinds)) = schema.get("type") {
        let kind = kinds.iter().find(|kind| **kind != "null").cloned();
        schema.insert("type".to_owned(), kind.unwrap_or_default());
    }
    if let Some(Value::Array(mut alternatives)) = schema.remove("anyOf") {
        alternatives.retain(|schema| schema["type"] != "null");
        let object = schema.ensure_object();
        match alternatives.as_slice() {
            [Value::Object(only)] => {
                for (key, value) in only.clone() {
                    object.entry(key).or_insert(value);
                }
            }
            _ => _ = object.insert("anyOf".to_owned(), Value::Array(alternatives)),
        }
    }
}

/// Returns a Markdown table of every key with its default and meaning.
pub fn reference() -> String {
    let mut rows = String::from("| key | default | meaning |\n|---|---|---|\n");
    for (key, node) in leaf_keys(&schema()) {
        let meaning = node["description"].as_str().unwrap_or_default();
        let default = match &node["default"] {
            Value::Null => "not set".to_owned(),
            default => format!("`{default}`"),
        };
        let values: Vec<String> = enum_values(&node)
            .filter_map(|value| {
                let meaning = value["description"].as_str()?.trim_end_matches('.');
                Some(format!("{} ({meaning})", value["const"]))
            })
            .collect();
        let values = match values.as_slice() {
            [] => String::new(),
            values => format!(" One of {}.", values.join(", ").replace('"', "`")),
        };
        let range = match range_text(&node) {
            Some(range)
                if node["minimum"].as_f64() != Some(0.0) || node.get("maximum").is_some() =>
            {
                format!(" Must be {}.", range.trim_start_matches("of "))
            }
            _ => String::new(),
        };
        rows.push_str(&format!(
            "| `{key}` | {default} | {meaning}{values}{range} |\n"
        ));
    }
    rows
}

/// Returns every key below a schema that is not itself a table of known keys, with its schema, in
/// order. `<name>` stands for a name that the user chooses.
pub(crate) fn leaf_keys(schema: &Value) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for (name, node) in schema["properties"].as_object().into_iter().flatten() {
        let entries = &node["additionalProperties"];
        let (below, path) = if node.get("properties").is_some() {
            (leaf_keys(node), name.clone())
        } else if entries.get("properties").is_some() {
            (leaf_keys(entries), format!("{name}.<name>"))
        } else {
            found.push((name.clone(), node.clone()));
            continue;
        };
        found.extend(
            below
                .into_iter()
                .map(|(key, node)| (format!("{path}.{key}"), node)),
        );
    }
    found
}

/// Returns the values of an enumeration, each with `const` and `description`.
pub(crate) fn enum_values(schema: &Value) -> impl Iterator<Item = &Value> {
    schema["oneOf"].as_array().into_iter().flatten()
}

/// Returns the bounds of a number as text for a message.
pub(crate) fn range_text(schema: &Value) -> Option<String> {
    match (
        &schema["minimum"],
        &schema["maximum"],
        &schema["exclusiveMinimum"],
    ) {
        (Value::Null, _, Value::Null) => None,
        (Value::Null, _, min) => Some(format!("greater than {min}")),
        (min, Value::Null, _) => Some(format!("of at least {min}")),
        (min, max, _) => Some(format!("from {min} to {max}")),
    }
}
