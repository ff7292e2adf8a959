//! Imports conversations from files: Selvedge's own JSON lines, and the session files of Codex and
//! Claude Code.
//!
//! Turns are stored in groups, each in one transaction, and each turn has a key: an interrupted
//! import can be repeated without losing or duplicating turns.

mod agents;
mod lines;

use std::io::BufRead;

use agents::ExchangeReader;
use serde_json::Value;

use crate::{AppendedTurn, Memory, MemoryError, NewTurn, TurnFormat};

/// Turns stored in one transaction.
const TURNS_PER_TRANSACTION: usize = 500;
/// Longer lines are cut, and then fail to parse.
const MAX_LINE_BYTES: u64 = 256 << 20;

/// The format of an imported file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportFormat {
    /// Selvedge's own: `{"session","part"?,"turn","role","speaker"?,"ts"?,"text"}`, one per line.
    Lines,
    /// A session file of Codex: `rollout-….jsonl`.
    Codex,
    /// A session file of Claude Code: `….jsonl` in `~/.claude/projects`.
    ClaudeCode,
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportReport {
    /// The number of turns that were stored.
    pub new_turns: u32,
    /// The number of turns that had been stored before.
    pub existing_turns: u32,
    /// The names of the sessions in the file.
    pub sessions: Vec<String>,
}

/// A turn read from a file.
#[derive(Debug, Clone, PartialEq)]
struct ImportedTurn {
    session: String,
    key: String,
    role: String,
    speaker: Option<String>,
    ts: Option<String>,
    part: Option<String>,
    format: TurnFormat,
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
        format: Option<ImportFormat>,
        session: Option<&str>,
        mut progress: impl FnMut(u64),
    ) -> Result<ImportReport, MemoryError> {
        let mut source = JsonLineReader {
            file,
            name,
            line: 0,
            bytes: 0,
        };
        let mut imported = ImportReport::default();
        let mut batch = Vec::new();
        let mut reader: Option<ImportReader> = None;
        let mut line_error = None;
        loop {
            let value = match source.next_value() {
                Ok(Some(value)) => value,
                Ok(None) => break,
                Err(error) => {
                    line_error = Some(error);
                    break;
                }
            };
            let detected = format.or_else(|| ImportFormat::detect(&value));
            let reader = match (&mut reader, detected) {
                (Some(reader), _) => reader,
                (none, Some(format)) => none.insert(ImportReader::new(format, session, name)),
                (None, None) => {
                    let message =
                        "unknown format: expected fields `session`, `turn`, `role` and `text`";
                    return Err(source.error_at_line(message));
                }
            };
            if let Err(message) = reader.read_line(value, &mut batch) {
                line_error = Some(source.error_at_line(&message));
                break;
            }
            if batch.len() >= TURNS_PER_TRANSACTION {
                self.store_imported(&mut batch, &mut imported)?;
                progress(source.bytes);
            }
        }
        if let Some(ImportReader::Agent(exchanges)) = reader {
            batch.extend(exchanges.current);
        }
        // The turns before a line that cannot be parsed are stored.
        self.store_imported(&mut batch, &mut imported)?;
        progress(source.bytes);
        line_error.map_or(Ok(imported), Err)
    }

    /// Stores the turns in `batch`, empties it, and counts them.
    fn store_imported(
        &self,
        batch: &mut Vec<ImportedTurn>,
        imported: &mut ImportReport,
    ) -> Result<(), MemoryError> {
        let turns = batch.iter().map(|turn| {
            let new_turn = NewTurn {
                key: Some(&turn.key),
                role: &turn.role,
                speaker: turn.speaker.as_deref(),
                ts: turn.ts.as_deref(),
                part: turn.part.as_deref(),
                format: turn.format,
                raw: turn.raw.as_bytes(),
            };
            (turn.session.as_str(), new_turn)
        });
        for appended in self.append_all(turns)? {
            match appended {
                AppendedTurn::New(_) => imported.new_turns += 1,
                AppendedTurn::Existing(_) => imported.existing_turns += 1,
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

impl ImportFormat {
    /// Detects the format of a file from its first line.
    fn detect(first: &Value) -> Option<Self> {
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
enum ImportReader {
    Lines,
    Agent(Box<ExchangeReader>),
}

impl ImportReader {
    fn new(format: ImportFormat, session: Option<&str>, name: &str) -> Self {
        let parse_line = match format {
            ImportFormat::Lines => return Self::Lines,
            ImportFormat::Codex => agents::parse_codex_line,
            ImportFormat::ClaudeCode => agents::parse_claude_code_line,
        };
        Self::Agent(Box::new(ExchangeReader::new(session, name, parse_line)))
    }

    fn read_line(&mut self, value: Value, into: &mut Vec<ImportedTurn>) -> Result<(), String> {
        match self {
            Self::Lines => into.push(lines::parse_line(&value)?),
            Self::Agent(exchanges) => exchanges.read_line(&value, into),
        }
        Ok(())
    }
}

/// Reads the lines of a file as JSON, and counts lines and bytes.
struct JsonLineReader<'a, F> {
    file: F,
    name: &'a str,
    line: u64,
    bytes: u64,
}

impl<F: BufRead> JsonLineReader<'_, F> {
    /// Returns the next line that is not empty; `None` at the end.
    fn next_value(&mut self) -> Result<Option<Value>, MemoryError> {
        loop {
            let mut line = Vec::new();
            let read =
                std::io::Read::take(&mut self.file, MAX_LINE_BYTES).read_until(b'\n', &mut line);
            let read = read.map_err(|error| MemoryError::File {
                path: self.name.to_owned(),
                error,
            })?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            self.bytes += read as u64;
            let line =
                String::from_utf8(line).map_err(|_| self.error_at_line("not valid UTF-8"))?;
            let line = line.trim_start_matches('\u{feff}').trim();
            if line.is_empty() {
                continue;
            }
            let value = serde_json::from_str(line);
            return value.map_err(|error| self.error_at_line(&format!("not valid JSON: {error}")));
        }
    }

    /// An error at the current line.
    fn error_at_line(&self, message: &str) -> MemoryError {
        MemoryError::InvalidLine {
            location: format!("{}:{}", self.name, self.line),
            message: message.to_owned(),
        }
    }
}
