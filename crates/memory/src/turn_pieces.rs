//! Parses the raw bytes of a turn into pieces: messages, reasoning, calls and their outputs.

use std::borrow::Cow;

use serde_json::Value;

use crate::TurnFormat;

/// A piece of a turn.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TurnPiece {
    /// A message of a person or a model.
    Message { role: String, text: String },
    /// Reasoning of the model.
    Reasoning(String),
    /// A tool call, or a script.
    Call { name: String, args: String },
    /// The output of a call. `calls` are the calls that a script made.
    Output {
        text: String,
        failed: bool,
        calls: Vec<ScriptCall>,
    },
}

/// A call inside a script, as the raw turn has it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScriptCall {
    pub(crate) tool: String,
    pub(crate) args: Value,
    pub(crate) result: Value,
    /// The message of its error.
    pub(crate) error: Option<String>,
}

impl TurnPiece {
    /// Returns how many tool calls the piece stands for. The calls of a script count, the script
    /// itself counts only if it made none.
    pub(crate) fn tool_calls(&self) -> usize {
        match self {
            Self::Call { .. } => 1,
            Self::Output { calls, .. } => calls.len().saturating_sub(1),
            Self::Message { .. } | Self::Reasoning(_) => 0,
        }
    }
}

/// Parses a turn. Plain text is one message; so is a line that is not a JSON item.
pub(crate) fn parse_pieces(form: TurnFormat, role: &str, raw: &[u8]) -> Vec<TurnPiece> {
    let text = String::from_utf8_lossy(raw);
    let message = |text: &str| TurnPiece::Message {
        role: role.to_owned(),
        text: text.to_owned(),
    };
    if form == TurnFormat::Text {
        return vec![message(&text)];
    }
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let parse = |line| match serde_json::from_str::<Value>(line) {
        Ok(item) if item.is_object() => parse_item(&item),
        _ => Some(message(line)),
    };
    lines.filter_map(parse).collect()
}

/// Returns the text of a turn for the index: all its pieces, one after the other.
pub(crate) fn searchable_text(form: TurnFormat, raw: &[u8]) -> Cow<'_, str> {
    if form == TurnFormat::Text {
        return String::from_utf8_lossy(raw);
    }
    let mut all = String::new();
    for piece in parse_pieces(form, "", raw) {
        let parts = match &piece {
            TurnPiece::Message { text, .. }
            | TurnPiece::Reasoning(text)
            | TurnPiece::Output { text, .. } => ["", text],
            TurnPiece::Call { name, args } => [name.as_str(), args.as_str()],
        };
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            all.push_str(part);
            all.push('\n');
        }
    }
    Cow::Owned(all)
}

/// Parses an item, by its `type`. An unknown type is read as a message.
fn parse_item(item: &Value) -> Option<TurnPiece> {
    let first_text = |fields: &[&str]| {
        let mut texts = fields.iter().map(|field| text_of_value(&item[field]));
        texts.find(|text| !text.is_empty())
    };
    match item["type"].as_str().unwrap_or("message") {
        "reasoning" => first_text(&["summary", "content", "text"]).map(TurnPiece::Reasoning),
        "function_call" | "custom_tool_call" | "local_shell_call" | "script_tool_call" => {
            let args = first_text(&["arguments", "input", "source_code", "action"]);
            Some(TurnPiece::Call {
                name: item["name"].as_str().unwrap_or("script").to_owned(),
                args: args.unwrap_or_default(),
            })
        }
        "function_call_output" | "custom_tool_call_output" | "script_tool_call_output" => {
            let error = text_of_value(&item["error"]["message"]);
            let failed = !error.is_empty() || item["status"] == "error" || item["success"] == false;
            let mut parts = vec![error];
            parts.extend(
                ["output", "output_json", "content", "logs"]
                    .map(|field| text_of_value(&item[field])),
            );
            parts.retain(|part| !part.is_empty());
            let text = parts.join("\n");
            let calls = item["calls"].as_array().into_iter().flatten();
            let calls = calls.map(parse_script_call).collect();
            Some(TurnPiece::Output {
                text,
                failed,
                calls,
            })
        }
        _ => {
            let role = item["role"].as_str().unwrap_or("assistant").to_owned();
            first_text(&["content", "text"]).map(|text| TurnPiece::Message { role, text })
        }
    }
}

