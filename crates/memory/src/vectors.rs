//! The vector leg: turns as small integers, compared by a loop the compiler makes wide. It is there when somebody
//! brings an [`Encoder`]; keywords work without it.

use std::sync::Arc;

use rusqlite::{Connection, params};

use crate::levels::level_text;
use crate::store::{Session, blob, execute, find, row, stored};
use crate::{Level, Memory, MemoryError, items};

/// Makes vectors of texts. May be slow: it is never asked on a turn's path, except for the question itself.
pub trait Encoder: Send + Sync + std::fmt::Debug {
    /// Its name and version: vectors of another encoder are written anew.
    fn name(&self) -> &str;
    /// One vector per text, all of the same length. Fails with [`MemoryError::Encoder`].
    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, MemoryError>;
}

/// Turns in one row.
const PER_BLOCK: u32 = 64;
/// Turns encoded at a time.
const AT_A_TIME: u32 = 64;
/// Longer turns are encoded by what they come to.
const CHARACTERS: usize = 800;

impl Memory {
    /// The same memory, which also compares meanings.
    pub fn with_encoder(mut self, encoder: Arc<dyn Encoder>) -> Self {
        self.encoder = Some(encoder);
        self
    }

    /// The same with the encoder that is built in. Where none is, which the feature `pocket` decides, nothing changes.
    pub fn with_built_in_encoder(self) -> Self {
        #[cfg(feature = "pocket")]
        return self.with_encoder(Arc::new(crate::Pocket::new()));
        #[cfg(not(feature = "pocket"))]
        self
    }

    /// Writes the vectors of some turns that lack them. Tells how many it wrote; call it again until it wrote none.
    pub fn write_vectors(&self, session: &str) -> Result<u32, MemoryError> {
        let Some(encoder) = &self.encoder else {
            return Ok(0);
        };
        self.finish_levels(session)?;
        let (found, from, texts) = self.read(|reader| {
            let found = find(&reader.connection, session)?;
            let from = embedded(&reader.connection, found.id, encoder.name())?;
            let to = found.turns.min(from + AT_A_TIME);
            let texts =
                (from + 1..=to).map(|number| self.text_of(&reader.connection, &found, number));
            Ok((found, from, texts.collect::<Result<Vec<_>, _>>()?))
        })?;
        if texts.is_empty() {
            return Ok(0);
        }
        let vectors = encoder.encode(&texts.iter().map(String::as_str).collect::<Vec<_>>())?;
        if vectors.len() != texts.len() {
            let counts = format!("{} vectors for {} texts", vectors.len(), texts.len());
            return Err(MemoryError::Encoder(counts));
        }
        let vectors: Vec<Vec<i8>> = vectors.iter().map(|vector| quantised(vector)).collect();
        self.write(|connection| {
            if embedded(connection, found.id, encoder.name())? != from {
                // Another process was here.
                return Ok(0);
            }
            store(connection, found.id, encoder.name(), from, &vectors)?;
            for (number, _) in (from + 1..).zip(&vectors) {
                if stored(connection, found.id, number)?.is_none() {
                    // It was forgotten meanwhile.
                    forget(connection, found.id, number)?;
                }
            }
            Ok(vectors.len() as u32)
        })
    }

    fn text_of(
        &self,
        connection: &Connection,
        session: &Session,
        number: u32,
    ) -> Result<String, MemoryError> {
        let Some(turn) = stored(connection, session.id, number)? else {
            return Ok(String::new());
        };
        let text = items::readable(turn.form, &turn.raw);
        if text.chars().nth(CHARACTERS).is_none() {
            return Ok(self.redacted(&text).into_owned());
        }
        let told = level_text(connection, session.id, number, Level::Compressed)?;
        Ok(told.unwrap_or_default().chars().take(CHARACTERS).collect())
    }
}

