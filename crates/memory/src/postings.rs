//! The inverted index: for each term of a session, the turns that contain it and how often.
//!
//! It is hand-written because FTS5 keeps one index for the whole file: idf and average length would
//! be those of all sessions, a query in one session would read the lists of all, and an index of
//! whole parts would be rewritten with every turn. Here a list belongs to one session, so that its
//! statistics are exact, the counts of a part are sums over its turns, and appending a turn
//! extends the last small block of each of its terms.

use std::collections::BTreeMap;

use selvedge_database::{Connection, DatabaseError, DatabaseValue, Row, params};

use crate::MemoryError;
use crate::store::{blob_column, execute, query_first};

/// The size at which a block is full. Larger rows of a `WITHOUT ROWID` table (above about 1,000
/// bytes) need overflow pages.
const MAX_BLOCK_BYTES: usize = 800;

/// Collected terms of turns. `finish` writes them.
#[derive(Debug, Default)]
pub(crate) struct PostingWriter {
    lists: BTreeMap<(String, i64), Vec<(u32, u32)>>,
}

impl PostingWriter {
    /// Adds the terms of a turn's text, and returns its number of words.
    pub(crate) fn add(&mut self, session: i64, turn: u32, text: &str) -> u32 {
        let mut words = 0;
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        crate::words::for_each_term(text, |term| {
            words += 1;
            match counts.get_mut(term) {
                Some(count) => *count += 1,
                None => _ = counts.insert(term.to_owned(), 1),
            }
        });
        self.add_terms(session, turn, counts);
        words
    }

    /// Adds terms of a turn with their counts.
    pub(crate) fn add_terms(
        &mut self,
        session: i64,
        turn: u32,
        terms: impl IntoIterator<Item = (String, u32)>,
    ) {
        for (term, count) in terms {
            let list = self.lists.entry((term, session)).or_default();
            list.push((turn, count));
        }
    }

    /// Appends the collected terms to the stored lists.
    pub(crate) fn finish(self, connection: &Connection) -> Result<(), MemoryError> {
        let terms: Vec<Vec<DatabaseValue>> = self
            .lists
            .keys()
            .map(|(term, session)| vec![term.as_str().into(), (*session).into()])
            .collect();
        let mut tail = connection.prepare_cached(
            "SELECT block, before, docs, last, data FROM memory_postings
             WHERE term = keyed_digest(?1) AND session = ?2 ORDER BY block DESC LIMIT 1",
        )?;
        let mut write = connection.prepare_cached(
            "INSERT INTO memory_postings (term, session, block, before, docs, last, data)
             VALUES (keyed_digest(?1), ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (term, session, block) DO UPDATE SET before = excluded.before,
                docs = excluded.docs, last = excluded.last, data = excluded.data",
        )?;
        let tails = tail.query_many(&terms, PostingBlock::read)?;
        let mut blocks = Vec::new();
        for (((term, session), list), stored) in self.lists.into_iter().zip(tails) {
            let mut block = stored.into_iter().next().unwrap_or_default();
            for (turn, count) in list {
                if block.data.len() >= MAX_BLOCK_BYTES {
                    blocks.push(block.row(&term, session));
                    block = PostingBlock {
                        number: block.number + 1,
                        docs_before: block.docs_before + block.docs,
                        ..PostingBlock::default()
                    };
                }
                block.push(turn, count);
            }
            blocks.push(block.row(&term, session));
        }
        write.execute_many(&blocks)?;
        Ok(())
    }
}

/// A block of the list of a term: one row of `memory_postings`.
#[derive(Debug, Default)]
struct PostingBlock {
    number: i64,
    /// Turns in the blocks before this one.
    docs_before: i64,
    /// Turns in this block.
    docs: i64,
    /// The last turn in this block.
    last_turn: u32,
    data: Vec<u8>,
}

impl PostingBlock {
    fn read(row: Row<'_>) -> Result<Self, DatabaseError> {
        Ok(Self {
            number: row.get(0)?,
            docs_before: row.get(1)?,
            docs: row.get(2)?,
            last_turn: row.get(3)?,
            data: row.get(4)?,
        })
    }

    /// Appends a turn: the difference to the last turn (zigzag) with a flag for counts above 1, as
    /// a varint, then the count if the flag is set.
    fn push(&mut self, turn: u32, count: u32) {
        // Differences can be negative: a model's summary adds terms to an earlier turn.
        let difference = i64::from(turn) - i64::from(self.last_turn);
        let zigzag = ((difference << 1) ^ (difference >> 63)) as u64;
        write_varint(&mut self.data, zigzag << 1 | u64::from(count > 1));
        if count > 1 {
            write_varint(&mut self.data, u64::from(count));
        }
        self.docs += 1;
        self.last_turn = turn;
    }

