//! The session files of other agents. An exchange, from a user's message to the next, becomes one turn of items.

use serde_json::{Value, json};

use super::Read;
use crate::Form;

/// What a line of a session file is.
enum Line {
    /// It names the session.
    Session(String),
    /// An item; a user's message begins another exchange.
    Items {
        begins: bool,
        key: Option<String>,
        ts: Option<String>,
        items: Vec<Value>,
    },
    Nothing,
}

/// Items on their way to becoming exchanges.
pub(super) struct Exchanges {
    session: String,
    is_named: bool,
    understand: fn(&Value) -> Line,
    open: Option<Read>,
    count: u32,
}

impl Exchanges {
    pub(super) fn codex(session: Option<&str>, file: &str) -> Self {
        Self::new(session, file, codex)
    }

    pub(super) fn claude_code(session: Option<&str>, file: &str) -> Self {
        Self::new(session, file, claude_code)
    }

    fn new(session: Option<&str>, file: &str, understand: fn(&Value) -> Line) -> Self {
        let stem = std::path::Path::new(file)
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned());
        let name = session
            .map(str::to_owned)
            .or(stem)
            .unwrap_or_else(|| "imported".to_owned());
        Self {
            session: name,
            is_named: session.is_some(),
            understand,
            open: None,
            count: 0,
        }
    }

    pub(super) fn read(&mut self, _line: &str, value: &Value, into: &mut Vec<Read>) {
        match (self.understand)(value) {
            Line::Session(name) if !self.is_named => {
                self.session = name;
                self.is_named = true;
            }
            Line::Items {
                begins,
                key,
                ts,
                items,
            } => {
                if !self.is_named
                    && let Some(name) = value["sessionId"].as_str()
                {
                    self.session = name.to_owned();
                    self.is_named = true;
                }
                if begins {
                    into.extend(self.open.take());
                }
                let (session, count) = (&self.session, &mut self.count);
                let open = self.open.get_or_insert_with(|| {
                    *count += 1;
                    let key = key.unwrap_or_else(|| format!("exchange {count}"));
                    let (role, key) = ("exchange".to_owned(), Value::String(key).to_string());
                    let (speaker, part, raw) = (None, None, String::new());
                    Read {
                        session: session.clone(),
                        key,
                        role,
                        speaker,
                        ts,
                        part,
                        form: Form::Items,
                        raw,
                    }
                });
                for item in items {
                    open.raw.push_str(&item.to_string());
                    open.raw.push('\n');
                }
            }
            _ => {}
        }
    }

    pub(super) fn finish(self, into: &mut Vec<Read>) {
        into.extend(self.open);
    }
}

/// Codex: `{"timestamp","type":"response_item","payload":{…}}`; older files have the bare items.
fn codex(line: &Value) -> Line {
    let (kind, item) = match line.get("payload") {
        Some(payload) => (line["type"].as_str().unwrap_or_default(), payload),
        None if line.get("type").is_some() => ("response_item", line),
        None => ("session_meta", line),
    };
    match kind {
        "session_meta" => item["id"]
            .as_str()
            .map_or(Line::Nothing, |id| Line::Session(id.to_owned())),
        "response_item" => {
            let is_user = item["type"] == "message" && item["role"] == "user";
            let begins = is_user && !is_circumstance(item);
            let ts = line["timestamp"].as_str().map(str::to_owned);
            let key = begins.then(|| ts.clone()).flatten();
            match item["type"].as_str() {
                // What nobody said and nothing came of.
                None | Some("ghost_snapshot" | "compaction") => Line::Nothing,
                _ => Line::Items {
                    begins,
                    key,
                    ts,
                    items: vec![item.clone()],
                },
            }
        }
        _ => Line::Nothing,
    }
}

/// What Codex tells the model in the user's name.
fn is_circumstance(item: &Value) -> bool {
    let text = item["content"][0]["text"]
        .as_str()
        .or(item["content"].as_str())
        .unwrap_or_default()
        .trim_start();
    [
        "<environment_context>",
        "<user_instructions>",
        "# AGENTS.md",
        "<permissions",
    ]
    .iter()
    .any(|mark| text.starts_with(mark))
}

/// Claude Code: `{"type":"user"|"assistant","message":{"role","content"},"uuid","sessionId","timestamp"}`.
fn claude_code(line: &Value) -> Line {
    let role = match line["type"].as_str() {
        Some(role @ ("user" | "assistant")) => role,
        _ => return Line::Nothing,
    };
    if line["isMeta"] == true || line["isSidechain"] == true {
        return Line::Nothing;
    }
    let content = &line["message"]["content"];
    let mut items = Vec::new();
    match content {
        Value::String(text) => items.push(message(role, text)),
        Value::Array(blocks) => blocks
            .iter()
            .for_each(|block| items.extend(block_item(role, block))),
        _ => {}
    }
    if items.is_empty() {
        return Line::Nothing;
    }
    let begins = role == "user" && items.iter().any(|item| item["type"] == "message");
    let text = |field: &str| line[field].as_str().map(str::to_owned);
    Line::Items {
        begins,
        key: text("uuid"),
        ts: text("timestamp"),
        items,
    }
}

fn message(role: &str, text: &str) -> Value {
    json!({"type": "message", "role": role, "content": text})
}

fn block_item(role: &str, block: &Value) -> Option<Value> {
    match block["type"].as_str()? {
        "text" => Some(message(role, block["text"].as_str()?)),
        "thinking" => Some(json!({"type": "reasoning", "content": block["thinking"]})),
        "tool_use" => Some(json!({
            "type": "function_call", "name": block["name"], "arguments": block["input"], "call_id": block["id"],
        })),
        "tool_result" => Some(json!({
            "type": "function_call_output", "call_id": block["tool_use_id"], "output": block["content"],
            "success": block["is_error"] != true,
        })),
        _ => None,
    }
}
