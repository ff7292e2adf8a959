//! What a turn says and does, read from its items: messages, thoughts, calls and what came of them.

use std::borrow::Cow;

use serde_json::Value;

use crate::Form;

/// A piece of a turn.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Piece {
    /// Somebody says something.
    Said { role: String, text: String },
    /// The model thinks aloud.
    Thought(String),
    /// A tool is called, or a script run.
    Called { name: String, args: String },
    /// What came of a call.
    Came { text: String, failed: bool },
}

/// The pieces of a turn. Text is one piece; a line that is no item is one, too.
pub(crate) fn pieces(form: Form, role: &str, raw: &[u8]) -> Vec<Piece> {
    let text = String::from_utf8_lossy(raw);
    if form == Form::Text {
        return vec![Piece::Said {
            role: role.to_owned(),
            text: text.into_owned(),
        }];
    }
    let mut pieces = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        match serde_json::from_str::<Value>(line) {
            Ok(item) if item.is_object() => read(&item, &mut pieces),
            _ => pieces.push(Piece::Said {
                role: role.to_owned(),
                text: line.to_owned(),
            }),
        }
    }
    pieces
}

/// The turn as one text, for the index.
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

fn read(item: &Value, pieces: &mut Vec<Piece>) {
    let text_of = |field: &str| text(&item[field]);
    match item["type"].as_str().unwrap_or("message") {
        "reasoning" => {
            let thought = [text_of("summary"), text_of("content"), text_of("text")]
                .into_iter()
                .find(|t| !t.is_empty());
            pieces.extend(thought.map(Piece::Thought));
        }
        "function_call" | "custom_tool_call" | "local_shell_call" | "script_tool_call" => {
            let name = item["name"].as_str().unwrap_or("script").to_owned();
            let args = ["arguments", "input", "source_code", "action"]
                .iter()
                .map(|field| text_of(field));
            pieces.push(Piece::Called {
                name,
                args: args.into_iter().find(|t| !t.is_empty()).unwrap_or_default(),
            });
        }
        "function_call_output" | "custom_tool_call_output" | "script_tool_call_output" => {
            let error = text(&item["error"]["message"]);
            let status = item["status"].as_str().unwrap_or_default();
            let failed =
                !error.is_empty() || status == "error" || item["success"] == Value::Bool(false);
            let parts = [
                error,
                text_of("output"),
                text_of("output_json"),
                text_of("content"),
            ];
            let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            pieces.push(Piece::Came {
                text: parts.join("\n"),
                failed,
            });
        }
        _ => {
            let said = [text_of("content"), text_of("text")]
                .into_iter()
                .find(|t| !t.is_empty())
                .unwrap_or_default();
            let role = item["role"].as_str().unwrap_or("assistant").to_owned();
            if !said.is_empty() {
                pieces.push(Piece::Said { role, text: said });
            }
        }
    }
}

/// The text in a value: itself, the texts of its parts, or its JSON.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let parts = parts.iter().map(|part| match part {
                Value::Object(fields) if fields.contains_key("text") => text(&fields["text"]),
                Value::Object(fields)
                    if fields.contains_key("image_url") || fields.contains_key("data") =>
                {
                    "[image]".to_owned()
                }
                other => text(other),
            });
            parts
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join("\n")
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
    fn an_exchange_is_read_piece_by_piece() {
        let raw = concat!(
            r#"{"type":"message","role":"user","content":[{"type":"input_text","text":"fix the test"}]}"#,
            "\n",
            r#"{"type":"reasoning","summary":[{"type":"summary_text","text":"look first"}]}"#,
            "\n",
            r#"{"type":"function_call","name":"exec","arguments":"{\"command\":[\"npm\",\"test\"]}","call_id":"1"}"#,
            "\n",
            r#"{"type":"function_call_output","call_id":"1","output":{"output":"2 failed"},"success":false}"#,
            "\nnot json\n",
        );
        let found = pieces(Form::Items, "exchange", raw.as_bytes());
        assert_eq!(
            found,
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
