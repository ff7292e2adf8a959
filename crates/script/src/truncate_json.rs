//! Shortens a value that is too large to a preview that is still valid JSON: long strings and lists
//! keep their beginning and their end.

use selvedge_text::{count_noun, json_string_len, truncate_middle};
use serde_json::{Map, Value};

/// Lists with at most this many items keep all of them, each shortened. Longer lists lose items in
/// the middle.
const MAX_SHARED_ITEMS: usize = 8;
/// Objects with at most this many fields keep all of them, each shortened.
const MAX_SHARED_FIELDS: usize = 64;
/// Depth from which lists and objects are omitted.
const MAX_DEPTH: usize = 32;
/// Room for the note about omitted items, in bytes.
const NOTE_BYTES: usize = 40;

/// Returns the value as at most `max_bytes` of JSON, and uses most of them. Omitted parts are
/// replaced by a text that says how much is missing.
pub fn truncate_json(value: &Value, max_bytes: usize) -> String {
    let bytes = json_len(value);
    if bytes <= max_bytes {
        return value.to_string();
    }
    // The notes about omitted parts take room, too. If the text is too long, try again with less
    // room.
    let mut room = max_bytes;
    while room >= 16 {
        let text = shorten(value, room, 0).to_string();
        if text.len() <= max_bytes {
            return text;
        }
        room = (room * max_bytes / text.len()).min(room - 1) * 15 / 16;
    }
    Value::String(format!("… {bytes} bytes of JSON")).to_string()
}

/// Returns the value in about `room` bytes of JSON.
fn shorten(value: &Value, room: usize, depth: usize) -> Value {
    if json_len(value) <= room {
        return value.clone();
    }
    match value {
        Value::String(text) => Value::String(shorten_string(text, room)),
        Value::Array(_) | Value::Object(_) if depth >= MAX_DEPTH => Value::String("…".to_owned()),
        Value::Array(items) => shorten_array(items, room, depth),
        Value::Object(fields) => shorten_object(fields, room, depth),
        other => other.clone(),
    }
}

/// Truncates a text so that it takes about `room` bytes as a JSON string. Escapes need more bytes
/// than the characters they stand for.
fn shorten_string(text: &str, room: usize) -> String {
    let escaped = string_len(text).max(1);
    let bytes = room.saturating_sub(2) * text.len() / escaped;
    truncate_middle(text, bytes)
}

fn shorten_array(items: &[Value], room: usize, depth: usize) -> Value {
    let sizes: Vec<usize> = items.iter().map(|item| json_len(item) + 1).collect();
    if items.len() <= MAX_SHARED_ITEMS {
        let share = fair_share(&sizes, room.saturating_sub(2));
        let shortened = items.iter().map(|item| shorten(item, share, depth + 1));
        return shortened.collect();
    }
    let (head, tail, share) = kept_ends(&sizes, room);
    let mut kept: Vec<Value> = Vec::with_capacity(head + tail + 1);
    let ends = items[..head].iter().map(Some).chain([None]);
    let ends = ends.chain(items[items.len() - tail..].iter().map(Some));
    kept.extend(ends.map(|item| match item {
        Some(item) => shorten(item, share, depth + 1),
        None => {
            let omitted = count_noun(items.len() - head - tail, "item");
            Value::String(format!("… {omitted} omitted …"))
        }
    }));
    Value::Array(kept)
}

fn shorten_object(fields: &Map<String, Value>, room: usize, depth: usize) -> Value {
    let names: usize = fields.keys().map(|name| string_len(name) + 4).sum();
    let sizes: Vec<usize> = fields.values().map(json_len).collect();
    if fields.len() <= MAX_SHARED_FIELDS && names * 2 <= room {
        let share = fair_share(&sizes, room.saturating_sub(names + 2));
        let shorten =
            |(name, item): (&String, &Value)| (name.clone(), shorten(item, share, depth + 1));
        return Value::Object(fields.iter().map(shorten).collect());
    }
    let sizes: Vec<usize> = fields
        .iter()
        .map(|(name, item)| string_len(name) + 4 + json_len(item))
        .collect();
    let (head, tail, share) = kept_ends(&sizes, room);
    let mut kept = Map::new();
    for (at, (name, item)) in fields.iter().enumerate() {
        if at < head || at >= fields.len() - tail {
            kept.insert(name.clone(), shorten(item, share, depth + 1));
        } else if at == head {
            let omitted = count_noun(fields.len() - head - tail, "field");
            let note = format!("{omitted} omitted");
            kept.insert("…".to_owned(), Value::String(note));
        }
    }
    Value::Object(kept)
}