    /// Returns the parameters of the statement that writes the block.
    fn row(&self, term: &str, session: i64) -> Vec<DatabaseValue> {
        vec![
            term.into(),
            session.into(),
            self.number.into(),
            self.docs_before.into(),
            self.docs.into(),
            i64::from(self.last_turn).into(),
            DatabaseValue::Blob(self.data.clone()),
        ]
    }
}

/// Calls `take` with session, turn and count for every turn that contains a term, in one session or
/// (for `None`) in all, ordered by session.
pub(crate) fn for_each_posting(
    connection: &Connection,
    term: &str,
    session: Option<i64>,
    mut take: impl FnMut(i64, u32, u32),
) -> Result<(), MemoryError> {
    let all = "SELECT session, data FROM memory_postings WHERE term = keyed_digest(?1)";
    let mut read = match session {
        Some(_) => connection.prepare_cached(&format!("{all} AND session = ?2 ORDER BY block")),
        None => connection.prepare_cached(&format!("{all} ORDER BY session, block")),
    }?;
    let mut rows = match session {
        Some(session) => read.query(params![term, session]),
        None => read.query(params![term]),
    }?;
    while let Some(row) = rows.next()? {
        let session = row.get(0)?;
        for (turn, count) in PostingDecoder::new(blob_column(row, 1)?) {
            take(session, turn, count);
        }
    }
    Ok(())
}

/// Returns how many turns of a session contain a term.
pub(crate) fn count_turns_with(
    connection: &Connection,
    term: &str,
    session: i64,
) -> Result<u32, MemoryError> {
    let sql = "SELECT before + docs FROM memory_postings
         WHERE term = keyed_digest(?1) AND session = ?2 ORDER BY block DESC LIMIT 1";
    Ok(query_first(connection, sql, params![term, session], |row| row.get(0))?.unwrap_or(0))
}

/// Removes a turn from the lists of these terms.
pub(crate) fn remove_turn<'a>(
    connection: &Connection,
    session: i64,
    turn: u32,
    terms: impl IntoIterator<Item = &'a str>,
) -> Result<(), MemoryError> {
    for term in terms {
        let mut kept = Vec::new();
        for_each_posting(connection, term, Some(session), |_, found, count| {
            if found != turn {
                kept.push((found, count));
            }
        })?;
        let sql = "DELETE FROM memory_postings WHERE term = keyed_digest(?1) AND session = ?2";
        execute(connection, sql, params![term, session])?;
        if !kept.is_empty() {
            let lists = BTreeMap::from([((term.to_owned(), session), kept)]);
            PostingWriter { lists }.finish(connection)?;
        }
    }
    Ok(())
}

/// Decodes the data of a block into turns and counts. Damaged data ends the iteration.
struct PostingDecoder<'a> {
    data: &'a [u8],
    last_turn: i64,
}

impl<'a> PostingDecoder<'a> {
    fn new(data: &'a [u8]) -> Self {
        Self { data, last_turn: 0 }
    }
}

impl Iterator for PostingDecoder<'_> {
    type Item = (u32, u32);

    fn next(&mut self) -> Option<(u32, u32)> {
        let value = read_varint(&mut self.data)?;
        let count = match value & 1 {
            1 => read_varint(&mut self.data)? as u32,
            _ => 1,
        };
        let zigzag = value >> 1;
        let difference = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        self.last_turn = self.last_turn.wrapping_add(difference);
        Some((u32::try_from(self.last_turn).ok()?, count))
    }
}

/// Appends a varint: 7 bits per byte, the lowest first, with the high bit set in all but the last.
fn write_varint(data: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        data.push(value as u8 | 0x80);
        value >>= 7;
    }
    data.push(value as u8);
}

/// Reads a varint; `None` if the data ends too early or the number is too long.
fn read_varint(data: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = data.split_first()?;
        *data = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postings_are_decoded_as_they_were_encoded() {
        let mut block = PostingBlock::default();
        let list = [(1, 1), (2, 7), (900_000, 1), (5, 300), (u32::MAX, 1)];
        for (turn, count) in list {
            block.push(turn, count);
        }
        let read: Vec<_> = PostingDecoder {
            data: &block.data,
            last_turn: 0,
        }
        .collect();
        assert_eq!(read, list);
        // Damaged data does not cause a panic.
        assert_eq!(
            PostingDecoder {
                data: &[0xff; 30],
                last_turn: 0
            }
            .count(),
            0
        );
    }
}