fn parse_script_call(call: &Value) -> ScriptCall {
    let error = match &call["error"] {
        Value::Null => None,
        Value::Object(fields) => Some(
            fields
                .get("message")
                .map_or_else(|| call["error"].to_string(), text_of_value),
        ),
        other => Some(text_of_value(other)),
    };
    ScriptCall {
        tool: call["tool"].as_str().unwrap_or("tool").to_owned(),
        args: call["args"].clone(),
        result: call["result"].clone(),
        error,
    }
}

/// Returns the text in a JSON value: a string itself, the texts of an array's parts, or the JSON.
pub(crate) fn text_of_value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let parts = parts.iter().map(|part| match part {
                Value::Object(fields) => match fields.get("text") {
                    Some(part) => text_of_value(part),
                    None if ["image_url", "data"]
                        .iter()
                        .any(|at| fields.contains_key(*at)) =>
                    {
                        "[image]".to_owned()
                    }
                    None => text_of_value(part),
                },
                other => text_of_value(other),
            });
            let parts = parts.filter(|part| !part.is_empty());
            parts.collect::<Vec<_>>().join("\n")
        }
        Value::Object(fields) if fields.contains_key("output") => text_of_value(&fields["output"]),
        Value::Object(fields) if fields.contains_key("text") => text_of_value(&fields["text"]),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_inside_scripts_are_parsed() {
        let raw = concat!(
            r#"{"type":"script_tool_call","source_code":"await tools.exec('ls')"}"#,
            "\n",
            r#"{"type":"script_tool_call_output","status":"completed","output_json":"3","#,
            r#""calls":[{"tool":"exec","status":"done","args":{"command":["ls"]},"#,
            r#""result":{"exitCode":0}},{"tool":"read_file","error":{"message":"gone"}}]}"#,
        );
        let pieces = parse_pieces(TurnFormat::Items, "exchange", raw.as_bytes());
        let [_, TurnPiece::Output { calls, .. }] = &pieces[..] else {
            panic!("{pieces:?}");
        };
        assert_eq!(calls[0].args["command"][0], "ls");
        assert_eq!(calls[1].error.as_deref(), Some("gone"));
        assert_eq!(pieces.iter().map(TurnPiece::tool_calls).sum::<usize>(), 2);
    }

    #[test]
    fn an_exchange_is_parsed_into_pieces() {
        let raw = concat!(
            r#"{"type":"message","role":"user","#,
            r#""content":[{"type":"input_text","text":"fix the test"}]}"#,
            "\n",
            r#"{"type":"reasoning","summary":[{"type":"summary_text","text":"look first"}]}"#,
            "\n",
            r#"{"type":"function_call","name":"exec","#,
            r#""arguments":"{\"command\":[\"npm\",\"test\"]}","call_id":"1"}"#,
            "\n",
            r#"{"type":"function_call_output","call_id":"1","#,
            r#""output":{"output":"2 failed"},"success":false}"#,
            "\nnot json\n",
        );
        let parsed = parse_pieces(TurnFormat::Items, "exchange", raw.as_bytes());
        assert_eq!(
            parsed,
            [
                TurnPiece::Message {
                    role: "user".into(),
                    text: "fix the test".into()
                },
                TurnPiece::Reasoning("look first".into()),
                TurnPiece::Call {
                    name: "exec".into(),
                    args: r#"{"command":["npm","test"]}"#.into()
                },
                TurnPiece::Output {
                    text: "2 failed".into(),
                    failed: true,
                    calls: Vec::new(),
                },
                TurnPiece::Message {
                    role: "exchange".into(),
                    text: "not json".into()
                },
            ]
        );
        assert!(searchable_text(TurnFormat::Items, raw.as_bytes()).contains("exec\n{\"command\""));
        assert_eq!(searchable_text(TurnFormat::Text, b"a\xffb"), "a\u{fffd}b");
    }
}
