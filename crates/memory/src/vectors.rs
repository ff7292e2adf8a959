//! Stores and compares vectors of turns, if the memory has an [`Encoder`]. Vectors have one byte
//! per dimension and are compared one by one, with a loop that the compiler vectorises.

use std::sync::Arc;

use selvedge_database::{Connection, params};

use crate::level_writer::read_level_text;
use crate::store::{
    MemorySessionRow, blob_column, execute, find_session, load_turn, lock_session, query_first,
    require_session,
};
use crate::{Level, Memory, MemoryError, turn_pieces};

/// Computes vectors of texts. It may be slow: before a turn, it encodes only the question.
pub trait Encoder: Send + Sync + std::fmt::Debug {
    /// Returns the name and version of the encoder. If it changes, all vectors are computed again.
    fn name(&self) -> &str;
    /// Returns one vector per text, all of the same length. Fails with [`MemoryError::Encoder`].
    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, MemoryError>;

    /// Returns the vector of a question, to compare with those of turns. A turn waits for it, so
    /// that a slow encoder should fail soon: the search then uses keywords alone.
    fn encode_question(&self, question: &str) -> Result<Vec<f32>, MemoryError> {
        Ok(self.encode(&[question])?.pop().unwrap_or_default())
    }
}

/// Vectors in one row of `memory_vectors`.
const VECTORS_PER_ROW: u32 = 64;
/// Turns encoded by one call of [`Memory::write_vectors`].
const MAX_ENCODED_TURNS: u32 = 64;
/// Of longer turns, the compressed level is encoded.
pub(crate) const MAX_RAW_CHARS: usize = 800;

impl Memory {
    /// Adds an encoder, so that searches compare vectors, too.
    pub fn with_encoder(mut self, encoder: Arc<dyn Encoder>) -> Self {
        self.encoder = Some(encoder);
        self
    }

    /// Returns whether recall compares meanings, besides words.
    pub fn compares_meanings(&self) -> bool {
        self.encoder.is_some()
    }

    /// Adds the built-in encoder. Does nothing without the feature `pocket`.
    pub fn with_built_in_encoder(self) -> Self {
        #[cfg(feature = "pocket")]
        return self.with_encoder(Arc::new(crate::PocketEncoder::new()));
        #[cfg(not(feature = "pocket"))]
        self
    }

    /// Computes the vectors of the next turns without one, and returns how many. Call it again
    /// until it returns 0.
    pub fn write_vectors(&self, session: &str) -> Result<u32, MemoryError> {
        let Some(encoder) = &self.encoder else {
            return Ok(0);
        };
        self.write_missing_levels(session)?;
        let (found, from, texts) = self.read(|reader| {
            let found = require_session(&reader.connection, session)?;
            let from = encoded_turn_count(&reader.connection, found.id, encoder.name())?;
            let to = found.turn_count.min(from + MAX_ENCODED_TURNS);
            let texts = (from + 1..=to)
                .map(|number| self.text_to_encode(&reader.connection, &found, number));
            Ok((found, from, texts.collect::<Result<Vec<_>, _>>()?))
        })?;
        if texts.is_empty() {
            return Ok(0);
        }
        let vectors = encoder.encode(&texts.iter().map(String::as_str).collect::<Vec<_>>())?;
        if vectors.len() != texts.len() {
            let message = format!("{} vectors for {} texts", vectors.len(), texts.len());
            return Err(MemoryError::Encoder(message));
        }
        let vectors: Vec<Vec<i8>> = vectors.iter().map(|vector| quantise(vector)).collect();
        self.write(|connection| {
            lock_session(connection, session)?;
            if encoded_turn_count(connection, found.id, encoder.name())? != from {
                // Another process has written these vectors.
                return Ok(0);
            }
            store_vectors(connection, found.id, encoder.name(), from, &vectors)?;
            for (number, _) in (from + 1..).zip(&vectors) {
                if load_turn(connection, found.id, number)?.is_none() {
                    // The turn was forgotten while the encoder worked.
                    clear_vector(connection, found.id, number)?;
                }
            }
            Ok(vectors.len() as u32)
        })
    }

    /// Returns whether a session has turns without a vector, and there is an encoder.
    pub fn has_turns_to_encode(&self, session: &str) -> Result<bool, MemoryError> {
        let Some(encoder) = &self.encoder else {
            return Ok(false);
        };
        self.read(|reader| {
            let Some(found) = find_session(&reader.connection, session)? else {
                return Ok(false);
            };
            let encoded = encoded_turn_count(&reader.connection, found.id, encoder.name())?;
            Ok(encoded < found.turn_count)
        })
    }

    /// Returns the text of a turn for the encoder, redacted; empty for a forgotten turn.
    fn text_to_encode(
        &self,
        connection: &Connection,
        session: &MemorySessionRow,
        number: u32,
    ) -> Result<String, MemoryError> {
        let Some(turn) = load_turn(connection, session.id, number)? else {
            return Ok(String::new());
        };
        let text = turn_pieces::searchable_text(turn.format, &turn.raw);
        if text.chars().nth(MAX_RAW_CHARS).is_none() {
            return Ok(self.redact(&text).into_owned());
        }
        let text = read_level_text(connection, session.id, number, Level::Compressed)?;
        Ok(text
            .unwrap_or_default()
            .chars()
            .take(MAX_RAW_CHARS)
            .collect())
    }
}

