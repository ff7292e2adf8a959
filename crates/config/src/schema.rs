//! The JSON Schema of `config.toml`, and the reference that is generated from it.

use schemars::Schema;
use schemars::transform::RecursiveTransform;
use serde_json::{Value, json};

use crate::Config;

/// The JSON Schema (draft 2020-12) of `config.toml`, without `$ref`.
pub fn schema() -> Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings
            .transforms
            .push(Box::new(RecursiveTransform(tidy)) as _);
    });
    let mut schema = settings.into_generator().into_root_schema_for::<Config>();
    schema.insert("title".to_owned(), json!("Selvedge configuration"));
    schema.to_value()
}

/// Marks unknown keys as mistakes, joins the lines of descriptions, and drops `null`, which TOML does not have: a key
/// without a value is left out.
fn tidy(schema: &mut Schema) {
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
    if let Some(Value::Array(alternatives)) = schema.remove("anyOf") {
        let object = schema.ensure_object();
        let keys = alternatives.into_iter().filter(|one| one["type"] != "null");
        for (key, value) in keys.filter_map(|one| one.as_object().cloned()).flatten() {
            object.entry(key).or_insert(value);
        }
    }
}

/// Every key with its default and meaning, as a Markdown table.
pub fn reference() -> String {
    let mut rows = String::from("| key | default | meaning |\n|---|---|---|\n");
    for (key, node) in keys(&schema()) {
        let meaning = node["description"].as_str().unwrap_or_default();
        let default = match &node["default"] {
            Value::Null => "not set".to_owned(),
            default => format!("`{default}`"),
        };
        let values: Vec<String> = values(&node)
            .filter_map(|value| {
                let meaning = value["description"].as_str()?.trim_end_matches('.');
                let mut letters = meaning.chars();
                let first = letters.next()?.to_lowercase();
                Some(format!("{} ({first}{})", value["const"], letters.as_str()))
            })
            .collect();
        let values = match values.as_slice() {
            [] => String::new(),
            values => format!(" One of {}.", values.join(", ").replace('"', "`")),
        };
        let range = match range(&node) {
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

/// Every key below a schema that is not a table with known keys itself, with its own schema, in order. A name of your own
/// choice is `<name>`.
pub(crate) fn keys(schema: &Value) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for (name, node) in schema["properties"].as_object().into_iter().flatten() {
        let entries = &node["additionalProperties"];
        let (below, path) = if node.get("properties").is_some() {
            (keys(node), name.clone())
        } else if entries.get("properties").is_some() {
            (keys(entries), format!("{name}.<name>"))
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

/// The values of an enumeration, each with `const` and `description`.
pub(crate) fn values(schema: &Value) -> impl Iterator<Item = &Value> {
    schema["oneOf"].as_array().into_iter().flatten()
}

/// The bounds of a number, in words.
pub(crate) fn range(schema: &Value) -> Option<String> {
    match (
        &schema["minimum"],
        &schema["maximum"],
        &schema["exclusiveMinimum"],
    ) {
        (Value::Null, _, Value::Null) => None,
        (Value::Null, _, least) => Some(format!("greater than {least}")),
        (least, Value::Null, _) => Some(format!("of at least {least}")),
        (least, most, _) => Some(format!("from {least} to {most}")),
    }
}
