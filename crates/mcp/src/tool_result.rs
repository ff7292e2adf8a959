//! Converts a `CallToolResult` of a server into the value that a script receives.

use selvedge_tools::{ToolError, ToolOutput, image_parts};
use serde_json::{Map, Value, json};

/// Characters of an error message that a script receives.
const MAX_ERROR_CHARS: usize = 2048;

/// Returns the value of a `CallToolResult`.
///
/// That is its structured content; else its only text block, parsed if it is a JSON object or
/// array; else the array of all content blocks. A result with `isError` is an error.
pub(crate) fn parse_tool_result(result: Value) -> Result<ToolOutput, ToolError> {
    let failed = is_error_result(&result);
    let Value::Object(mut result) = result else {
        let reason = "the server did not return a tool result";
        return Err(ToolError::new(reason));
    };
    let content = match result.remove("content") {
        Some(Value::Array(blocks)) => blocks,
        _ => Vec::new(),
    };
    if failed {
        return Err(error_from_result(
            &content,
            result.remove("structuredContent"),
        ));
    }
    let rendering = content_text(&content);
    let images = image_parts(&content);
    let value = match result.remove("structuredContent") {
        Some(value) if !value.is_null() => value,
        _ => content_value(content),
    };
    Ok(ToolOutput {
        value,
        model_text: (!rendering.is_empty()).then_some(rendering),
        images,
        unconfined_retry: None,
        failure: None,
    })
}

fn content_value(mut content: Vec<Value>) -> Value {
    match content.as_slice() {
        [] => Value::Null,
        [block] if block["type"] == "text" => {
            let Value::String(text) = content[0]["text"].take() else {
                return Value::Null;
            };
            let bytes = text.trim_ascii().as_bytes();
            let looks_like_json = matches!(bytes, [b'{', .., b'}'] | [b'[', .., b']']);
            match serde_json::from_str::<Value>(&text) {
                Ok(value) if looks_like_json => value,
                _ => Value::String(text),
            }
        }
        _ => Value::Array(content),
    }
}

fn content_text(content: &[Value]) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let resource = |resource: &Value| format!("[resource {}]", text(&resource["uri"]));
    let shown = |block: &Value| match block["type"].as_str() {
        Some("text") => text(&block["text"]),
        Some(kind @ ("image" | "audio")) => format!("[{kind} {}]", text(&block["mimeType"])),
        Some("resource_link") => resource(block),
        Some("resource") => match block["resource"]["text"].as_str() {
            Some(text) => text.to_owned(),
            None => resource(&block["resource"]),
        },
        _ => String::new(),
    };
    let texts = content.iter().map(shown).filter(|text| !text.is_empty());
    texts.collect::<Vec<_>>().join("\n")
}

fn error_from_result(content: &[Value], structured: Option<Value>) -> ToolError {
    let text = content_text(content);
    let message = match text.trim() {
        "" => "the tool failed without an error message".to_owned(),
        text => text.chars().take(MAX_ERROR_CHARS).collect(),
    };
    let mut error = ToolError::new(message);
    if let Some(details) = structured.filter(|details| details.to_string().len() <= 4096) {
        error.metadata = Map::from_iter([("structuredContent".to_owned(), details)]);
    }
    error
}

/// Returns whether a result reports that the call failed.
pub(crate) fn is_error_result(result: &Value) -> bool {
    result.get("isError") == Some(&Value::Bool(true))
}

/// Returns the JSON Schema of a whole `CallToolResult`.
pub(crate) fn raw_result_schema(structured: Option<&Value>) -> Value {
    json!({
        "type": "object",
        "properties": {
            "content": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"type": {"type": "string"}},
                    "required": ["type"],
                },
            },
            "structuredContent": structured.cloned().unwrap_or(json!({})),
            "isError": {"type": "boolean"},
        },
        "required": ["content"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_becomes_the_value_of_the_call() {
        let text = |text: &str| json!({"type": "text", "text": text});
        for (result, value) in [
            (
                json!({"content": [text("{\"a\":1}")], "structuredContent": {"b": 2}}),
                json!({"b": 2}),
            ),
            (json!({"content": [text("{\"a\":1}")]}), json!({"a": 1})),
            (json!({"content": [text(" [1, 2] ")]}), json!([1, 2])),
            (json!({"content": [text("42")]}), json!("42")),
            (json!({"content": [text("{broken}")]}), json!("{broken}")),
            (
                json!({"content": [text("a"), text("b")]}),
                json!([text("a"), text("b")]),
            ),
            (json!({"content": []}), Value::Null),
            (
                json!({"content": [text("x")], "structuredContent": null}),
                json!("x"),
            ),
        ] {
            assert_eq!(
                parse_tool_result(result.clone()).unwrap().value,
                value,
                "{result}"
            );
        }
        let image = json!({"type": "image", "data": "AAAA", "mimeType": "image/png"});
        let shown = parse_tool_result(json!({"content": [image]})).unwrap();
        assert_eq!(shown.value, json!([image]));
        let result = json!({"content": [image], "structuredContent": {"width": 3}});
        let structured = parse_tool_result(result).unwrap();
        assert_eq!(structured.value, json!({"width": 3}));
        assert_eq!((shown.images.len(), structured.images), (1, shown.images));
    }

    #[test]
    fn an_error_result_becomes_an_error() {
        let error = parse_tool_result(
            json!({"content": [{"type": "text", "text": "no such file"}], "isError": true}),
        )
        .unwrap_err();
        assert_eq!(error.message, "no such file");
        assert!(
            parse_tool_result(json!({"isError": true}))
                .unwrap_err()
                .message
                .contains("without an error message")
        );
        assert!(parse_tool_result(json!(3)).is_err());
    }
}
