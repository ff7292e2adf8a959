//! Writes and reads the lower levels of turns. They are written after a turn, so that they do not
//! delay it.
//!
//! One transaction writes the levels of a group of turns and the number of the last of them. If a
//! process dies, the next one continues after that number.

use std::cell::RefCell;
use std::collections::HashMap;

use selvedge_database::{Connection, params};

use crate::extract::{ExtractedTurn, LowerLevels, TextMeasures, extract_turn};
use crate::level::TaggedSpan;
use crate::postings::count_turns_with;
use crate::store::{
    MemorySessionRow, StoredTurn, execute, load_turn, query_first, query_rows, require_session,
    turn_id,
};
use crate::turn_metrics::MetricsRowCache;
use crate::words::for_each_term;
use crate::{Level, Memory, MemoryError, tokens};

/// Turns whose levels are written in one transaction.
const TURNS_PER_TRANSACTION: u32 = 256;

/// The result of one call of [`Memory::write_levels`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LevelProgress {
    /// Turns whose levels were written by this call.
    pub written_turns: u32,
    /// Turns whose levels are still missing.
    pub remaining_turns: u32,
}

impl Memory {
    /// Writes the lower levels of the next turns without them, in one session or (for `None`) in
    /// any. Call it again while turns remain ([`LevelProgress::remaining_turns`]).
    pub fn write_levels(&self, session: Option<&str>) -> Result<LevelProgress, MemoryError> {
        let waiting: Vec<(String, u32)> = self.read(|reader| {
            let sql = "SELECT name, turns - written FROM memory_sessions
                 WHERE written < turns AND (name = ?1 OR ?1 IS NULL) ORDER BY id";
            query_rows(&reader.connection, sql, params![session], |row| {
                row.try_into()
            })
        })?;
        let all: u32 = waiting.iter().map(|(_, turns)| turns).sum();
        let written = match waiting.first() {
            Some((name, _)) => self.write_next_levels(name)?,
            None => 0,
        };
        Ok(LevelProgress {
            written_turns: written,
            remaining_turns: all.saturating_sub(written),
        })
    }

    /// Writes all missing levels of a session.
    pub(crate) fn write_missing_levels(&self, session: &str) -> Result<(), MemoryError> {
        while self.write_levels(Some(session))?.remaining_turns > 0 {}
        Ok(())
    }

    /// Returns a turn at a level. Lower levels are redacted, the raw one is exact. Missing levels
    /// are written first.
    pub fn turn_at_level(
        &self,
        session: &str,
        number: u32,
        level: Level,
    ) -> Result<Vec<u8>, MemoryError> {
        if level == Level::Raw {
            return Ok(self.turn(session, number)?.raw);
        }
        let read_level = || {
            self.read(|reader| {
                let id = require_session(&reader.connection, session)?.id;
                read_level_text(&reader.connection, id, number, level)
            })
        };
        if let Some(text) = read_level()? {
            return Ok(text.into_bytes());
        }
        self.turn(session, number)?;
        self.write_missing_levels(session)?;
        Ok(read_level()?.unwrap_or_default().into_bytes())
    }

