//! Exports sessions as JSON lines in the format that `import` reads, with secrets redacted.

use std::io::Write;

use selvedge_database::{Connection, params};
use serde_json::json;

use crate::store::load_turn;
use crate::{Memory, MemoryError, TurnFormat, store};

impl Memory {
    /// Writes the turns of a session (of all sessions for `None`), one JSON line each, as
    /// [`Memory::import`] reads them. Secrets are redacted. Returns the number of turns.
    pub fn export(&self, session: Option<&str>, out: &mut dyn Write) -> Result<u32, MemoryError> {
        let sessions = match session {
            Some(name) => vec![name.to_owned()],
            None => self.session_names()?,
        };
        let mut count = 0;
        for name in sessions {
            let (id, turns) = self.read(|reader| {
                let found = store::require_session(&reader.connection, &name)?;
                Ok((found.id, found.turn_count))
            })?;
            for number in 1..=turns {
                let Some((turn, part)) = self.read(|reader| {
                    let turn = load_turn(&reader.connection, id, number)?;
                    let part = part_label(&reader.connection, id, number)?;
                    Ok(turn.map(|turn| (turn, part)))
                })?
                else {
                    continue;
                };
                let key = turn.key.and_then(|key| serde_json::from_str(&key).ok());
                let text = String::from_utf8_lossy(&turn.raw);
                let mut line = json!({
                    "session": name,
                    "turn": key.unwrap_or_else(|| json!(format!("T-{number}"))),
                    "role": turn.role,
                    "text": self.redact(&text),
                });
                for (field, value) in [("part", part), ("speaker", turn.speaker), ("ts", turn.ts)] {
                    if let Some(value) = value {
                        line[field] = json!(value);
                    }
                }
                if turn.format == TurnFormat::Items {
                    line["form"] = json!("items");
                }
                writeln!(out, "{line}").map_err(|error| MemoryError::File {
                    path: "export".to_owned(),
                    error,
                })?;
                count += 1;
            }
        }
        Ok(count)
    }
}

/// Returns the label of the part a turn belongs to.
fn part_label(
    connection: &Connection,
    session: i64,
    number: u32,
) -> Result<Option<String>, MemoryError> {
    let mut read = connection.prepare_cached(
        "SELECT decrypt(label) FROM memory_parts
         WHERE session = ?1 AND first <= ?2 ORDER BY first DESC LIMIT 1",
    )?;
    Ok(read.query_row(params![session, number], |row| row.get(0))?)
}
