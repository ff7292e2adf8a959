//! The JSON Schema, the reference and the example in docs/configuration.md agree.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeSet;

use serde_json::{Value, json};

fn page() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    std::fs::read_to_string(page).unwrap()
}

fn example() -> String {
    let page = page();
    let (_, rest) = page.split_once("```toml\n").unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_documented_example_matches_the_schema() {
    let schema = selvedge_config::schema();
    assert!(jsonschema::draft202012::meta::is_valid(&schema));
    let validator = jsonschema::validator_for(&schema).unwrap();
    let example: toml::Table = example().parse().unwrap();
    let example = serde_json::to_value(example).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(&example)
        .map(|error| error.to_string())
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    for wrong in [
        json!({"script_harness": {"limits": {"timeout_ms": "30s"}}}),
        json!({"script_harness": {"limits": {"memory": 3}}}),
        json!({"script_harness": {"limits": {"memory_mb": 4096}}}),
        json!({"approval_policy": "sometimes"}),
        json!({"model_providers": {"x": {"script_harness": "sometimes"}}}),
        json!({"model_providers": {"x": {"script_harness": {"limits": {"memory": 3}}}}}),
        json!({"models": {"x": {"script_harness": {"limits": {"memory_mb": 4096}}}}}),
        json!({"mcp_servers": {"x": {"tool_timeout_sec": 0}}}),
    ] {
        assert!(!validator.is_valid(&wrong), "{wrong}");
    }
}

#[test]
fn the_documented_example_is_loaded_without_diagnostics() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.toml"), example()).unwrap();
    let (config, found) = selvedge_config::load(Some(dir.path()), None);
    assert_eq!(found, []);
    assert_ne!(config, selvedge_config::Config::default());
}

/// Collects the keys of a schema that are not tables of known keys. `<name>` stands for a name that
/// the user chooses.
fn keys(schema: &Value, path: &str, into: &mut BTreeSet<String>) {
    for (name, node) in schema["properties"].as_object().unwrap() {
        let key = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        if node.get("properties").is_some() {
            keys(node, &key, into);
        } else if node["additionalProperties"].get("properties").is_some() {
            keys(
                &node["additionalProperties"],
                &format!("{key}.<name>"),
                into,
            );
        } else {
            into.insert(key);
        }
    }
}

#[test]
fn every_documented_key_is_in_the_schema_and_every_key_is_documented() {
    let schema = selvedge_config::schema();
    let mut known = BTreeSet::new();
    keys(&schema, "", &mut known);
    let page = page();
    let (_, table) = page.split_once("<!-- generated: keys -->").unwrap();
    let (table, _) = table.split_once("<!-- /generated -->").unwrap();
    let documented: BTreeSet<String> = table
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned()))
        .collect();
    assert!(known.len() > 80);
    assert_eq!(documented, known);
}

#[test]
fn every_key_has_a_description() {
    fn check(schema: &Value, path: &str) {
        for (name, node) in schema["properties"].as_object().into_iter().flatten() {
            let key = format!("{path}.{name}");
            assert!(node["description"].is_string(), "{key} has no description");
            check(node, &key);
            check(&node["additionalProperties"], &key);
        }
    }
    check(&selvedge_config::schema(), "");
}
