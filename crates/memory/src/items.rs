//! Parses the raw bytes of a turn into pieces: messages, reasoning, calls and their outputs.

use std::borrow::Cow;

use serde_json::Value;

use crate::Form;

/// A piece of a turn.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Piece {
    /// A message.
    Said { role: String, text: String },
    /// Reasoning of the model.
    Thought(String),
    /// A tool call, or a script.
    Called { name: String, args: String },
    /// The output of a call.
    Came { text: String, failed: bool },
}

/// Parses a turn. Plain text is one message; so is a line that is not a JSON item.
pub(crate) fn pieces(form: Form, role: &str, raw: &[u8]) -> Vec<Piece> {
    let text = String::from_utf8_lossy(raw);
    let message = |text: &str| Piece::Said {
        role: role.to_owned(),
        text: text.to_owned(),
    };
    if form == Form::Text {
        return vec![message(&text)];
    }
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let parse = |line| match serde_json::from_str::<Value>(line) {
        Ok(item) if item.is_object() => read(&item),
        _ => Some(message(line)),
    };
    lines.filter_map(parse).collect()
}

/// Returns the text of a turn for the index: all its pieces, one after the other.
pub(crate) fn readable(form: Form, raw: &[u8]) -> Cow<'_, str> {
    if form == Form::Text {
        return String::from_utf8_lossy(raw);
    }
    let mut all = String::new();
    for piece in pieces(form, "", raw) {
        let parts = match &piece {
            Piece::Said { text, .. } | Piece::Thought(text) | Piece::Came { text, .. } => {
                ["", text]
            }
            Piece::Called { name, args } => [name.as_str(), args.as_str()],
        };
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            all.push_str(part);
            all.push('\n');
        }
    }
    Cow::Owned(all)
}

/// Parses an item, by its `type`. An unknown type is read as a message.
fn read(item: &Value) -> Option<Piece> {
    let first_text = |fields: &[&str]| {
        let mut texts = fields.iter().map(|field| text(&item[field]));
        texts.find(|text| !text.is_empty())
    };
    match item["type"].as_str().unwrap_or("message") {
        "reasoning" => first_text(&["summary", "content", "text"]).map(Piece::Thought),
        "function_call" | "custom_tool_call" | "local_shell_call" | "script_tool_call" => {
            let args = first_text(&["arguments", "input", "source_code", "action"]);
            Some(Piece::Called {
                name: item["name"].as_str().unwrap_or("script").to_owned(),
                args: args.unwrap_or_default(),
            })
        }
        "function_call_output" | "custom_tool_call_output" | "script_tool_call_output" => {
            let error = text(&item["error"]["message"]);
            let failed = !error.is_empty() || item["status"] == "error" || item["success"] == false;
            let mut parts = vec![error];
            parts.extend(["output", "output_json", "content"].map(|field| text(&item[field])));
            parts.retain(|part| !part.is_empty());
            let text = parts.join("\n");
            Some(Piece::Came { text, failed })
        }
        _ => {
            let role = item["role"].as_str().unwrap_or("assistant").to_owned();
            first_text(&["content", "text"]).map(|text| Piece::Said { role, text })
        }
    }
}

/// Returns the text in a JSON value: a string itself, the texts of an array's parts, or the JSON.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let parts = parts.iter().map(|part| match part {
                Value::Object(fields) => match fields.get("text") {
                    Some(part) => text(part),
                    None if ["image_url", "data"]
                        .iter()
                        .any(|at| fields.contains_key(*at)) =>
                    {
                        "[image]".to_owned()
                    }
                    None => text(part),
                },
                other => text(other),
            });
            let parts = parts.filter(|part| !part.is_empty());
            parts.collect::<Vec<_>>().join("\n")
        }
        Value::Object(fields) if fields.contains_key("output") => text(&fields["output"]),
        Value::Object(fields) if fields.contains_key("text") => text(&fields["text"]),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let parsed = pieces(Form::Items, "exchange", raw.as_bytes());
        assert_eq!(
            parsed,
            [
                Piece::Said {
                    role: "user".into(),
                    text: "fix the test".into()
                },
                Piece::Thought("look first".into()),
                Piece::Called {
                    name: "exec".into(),
                    args: r#"{"command":["npm","test"]}"#.into()
                },
                Piece::Came {
                    text: "2 failed".into(),
                    failed: true
                },
                Piece::Said {
                    role: "exchange".into(),
                    text: "not json".into()
                },
            ]
        );
        assert!(readable(Form::Items, raw.as_bytes()).contains("exec\n{\"command\""));
        assert_eq!(readable(Form::Text, b"a\xffb"), "a\u{fffd}b");
    }
}