/// How alike each turn of a session and a question are, appended. Turns without a vector are as alike as nothing.
pub(crate) fn likeness(
    connection: &Connection,
    session: i64,
    turns: u32,
    question: &[i8],
    encoder: &str,
    into: &mut Vec<f32>,
) -> Result<bool, MemoryError> {
    let end = into.len() + turns as usize;
    let mut read = connection.prepare_cached(
        "SELECT opened(data) FROM memory_vectors
         WHERE id >= ?1 AND id < ?2 AND encoder = ?3 ORDER BY id",
    )?;
    let mut rows = read.query(params![session << 32, (session + 1) << 32, encoder])?;
    let mut any = false;
    while let Some(row) = rows.next()? {
        for vector in blob(row, 0)?.chunks_exact(question.len().max(1)) {
            into.push(dot(question, vector) as f32 / (127.0 * 127.0));
            any = true;
        }
    }
    into.resize(end, 0.0);
    Ok(any)
}

/// A vector of length one in steps of 1/127.
pub(crate) fn quantised(vector: &[f32]) -> Vec<i8> {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    let is_usable = length > 0.0 && length.is_finite();
    let scale = if is_usable { 127.0 / length } else { 0.0 };
    let scaled = vector.iter().map(|x| (x * scale).round());
    scaled.map(|x| x.clamp(-127.0, 127.0) as i8).collect()
}

fn dot(a: &[i8], b: &[u8]) -> i32 {
    a.iter()
        .zip(b)
        .map(|(a, b)| i32::from(i16::from(*a) * i16::from(*b as i8)))
        .sum()
}

/// How many turns of a session have a vector of this encoder.
fn embedded(connection: &Connection, session: i64, encoder: &str) -> Result<u32, MemoryError> {
    let sql = "SELECT id, encoder, length(opened(data)) FROM memory_vectors
         WHERE id >= ?1 AND id < ?2 ORDER BY id DESC LIMIT 1";
    let ids = params![session << 32, (session + 1) << 32];
    let last: Option<(i64, String, u32)> = row(connection, sql, ids, |row| row.try_into())?;
    match last {
        Some((id, name, bytes)) if name == encoder => {
            let width = width(connection, session)?.max(1);
            Ok((id as u32) * PER_BLOCK + bytes / width)
        }
        _ => Ok(0),
    }
}

/// Bytes of a vector: the first row of a session has either a whole block or all there are.
fn width(connection: &Connection, session: i64) -> Result<u32, MemoryError> {
    let sql = "SELECT width FROM memory_encoders WHERE session = ?1";
    Ok(row(connection, sql, params![session], |row| row.get(0))?.unwrap_or(0))
}

/// The vectors of a row.
fn vectors_in(connection: &Connection, id: i64) -> Result<Option<Vec<u8>>, MemoryError> {
    let sql = "SELECT opened(data) FROM memory_vectors WHERE id = ?1";
    row(connection, sql, params![id], |row| row.get(0))
}

fn store(
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
            "INSERT OR REPLACE INTO memory_encoders VALUES (?1, ?2)",
            params![session, width as i64],
        )?;
    }
    let sql = "INSERT OR REPLACE INTO memory_vectors VALUES (?1, ?2, sealed(?3))";
    let mut rest = vectors;
    let mut at = from;
    while !rest.is_empty() {
        // One row after the other is filled.
        let room = (PER_BLOCK - at % PER_BLOCK) as usize;
        let (vectors, after) = rest.split_at(room.min(rest.len()));
        let id = session << 32 | i64::from(at / PER_BLOCK);
        let mut data = vectors_in(connection, id)?.unwrap_or_default();
        for vector in vectors {
            if vector.len() != width {
                let why = "its vectors are of different lengths";
                return Err(MemoryError::Encoder(why.to_owned()));
            }
            data.extend(vector.iter().map(|x| *x as u8));
        }
        execute(connection, sql, params![id, encoder, data])?;
        (rest, at) = (after, at + vectors.len() as u32);
    }
    Ok(())
}

/// Blanks the vector of a turn.
pub(crate) fn forget(connection: &Connection, session: i64, turn: u32) -> Result<(), MemoryError> {
    let id = session << 32 | i64::from((turn - 1) / PER_BLOCK);
    let Some(mut data) = vectors_in(connection, id)? else {
        return Ok(());
    };
    let width = width(connection, session)? as usize;
    let at = ((turn - 1) % PER_BLOCK) as usize * width;
    if let Some(vector) = data.get_mut(at..at + width) {
        vector.fill(0);
        let sql = "UPDATE memory_vectors SET data = sealed(?2) WHERE id = ?1";
        execute(connection, sql, params![id, data])?;
    }
    Ok(())
}