/// Returns the largest size to which all parts can be limited so that they fit into `room`.
pub fn fair_share(sizes: &[usize], room: usize) -> usize {
    let mut sorted = sizes.to_vec();
    sorted.sort_unstable();
    let mut left = room;
    for (at, size) in sorted.iter().enumerate() {
        let share = left / (sorted.len() - at);
        if *size > share {
            return share;
        }
        left -= size;
    }
    room
}

/// Returns how many parts to keep at the beginning and at the end, and the size to which each of
/// them is limited.
fn kept_ends(sizes: &[usize], room: usize) -> (usize, usize, usize) {
    let room = room.saturating_sub(NOTE_BYTES);
    // One large part must not take the room of all others.
    let share = (room / 4).max(1);
    let fitting = |parts: &mut dyn Iterator<Item = &usize>, mut room: usize| {
        let fits = |size: &&usize| match room.checked_sub(**size.min(&&share)) {
            Some(rest) => {
                room = rest;
                true
            }
            None => false,
        };
        parts.take_while(fits).count()
    };
    let head = fitting(&mut sizes.iter(), room * 2 / 3);
    let tail = fitting(&mut sizes[head..].iter().rev(), room / 3);
    (head, tail, share)
}

/// Returns the number of bytes of the value as JSON.
fn json_len(value: &Value) -> usize {
    match value {
        Value::Null => 4,
        Value::Bool(value) => 5 - usize::from(*value),
        Value::Number(number) => number.to_string().len(),
        Value::String(text) => string_len(text),
        Value::Array(items) => {
            let items: usize = items.iter().map(|item| json_len(item) + 1).sum();
            items.max(1) + 1
        }
        Value::Object(fields) => {
            let field = |(name, item): (&String, &Value)| string_len(name) + 2 + json_len(item);
            let fields: usize = fields.iter().map(field).sum();
            fields.max(1) + 1
        }
    }
}

/// Returns the number of bytes of a text as a JSON string with its quotes.
fn string_len(text: &str) -> usize {
    json_string_len(text) + 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shortened(value: &Value, max: usize) -> Value {
        let text = truncate_json(value, max);
        assert!(text.len() <= max, "{} > {max}: {text}", text.len());
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_length_is_that_of_the_serialised_value() {
        for value in [
            json!(null),
            json!([]),
            json!({}),
            json!([true, false, 1.5, -3, "a\n\"\u{1}ü"]),
            json!({"a": [], "b\t": {"c": null}}),
        ] {
            assert_eq!(json_len(&value), value.to_string().len(), "{value}");
        }
    }

    #[test]
    fn previews_are_valid_and_use_most_of_the_limit() {
        let rows: Vec<Value> = (0..5_000)
            .map(|n| json!({"n": n, "text": "a row\nof some length"}))
            .collect();
        let fields: Map<String, Value> = (0..5_000)
            .map(|n| (format!("field_{n}"), json!(n)))
            .collect();
        let values = [
            json!("line of a log\n".repeat(20_000)),
            json!("ü\u{1}".repeat(100_000)),
            json!({"text": "ü".repeat(200_000), "list": (0..50_000).collect::<Vec<_>>(), "n": 7}),
            Value::Array(rows),
            Value::Object(fields),
            json!([["x".repeat(90_000)], {"y": "y".repeat(90_000)}]),
        ];
        for value in &values {
            for max in [64, 200, 1_000, 36_000, 131_072] {
                let preview = shortened(value, max);
                let used = preview.to_string().len();
                assert!(max < 1_000 || used > max / 2, "{used} of {max}");
            }
        }
    }

    #[test]
    fn the_beginning_and_the_end_are_kept() {
        let text = shortened(&json!(format!("START{}END", "x".repeat(50_000))), 1_000);
        let text = text.as_str().unwrap();
        assert!(text.starts_with("START") && text.ends_with("END"), "{text}");
        let list = shortened(&json!((0..10_000).collect::<Vec<_>>()), 1_000);
        let list = list.as_array().unwrap();
        assert_eq!((&list[0], list.last().unwrap()), (&json!(0), &json!(9_999)));
        assert!(
            list.iter()
                .any(|item| item.to_string().contains("items omitted"))
        );
        // A large field does not take the room of the small ones.
        let object = shortened(
            &json!({"log": "x".repeat(50_000), "code": 7, "ok": false}),
            1_000,
        );
        assert_eq!((&object["code"], &object["ok"]), (&json!(7), &json!(false)));
    }
}
