//! Imports conversations from files: Selvedge's own JSON lines, and the session files of Codex and
//! Claude Code.
//!
//! Turns are stored in groups, each in one transaction, and each turn has a key: an interrupted
//! import can be repeated without losing or duplicating turns.

mod agents;
mod lines;

use std::io::BufRead;

use agents::Exchanges;
use serde_json::Value;

use crate::{Appended, Form, Memory, MemoryError, NewTurn};

/// Turns stored in one transaction.
const AT_A_TIME: usize = 500;
/// Longer lines are cut, and then fail to parse.
const LONGEST_LINE: u64 = 256 << 20;

/// The format of an imported file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Selvedge's own: `{"session","part"?,"turn","role","speaker"?,"ts"?,"text"}`, one per line.
    Lines,
    /// A session file of Codex: `rollout-….jsonl`.
    Codex,
    /// A session file of Claude Code: `….jsonl` in `~/.claude/projects`.
    ClaudeCode,
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Imported {
    /// The number of turns that were stored.
    pub turns: u32,
    /// The number of turns that had been stored before.
    pub before: u32,
    /// The names of the sessions in the file.
    pub sessions: Vec<String>,
}

/// A turn read from a file.
#[derive(Debug, Clone, PartialEq)]
struct Read {
    session: String,
    key: String,
    role: String,
    speaker: Option<String>,
    ts: Option<String>,
    part: Option<String>,
    form: Form,
    raw: String,
}

impl Memory {
    /// Imports a file. `name` is its name for messages. Without a `format`, it is detected from the
    /// first line. `session` is the session for files of other agents; without one, it is the
    /// session that the file names. `progress` is called with the bytes read so far.
    ///
    /// If a line cannot be parsed, the turns before it are stored and the error is returned.
    pub fn import(
        &self,
        file: impl BufRead,
        name: &str,
        format: Option<Format>,
        session: Option<&str>,
        mut progress: impl FnMut(u64),
    ) -> Result<Imported, MemoryError> {
        let mut source = Source {
            file,
            name,
            line: 0,
            bytes: 0,
        };
        let mut imported = Imported::default();
        let mut batch = Vec::new();
        let mut reader: Option<Reader> = None;
        let mut line_error = None;
        loop {
            let value = match source.next() {
                Ok(Some(value)) => value,
                Ok(None) => break,
                Err(error) => {
                    line_error = Some(error);
                    break;
                }
            };
            let detected = format.or_else(|| Format::of(&value));
            let reader = match (&mut reader, detected) {
                (Some(reader), _) => reader,
                (none, Some(format)) => none.insert(Reader::new(format, session, name)),
                (None, None) => {
                    let message =
                        "unknown format: expected fields `session`, `turn`, `role` and `text`";
                    return Err(source.wrong(message));
                }
            };
            if let Err(message) = reader.read(value, &mut batch) {
                line_error = Some(source.wrong(&message));
                break;
            }
            if batch.len() >= AT_A_TIME {
                self.store(&mut batch, &mut imported)?;
                progress(source.bytes);
            }
        }
        if let Some(Reader::Agent(exchanges)) = reader {
            batch.extend(exchanges.open);
        }
        // The turns before a line that cannot be parsed are stored.
        self.store(&mut batch, &mut imported)?;
        progress(source.bytes);
        line_error.map_or(Ok(imported), Err)
    }

    /// Stores the turns in `batch`, empties it, and counts them.
    fn store(&self, batch: &mut Vec<Read>, imported: &mut Imported) -> Result<(), MemoryError> {
        let turns = batch.iter().map(|turn| {
            let new_turn = NewTurn {
                key: Some(&turn.key),
                role: &turn.role,
                speaker: turn.speaker.as_deref(),
                ts: turn.ts.as_deref(),
                part: turn.part.as_deref(),
                form: turn.form,
                raw: turn.raw.as_bytes(),
            };
            (turn.session.as_str(), new_turn)
        });
        for appended in self.append_all(turns)? {
            match appended {
                Appended::New(_) => imported.turns += 1,
                Appended::Before(_) => imported.before += 1,
            }
        }
        for turn in batch.drain(..) {
            if !imported.sessions.contains(&turn.session) {
                imported.sessions.push(turn.session);
            }
        }
        Ok(())
    }
}

impl Format {
    /// Detects the format of a file from its first line.
    fn of(first: &Value) -> Option<Self> {
        let has = |field: &str| first.get(field).is_some();
        if has("session") && has("turn") {
            Some(Self::Lines)
        } else if has("payload") || has("instructions") || (has("timestamp") && has("git")) {
            Some(Self::Codex)
        } else if has("sessionId") || has("leafUuid") || has("uuid") {
            Some(Self::ClaudeCode)
        } else {
            None
        }
    }
}

/// Converts lines of a file to turns.
enum Reader {
    Lines,
    Agent(Box<Exchanges>),
}

impl Reader {
    fn new(format: Format, session: Option<&str>, name: &str) -> Self {
        let parse_line = match format {
            Format::Lines => return Self::Lines,
            Format::Codex => agents::codex,
            Format::ClaudeCode => agents::claude_code,
        };
        Self::Agent(Box::new(Exchanges::new(session, name, parse_line)))
    }

    fn read(&mut self, value: Value, into: &mut Vec<Read>) -> Result<(), String> {
        match self {
            Self::Lines => into.push(lines::read(&value)?),
            Self::Agent(exchanges) => exchanges.read(&value, into),
        }
        Ok(())
    }
}

/// Reads the lines of a file as JSON, and counts lines and bytes.
struct Source<'a, F> {
    file: F,
    name: &'a str,
    line: u64,
    bytes: u64,
}

impl<F: BufRead> Source<'_, F> {
    /// Returns the next line that is not empty; `None` at the end.
    fn next(&mut self) -> Result<Option<Value>, MemoryError> {
        loop {
            let mut line = Vec::new();
            let read =
                std::io::Read::take(&mut self.file, LONGEST_LINE).read_until(b'\n', &mut line);
            let read = read.map_err(|error| MemoryError::File {
                path: self.name.to_owned(),
                error,
            })?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            self.bytes += read as u64;
            let line = String::from_utf8(line).map_err(|_| self.wrong("not valid UTF-8"))?;
            let line = line.trim_start_matches('\u{feff}').trim();
            if line.is_empty() {
                continue;
            }
            let value = serde_json::from_str(line);
            return value.map_err(|error| self.wrong(&format!("not valid JSON: {error}")));
        }
    }

    /// An error at the current line.
    fn wrong(&self, message: &str) -> MemoryError {
        MemoryError::Unreadable {
            place: format!("{}:{}", self.name, self.line),
            message: message.to_owned(),
        }
    }
}
