//! The JSON text of a script's result for the model: at most a given number of tokens, with a
//! handle to the full result if it is truncated.

use crate::token_estimate::exceeds_tokens;
use selvedge_protocol::{OutputPart, RunStatus, ScriptToolCallOutput};
use selvedge_script::truncate_json;
use serde_json::{Map, Value, json};

/// Returns the parts of a script's result for the model: one JSON text, and the images that the
/// script showed.
pub(crate) fn script_result_parts(
    output: &ScriptToolCallOutput,
    max_tokens: usize,
) -> Vec<OutputPart> {
    let text = result_text(output, max_tokens);
    let images = output.output.iter();
    let images = images.filter(|part| matches!(part, OutputPart::Image { .. }));
    let mut parts = vec![OutputPart::Text { text }];
    parts.extend(images.cloned());
    parts
}

fn result_text(output: &ScriptToolCallOutput, max_tokens: usize) -> String {
    let whole = Value::Object(result_fields(output)).to_string();
    if !exceeds_tokens(&whole, max_tokens) {
        return whole;
    }
    let mut bytes = max_tokens.saturating_mul(4).min(whole.len() / 2).max(512);
    loop {
        let text = truncated_result(output, bytes);
        if !exceeds_tokens(&text, max_tokens) || bytes <= 64 {
            return text;
        }
        bytes = bytes * 3 / 4;
    }
}

/// Returns the fields of the result. Empty fields are left out.
fn result_fields(output: &ScriptToolCallOutput) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("status".into(), json!(output.status));
    if output.status != RunStatus::Completed {
        fields.insert("run".into(), json!(output.id));
    }
    if let Some(error) = &output.error {
        let mut error = json!(error);
        if let Some(error_fields) = error.as_object_mut() {
            error_fields.retain(|_, value| {
                !(value.is_null() || value == &json!([]) || value == &json!({}))
            });
        }
        fields.insert("error".into(), error);
    }
    if let Some(value) = output.value() {
        fields.insert("value".into(), value);
    }
    let texts = output.output.iter().filter_map(|part| match part {
        OutputPart::Text { text } => Some(json!(text)),
        _ => None,
    });
    let logs = output.logs.iter().map(|log| json!(log.message));
    let warnings = output.warnings.iter().map(|warning| json!(warning));
    for (key, values) in [
        ("output", texts.collect::<Vec<_>>()),
        ("logs", logs.collect()),
        ("warnings", warnings.collect()),
    ] {
        if !values.is_empty() {
            fields.insert(key.into(), Value::Array(values));
        }
    }
    // After a failure the model must know which calls were made.
    if output.error.is_some() && !output.calls.is_empty() {
        let calls = output.calls.iter().map(|call| {
            let mut line = json!({"id": call.id, "tool": call.tool, "status": call.status});
            if let Some(error) = &call.error {
                line["error"] = json!(error.message);
            }
            line
        });
        fields.insert("calls".into(), calls.collect());
    }
    fields
}

/// Says how a model can read a whole result: of a run, or of a call of it.
pub(crate) fn recall_hint(handle: &str) -> String {
    format!("read all of it with `tools.recall({{ handle: \"{handle}\" }})`")
}

/// Returns the result in about `bytes` bytes. The value is truncated first; the error and the calls
/// get a larger share.
fn truncated_result(output: &ScriptToolCallOutput, bytes: usize) -> String {
    let id = &output.id;
    let mut fields = result_fields(output);
    let note = format!(
        "the result was truncated; `await tools.recall({{ handle: \"{id}\" }})` reads all of it, \
         in slices"
    );
    let value = fields.remove("value");
    let mut remaining = bytes.saturating_sub(note.len() + 40);
    let mut truncated = Map::new();
    let keys = "status run error calls warnings output logs".split(' ');
    for (key, share) in keys.zip([8, 8, 3, 3, 4, 2, 3]) {
        if let Some(field) = fields.get(key) {
            let text = truncate_json(field, (remaining / share).max(48));
            remaining = remaining.saturating_sub(text.len());
            let field = serde_json::from_str(&text).unwrap_or_default();
            truncated.insert(key.to_owned(), field);
        }
    }
    if let Some(value) = value {
        let text = truncate_json(&value, remaining.max(32));
        let value = serde_json::from_str(&text).unwrap_or_default();
        truncated.insert("value".into(), value);
    }
    truncated.insert("truncated".into(), json!(note));
    Value::Object(truncated).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::{LogEntry, LogLevel};

    fn output(value: &Value) -> ScriptToolCallOutput {
        let output = ScriptToolCallOutput::new("scr_1", "call_1");
        ScriptToolCallOutput {
            status: RunStatus::Completed,
            output_json: Some(value.to_string()),
            ..output
        }
    }

    #[test]
    fn a_small_result_has_no_empty_fields() {
        assert_eq!(
            result_text(&output(&json!({"a": 1})), 10_000),
            r#"{"status":"completed","value":{"a":1}}"#
        );
    }

    #[test]
    fn a_large_result_is_truncated_to_valid_json_with_a_handle() {
        let mut large = output(&json!({"rows": vec!["{}[]1234567890 漢字"; 20_000], "n": 7}));
        large.logs = vec![LogEntry {
            level: LogLevel::Log,
            message: "x1y2".repeat(50_000),
        }];
        large.output = vec![OutputPart::Text {
            text: "z ".repeat(50_000),
        }];
        for max in [200, 1_000, 10_000] {
            let text = result_text(&large, max);
            assert!(
                selvedge_tokens::count(&text) <= max,
                "{} > {max}",
                selvedge_tokens::count(&text)
            );
            let value: Value = serde_json::from_str(&text).unwrap();
            assert!(
                value["truncated"].as_str().unwrap().contains("scr_1"),
                "{value}"
            );
            assert_eq!(value["status"], "completed");
        }
        assert!(
            selvedge_tokens::count(&result_text(&large, 10_000)) > 3_000,
            "a large share of the token limit is used"
        );
    }
}
