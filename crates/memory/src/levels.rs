//! Writing the lower levels: after the turn, never on its path. What was written is marked in the same transaction, so
//! that a process that dies leaves either all of a batch or nothing of it, and the next one goes on from there.

use std::cell::RefCell;
use std::collections::HashMap;

use rusqlite::{Connection, params};

use crate::columns::ColumnWriter;
use crate::extract::{Language, Lower, lower};
use crate::level::Span;
use crate::postings::turns_with;
use crate::store::{Session, Turn, execute, find, row, rows, stored, turn_id};
use crate::words::each_term;
use crate::{Level, Memory, MemoryError, tokens};

/// Turns written in one transaction.
const AT_A_TIME: u32 = 256;

/// How far the writing of levels is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Turns whose levels were written now.
    pub now: u32,
    /// Turns that still wait.
    pub waiting: u32,
}

impl Memory {
    /// Writes the lower levels of some turns that lack them: of one session, or of all where none is named. Call it
    /// again while turns wait.
    pub fn write_levels(&self, session: Option<&str>) -> Result<Written, MemoryError> {
        let waiting: Vec<(String, u32)> = self.read(|reader| {
            let sql = "SELECT name, turns - written FROM memory_sessions
                 WHERE written < turns AND (?1 IS NULL OR name = ?1) ORDER BY id";
            rows(&reader.connection, sql, params![session], |row| {
                row.try_into()
            })
        })?;
        let all: u32 = waiting.iter().map(|(_, turns)| turns).sum();
        let now = match waiting.first() {
            Some((name, _)) => self.write_some(name)?,
            None => 0,
        };
        Ok(Written {
            now,
            waiting: all.saturating_sub(now),
        })
    }

    /// Writes the levels of all turns of a session that lack them.
    pub(crate) fn finish_levels(&self, session: &str) -> Result<(), MemoryError> {
        while self.write_levels(Some(session))?.waiting > 0 {}
        Ok(())
    }

    /// A turn at a level, as it is told to people and models: redacted, unless it is raw.
    pub fn level(&self, session: &str, number: u32, level: Level) -> Result<Vec<u8>, MemoryError> {
        if level == Level::Raw {
            return Ok(self.turn(session, number)?.raw);
        }
        let written = || {
            self.read(|reader| {
                let id = find(&reader.connection, session)?.id;
                level_text(&reader.connection, id, number, level)
            })
        };
        if let Some(text) = written()? {
            return Ok(text.into_bytes());
        }
        self.turn(session, number)?;
        self.finish_levels(session)?;
        Ok(written()?.unwrap_or_default().into_bytes())
    }

    /// The same as text.
    pub(crate) fn level_told(
        &self,
        session: &str,
        number: u32,
        level: Level,
    ) -> Result<String, MemoryError> {
        let told = self.level(session, number, level)?;
        Ok(String::from_utf8_lossy(&told).into_owned())
    }

    /// Tokens of a raw turn whose levels are not written yet, tags included.
    pub(crate) fn count_now(&self, session: &str, number: u32) -> Result<u32, MemoryError> {
        let raw = self.turn(session, number)?.raw;
        Ok(tokens::count(&String::from_utf8_lossy(&raw)) + Span::one(number, Level::Raw).tokens())
    }

    fn write_some(&self, name: &str) -> Result<u32, MemoryError> {
        let (session, last, made) = self.read(|reader| {
            let session = find(&reader.connection, name)?;
            let last = session.turns.min(session.written + AT_A_TIME);
            let mut made = Vec::new();
            let rarity = Rarity::of(&reader.connection, &session);
            for number in session.written + 1..=last {
                if let Some(turn) = stored(&reader.connection, session.id, number)? {
                    made.push((number, self.made(&turn, &rarity)));
                }
            }
            Ok((session, last, made))
        })?;
        self.write(|connection| {
            let sql = "UPDATE memory_sessions SET written = ?3 WHERE id = ?1 AND written = ?2";
            if execute(connection, sql, params![session.id, session.written, last])? == 0 {
                // Another process was here.
                return Ok(0);
            }
            let mut columns = ColumnWriter::default();
            for (number, made) in &made {
                put(connection, &mut columns, session.id, *number, made, "rules")?;
            }
            columns.finish(connection)?;
            crate::eras::write(connection, &session, session.written, last)?;
            Ok(last - session.written)
        })
    }

    fn made(&self, turn: &Turn, rarity: &Rarity<'_>) -> Made {
        let raw = tokens::count(&String::from_utf8_lossy(&turn.raw));
        let measures = Language {
            rarity: &|word| rarity.of_word(word),
            count: &tokens::count,
        };
        Made::new(raw, lower(&self.hidden_pieces(turn), raw, &measures))
    }
}

/// The levels of a turn, with their tokens.
pub(crate) struct Made {
    lower: Lower,
    tokens: [u32; 4],
}

impl Made {
    pub(crate) fn new(raw: u32, lower: Lower) -> Self {
        let [smoothed, compressed, tiny] =
            [&lower.smoothed, &lower.compressed, &lower.tiny].map(|text| tokens::count(text));
        Self {
            lower,
            tokens: [raw, smoothed, compressed, tiny],
        }
    }
}

pub(crate) fn put(
    connection: &Connection,
    columns: &mut ColumnWriter,
    session: i64,
    number: u32,
    made: &Made,
    made_by: &str,
) -> Result<(), MemoryError> {
    let (id, lower) = (turn_id(session, number), &made.lower);
    let sql = "INSERT OR REPLACE INTO memory_levels
         SELECT id, sealed(?2), sealed(?3), sealed(?4), ?5 FROM memory_turns WHERE id = ?1";
    let row = params![id, lower.smoothed, lower.compressed, lower.tiny, made_by];
    if execute(connection, sql, row)? == 0 {
        // It was forgotten while its levels were made.
        return Ok(());
    }
    let mut numbers = columns.get(connection, session, number)?;
    numbers.tokens = made.tokens;
    columns.put(connection, session, number, &numbers)
}

pub(crate) fn level_text(
    connection: &Connection,
    session: i64,
    number: u32,
    level: Level,
) -> Result<Option<String>, MemoryError> {
    let sql = "SELECT opened(CASE ?2 WHEN 0 THEN smoothed WHEN 1 THEN compressed ELSE tiny END)
         FROM memory_levels WHERE id = ?1";
    let column = (level as usize).saturating_sub(1) as i64;
    row(
        connection,
        sql,
        params![turn_id(session, number), column],
        |row| row.get(0),
    )
}

/// How rare words are in a session.
pub(crate) struct Rarity<'a> {
    connection: &'a Connection,
    session: i64,
    turns: f64,
    known: RefCell<HashMap<String, f64>>,
}

impl<'a> Rarity<'a> {
    pub(crate) fn of(connection: &'a Connection, session: &Session) -> Self {
        Self {
            connection,
            session: session.id,
            turns: f64::from(session.turns),
            known: RefCell::default(),
        }
    }

    pub(crate) fn of_word(&self, word: &str) -> f64 {
        if let Some(known) = self.known.borrow().get(word) {
            return *known;
        }
        let mut rarity = 0.0_f64;
        each_term(word, |term| {
            // An index that cannot be read makes words no rarer than others; the write that follows will tell.
            let with = turns_with(self.connection, term, self.session).unwrap_or(0);
            rarity = rarity.max((1.0 + self.turns / (1.0 + f64::from(with))).ln());
        });
        self.known.borrow_mut().insert(word.to_owned(), rarity);
        rarity
    }
}
