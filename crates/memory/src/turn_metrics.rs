//! Metrics of turns, as ranking and planning need them for every turn: word count, speaker, role
//! and token counts.
//!
//! They are packed, with 128 turns in one row of `memory_turn_metrics`: a million turns are read in
//! milliseconds, and appending a turn rewrites one small row.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use selvedge_database::{Connection, params};

use crate::store::{blob_column, query_first};
use crate::{Level, MemoryError};

/// Turns in one row.
pub(crate) const TURNS_PER_ROW: u32 = 128;
/// Bytes of one turn's packed metrics.
const METRICS_BYTES: usize = 20;

/// The role of a speaker, as far as ranking distinguishes roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum SpeakerRole {
    #[default]
    Other,
    User,
    Assistant,
}

impl SpeakerRole {
    pub(crate) fn from_name(role: &str) -> Self {
        match role {
            "user" | "human" => Self::User,
            "assistant" | "model" => Self::Assistant,
            _ => Self::Other,
        }
    }
}

/// The metrics of one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TurnMetrics {
    /// Words of the turn's text, at most 65,535. 0 for a forgotten turn.
    pub(crate) words: u16,
    /// The number of the speaker in the session; 0 for a speaker without a name.
    pub(crate) speaker: u8,
    pub(crate) role: SpeakerRole,
    /// Tokens of each level; 0 until the levels are written.
    pub(crate) tokens: [u32; 4],
}

impl TurnMetrics {
    pub(crate) fn tokens_at(&self, level: Level) -> u32 {
        self.tokens[level as usize]
    }

    fn to_bytes(self) -> [u8; METRICS_BYTES] {
        let mut packed = [0; METRICS_BYTES];
        packed[..2].copy_from_slice(&self.words.to_le_bytes());
        packed[2] = self.speaker;
        packed[3] = self.role as u8;
        for (tokens, bytes) in self.tokens.iter().zip(packed[4..].chunks_exact_mut(4)) {
            bytes.copy_from_slice(&tokens.to_le_bytes());
        }
        packed
    }

    fn from_bytes(packed: &[u8; METRICS_BYTES]) -> Self {
        let (words, _) = packed.as_chunks::<4>();
        Self {
            words: u16::from_le_bytes([packed[0], packed[1]]),
            speaker: packed[2],
            role: match packed[3] {
                1 => SpeakerRole::User,
                2 => SpeakerRole::Assistant,
                _ => SpeakerRole::Other,
            },
            tokens: std::array::from_fn(|level| u32::from_le_bytes(words[level + 1])),
        }
    }
}

/// The metrics that ranking needs. They do not change until the turn is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RankMetrics {
    pub(crate) words: u16,
    pub(crate) speaker: u8,
    pub(crate) role: SpeakerRole,
}

impl From<TurnMetrics> for RankMetrics {
    fn from(metrics: TurnMetrics) -> Self {
        Self {
            words: metrics.words,
            speaker: metrics.speaker,
            role: metrics.role,
        }
    }
}

/// Returns the id of the row a turn is in, and its index in that row. Turns count from 1.
fn locate(session: i64, turn: u32) -> (i64, usize) {
    let index = turn - 1;
    (
        session << 32 | i64::from(index / TURNS_PER_ROW),
        (index % TURNS_PER_ROW) as usize,
    )
}

/// Rows of metrics being changed in one transaction. `finish` writes them.
#[derive(Debug, Default)]
pub(crate) struct MetricsRowCache {
    rows: BTreeMap<i64, Vec<u8>>,
}

impl MetricsRowCache {
    /// Sets the metrics of a turn.
    pub(crate) fn set(
        &mut self,
        connection: &Connection,
        session: i64,
        turn: u32,
        metrics: &TurnMetrics,
    ) -> Result<(), MemoryError> {
        let (id, at) = locate(session, turn);
        let row = self.load_row(connection, id)?;
        if row.len() < (at + 1) * METRICS_BYTES {
            row.resize((at + 1) * METRICS_BYTES, 0);
        }
        row[at * METRICS_BYTES..(at + 1) * METRICS_BYTES].copy_from_slice(&metrics.to_bytes());
        Ok(())
    }

    /// Returns the metrics of a turn.
    pub(crate) fn get(
        &mut self,
        connection: &Connection,
        session: i64,
        turn: u32,
    ) -> Result<TurnMetrics, MemoryError> {
        let (id, at) = locate(session, turn);
        let row = self.load_row(connection, id)?;
        let packed = row
            .get(at * METRICS_BYTES..)
            .and_then(|rest| rest.first_chunk());
        packed
            .map(TurnMetrics::from_bytes)
            .ok_or_else(|| MemoryError::Damaged(format!("turn {turn} has no metrics")))
    }

    fn load_row(&mut self, connection: &Connection, id: i64) -> Result<&mut Vec<u8>, MemoryError> {
        Ok(match self.rows.entry(id) {
            Entry::Occupied(row) => row.into_mut(),
            Entry::Vacant(entry) => {
                let sql = "SELECT data FROM memory_turn_metrics WHERE id = ?1";
                let stored = query_first(connection, sql, params![id], |row| row.get(0))?;
                entry.insert(stored.unwrap_or_default())
            }
        })
    }

    /// Writes the changed rows.
    pub(crate) fn finish(self, connection: &Connection) -> Result<(), MemoryError> {
        let mut write = connection.prepare_cached(
            "INSERT INTO memory_turn_metrics (id, data) VALUES (?1, ?2)
             ON CONFLICT (id) DO UPDATE SET data = excluded.data",
        )?;
        for (id, row) in self.rows {
            write.execute(params![id, row])?;
        }
        Ok(())
    }
}

/// Appends the metrics of a session's turns `first..=last` to `into`: all of them, or those that
/// ranking needs.
pub(crate) fn read_metrics<T: From<TurnMetrics>>(
    connection: &Connection,
    session: i64,
    first: u32,
    last: u32,
    into: &mut Vec<T>,
) -> Result<(), MemoryError> {
    if first > last {
        return Ok(());
    }
    let (from, mut skip) = locate(session, first);
    let (to, _) = locate(session, last);
    let mut read = connection.prepare_cached(
        "SELECT data FROM memory_turn_metrics WHERE id BETWEEN ?1 AND ?2 ORDER BY id",
    )?;
    let mut rows = read.query(params![from, to])?;
    let expected = into.len() + (last + 1 - first) as usize;
    while let Some(row) = rows.next()? {
        let (packed, _) = blob_column(row, 0)?.as_chunks::<METRICS_BYTES>();
        into.extend(
            packed
                .iter()
                .skip(skip)
                .map(|packed| T::from(TurnMetrics::from_bytes(packed))),
        );
        skip = 0;
    }
    if let missing @ 1.. = expected.saturating_sub(into.len()) {
        return Err(MemoryError::Damaged(format!(
            "{missing} turns have no metrics"
        )));
    }
    into.truncate(expected);
    Ok(())
}