/// The vector of a question, to compare with those of turns.
#[derive(Debug)]
pub(crate) struct QuestionVector {
    values: Vec<i16>,
    /// What a comparison with moved values has too much: see [`move_values`].
    excess: i32,
}

impl QuestionVector {
    pub(crate) fn new(vector: &[f32]) -> Self {
        let values: Vec<i16> = quantise(vector).into_iter().map(i16::from).collect();
        let sum: i32 = values.iter().map(|value| i32::from(*value)).sum();
        Self {
            values,
            excess: sum * 128,
        }
    }

    fn width(&self) -> usize {
        self.values.len().max(1)
    }

    /// Returns the cosine similarity to a vector as it is stored.
    pub(crate) fn similarity_to_stored(&self, stored: &[u8]) -> f32 {
        let mut moved = Vec::with_capacity(stored.len());
        move_values(stored, &mut moved);
        match moved.len() == self.values.len() {
            true => self.similarity(&moved),
            false => 0.0,
        }
    }

    /// Returns the cosine similarity to a vector with moved values.
    fn similarity(&self, moved: &[u8]) -> f32 {
        (dot(&self.values, moved) - self.excess) as f32 / (127.0 * 127.0)
    }
}

/// The vectors of a session that earlier searches read. Only complete rows are kept: they never
/// change, except when a turn is forgotten or the encoder changes.
#[derive(Debug, Default)]
pub(crate) struct SessionVectors {
    encoder: String,
    /// How many rows are in `data`.
    rows: u32,
    /// The vectors, with moved values.
    data: Vec<u8>,
}

/// Bytes of vectors that are kept for the next search, per session. Others are read each time.
const MAX_KEPT_BYTES: usize = 64 << 20;

impl SessionVectors {
    /// Appends the cosine similarity of each turn of the session to a question; 0 for turns without
    /// a vector. Returns whether any turn has one.
    pub(crate) fn append_similarities(
        &mut self,
        connection: &Connection,
        session: i64,
        turns: u32,
        (encoder, question): (&str, &QuestionVector),
        into: &mut Vec<f32>,
    ) -> Result<bool, MemoryError> {
        let (start, end) = (into.len(), into.len() + turns as usize);
        let width = question.width();
        if self.encoder != encoder || self.data.len() != self.rows as usize * row_bytes(width) {
            *self = Self {
                encoder: encoder.to_owned(),
                ..Self::default()
            };
        }
        let similarity = |vector: &[u8]| question.similarity(vector);
        into.extend(self.data.chunks_exact(width).map(similarity));
        let mut moved = Vec::new();
        let mut read = connection.prepare_cached(
            "SELECT decrypt(data) FROM memory_vectors
             WHERE id >= ?1 AND id < ?2 AND encoder = ?3 ORDER BY id",
        )?;
        let first = session << 32 | i64::from(self.rows);
        let mut rows = read.query(params![first, (session + 1) << 32, encoder])?;
        while let Some(row) = rows.next()? {
            moved.clear();
            move_values(blob_column(row, 0)?, &mut moved);
            into.extend(moved.chunks_exact(width).map(similarity));
            let is_complete = moved.len() == row_bytes(width);
            if is_complete && self.data.len() + moved.len() <= MAX_KEPT_BYTES {
                self.data.extend_from_slice(&moved);
                self.rows += 1;
            }
        }
        let any = into.len() > start;
        into.resize(end, 0.0);
        Ok(any)
    }
}

/// Returns the bytes of a row with all its vectors.
fn row_bytes(width: usize) -> usize {
    VECTORS_PER_ROW as usize * width
}

/// Normalises a vector to length 1 and quantises it in steps of 1/127.
pub(crate) fn quantise(vector: &[f32]) -> Vec<i8> {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    let is_usable = length > 0.0 && length.is_finite();
    let scale = if is_usable { 127.0 / length } else { 0.0 };
    let scaled = vector.iter().map(|x| (x * scale).round());
    scaled.map(|x| x.clamp(-127.0, 127.0) as i8).collect()
}

/// Moves stored values from -128..=127 to 0..=255: baseline x86-64 widens unsigned bytes with fewer
/// instructions than signed ones.
fn move_values(stored: &[u8], into: &mut Vec<u8>) {
    into.extend(stored.iter().map(|value| value ^ 0x80));
}

/// Values that are multiplied and added up together, so that the next ones do not wait for the sum.
const LANES: usize = 16;

/// Returns the sum of the products.
fn dot(a: &[i16], b: &[u8]) -> i32 {
    let products = |a: &[i16], b: &[u8]| -> i32 {
        let pairs = a.iter().zip(b);
        pairs.map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
    };
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = products(a_chunks.remainder(), b_chunks.remainder());
    let chunks = a_chunks.zip(b_chunks);
    rest + chunks.map(|(a, b)| products(a, b)).sum::<i32>()
}

