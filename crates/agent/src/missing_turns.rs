//! [`MissingTurns`]: turns of a session that its memory does not have yet, as JSON lines.

use std::collections::HashMap;
use std::sync::Arc;

use selvedge_journal::StoredRun;
use selvedge_memory::{AGENT_ROLE, Memory, MemoryError, NewTurn};
use selvedge_protocol::TurnItem;
use selvedge_script::{fair_share, truncate_json};
use serde_json::{Map, Value};

use crate::{Session, TurnAuthor};

/// Turns that are to be stored.
pub(crate) struct MissingTurns {
    /// The number of the first one.
    first: u32,
    turns: Vec<Vec<u8>>,
}

impl MissingTurns {
    /// Reads the turns up to `last` that the memory does not have.
    pub(crate) async fn read(
        memory: &Arc<Memory>,
        session: &Session,
        last: u32,
    ) -> Result<Self, MemoryError> {
        let id = session.id().to_owned();
        let count = move |memory: &Arc<Memory>| memory.turn_count(&id);
        let first = memory.run_blocking(count).await? + 1;
        let mut turns = Vec::new();
        for turn in first..=last {
            let items = session.turn_items(turn);
            let mut runs = HashMap::new();
            for item in &items {
                if let TurnItem::ScriptToolCallOutput(output) = item
                    && !output.calls.is_empty()
                    && let Some(run) = session.stored_run(&output.id).await
                {
                    runs.insert(output.id.clone(), run);
                }
            }
            let requester = match session.turn_author(turn) {
                TurnAuthor::Agent => AGENT_ROLE,
                TurnAuthor::Person => "user",
            };
            turns.push(encode_turn(&items, &runs, requester));
        }
        Ok(Self { first, turns })
    }

    /// Stores the turns, except those that were stored meanwhile.
    pub(crate) fn store(&self, memory: &Memory, session: &str) -> Result<(), MemoryError> {
        if self.turns.is_empty() {
            return Ok(());
        }
        let turns = self.turns.iter().map(|raw| NewTurn::from_items(raw));
        memory.append_missing(session, self.first, &turns.collect::<Vec<_>>())
    }
}

/// The most bytes of the arguments and results of all calls of a script in the raw text of a turn.
const MAX_CALLS_BYTES: usize = 64 << 10;

/// The most bytes of the console output of a script in the raw text of a turn.
const MAX_LOG_BYTES: usize = 64 << 10;

/// Returns the items of a turn as JSON lines for the memory, without ids and metadata. `runs` are
/// the scripts, whose calls keep their arguments and results.
fn encode_turn(items: &[TurnItem], runs: &HashMap<String, StoredRun>, requester: &str) -> Vec<u8> {
    let mut raw = Vec::new();
    for item in items {
        let Ok(mut value) = serde_json::to_value(item.without_native()) else {
            continue;
        };
        if let Value::Object(fields) = &mut value {
            if fields.get("role").is_some_and(|role| role == "user") {
                fields.insert("role".to_owned(), requester.into());
            }
            let run = fields.get("id").and_then(Value::as_str);
            let run = run.and_then(|id| runs.get(id));
            for field in ["metadata", "id", "native"] {
                fields.remove(field);
            }
            encode_logs(fields);
            if let Some(calls) = fields.get_mut("calls").and_then(Value::as_array_mut) {
                encode_calls(calls, run);
            }
        }
        strip_media(&mut value);
        raw.extend_from_slice(value.to_string().as_bytes());
        raw.push(b'\n');
    }
    raw
}

/// Reduces the console output of a script to its texts. If these have more than [`MAX_LOG_BYTES`],
/// they are shortened.
fn encode_logs(fields: &mut Map<String, Value>) {
    let Some(Value::Array(logs)) = fields.remove("logs") else {
        return;
    };
    let messages = logs.into_iter().map(|mut log| log["message"].take());
    let messages = Value::Array(messages.collect());
    if let Ok(messages) = serde_json::from_str(&truncate_json(&messages, MAX_LOG_BYTES))
        && messages != Value::Array(Vec::new())
    {
        fields.insert("logs".to_owned(), messages);
    }
}

/// Reduces the calls of a script to tool, status and error, and adds the arguments and results that
/// `run` has. If these have more than [`MAX_CALLS_BYTES`], the longest are shortened.
fn encode_calls(calls: &mut [Value], run: Option<&StoredRun>) {
    let mut contents: Vec<(usize, &str, Value)> = Vec::new();
    for (at, call) in calls.iter_mut().enumerate() {
        let Some(call) = call.as_object_mut() else {
            continue;
        };
        let id = call.get("id").and_then(Value::as_str);
        let recorded = run.and_then(|run| run.calls.iter().find(|made| Some(&*made.id) == id));
        call.retain(|field, _| matches!(field.as_str(), "tool" | "status" | "error"));
        let Some(recorded) = recorded else {
            continue;
        };
        for (field, value) in [("args", &recorded.args), ("result", &recorded.value)] {
            if let Some(mut value) = value.clone() {
                strip_media(&mut value);
                contents.push((at, field, value));
            }
        }
    }
    let sizes: Vec<usize> = contents
        .iter()
        .map(|(.., value)| value.to_string().len())
        .collect();
    let share = fair_share(&sizes, MAX_CALLS_BYTES);
    for (at, field, value) in contents {
        if let Ok(value) = serde_json::from_str(&truncate_json(&value, share))
            && let Some(call) = calls[at].as_object_mut()
        {
            call.insert(field.to_owned(), value);
        }
    }
}

/// Replaces the data of images and audio by a placeholder. The session keeps the data.
fn strip_media(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let media = fields.contains_key("mime_type") || fields.contains_key("mimeType");
            for (name, value) in fields {
                match name.as_str() {
                    "data" if media => *value = Value::from("…"),
                    _ => strip_media(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(strip_media),
        _ => {}
    }
}
