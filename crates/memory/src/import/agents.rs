//! Parses the session files of Codex and Claude Code. An exchange, from a user's message to the
//! last item before the next one, becomes one turn.

use std::borrow::Cow;
use std::path::Path;

use serde_json::{Value, json};

use super::ImportedTurn;
use crate::TurnFormat;

/// A parsed line of a session file.
pub(super) enum AgentLogLine {
    /// The id of the session.
    Session(String),
    /// Items of a message.
    Items {
        /// Whether a user's message starts a new exchange here.
        starts_exchange: bool,
        key: Option<String>,
        ts: Option<String>,
        items: Vec<Value>,
    },
    /// A line without items of the conversation.
    Ignored,
}

/// Groups the items of a session file into exchanges.
pub(super) struct ExchangeReader {
    session: String,
    /// Whether the name of the session is final: given by the caller or found in the file.
    is_named: bool,
    parse_line: fn(&Value) -> AgentLogLine,
    /// The exchange that is being read.
    pub(super) current: Option<ImportedTurn>,
    count: u32,
}

impl ExchangeReader {
    pub(super) fn new(
        session: Option<&str>,
        file: &str,
        understand: fn(&Value) -> AgentLogLine,
    ) -> Self {
        let stem = Path::new(file)
            .file_stem()
            .map(|stem| stem.to_string_lossy());
        let name = session.map(Cow::Borrowed).or(stem);
        Self {
            session: name.unwrap_or("imported".into()).into_owned(),
            is_named: session.is_some(),
            parse_line: understand,
            current: None,
            count: 0,
        }
    }

    pub(super) fn read_line(&mut self, value: &Value, into: &mut Vec<ImportedTurn>) {
        match (self.parse_line)(value) {
            AgentLogLine::Session(name) if !self.is_named => {
                self.session = name;
                self.is_named = true;
            }
            AgentLogLine::Items {
                starts_exchange: begins,
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
                    into.extend(self.current.take());
                }
                let (session, count) = (&self.session, &mut self.count);
                let open = self.current.get_or_insert_with(|| {
                    *count += 1;
                    let key = key.unwrap_or_else(|| format!("exchange {count}"));
                    ImportedTurn {
                        session: session.clone(),
                        key: Value::String(key).to_string(),
                        role: "exchange".to_owned(),
                        speaker: None,
                        ts,
                        part: None,
                        format: TurnFormat::Items,
                        raw: String::new(),
                    }
                });
                for item in items {
                    open.raw.push_str(&format!("{item}\n"));
                }
            }
            _ => {}
        }
    }
}

/// Parses a line of Codex: `{"timestamp","type":"response_item","payload":{…}}`, or in older files
/// the item without an envelope.
pub(super) fn parse_codex_line(line: &Value) -> AgentLogLine {
    let (kind, item) = match line.get("payload") {
        Some(payload) => (line["type"].as_str().unwrap_or_default(), payload),
        None if line.get("type").is_some() => ("response_item", line),
        None => ("session_meta", line),
    };
    match kind {
        "session_meta" => item["id"].as_str().map_or(AgentLogLine::Ignored, |id| {
            AgentLogLine::Session(id.to_owned())
        }),
        "response_item" => {
            let is_user = item["type"] == "message" && item["role"] == "user";
            let begins = is_user && !is_injected_context(item);
            let ts = line["timestamp"].as_str().map(str::to_owned);
            let key = begins.then(|| ts.clone()).flatten();
            match item["type"].as_str() {
                // Bookkeeping of Codex, not part of the conversation.
                None | Some("ghost_snapshot" | "compaction") => AgentLogLine::Ignored,
                _ => AgentLogLine::Items {
                    starts_exchange: begins,
                    key,
                    ts,
                    items: vec![item.clone()],
                },
            }
        }
        _ => AgentLogLine::Ignored,
    }
}

/// Returns whether a user message was written by Codex, to give the model context.
fn is_injected_context(item: &Value) -> bool {
    let text = item["content"][0]["text"]
        .as_str()
        .or(item["content"].as_str())
        .unwrap_or_default()
        .trim_start();
    "<environment_context>|<user_instructions>|# AGENTS.md|<permissions"
        .split('|')
        .any(|prefix| text.starts_with(prefix))
}

/// Parses a line of Claude Code:
/// `{"type":"user"|"assistant","message":{"role","content"},"uuid","sessionId","timestamp"}`.
pub(super) fn parse_claude_code_line(line: &Value) -> AgentLogLine {
    let role = match line["type"].as_str() {
        Some(role @ ("user" | "assistant")) => role,
        _ => return AgentLogLine::Ignored,
    };
    let items: Vec<Value> = match &line["message"]["content"] {
        Value::String(text) => vec![message_item(role, text)],
        Value::Array(blocks) => blocks
            .iter()
            .filter_map(|block| item_of_block(role, block))
            .collect(),
        _ => Vec::new(),
    };
    if items.is_empty() || line["isMeta"] == true || line["isSidechain"] == true {
        return AgentLogLine::Ignored;
    }
    let begins = role == "user" && items.iter().any(|item| item["type"] == "message");
    let text = |field: &str| line[field].as_str().map(str::to_owned);
    AgentLogLine::Items {
        starts_exchange: begins,
        key: text("uuid"),
        ts: text("timestamp"),
        items,
    }
}

fn message_item(role: &str, text: &str) -> Value {
    json!({"type": "message", "role": role, "content": text})
}

/// Converts a content block of Claude Code to an item; `None` for other kinds of blocks.
fn item_of_block(role: &str, block: &Value) -> Option<Value> {
    match block["type"].as_str()? {
        "text" => Some(message_item(role, block["text"].as_str()?)),
        "thinking" => Some(json!({"type": "reasoning", "content": block["thinking"]})),
        "tool_use" => Some(json!({
            "type": "function_call",
            "name": block["name"],
            "arguments": block["input"],
            "call_id": block["id"],
        })),
        "tool_result" => Some(json!({
            "type": "function_call_output",
            "call_id": block["tool_use_id"],
            "output": block["content"],
            "success": block["is_error"] != true,
        })),
        _ => None,
    }
}
