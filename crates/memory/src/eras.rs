//! Eras: one short text for many old turns. An era summarises 32 turns, the next longer one 256
//! turns, and so on, so that a few dozen texts cover a million turns. Eras are written together
//! with the levels of their turns.

use std::collections::BTreeMap;

use selvedge_database::{Connection, params};

use crate::extract::TextMeasures;
use crate::gradient::{Band, EraLookup};
use crate::level::{Level, TaggedSpan};
use crate::level_writer::WordRarity;
use crate::store::{MemorySessionRow, execute, query_rows, turn_id};
use crate::text_units::best_lines;
use crate::{MemoryError, tokens};

/// Turns in an era of the shortest length.
pub(crate) const SHORTEST_ERA_TURNS: u32 = 32;
/// Eras that make up one of the next length.
const ERAS_PER_LONGER_ERA: u32 = 8;
/// How many lengths of eras there are.
const ERA_LENGTHS: u32 = 6;
/// Tokens of an era's text.
const MAX_ERA_TOKENS: u32 = 40;

/// Returns how many turns an era of a length covers. Lengths count from 0.
fn era_turns(length: u32) -> u32 {
    SHORTEST_ERA_TURNS * ERAS_PER_LONGER_ERA.pow(length)
}

/// Writes the eras that became complete when the levels of the turns after `from` up to `to` were
/// written.
pub(crate) fn write_completed_eras(
    connection: &Connection,
    session: &MemorySessionRow,
    from: u32,
    to: u32,
) -> Result<(), MemoryError> {
    for length in 0..ERA_LENGTHS {
        for era in from / era_turns(length)..to / era_turns(length) {
            write_era(connection, session, length, era)?;
        }
    }
    Ok(())
}

/// Writes an era from the tiny texts of its turns, or from the texts of its shorter eras.
fn write_era(
    connection: &Connection,
    session: &MemorySessionRow,
    length: u32,
    era: u32,
) -> Result<(), MemoryError> {
    let (first, last) = (era * era_turns(length) + 1, (era + 1) * era_turns(length));
    let lines = match length {
        0 => {
            let ids = params![turn_id(session.id, first), turn_id(session.id, last)];
            let sql =
                "SELECT decrypt(tiny) FROM memory_levels WHERE id BETWEEN ?1 AND ?2 ORDER BY id";
            query_rows(connection, sql, ids, |row| row.get(0))?
        }
        _ => era_texts(connection, session.id, length - 1, first, last)?,
    };
    let rarity = WordRarity::new(connection, session);
    let measures = TextMeasures {
        rarity: &|word| rarity.of_word(word),
        count_tokens: &tokens::count,
    };
    let text = best_lines(&lines, MAX_ERA_TOKENS, &measures);
    let tokens = tokens::count(&text) + TaggedSpan::new(first, last, Level::Tiny).tag_tokens();
    let sql = "INSERT INTO memory_eras (session, length, first, text, tokens)
        VALUES (?1, ?2, ?3, encrypt(?4), ?5)
        ON CONFLICT (session, length, first) DO UPDATE SET text = excluded.text,
            tokens = excluded.tokens";
    execute(
        connection,
        sql,
        params![session.id, length, first, text, tokens],
    )?;
    Ok(())
}

/// Rewrites the eras that cover a changed turn.
pub(crate) fn rewrite_eras_of_turn(
    connection: &Connection,
    session: &MemorySessionRow,
    turn: u32,
) -> Result<(), MemoryError> {
    for length in 0..ERA_LENGTHS {
        let era = (turn - 1) / era_turns(length);
        if (era + 1) * era_turns(length) <= session.levels_written_to {
            write_era(connection, session, length, era)?;
        }
    }
    Ok(())
}

/// Reads the texts of the eras of a length whose first turn is in `first..=last`.
fn era_texts(
    connection: &Connection,
    session: i64,
    length: u32,
    first: u32,
    last: u32,
) -> Result<Vec<String>, MemoryError> {
    let sql = "SELECT decrypt(text) FROM memory_eras
         WHERE session = ?1 AND length = ?2 AND first BETWEEN ?3 AND ?4 ORDER BY first";
    query_rows(
        connection,
        sql,
        params![session, length, first, last],
        |row| row.get(0),
    )
}

/// Returns the text of the era that covers exactly these turns; empty if there is none.
pub(crate) fn era_text(
    connection: &Connection,
    session: i64,
    span: TaggedSpan,
) -> Result<String, MemoryError> {
    let length = (0..ERA_LENGTHS).find(|length| era_turns(*length) == span.last + 1 - span.first);
    let Some(length) = length else {
        return Ok(String::new());
    };
    let mut found = era_texts(connection, session, length, span.first, span.first)?;
    Ok(found.pop().unwrap_or_default())
}

/// The token counts of a session's eras, tags included.
#[derive(Debug, Default)]
pub(crate) struct EraTokenCounts {
    /// By length, then by first turn.
    tokens: [BTreeMap<u32, u32>; ERA_LENGTHS as usize],
}

impl EraTokenCounts {
    pub(crate) fn read(connection: &Connection, session: i64) -> Result<Self, MemoryError> {
        let mut eras = Self::default();
        let mut read = connection
            .prepare_cached("SELECT length, first, tokens FROM memory_eras WHERE session = ?1")?;
        let mut rows = read.query(params![session])?;
        while let Some(row) = rows.next()? {
            let length: u32 = row.get(0)?;
            if let Some(tokens) = eras.tokens.get_mut(length as usize) {
                tokens.insert(row.get(1)?, row.get(2)?);
            }
        }
        Ok(eras)
    }
}

impl EraLookup for EraTokenCounts {
    fn eras_covering(&self, turns: u32) -> Option<Vec<Band>> {
        let mut cover = Vec::new();
        let mut at = 0;
        for length in (0..ERA_LENGTHS).rev() {
            while at + era_turns(length) <= turns {
                let Some(tokens) = self.tokens[length as usize].get(&(at + 1)) else {
                    break;
                };
                cover.push(Band::new_era(at + 1, at + era_turns(length), *tokens));
                at += era_turns(length);
            }
        }
        (at == turns).then_some(cover)
    }
}
