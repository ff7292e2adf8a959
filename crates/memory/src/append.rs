//! Appends turns to sessions: stores the raw bytes, indexes the words, and assigns speakers and
//! parts. A batch of turns is written in one transaction.
//!
//! A part is a sequence of turns that belong together: those with the same `part` in an imported
//! file, or those between two long pauses.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use selvedge_database::{Connection, params};
use selvedge_journal::Redactor;

use crate::postings::PostingWriter;
use crate::search::read_speakers;
use crate::store::{
    AppendedTurn, compress_raw, create_session, execute, find_turn_by_key, now_ms, query_first,
    turn_id,
};
use crate::turn_metrics::{MetricsRowCache, SpeakerRole, TurnMetrics};
use crate::{MemoryError, time, turn_pieces};

/// A turn to append.
#[derive(Debug, Clone)]
pub struct NewTurn<'a> {
    /// A key that is unique in the session, as JSON. Appending a turn with the same key again
    /// changes nothing.
    pub key: Option<&'a str>,
    /// The role of the speaker: `user`, `assistant`, …
    pub role: &'a str,
    /// The name of the speaker, if the speaker has one besides the role.
    pub speaker: Option<&'a str>,
    /// The time: RFC 3339, a date, or seconds or milliseconds since 1970. `None` or a text that
    /// cannot be parsed means now.
    pub ts: Option<&'a str>,
    /// The label of the part the turn belongs to. Without one, a pause of four hours starts a new
    /// part.
    pub part: Option<&'a str>,
    /// How to interpret `raw`.
    pub format: TurnFormat,
    /// The exact bytes of the turn.
    pub raw: &'a [u8],
}

impl<'a> NewTurn<'a> {
    /// A text message with the current time.
    pub fn text(role: &'a str, text: &'a str) -> Self {
        Self {
            key: None,
            role,
            speaker: None,
            ts: None,
            part: None,
            format: TurnFormat::Text,
            raw: text.as_bytes(),
        }
    }

    /// A turn of an agent, with the current time: the items from a user's message to the model's
    /// final answer, as JSON lines.
    pub fn from_items(raw: &'a [u8]) -> Self {
        Self {
            format: TurnFormat::Items,
            raw,
            ..Self::text("exchange", "")
        }
    }
}

/// How to interpret the raw bytes of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnFormat {
    /// Plain text of one message.
    Text,
    /// JSON items, one per line: messages, reasoning, calls and their outputs.
    Items,
}

impl TurnFormat {
    fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Items => "items",
        }
    }

    pub(crate) fn from_stored(word: &str) -> Self {
        match word {
            "items" => Self::Items,
            _ => Self::Text,
        }
    }
}

/// A pause of this length starts a new part.
const NEW_PART_PAUSE_MS: i64 = 4 * 3600 * 1000;
/// Numbered speakers per session: a speaker's number is stored in one byte, and 0 means none.
const MAX_SPEAKERS: usize = 255;

/// Turns being appended in one transaction. `finish` must be called to write the collected index
/// entries and counters.
pub(crate) struct AppendBatch<'c> {
    connection: &'c Connection,
    redactor: &'c Redactor,
    sessions: HashMap<String, SessionAppender>,
    postings: PostingWriter,
    metrics: MetricsRowCache,
}

/// A session that turns are appended to, with the state needed for the next turn.
struct SessionAppender {
    id: i64,
    turn_count: u32,
    words: i64,
    speakers: Vec<String>,
    part: Option<SessionPart>,
    last_turn_ms: i64,
}

/// The last part of a session.
struct SessionPart {
    /// The first turn of the part.
    first_turn: u32,
    label: Option<String>,
    words: i64,
}

impl<'c> AppendBatch<'c> {
    pub(crate) fn new(connection: &'c Connection, redactor: &'c Redactor) -> Self {
        Self {
            connection,
            redactor,
            sessions: HashMap::new(),
            postings: PostingWriter::default(),
            metrics: MetricsRowCache::default(),
        }
    }

    /// Returns the number of turns that a session has.
    pub(crate) fn turn_count(&mut self, session: &str) -> Result<u32, MemoryError> {
        Ok(find_appender(&mut self.sessions, self.connection, session)?.turn_count)
    }

    pub(crate) fn append(
        &mut self,
        session: &str,
        turn: &NewTurn<'_>,
    ) -> Result<AppendedTurn, MemoryError> {
        let appender = find_appender(&mut self.sessions, self.connection, session)?;
        if let Some(key) = turn.key
            && let Some(number) = find_turn_by_key(self.connection, appender.id, key)?
        {
            return Ok(AppendedTurn::Existing(number));
        }
        let number = appender.turn_count + 1;
        let parsed_ms = turn.ts.and_then(time::parse_ms);
        let at_ms = parsed_ms.unwrap_or_else(now_ms);
        let NewTurn {
            key,
            role,
            speaker,
            ts,
            ..
        } = *turn;
        let (id, form, raw) = (
            turn_id(appender.id, number),
            turn.format.as_str(),
            compress_raw(turn.raw)?,
        );
        execute(
            self.connection,
            "INSERT INTO memory_turns (id, session, key, role, speaker, ts, at_ms, form, raw)
             VALUES (?1, ?2, encrypt(?3), ?4, encrypt(?5), ?6, ?7, ?8, encrypt(?9))",
            params![id, appender.id, key, role, speaker, ts, at_ms, form, raw],
        )?;
        let text = turn_pieces::searchable_text(turn.format, turn.raw);
        let text = self.redactor.redact_text(&text);
        let words = self.postings.add(appender.id, number, &text);
        let metrics = TurnMetrics {
            words: words.min(u32::from(u16::MAX)) as u16,
            speaker: appender.speaker_number(self.connection, speaker)?,
            role: SpeakerRole::from_name(role),
            tokens: [0; 4],
        };
        self.metrics
            .set(self.connection, appender.id, number, &metrics)?;
        appender.start_part_if_needed(self.connection, number, turn.part, at_ms)?;
        appender.count_turn(i64::from(metrics.words), at_ms);
        Ok(AppendedTurn::New(number))
    }

