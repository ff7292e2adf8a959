//! One-line summary of a call's arguments.

use selvedge_text::{one_line, truncate_chars};
use serde_json::Value;

use crate::names::snake_case;

/// Characters of a summary.
const MAX_SUMMARY_CHARS: usize = 80;

/// Returns the arguments in one line of a terminal: the first text as it is, such as a command or a
/// path, then words, numbers and flags with their names: `cargo test · timeout 60 s`. Omits fields
/// that have these defaults.
pub fn summarise_args(args: &Value, defaults: &[(&str, u64)]) -> String {
    let Some(fields) = args.as_object() else {
        return shorten(&args.to_string());
    };
    let is_default = |name: &str, value: &Value| {
        let default = defaults.iter().find(|(field, _)| *field == name);
        default.is_some_and(|(_, default)| value.as_u64() == Some(*default))
    };
    let mut main = None;
    let mut named = String::new();
    for (name, value) in fields
        .iter()
        .filter(|(name, value)| !is_default(name, value))
    {
        match plain_text(value) {
            Some(text) if main.is_none() => main = Some(text),
            // A word such as a path; not a text of its own.
            Some(text) if !text.is_empty() && !text.contains(char::is_whitespace) => {
                named.push_str(&format!(" · {} {text}", words_of(name)));
            }
            Some(_) => {}
            None => named.push_str(&named_value(name, value).unwrap_or_default()),
        }
    }
    let summary = format!("{}{named}", main.unwrap_or_default());
    shorten(summary.strip_prefix(" · ").unwrap_or(&summary))
}

fn shorten(text: &str) -> String {
    truncate_chars(&one_line(text, MAX_SUMMARY_CHARS + 1), MAX_SUMMARY_CHARS).into_owned()
}

/// Returns a string, or a list of strings joined by spaces.
fn plain_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(items) if !items.is_empty() => {
            let words: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            Some(words?.join(" "))
        }
        _ => None,
    }
}

/// Returns a number or a flag that is set, with its name. A time in milliseconds gets a unit.
fn named_value(name: &str, value: &Value) -> Option<String> {
    let name = snake_case(name);
    Some(match (value, name.strip_suffix("_ms")) {
        (Value::Number(ms), Some(name)) => {
            let time = match ms.as_f64()? {
                ms if ms < 1000.0 => format!("{ms} ms"),
                ms => format!("{} s", ms / 1000.0),
            };
            format!(" · {} {time}", words_of(name))
        }
        (Value::Number(number), None) => format!(" · {} {number}", words_of(&name)),
        (Value::Bool(true), _) => format!(" · {}", words_of(&name)),
        _ => return None,
    })
}

fn words_of(name: &str) -> String {
    snake_case(name).replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::summarise_args;
    use serde_json::json;

    #[test]
    fn the_first_text_stands_alone_and_other_values_are_named() {
        for (args, summary) in [
            (
                json!({"command": ["python3", "-m", "pytest"], "timeoutMs": 60_000}),
                "python3 -m pytest · timeout 60 s",
            ),
            (
                json!({"timeout_ms": 500, "command": "ls"}),
                "ls · timeout 500 ms",
            ),
            (
                json!({"path": "a.txt", "limit": 3, "deep": {"x": 1}}),
                "a.txt · limit 3",
            ),
            (json!({"pattern": "TODO", "path": "src"}), "TODO · path src"),
            (json!({"path": "a.txt", "content": "one\ntwo"}), "a.txt"),
            (json!({"all": true, "other": false}), "all"),
            (json!({"path": "a.txt", "limit": 7}), "a.txt"),
            (json!({}), ""),
            (json!("text"), "\"text\""),
        ] {
            assert_eq!(summarise_args(&args, &[("limit", 7)]), summary);
        }
        let long = summarise_args(&json!({"text": "x\n".repeat(200)}), &[]);
        assert!(long.chars().count() <= 81 && !long.contains('\n'), "{long}");
    }
}