    /// Returns a turn at a level as text, with invalid UTF-8 replaced.
    pub(crate) fn turn_text_at_level(
        &self,
        session: &str,
        number: u32,
        level: Level,
    ) -> Result<String, MemoryError> {
        let bytes = self.turn_at_level(session, number, level)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Counts the tokens of a raw turn, tags included. For turns whose levels are not written yet.
    pub(crate) fn count_raw_tokens(&self, session: &str, number: u32) -> Result<u32, MemoryError> {
        let raw = self.turn(session, number)?.raw;
        Ok(tokens::count(&String::from_utf8_lossy(&raw))
            + TaggedSpan::single(number, Level::Raw).tag_tokens())
    }

    /// Writes the levels of the next group of turns, and returns how many turns it has. Returns 0
    /// if another process wrote them first.
    fn write_next_levels(&self, name: &str) -> Result<u32, MemoryError> {
        let (session, last, extracted) = self.read(|reader| {
            let session = require_session(&reader.connection, name)?;
            let last = session
                .turn_count
                .min(session.levels_written_to + TURNS_PER_TRANSACTION);
            let mut extracted = Vec::new();
            let rarity = WordRarity::new(&reader.connection, &session);
            for number in session.levels_written_to + 1..=last {
                if let Some(turn) = load_turn(&reader.connection, session.id, number)? {
                    extracted.push((number, self.extract_levels(&turn, &rarity)));
                }
            }
            Ok((session, last, extracted))
        })?;
        self.write(|connection| {
            let sql = "UPDATE memory_sessions SET written = ?3 WHERE id = ?1 AND written = ?2";
            if execute(
                connection,
                sql,
                params![session.id, session.levels_written_to, last],
            )? == 0
            {
                // Another process has written these levels.
                return Ok(0);
            }
            let mut metrics_rows = MetricsRowCache::default();
            for (number, (levels, record)) in &extracted {
                if load_turn(connection, session.id, *number)?.is_none() {
                    // The turn was forgotten while its levels were extracted.
                    continue;
                }
                store_levels(
                    connection,
                    &mut metrics_rows,
                    session.id,
                    *number,
                    levels,
                    "rules",
                )?;
                record.store(connection, session.id, *number)?;
            }
            metrics_rows.finish(connection)?;
            crate::eras::write_completed_eras(
                connection,
                &session,
                session.levels_written_to,
                last,
            )?;
            Ok(last - session.levels_written_to)
        })
    }

    /// Extracts the levels of a turn by rules.
    fn extract_levels(
        &self,
        turn: &StoredTurn,
        rarity: &WordRarity<'_>,
    ) -> (CountedLevels, TurnRecord) {
        let raw = tokens::count(&String::from_utf8_lossy(&turn.raw));
        let measures = TextMeasures {
            rarity: &|word| rarity.of_word(word),
            count_tokens: &tokens::count,
        };
        let ExtractedTurn {
            levels,
            tool_calls,
            topics,
        } = extract_turn(&self.redacted_pieces(turn), raw, &measures);
        (
            CountedLevels::new(raw, levels),
            TurnRecord { tool_calls, topics },
        )
    }

    /// Returns what is known about a turn besides its text. Missing levels are written first.
    /// Returns `None` for a forgotten turn, and for a turn whose levels an earlier version wrote.
    pub fn turn_record(
        &self,
        session: &str,
        number: u32,
    ) -> Result<Option<TurnRecord>, MemoryError> {
        self.write_missing_levels(session)?;
        self.read(|reader| {
            let id = require_session(&reader.connection, session)?.id;
            read_turn_record(&reader.connection, id, number)
        })
    }
}

/// Reads what is known about a turn; `None` if its levels are not written.
pub(crate) fn read_turn_record(
    connection: &Connection,
    session: i64,
    number: u32,
) -> Result<Option<TurnRecord>, MemoryError> {
    let sql = "SELECT tool_calls, decrypt(topics) FROM memory_levels
        WHERE id = ?1 AND tool_calls IS NOT NULL";
    let id = params![turn_id(session, number)];
    let found: Option<(u32, String)> = query_first(connection, sql, id, |row| row.try_into())?;
    Ok(found.map(|(tool_calls, topics)| TurnRecord {
        tool_calls,
        topics: serde_json::from_str(&topics).unwrap_or_default(),
    }))
}

/// What is known about a turn besides its text.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct TurnRecord {
    /// How many tools the turn called, those inside scripts included.
    pub tool_calls: u32,
    /// What the turn is about: files and symbols, or words; the most important first.
    pub topics: Vec<String>,
}

