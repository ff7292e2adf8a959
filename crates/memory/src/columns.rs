//! What ranking and planning read of every turn, packed: a few numbers each, many turns to a row. A million turns are
//! read in milliseconds, and adding one rewrites one small row.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use rusqlite::{Connection, params};

use crate::store::{blob, row};
use crate::{Level, MemoryError};

/// Turns in one row.
pub(crate) const PER_BLOCK: u32 = 128;
const WIDTH: usize = 20;

/// Who speaks, as far as ranking cares.
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

/// The numbers of one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Numbers {
    /// Words of its text.
    pub(crate) words: u16,
    /// Which of the session's speakers; 0 for none with a name.
    pub(crate) speaker: u8,
    pub(crate) role: Role,
    /// Tokens of each level; 0 where they are not counted yet.
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
        for (tokens, place) in self.tokens.iter().zip(packed[4..].chunks_exact_mut(4)) {
            place.copy_from_slice(&tokens.to_le_bytes());
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

/// What ranking needs of a turn: what does not change while it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Brief {
    pub(crate) words: u16,
    pub(crate) speaker: u8,
    pub(crate) role: Role,
}

impl From<Numbers> for Brief {
    fn from(numbers: Numbers) -> Self {
        Self {
            words: numbers.words,
            speaker: numbers.speaker,
            role: numbers.role,
        }
    }
}

/// The row a turn is in, and its place there. Turns count from one.
fn place(session: i64, turn: u32) -> (i64, usize) {
    let index = turn - 1;
    (
        session << 32 | i64::from(index / PER_BLOCK),
        (index % PER_BLOCK) as usize,
    )
}

/// Rows being changed.
#[derive(Debug, Default)]
pub(crate) struct ColumnWriter {
    rows: BTreeMap<i64, Vec<u8>>,
}

impl ColumnWriter {
    /// Puts the numbers of a turn where they belong.
    pub(crate) fn put(
        &mut self,
        connection: &Connection,
        session: i64,
        turn: u32,
        numbers: &Numbers,
    ) -> Result<(), MemoryError> {
        let (id, at) = place(session, turn);
        let row = self.row(connection, id)?;
        if row.len() < (at + 1) * WIDTH {
            row.resize((at + 1) * WIDTH, 0);
        }
        row[at * WIDTH..(at + 1) * WIDTH].copy_from_slice(&numbers.pack());
        Ok(())
    }

    /// The numbers of a turn, as far as they are known.
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
            .ok_or_else(|| MemoryError::Damaged(format!("turn {turn} has no numbers")))
    }

    fn row(&mut self, connection: &Connection, id: i64) -> Result<&mut Vec<u8>, MemoryError> {
        Ok(match self.rows.entry(id) {
            Entry::Occupied(row) => row.into_mut(),
            Entry::Vacant(place) => {
                let sql = "SELECT data FROM memory_columns WHERE id = ?1";
                let stored = row(connection, sql, params![id], |row| row.get(0))?;
                place.insert(stored.unwrap_or_default())
            }
        })
    }

    /// Writes what changed.
    pub(crate) fn finish(self, connection: &Connection) -> Result<(), MemoryError> {
        let mut write =
            connection.prepare_cached("INSERT OR REPLACE INTO memory_columns VALUES (?1, ?2)")?;
        for (id, row) in self.rows {
            write.execute(params![id, row])?;
        }
        Ok(())
    }
}

/// The numbers of a session's turns from one on, or what ranking needs of them, appended to what is there.
pub(crate) fn read<T: From<Numbers>>(
    connection: &Connection,
    session: i64,
    first: u32,
    turns: u32,
    into: &mut Vec<T>,
) -> Result<(), MemoryError> {
    if first > turns {
        return Ok(());
    }
    let (from, mut skip) = place(session, first);
    let (to, _) = place(session, turns);
    let mut read = connection
        .prepare_cached("SELECT data FROM memory_columns WHERE id BETWEEN ?1 AND ?2 ORDER BY id")?;
    let mut rows = read.query(params![from, to])?;
    let expected = into.len() + (turns + 1 - first) as usize;
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
    if let lacking @ 1.. = expected.saturating_sub(into.len()) {
        return Err(MemoryError::Damaged(format!(
            "{lacking} turns lack their numbers"
        )));
    }
    into.truncate(expected);
    Ok(())
}
