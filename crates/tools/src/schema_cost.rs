//! Bounds the work of checking a value against a JSON Schema.
//!
//! Each `$def` of a schema can reference the next one twice, so that a schema of 3 KB needs 2^50
//! steps. The validator has no limit of its own; this module counts its steps beforehand.

use std::collections::HashSet;

use serde_json::Value;

/// Most steps of a check. A step is one schema that applies to one value.
const MAX_CHECK_STEPS: usize = 300_000;

/// Most steps of a check that collects all errors. A longer one ends at the first error.
const MAX_COLLECTING_STEPS: usize = 20_000;

/// Most schemas that apply inside each other.
const MAX_CHECK_DEPTH: usize = 200;

/// Most levels of a schema that can be compiled.
const MAX_SCHEMA_LEVELS: usize = 1000;

/// A JSON Schema whose references or parts lie too deep inside each other. The compiler of schemas
/// needs stack for each level and has no limit of its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("its parts and references have more than {MAX_SCHEMA_LEVELS} levels")]
pub struct SchemaTooDeep;

/// Checks that a schema can be compiled. Counted are the levels of the document and of the target
/// of each reference, because the compiler enters each target at most once on a path.
pub fn check_schema_depth(schema: &Value) -> Result<(), SchemaTooDeep> {
    let mut references = HashSet::new();
    let levels = levels_of(schema, 0, &mut references).ok_or(SchemaTooDeep)?;
    let mut total = levels;
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap_or_default();
        // What is not a pointer can lead to any part.
        total += match schema.pointer(pointer) {
            Some(target) => levels_of(target, 0, &mut HashSet::new()).ok_or(SchemaTooDeep)?,
            None => levels,
        };
        if total > MAX_SCHEMA_LEVELS {
            return Err(SchemaTooDeep);
        }
    }
    Ok(())
}

/// Returns the levels of a value and collects its references. `None` if there are too many levels.
fn levels_of<'s>(
    value: &'s Value,
    depth: usize,
    references: &mut HashSet<&'s str>,
) -> Option<usize> {
    if depth > MAX_CHECK_DEPTH {
        return None;
    }
    let mut deepest = 0;
    match value {
        Value::Object(object) => {
            for (word, part) in object {
                if let ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(target)) =
                    (word.as_str(), part)
                {
                    references.insert(target);
                }
                deepest = deepest.max(levels_of(part, depth + 1, references)?);
            }
        }
        Value::Array(items) => {
            for item in items {
                deepest = deepest.max(levels_of(item, depth + 1, references)?);
            }
        }
        _ => return Some(0),
    }
    Some(deepest + 1)
}

/// How a value can be checked against a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckCost {
    /// All errors can be collected.
    Small,
    /// The first error can be found.
    Large,
    /// The check could take too long, or the schema references itself without end.
    TooLarge,
}

impl CheckCost {
    /// Counts the steps of checking `value` against `schema`, which is a whole document.
    pub fn of(schema: &Value, value: &Value) -> Self {
        // Inside a schema with an address of its own, references mean something else.
        if has_nested_address(schema, address_keys(schema), 0) {
            return Self::TooLarge;
        }
        let mut counter = StepCounter {
            root: schema,
            steps: 0,
        };
        match counter.count(schema, value, 0) {
            None => Self::TooLarge,
            Some(()) if counter.steps > MAX_COLLECTING_STEPS => Self::Large,
            Some(()) => Self::Small,
        }
    }
}

/// Returns the keys that give a part of this document an address of its own.
fn address_keys(root: &Value) -> &'static [&'static str] {
    let draft = root["$schema"].as_str().unwrap_or_default();
    match draft.contains("draft-04") {
        true => &["$id", "$schema", "id"],
        false => &["$id", "$schema"],
    }
}

/// Whether a part of a schema has one of the keys.
fn has_nested_address(schema: &Value, keys: &[&str], depth: usize) -> bool {
    let has_address = |key: &&str| schema.get(*key).is_some_and(Value::is_string);
    let is_nested = |part: &Value| has_nested_address(part, keys, depth + 1);
    depth > MAX_CHECK_DEPTH
        || (depth > 0 && keys.iter().any(has_address))
        || match schema {
            Value::Object(object) => object.values().any(is_nested),
            Value::Array(items) => items.iter().any(is_nested),
            _ => false,
        }
}