    pub(crate) fn finish(self) -> Result<(), MemoryError> {
        self.postings.finish(self.connection)?;
        self.metrics.finish(self.connection)?;
        for appender in self.sessions.values() {
            appender.write_part(self.connection)?;
            let sql = "UPDATE memory_sessions SET turns = ?2, words = ?3 WHERE id = ?1";
            let counts = params![appender.id, appender.turn_count, appender.words];
            execute(self.connection, sql, counts)?;
        }
        Ok(())
    }
}

/// Returns the appender of a session, which is loaded if it is not there.
fn find_appender<'s>(
    sessions: &'s mut HashMap<String, SessionAppender>,
    connection: &Connection,
    session: &str,
) -> Result<&'s mut SessionAppender, MemoryError> {
    Ok(match sessions.entry(session.to_owned()) {
        Entry::Occupied(appender) => appender.into_mut(),
        Entry::Vacant(entry) => entry.insert(SessionAppender::load(connection, session)?),
    })
}

/// Returns whether a speaker's name is only a role, such as "Assistant".
fn is_role_name(name: &str) -> bool {
    name.is_empty()
        || "user human assistant model ai bot system tool agent"
            .split(' ')
            .any(|role| name.eq_ignore_ascii_case(role))
}

impl SessionAppender {
    fn load(connection: &Connection, name: &str) -> Result<Self, MemoryError> {
        create_session(connection, name)?;
        // Locked, because the numbers of the next turn depend on it.
        let lock = connection.row_lock();
        let sql = format!("SELECT id, turns, words FROM memory_sessions WHERE name = ?1{lock}");
        let (id, turns, words) = connection
            .prepare_cached(&sql)?
            .query_row(params![name], |row| row.try_into())?;
        let sql = "SELECT first, decrypt(label), words FROM memory_parts
             WHERE session = ?1 ORDER BY first DESC LIMIT 1";
        let part = query_first(connection, sql, params![id], |row| {
            Ok(SessionPart {
                first_turn: row.get(0)?,
                label: row.get(1)?,
                words: row.get(2)?,
            })
        })?;
        let sql = "SELECT at_ms FROM memory_turns WHERE id = ?1";
        let last_ms = query_first(connection, sql, params![turn_id(id, turns)], |row| {
            row.get(0)
        })?;
        Ok(Self {
            id,
            turn_count: turns,
            words,
            speakers: read_speakers(connection, id)?,
            part,
            last_turn_ms: last_ms.unwrap_or(0),
        })
    }

    /// Returns the number of a speaker, from 1, and stores new speakers. Returns 0 for a missing
    /// name, for a role, and beyond the maximum number of speakers.
    fn speaker_number(
        &mut self,
        connection: &Connection,
        name: Option<&str>,
    ) -> Result<u8, MemoryError> {
        let Some(name) = name.filter(|name| !is_role_name(name)) else {
            return Ok(0);
        };
        if let Some(at) = self.speakers.iter().position(|known| known == name) {
            return Ok((at + 1) as u8);
        }
        if self.speakers.len() >= MAX_SPEAKERS {
            return Ok(0);
        }
        self.speakers.push(name.to_owned());
        let number = self.speakers.len() as u8;
        let sql = "INSERT INTO memory_speakers (session, id, name) VALUES (?1, ?2, encrypt(?3))";
        execute(connection, sql, params![self.id, number, name])?;
        Ok(number)
    }

    /// Starts a new part if turn `number` does not belong to the last one: if its label differs,
    /// or if neither has a label and the pause was long.
    fn start_part_if_needed(
        &mut self,
        connection: &Connection,
        number: u32,
        label: Option<&str>,
        at_ms: i64,
    ) -> Result<(), MemoryError> {
        let belongs = |part: &SessionPart| match (part.label.as_deref(), label) {
            (None, None) => at_ms - self.last_turn_ms < NEW_PART_PAUSE_MS,
            (before, now) => before == now,
        };
        if !self.part.as_ref().is_some_and(belongs) {
            self.write_part(connection)?;
            self.part = Some(SessionPart {
                first_turn: number,
                label: label.map(str::to_owned),
                words: 0,
            });
        }
        Ok(())
    }

    /// Counts an appended turn.
    fn count_turn(&mut self, words: i64, at_ms: i64) {
        self.turn_count += 1;
        self.words += words;
        self.last_turn_ms = at_ms;
        if let Some(part) = &mut self.part {
            part.words += words;
        }
    }

    fn write_part(&self, connection: &Connection) -> Result<(), MemoryError> {
        if let Some(part) = &self.part {
            let sql = "INSERT INTO memory_parts (session, first, label, words)
                VALUES (?1, ?2, encrypt(?3), ?4)
                ON CONFLICT (session, first) DO UPDATE SET label = excluded.label,
                    words = excluded.words";
            let row = params![self.id, part.first_turn, part.label, part.words];
            execute(connection, sql, row)?;
        }
        Ok(())
    }
}
