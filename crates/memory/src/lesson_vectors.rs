//! Vectors of lessons and layers, which a recall compares with that of the question beside those of
//! turns.

use std::collections::HashMap;

use selvedge_database::params;

use crate::lessons::{Lesson, lessons_in_use};
use crate::search::QueryVector;
use crate::store::{execute, query_rows};
use crate::vectors::{MAX_RAW_CHARS, quantise};
use crate::{Memory, MemoryAccess, MemoryError};

/// Lessons encoded at once.
const MAX_ENCODED_LESSONS: u32 = 64;
/// The similarity to the question that a lesson must have to be considered because of its vector.
const MIN_SIMILARITY: f32 = 0.35;
/// Lessons that are considered because of their vectors.
const MAX_NEAR_LESSONS: usize = 3;

impl Memory {
    /// Computes the vectors of the lessons and layers without one that are used or proposed: of
    /// their title and the beginning of their text. `unit` limits this to the lessons of a unit and
    /// those of all projects: the encoder of a project reads no lesson of another. Returns how many
    /// there were.
    fn write_lesson_vectors(&self, unit: Option<&str>) -> Result<u32, MemoryError> {
        let Some(encoder) = &self.encoder else {
            return Ok(0);
        };
        let mut written = 0;
        loop {
            let sql = "SELECT id, updated_ms, decrypt(title), decrypt(content)
                 FROM memory_lessons WHERE status IN ('used', 'proposed')
                 AND (vector IS NULL OR encoder <> ?1)
                 AND (coalesce(project, '') IN (?3, '') OR ?3 IS NULL) ORDER BY id LIMIT ?2";
            let key = params![encoder.name(), MAX_ENCODED_LESSONS, unit];
            let lessons: Vec<(String, i64, String, String)> =
                self.read(|reader| query_rows(&reader.connection, sql, key, |row| row.try_into()))?;
            if lessons.is_empty() {
                return Ok(written);
            }
            let texts = lessons.iter().map(|(_, _, title, content)| {
                let content: String = content.chars().take(MAX_RAW_CHARS).collect();
                self.redact(&format!("{title}\n{content}")).into_owned()
            });
            let texts: Vec<String> = texts.collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let vectors = encoder.encode(&texts)?;
            if vectors.len() != lessons.len() {
                let message = format!("{} vectors for {} texts", vectors.len(), lessons.len());
                return Err(MemoryError::Encoder(message));
            }
            let stored = self.write(|connection| {
                let mut stored = 0;
                for ((id, updated_ms, ..), vector) in lessons.iter().zip(&vectors) {
                    let vector: Vec<u8> = quantise(vector).iter().map(|x| *x as u8).collect();
                    // A lesson that was changed meanwhile is encoded again.
                    let sql = "UPDATE memory_lessons SET encoder = ?3, vector = encrypt(?4)
                         WHERE id = ?1 AND updated_ms = ?2";
                    let row = params![id, updated_ms, encoder.name(), vector];
                    stored += execute(connection, sql, row)? as u32;
                }
                Ok(stored)
            })?;
            written += stored;
            if stored == 0 {
                return Ok(written);
            }
        }
    }

    /// Computes the vectors of all lessons and layers again. Returns how many there are.
    pub fn reindex_lessons(&self) -> Result<u32, MemoryError> {
        self.write(|connection| {
            let sql = "UPDATE memory_lessons SET encoder = NULL, vector = NULL";
            execute(connection, sql, params![])
        })?;
        self.write_lesson_vectors(None)
    }

    /// Computes missing vectors after lessons of a unit were stored; it is empty for lessons of all
    /// projects. If the encoder fails, the next change of a lesson tries it again.
    pub(crate) fn encode_new_lessons(&self, unit: &str) {
        let _ = self.write_lesson_vectors(Some(unit));
    }

    /// Returns the lessons in use whose vectors are nearest to that of a question.
    pub(crate) fn lessons_near(
        &self,
        access: &MemoryAccess,
        question: QueryVector<'_>,
    ) -> Result<Vec<Lesson>, MemoryError> {
        let Some((encoder, question)) = question else {
            return Ok(Vec::new());
        };
        self.read(|reader| {
            let connection = &reader.connection;
            let sql = "SELECT id, decrypt(vector) FROM memory_lessons
                 WHERE status = 'used' AND encoder = ?1";
            let vectors: Vec<(String, Vec<u8>)> =
                query_rows(connection, sql, params![*encoder], |row| row.try_into())?;
            let near = vectors
                .into_iter()
                .map(|(id, vector)| (id, question.similarity_to_stored(&vector)))
                .filter(|(_, similarity)| *similarity >= MIN_SIMILARITY);
            let near: HashMap<String, f32> = near.collect();
            if near.is_empty() {
                return Ok(Vec::new());
            }
            let mut lessons = lessons_in_use(connection, access)?;
            lessons.retain(|lesson| near.contains_key(&lesson.lesson_id));
            lessons.sort_by(|a, b| near[&b.lesson_id].total_cmp(&near[&a.lesson_id]));
            lessons.truncate(MAX_NEAR_LESSONS);
            Ok(lessons)
        })
    }
}