/// Returns how many turns of a session have a vector of this encoder.
fn encoded_turn_count(
    connection: &Connection,
    session: i64,
    encoder: &str,
) -> Result<u32, MemoryError> {
    let sql = "SELECT id, encoder, decrypt(data) FROM memory_vectors
         WHERE id >= ?1 AND id < ?2 ORDER BY id DESC LIMIT 1";
    let ids = params![session << 32, (session + 1) << 32];
    let last: Option<(i64, String, Vec<u8>)> =
        query_first(connection, sql, ids, |row| row.try_into())?;
    match last {
        Some((id, name, data)) if name == encoder => {
            let width = vector_bytes(connection, session)?.max(1);
            Ok((id as u32) * VECTORS_PER_ROW + data.len() as u32 / width)
        }
        _ => Ok(0),
    }
}

/// Returns the bytes of one vector of a session; 0 if it has none.
fn vector_bytes(connection: &Connection, session: i64) -> Result<u32, MemoryError> {
    let sql = "SELECT width FROM memory_encoders WHERE session = ?1";
    Ok(query_first(connection, sql, params![session], |row| row.get(0))?.unwrap_or(0))
}

/// Reads the vectors of a row.
fn read_vector_row(connection: &Connection, id: i64) -> Result<Option<Vec<u8>>, MemoryError> {
    let sql = "SELECT decrypt(data) FROM memory_vectors WHERE id = ?1";
    query_first(connection, sql, params![id], |row| row.get(0))
}

/// Stores vectors for the turns after `from`. For `from == 0` all stored vectors are replaced.
fn store_vectors(
    connection: &Connection,
    session: i64,
    encoder: &str,
    from: u32,
    vectors: &[Vec<i8>],
) -> Result<(), MemoryError> {
    let width = vectors.first().map_or(0, Vec::len);
    if from == 0 {
        connection.execute(
            "DELETE FROM memory_vectors WHERE id >= ?1 AND id < ?2",
            params![session << 32, (session + 1) << 32],
        )?;
        connection.execute(
            "INSERT INTO memory_encoders (session, width) VALUES (?1, ?2)
             ON CONFLICT (session) DO UPDATE SET width = excluded.width",
            params![session, width as i64],
        )?;
    }
    let sql = "INSERT INTO memory_vectors (id, encoder, data) VALUES (?1, ?2, encrypt(?3))
        ON CONFLICT (id) DO UPDATE SET encoder = excluded.encoder, data = excluded.data";
    let mut rest = vectors;
    let mut at = from;
    while !rest.is_empty() {
        // Fill the current row before starting the next.
        let room = (VECTORS_PER_ROW - at % VECTORS_PER_ROW) as usize;
        let (vectors, after) = rest.split_at(room.min(rest.len()));
        let id = session << 32 | i64::from(at / VECTORS_PER_ROW);
        let mut data = read_vector_row(connection, id)?.unwrap_or_default();
        for vector in vectors {
            if vector.len() != width {
                let message = "the vectors have different lengths";
                return Err(MemoryError::Encoder(message.to_owned()));
            }
            data.extend(vector.iter().map(|x| *x as u8));
        }
        execute(connection, sql, params![id, encoder, data])?;
        (rest, at) = (after, at + vectors.len() as u32);
    }
    Ok(())
}

/// Overwrites the vector of a turn with zeros.
pub(crate) fn clear_vector(
    connection: &Connection,
    session: i64,
    turn: u32,
) -> Result<(), MemoryError> {
    let id = session << 32 | i64::from((turn - 1) / VECTORS_PER_ROW);
    let Some(mut data) = read_vector_row(connection, id)? else {
        return Ok(());
    };
    let width = vector_bytes(connection, session)? as usize;
    let at = ((turn - 1) % VECTORS_PER_ROW) as usize * width;
    if let Some(vector) = data.get_mut(at..at + width) {
        vector.fill(0);
        let sql = "UPDATE memory_vectors SET data = encrypt(?2) WHERE id = ?1";
        execute(connection, sql, params![id, data])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_is_exact_for_every_width() {
        let number = |at: usize| (at * 7919 % 255) as i32 - 127;
        for width in [1, 7, 8, 15, 16, 17, 100, 384] {
            let vector: Vec<f32> = (0..width).map(|at| number(at * 3 + 1) as f32).collect();
            let question = QuestionVector::new(&vector);
            let stored: Vec<i8> = (0..width).map(|at| number(at + width) as i8).collect();
            let bytes: Vec<u8> = stored.iter().map(|value| *value as u8).collect();
            let mut moved = Vec::new();
            move_values(&bytes, &mut moved);
            let values = question.values.iter().zip(&stored);
            let expected: i32 = values.map(|(a, b)| i32::from(*a) * i32::from(*b)).sum();
            assert_eq!(dot(&question.values, &moved) - question.excess, expected);
        }
    }
}