/// Counts the schemas that apply to a value and its parts. A method returns `None` if there are too
/// many, or if a reference cannot be followed.
struct StepCounter<'s> {
    root: &'s Value,
    steps: usize,
}

impl StepCounter<'_> {
    fn count(&mut self, schema: &Value, value: &Value, depth: usize) -> Option<()> {
        self.add(1)?;
        let Some(object) = schema.as_object() else {
            return Some(());
        };
        if depth > MAX_CHECK_DEPTH {
            return None;
        }
        for (word, part) in object {
            self.count_keyword(word, part, value, depth + 1)?;
        }
        Some(())
    }

    fn count_keyword(
        &mut self,
        word: &str,
        part: &Value,
        value: &Value,
        depth: usize,
    ) -> Option<()> {
        let parts = || part.as_object().into_iter().flatten();
        let fields = || value.as_object().into_iter().flatten();
        let items = || value.as_array().into_iter().flatten();
        match word {
            "$ref" | "$recursiveRef" | "$dynamicRef" => {
                let target = self.root.pointer(part.as_str()?.strip_prefix('#')?)?;
                self.count(target, value, depth)
            }
            "allOf" | "anyOf" | "oneOf" => {
                let mut options = part.as_array().into_iter().flatten();
                options.try_for_each(|option| self.count(option, value, depth))
            }
            "not" | "if" | "then" | "else" => self.count(part, value, depth),
            "dependentSchemas" | "dependencies" => {
                parts().try_for_each(|(_, schema)| self.count(schema, value, depth))
            }
            "properties" => parts().try_for_each(|(name, schema)| match value.get(name) {
                Some(field) => self.count(schema, field, depth),
                None => self.add(1),
            }),
            "patternProperties" => parts().try_for_each(|(_, schema)| {
                fields().try_for_each(|(_, field)| self.count(schema, field, depth))
            }),
            "additionalProperties" | "unevaluatedProperties" | "propertyNames" => {
                fields().try_for_each(|(_, field)| self.count(part, field, depth))
            }
            "prefixItems" | "items" if part.is_array() => {
                let mut schemas = part.as_array().into_iter().flatten().zip(items());
                schemas.try_for_each(|(schema, item)| self.count(schema, item, depth))
            }
            "items" | "contains" | "unevaluatedItems" | "additionalItems" => {
                items().try_for_each(|item| self.count(part, item, depth))
            }
            "enum" | "required" => self.add(part.as_array().map_or(0, Vec::len)),
            "uniqueItems" => self.add(value.as_array().map_or(0, Vec::len)),
            _ => Some(()),
        }
    }

    fn add(&mut self, steps: usize) -> Option<()> {
        self.steps = self.steps.saturating_add(steps);
        (self.steps <= MAX_CHECK_STEPS).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::ArgumentChecker;
    use crate::typescript::type_text;
    use serde_json::{Map, json};

    /// Returns a schema whose definitions reference the next one twice, with `word`.
    fn doubling(word: &str, levels: usize) -> Value {
        let mut definitions = Map::new();
        for level in 0..levels {
            let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
            definitions.insert(format!("d{level}"), json!({word: [next, next]}));
        }
        definitions.insert(format!("d{levels}"), json!({"type": "string"}));
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions})
    }

    #[test]
    fn a_schema_that_multiplies_is_too_large_and_an_ordinary_one_is_small() {
        for word in ["allOf", "anyOf", "oneOf"] {
            let cost = CheckCost::of(&doubling(word, 50), &json!({"a": 1}));
            assert_eq!(cost, CheckCost::TooLarge, "{word}");
            assert_eq!(
                CheckCost::of(&doubling(word, 50), &json!({})),
                CheckCost::Small
            );
            assert_eq!(
                CheckCost::of(&doubling(word, 4), &json!({"a": 1})),
                CheckCost::Small
            );
        }
        let numbers = json!({"items": {"type": "number"}});
        let list: Vec<usize> = (0..50_000).collect();
        assert_eq!(CheckCost::of(&numbers, &json!(list)), CheckCost::Large);
    }

    #[test]
    fn a_schema_that_contains_itself_is_counted_along_the_value() {
        let tree = json!({"type": "object", "properties": {
            "left": {"$ref": "#"}, "right": {"$ref": "#"}, "name": {"type": "string"}}});
        let mut value = json!({"name": "leaf"});
        for _ in 0..8 {
            value = json!({"left": value, "right": value});
        }
        assert_eq!(CheckCost::of(&tree, &value), CheckCost::Small);
        for endless in [
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"$ref": "#"}),
            json!({"not": {"$ref": "#"}}),
            json!({"$dynamicRef": "#x", "$dynamicAnchor": "x"}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$id": "urn:x", "type": "string"}}}),
        ] {
            assert_eq!(
                CheckCost::of(&endless, &json!({})),
                CheckCost::TooLarge,
                "{endless}"
            );
        }
    }

    /// The validator itself would need hours.
    #[test]
    fn arguments_of_a_schema_that_multiplies_are_not_checked() {
        let mut spec = crate::spec_of::<Value, Value>("x", "X.");
        for word in ["allOf", "anyOf", "oneOf"] {
            spec.input_schema = doubling(word, 50);
            let checker = ArgumentChecker::new(&spec).unwrap();
            assert_eq!(checker.check(&json!({"a": 1})), []);
            assert_eq!(checker.check(&json!([])).len(), 1);
        }
        spec.input_schema = json!({"properties": {"a": {"items": {"type": "string"}}}});
        let checker = ArgumentChecker::new(&spec).unwrap();
        let numbers = |count: usize| json!({"a": (0..count).collect::<Vec<_>>()});
        assert_eq!(checker.check(&numbers(10_000)).len(), 64);
        assert_eq!(checker.check(&numbers(50_000)).len(), 1);
    }

    #[test]
    fn types_of_a_schema_that_multiplies_are_limited() {
        for word in ["allOf", "anyOf", "prefixItems"] {
            let mut schema = doubling(word, 50);
            schema["$defs"]["d50"] = json!({"type": "object", "properties": {
                "long": {"description": "x".repeat(10_000), "type": "string"}}});
            let text = type_text(&schema, &schema);
            assert!(text.len() < 1 << 20, "{word}: {}", text.len());
        }
        let names: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
        assert!(type_text(&json!({"enum": names}), &Value::Null).len() > 100_000);
    }

    /// Returns a schema in which each of the definitions references the next one.
    fn chain(definitions: usize) -> Value {
        let mut chained = Map::new();
        for level in 0..definitions {
            let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
            chained.insert(format!("d{level}"), json!({"type": "array", "items": next}));
        }
        chained.insert(format!("d{definitions}"), json!({"type": "string"}));
        json!({"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": chained})
    }

    /// The compiler itself would overflow the stack, which ends the process.
    #[test]
    fn a_long_chain_of_references_is_not_followed_to_its_end() {
        let mut spec = crate::spec_of::<Value, Value>("x", "X.");
        spec.input_schema = chain(100_000);
        assert!(type_text(&spec.input_schema, &spec.input_schema).len() < 1000);
        let error = ArgumentChecker::new(&spec).err().unwrap();
        assert!(error.contains("more than 1000 levels"), "{error}");

        let mut anchors = chain(400);
        anchors["$defs"]["d400"]["$dynamicRef"] = json!("#x");
        assert_eq!(check_schema_depth(&anchors), Ok(()));
        let many = (0..400).map(|number| json!({"$dynamicRef": format!("#x{number}")}));
        anchors["allOf"] = many.collect();
        assert_eq!(check_schema_depth(&anchors), Err(SchemaTooDeep));

        spec.input_schema = chain(450);
        let checker = ArgumentChecker::new(&spec).unwrap();
        assert_eq!(checker.check(&json!({"a": [1]})).len(), 1);
    }
}
