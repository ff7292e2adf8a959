//! Shortens a value that is too large to a preview that is still valid JSON.

use serde_json::{Map, Value};

/// Returns the value as at most `max_bytes` of JSON. Omitted parts are replaced by a text that says
/// how much is missing.
pub fn truncate_json(value: &Value, max_bytes: usize) -> String {
    // Halves the limits until the value fits: long strings and lists are shortened first.
    let mut room = TruncationLimits {
        max_items: 64,
        max_chars: (max_bytes / 8).max(16),
    };
    loop {
        let text = truncate_value(value, &room, 0).to_string();
        if text.len() <= max_bytes || (room.max_items <= 1 && room.max_chars <= 16) {
            return if text.len() <= max_bytes {
                text
            } else {
                Value::String(format!("… {} bytes of JSON", value.to_string().len())).to_string()
            };
        }
        room = TruncationLimits {
            max_items: (room.max_items / 2).max(1),
            max_chars: (room.max_chars / 2).max(16),
        };
    }
}

/// Largest number of items in a list or object, and of characters in a string.
struct TruncationLimits {
    max_items: usize,
    max_chars: usize,
}

fn truncate_value(value: &Value, room: &TruncationLimits, depth: usize) -> Value {
    match value {
        Value::String(text) => match text.char_indices().nth(room.max_chars) {
            Some((end, _)) => Value::String(format!(
                "{}… ({} more bytes)",
                &text[..end],
                text.len() - end
            )),
            None => value.clone(),
        },
        Value::Array(_) | Value::Object(_) if depth >= 32 => Value::String("…".to_owned()),
        Value::Array(items) => {
            let mut kept: Vec<Value> = items
                .iter()
                .take(room.max_items)
                .map(|item| truncate_value(item, room, depth + 1))
                .collect();
            if items.len() > room.max_items {
                kept.push(Value::String(format!(
                    "… {} more",
                    items.len() - room.max_items
                )));
            }
            Value::Array(kept)
        }
        Value::Object(fields) => {
            let mut kept: Map<String, Value> = fields
                .iter()
                .take(room.max_items)
                .map(|(key, item)| {
                    (
                        key.chars().take(room.max_chars).collect(),
                        truncate_value(item, room, depth + 1),
                    )
                })
                .collect();
            if fields.len() > room.max_items {
                kept.insert(
                    "…".to_owned(),
                    Value::String(format!("{} more fields", fields.len() - room.max_items)),
                );
            }
            Value::Object(kept)
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn previews_are_small_and_valid() {
        let big = json!({
            "text": "ü".repeat(200_000),
            "list": (0..50_000).collect::<Vec<_>>(),
            "deep": vec![vec![vec!["x"; 10]; 10]; 10],
        });
        for max in [64, 1000, 131_072] {
            let text = truncate_json(&big, max);
            assert!(text.len() <= max, "{} > {max}", text.len());
            let _: Value = serde_json::from_str(&text).unwrap();
        }
        assert!(truncate_json(&big, 131_072).len() > 20_000);
    }
}
