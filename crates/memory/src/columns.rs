//! Metrics of turns, as ranking and planning need them for every turn: word count, speaker, role
//! and token counts.
//!
//! They are packed, with 128 turns in one row of `memory_columns`: a million turns are read in
//! milliseconds, and appending a turn rewrites one small row.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use rusqlite::{Connection, params};

use crate::store::{blob, row};
use crate::{Level, MemoryError};

/// Turns in one row.
pub(crate) const PER_BLOCK: u32 = 128;
/// Bytes of one turn's packed metrics.
const WIDTH: usize = 20;

/// The role of a speaker, as far as ranking distinguishes roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Role {
    #[default]
    Other,
    User,
    Assistant,
}

impl Role {
    pub(crate) fn named(role: &str) -> Self {
        match role {
            "user" | "human" => Self::User,
            "assistant" | "model" => Self::Assistant,
            _ => Self::Other,
        }
    }
}

/// The metrics of one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Numbers {
    /// Words of the turn's text, at most 65,535. 0 for a forgotten turn.
    pub(crate) words: u16,
    /// The number of the speaker in the session; 0 for a speaker without a name.
    pub(crate) speaker: u8,
    pub(crate) role: Role,
    /// Tokens of each level; 0 until the levels are written.
    pub(crate) tokens: [u32; 4],
}

impl Numbers {
    pub(crate) fn tokens_of(&self, level: Level) -> u32 {
        self.tokens[level as usize]
    }

    fn pack(&self) -> [u8; WIDTH] {
        let mut packed = [0; WIDTH];
        packed[..2].copy_from_slice(&self.words.to_le_bytes());
        packed[2] = self.speaker;
        packed[3] = self.role as u8;
        for (tokens, bytes) in self.tokens.iter().zip(packed[4..].chunks_exact_mut(4)) {
            bytes.copy_from_slice(&tokens.to_le_bytes());
        }
        packed
    }

    fn unpack(packed: &[u8; WIDTH]) -> Self {
        let (words, _) = packed.as_chunks::<4>();
        Self {
            words: u16::from_le_bytes([packed[0], packed[1]]),
            speaker: packed[2],
            role: match packed[3] {
                1 => Role::User,
                2 => Role::Assistant,
                _ => Role::Other,
            },
            tokens: std::array::from_fn(|level| u32::from_le_bytes(words[level + 1])),
        }
    }
}

/// The metrics that ranking needs. They do not change until the turn is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Brief {
    pub(crate) words: u16,
    pub(crate) speaker: u8,
    pub(crate) role: Role,
}

impl From<Numbers> for Brief {
    fn from(metrics: Numbers) -> Self {
        Self {
            words: metrics.words,
            speaker: metrics.speaker,
            role: metrics.role,
        }
    }
}

/// Returns the id of the row a turn is in, and its index in that row. Turns count from 1.
fn place(session: i64, turn: u32) -> (i64, usize) {
    let index = turn - 1;
    (
        session << 32 | i64::from(index / PER_BLOCK),
        (index % PER_BLOCK) as usize,
    )
}

/// Rows of metrics being changed in one transaction. `finish` writes them.
#[derive(Debug, Default)]
pub(crate) struct ColumnWriter {
    rows: BTreeMap<i64, Vec<u8>>,
}

impl ColumnWriter {
    /// Sets the metrics of a turn.
    pub(crate) fn put(
        &mut self,
        connection: &Connection,
        session: i64,
        turn: u32,
        metrics: &Numbers,
    ) -> Result<(), MemoryError> {
        let (id, at) = place(session, turn);
        let row = self.row(connection, id)?;
        if row.len() < (at + 1) * WIDTH {
            row.resize((at + 1) * WIDTH, 0);
        }
        row[at * WIDTH..(at + 1) * WIDTH].copy_from_slice(&metrics.pack());
        Ok(())
    }

    /// Returns the metrics of a turn.
    pub(crate) fn get(
        &mut self,
        connection: &Connection,
        session: i64,
        turn: u32,
    ) -> Result<Numbers, MemoryError> {
        let (id, at) = place(session, turn);
        let row = self.row(connection, id)?;
        let packed = row.get(at * WIDTH..).and_then(|rest| rest.first_chunk());
        packed
            .map(Numbers::unpack)
            .ok_or_else(|| MemoryError::Damaged(format!("turn {turn} has no metrics")))
    }

    fn row(&mut self, connection: &Connection, id: i64) -> Result<&mut Vec<u8>, MemoryError> {
        Ok(match self.rows.entry(id) {
            Entry::Occupied(row) => row.into_mut(),
            Entry::Vacant(entry) => {
                let sql = "SELECT data FROM memory_columns WHERE id = ?1";
                let stored = row(connection, sql, params![id], |row| row.get(0))?;
                entry.insert(stored.unwrap_or_default())
            }
        })
    }

    /// Writes the changed rows.
    pub(crate) fn finish(self, connection: &Connection) -> Result<(), MemoryError> {
        let mut write =
            connection.prepare_cached("INSERT OR REPLACE INTO memory_columns VALUES (?1, ?2)")?;
        for (id, row) in self.rows {
            write.execute(params![id, row])?;
        }
        Ok(())
    }
}

/// Appends the metrics of a session's turns `first..=last` to `into`: all of them, or those that
/// ranking needs.
pub(crate) fn read<T: From<Numbers>>(
    connection: &Connection,
    session: i64,
    first: u32,
    last: u32,
    into: &mut Vec<T>,
) -> Result<(), MemoryError> {
    if first > last {
        return Ok(());
    }
    let (from, mut skip) = place(session, first);
    let (to, _) = place(session, last);
    let mut read = connection
        .prepare_cached("SELECT data FROM memory_columns WHERE id BETWEEN ?1 AND ?2 ORDER BY id")?;
    let mut rows = read.query(params![from, to])?;
    let expected = into.len() + (last + 1 - first) as usize;
    while let Some(row) = rows.next()? {
        let (packed, _) = blob(row, 0)?.as_chunks::<WIDTH>();
        into.extend(
            packed
                .iter()
                .skip(skip)
                .map(|packed| T::from(Numbers::unpack(packed))),
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
