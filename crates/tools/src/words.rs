//! A call in a few words: the digest that names it, the line that shows it.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// What is said to people about a call, and is no part of what it does.
const WORDS_FOR_PEOPLE: [&str; 2] = ["approval_context", "justification"];

/// Names a tool and its arguments, whatever the order of fields. Without the key nobody can find out by trying what
/// was digested.
pub(crate) fn digest(key: &[u8; 32], tool: &str, args: &Value) -> String {
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Object(object) => {
                let mut pairs: Vec<_> = object.iter().map(|(key, value)| (key.clone(), sorted(value))).collect();
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
                Value::Object(pairs.into_iter().collect())
            }
            Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
            other => other.clone(),
        }
    }
    // HMAC, with a key that is shorter than a block.
    let (mut inner, mut outer) = ([0x36; 64], [0x5c; 64]);
    for (index, byte) in key.iter().enumerate() {
        inner[index] ^= byte;
        outer[index] ^= byte;
    }
    let mut work = sorted(args);
    if let Value::Object(fields) = &mut work {
        fields.retain(|name, _| !WORDS_FOR_PEOPLE.contains(&name.as_str()));
    }
    let text = format!("{tool}\n{work}");
    let hash = Sha256::new().chain_update(inner).chain_update(text).finalize();
    let hash = Sha256::new().chain_update(outer).chain_update(hash).finalize();
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Arguments in a few words, for a line on a terminal.
pub(crate) fn about(args: &Value) -> String {
    let words = match args.as_object() {
        Some(fields) => fields
            .values()
            .filter_map(|value| match value {
                Value::String(text) => Some(text.clone()),
                Value::Array(items) if items.iter().all(Value::is_string) => {
                    Some(items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "))
                }
                Value::Number(number) => Some(number.to_string()),
                _ => None,
            })
            .collect::<Vec<_>>()
            .join(" "),
        None => args.to_string(),
    };
    let line: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(80).collect();
    if words.chars().count() > 80 { format!("{line}…") } else { line }
}
