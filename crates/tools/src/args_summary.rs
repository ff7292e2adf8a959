//! One-line summary of a call's arguments.

use selvedge_text::{one_line, truncate_chars};
use serde_json::Value;

/// Returns the strings and numbers of the arguments, joined and truncated to one line of a
/// terminal. Omits fields that have these defaults.
pub(crate) fn summarise_args(args: &Value, defaults: &[(&str, u64)]) -> String {
    let is_default = |name: &str, value: &Value| {
        let default = defaults.iter().find(|(field, _)| *field == name);
        default.is_some_and(|(_, default)| value.as_u64() == Some(*default))
    };
    let summary = match args.as_object() {
        Some(fields) => fields
            .iter()
            .filter(|(name, value)| !is_default(name, value))
            .filter_map(|(_, value)| match value {
                Value::String(text) => Some(text.clone()),
                Value::Array(items) if items.iter().all(Value::is_string) => Some(
                    items
                        .iter()
                        .filter_map(Value::as_str)
                        .collect::<Vec<_>>()
                        .join(" "),
                ),
                Value::Number(number) => Some(number.to_string()),
                _ => None,
            })
            .collect::<Vec<_>>()
            .join(" "),
        None => args.to_string(),
    };
    truncate_chars(&one_line(&summary, 81), 80).into_owned()
}