impl TurnRecord {
    fn store(&self, connection: &Connection, session: i64, number: u32) -> Result<(), MemoryError> {
        let sql = "UPDATE memory_levels SET tool_calls = ?2, topics = encrypt(?3) WHERE id = ?1";
        let topics = serde_json::to_string(&self.topics).unwrap_or_default();
        execute(
            connection,
            sql,
            params![turn_id(session, number), self.tool_calls, topics],
        )?;
        Ok(())
    }
}

/// The lower levels of a turn, and the tokens of all levels.
pub(crate) struct CountedLevels {
    lower: LowerLevels,
    tokens: [u32; 4],
}

impl CountedLevels {
    pub(crate) fn new(raw: u32, lower: LowerLevels) -> Self {
        let [smoothed, compressed, tiny] =
            [&lower.smoothed, &lower.compressed, &lower.tiny].map(|text| tokens::count(text));
        Self {
            lower,
            tokens: [raw, smoothed, compressed, tiny],
        }
    }
}

/// Stores the levels of a turn and its token counts. `made_by` is `rules` or `model`. Does nothing
/// if the turn was forgotten.
pub(crate) fn store_levels(
    connection: &Connection,
    metrics_rows: &mut MetricsRowCache,
    session: i64,
    number: u32,
    levels: &CountedLevels,
    made_by: &str,
) -> Result<(), MemoryError> {
    let (id, lower) = (turn_id(session, number), &levels.lower);
    let sql = "INSERT INTO memory_levels (id, smoothed, compressed, tiny, made_by)
         SELECT id, encrypt(?2), encrypt(?3), encrypt(?4), ?5 FROM memory_turns WHERE id = ?1
         ON CONFLICT (id) DO UPDATE SET smoothed = excluded.smoothed,
            compressed = excluded.compressed, tiny = excluded.tiny, made_by = excluded.made_by";
    let row = params![id, lower.smoothed, lower.compressed, lower.tiny, made_by];
    if execute(connection, sql, row)? == 0 {
        // The turn was forgotten while its levels were extracted.
        return Ok(());
    }
    let mut metrics = metrics_rows.get(connection, session, number)?;
    metrics.tokens = levels.tokens;
    metrics_rows.set(connection, session, number, &metrics)
}

/// Reads a lower level of a turn; `None` if it is not written.
pub(crate) fn read_level_text(
    connection: &Connection,
    session: i64,
    number: u32,
    level: Level,
) -> Result<Option<String>, MemoryError> {
    let sql = match level {
        Level::Raw | Level::Smoothed => "SELECT decrypt(smoothed) FROM memory_levels WHERE id = ?1",
        Level::Compressed => "SELECT decrypt(compressed) FROM memory_levels WHERE id = ?1",
        Level::Tiny => "SELECT decrypt(tiny) FROM memory_levels WHERE id = ?1",
    };
    query_first(connection, sql, params![turn_id(session, number)], |row| {
        row.get(0)
    })
}

/// Computes how rare words are in a session, from the index, and caches the results.
pub(crate) struct WordRarity<'a> {
    connection: &'a Connection,
    session: i64,
    turn_count: f64,
    cache: RefCell<HashMap<String, f64>>,
}

impl<'a> WordRarity<'a> {
    pub(crate) fn new(connection: &'a Connection, session: &MemorySessionRow) -> Self {
        Self {
            connection,
            session: session.id,
            turn_count: f64::from(session.turn_count),
            cache: RefCell::default(),
        }
    }

    pub(crate) fn of_word(&self, word: &str) -> f64 {
        if let Some(cached) = self.cache.borrow().get(word) {
            return *cached;
        }
        let mut rarity = 0.0_f64;
        for_each_term(word, |term| {
            // If the index cannot be read, all words count as equally rare. The write that follows
            // reports the error.
            let matching = count_turns_with(self.connection, term, self.session).unwrap_or(0);
            rarity = rarity.max((1.0 + self.turn_count / (1.0 + f64::from(matching))).ln());
        });
        self.cache.borrow_mut().insert(word.to_owned(), rarity);
        rarity
    }
}
