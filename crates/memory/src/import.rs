//! Conversations from files: lines of our own, and the session files of Codex and Claude Code.
//!
//! Turns go in by batches, each a transaction, and each turn has a key: whatever is interrupted is simply imported
//! again, and nothing is lost or doubled.

mod agents;
mod lines;

use std::io::BufRead;

use agents::Exchanges;
use serde_json::Value;

use crate::{Appended, Form, Memory, MemoryError, NewTurn};

/// Turns stored in one transaction.
const AT_A_TIME: usize = 500;
/// A longer line is no turn of a conversation.
const LONGEST_LINE: u64 = 256 << 20;

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `{"session","part"?,"turn","role","speaker"?,"ts"?,"text"}`, one per line.
    Lines,
    /// A session of Codex: `rollout-….jsonl`.
    Codex,
    /// A session of Claude Code: `….jsonl` in `~/.claude/projects`.
    ClaudeCode,
}

/// What was imported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Imported {
    /// Turns that are new.
    pub turns: u32,
    /// Turns that were there before.
    pub before: u32,
    /// The sessions they are of.
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
    /// Imports a file, telling the bytes read so far from time to time. Where no format is named it is told from the
    /// first line. Exchanges without a session of their own become part of the one named.
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
        let mut wrong = None;
        loop {
            let value = match source.next() {
                Ok(Some(value)) => value,
                Ok(None) => break,
                Err(error) => {
                    wrong = Some(error);
                    break;
                }
            };
            let known = format.or_else(|| Format::of(&value));
            let reader = match (&mut reader, known) {
                (Some(reader), _) => reader,
                (none, Some(format)) => none.insert(Reader::new(format, session, name)),
                (None, None) => {
                    let why = "this is no conversation: a line has session, turn, role and text";
                    return Err(source.wrong(why));
                }
            };
            if let Err(message) = reader.read(value, &mut batch) {
                wrong = Some(source.wrong(&message));
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
        // What came before a line that cannot be read is imported all the same.
        self.store(&mut batch, &mut imported)?;
        progress(source.bytes);
        wrong.map_or(Ok(imported), Err)
    }

    fn store(&self, batch: &mut Vec<Read>, imported: &mut Imported) -> Result<(), MemoryError> {
        let turns = batch.iter().map(|read| {
            let turn = NewTurn {
                key: Some(&read.key),
                role: &read.role,
                speaker: read.speaker.as_deref(),
                ts: read.ts.as_deref(),
                part: read.part.as_deref(),
                form: read.form,
                raw: read.raw.as_bytes(),
            };
            (read.session.as_str(), turn)
        });
        for appended in self.append_all(turns)? {
            match appended {
                Appended::New(_) => imported.turns += 1,
                Appended::Before(_) => imported.before += 1,
            }
        }
        for read in batch.drain(..) {
            if !imported.sessions.contains(&read.session) {
                imported.sessions.push(read.session);
            }
        }
        Ok(())
    }
}

impl Format {
    /// The format of a file that begins like this.
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

enum Reader {
    Lines,
    Agent(Box<Exchanges>),
}

impl Reader {
    fn new(format: Format, session: Option<&str>, name: &str) -> Self {
        let understand = match format {
            Format::Lines => return Self::Lines,
            Format::Codex => agents::codex,
            Format::ClaudeCode => agents::claude_code,
        };
        Self::Agent(Box::new(Exchanges::new(session, name, understand)))
    }

    fn read(&mut self, value: Value, into: &mut Vec<Read>) -> Result<(), String> {
        match self {
            Self::Lines => into.push(lines::read(&value)?),
            Self::Agent(exchanges) => exchanges.read(&value, into),
        }
        Ok(())
    }
}

/// The lines of a file, as JSON.
struct Source<'a, F> {
    file: F,
    name: &'a str,
    line: u64,
    bytes: u64,
}

impl<F: BufRead> Source<'_, F> {
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
            let line = String::from_utf8(line).map_err(|_| self.wrong("it is not UTF-8"))?;
            let line = line.trim_start_matches('\u{feff}').trim();
            if line.is_empty() {
                continue;
            }
            let value = serde_json::from_str(line);
            return value.map_err(|error| self.wrong(&format!("it is not JSON: {error}")));
        }
    }

    fn wrong(&self, message: &str) -> MemoryError {
        MemoryError::Unreadable {
            place: format!("{}:{}", self.name, self.line),
            message: message.to_owned(),
        }
    }
}
