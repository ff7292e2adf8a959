//! Layers that a person writes: reference texts of 500 to 5,000 tokens about topics. They are used
//! from the start, while layers that distilling proposes wait for a person.

use selvedge_database::{Connection, params};

use crate::lesson_learning::{lesson_id, remove_lesson};
use crate::lesson_rules::extract_keywords;
use crate::lessons::read_lessons;
use crate::store::{execute, now_ms, query_first};
use crate::{Lesson, LessonKind, LessonStatus, Memory, MemoryError, tokens};

/// The size of a layer, in tokens.
pub const LAYER_TOKENS: std::ops::RangeInclusive<u32> = 500..=5_000;
/// The weight of a layer that a person wrote: the highest.
const WRITTEN_LAYER_WEIGHT: f64 = 1.0;

/// A layer to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewLayer<'a> {
    /// A short title for lists. No other layer of the project has the same.
    pub title: &'a str,
    /// The topics that it is about.
    pub topics: &'a [String],
    /// The text for the model, of [`LAYER_TOKENS`].
    pub content: &'a str,
    /// The project in which it is used; `None` if in all.
    pub project: Option<&'a str>,
}

/// What changes of a layer. `None` leaves a field as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LayerChange<'a> {
    /// The title, which no other layer of the project has.
    pub title: Option<&'a str>,
    /// The topics, which replace the earlier ones.
    pub topics: Option<&'a [String]>,
    /// The text for the model.
    pub content: Option<&'a str>,
    /// The project in which it is used; `Some(None)` for all.
    pub project: Option<Option<&'a str>>,
}

impl Memory {
    /// Stores a layer that a person wrote, with secrets redacted, and returns its id. Fails if its
    /// size is not within [`LAYER_TOKENS`], or if the project has a layer with this title.
    pub fn add_layer(&self, layer: &NewLayer<'_>) -> Result<String, MemoryError> {
        let content = self.redact(layer.content);
        let size = check_size(&content)?;
        let (project, title) = (layer.project.unwrap_or_default(), layer.title.trim());
        self.write(|connection| {
            let id = lesson_id(
                connection,
                project,
                LessonKind::Layer,
                &title.to_lowercase(),
            );
            let sql = "INSERT INTO memory_lessons (id, kind, status, title, topics, keywords,
                    content, tokens, weight, updated_ms, project)
                 VALUES (?1, ?2, ?3, encrypt(?4), encrypt(?5), encrypt(?6), encrypt(?7), ?8, ?9,
                    ?10, ?11) ON CONFLICT DO NOTHING";
            let row = params![
                id,
                LessonKind::Layer,
                LessonStatus::Used,
                title,
                layer.topics.join("\n"),
                keywords(&content, layer.topics).join("\n"),
                content.as_ref(),
                size,
                WRITTEN_LAYER_WEIGHT,
                now_ms(),
                project
            ];
            match execute(connection, sql, row)? {
                0 => Err(MemoryError::LayerExists(title.to_owned())),
                _ => Ok(id),
            }
        })
    }

    /// Changes a layer, also one that was proposed. Its id stays the same.
    pub fn edit_layer(&self, id: &str, change: &LayerChange<'_>) -> Result<(), MemoryError> {
        self.write(|connection| {
            let layer = find_layer(connection, id)?;
            let content = match change.content {
                Some(content) => self.redact(content).into_owned(),
                None => layer.content,
            };
            let size = check_size(&content)?;
            let title = change.title.unwrap_or(&layer.title).trim();
            let topics = change.topics.unwrap_or(&layer.topic);
            let project = match change.project {
                Some(project) => project,
                None => layer.project.as_deref(),
            };
            let sql = "UPDATE memory_lessons SET title = encrypt(?2), topics = encrypt(?3),
                 keywords = encrypt(?4), content = encrypt(?5), tokens = ?6, updated_ms = ?7,
                 project = ?8, weight = ?9 WHERE id = ?1";
            let row = params![
                id,
                title,
                topics.join("\n"),
                keywords(&content, topics).join("\n"),
                content,
                size,
                now_ms(),
                project.unwrap_or_default(),
                WRITTEN_LAYER_WEIGHT
            ];
            execute(connection, sql, row)?;
            // A brief may name the layer as it was.
            execute(connection, "DELETE FROM memory_briefs", params![])?;
            Ok(())
        })
    }

    /// Deletes a layer, and the briefs, which may name it.
    pub fn remove_layer(&self, id: &str) -> Result<(), MemoryError> {
        self.write(|connection| {
            find_layer(connection, id)?;
            execute(connection, "DELETE FROM memory_briefs", params![])?;
            remove_lesson(connection, id)
        })?;
        self.truncate_log()
    }

    /// Returns the layers that are used or proposed: those of a project and of the user, or all
    /// without a project.
    pub fn layers(&self, project: Option<&str>) -> Result<Vec<Lesson>, MemoryError> {
        let mut lessons = self.lessons(None)?;
        lessons.retain(|lesson| {
            lesson.kind == LessonKind::Layer
                && lesson.status != LessonStatus::Declined
                && is_used_in(lesson, project)
        });
        Ok(lessons)
    }

    /// Returns what waits for a person's decision in a project: its proposals and those for all
    /// projects. Without a project, those for all.
    pub fn proposals(&self, project: Option<&str>) -> Result<Vec<Lesson>, MemoryError> {
        let mut lessons = self.lessons(Some(LessonStatus::Proposed))?;
        lessons.retain(|lesson| {
            lesson
                .project
                .as_deref()
                .is_none_or(|of| Some(of) == project)
        });
        Ok(lessons)
    }
}

fn is_used_in(lesson: &Lesson, project: Option<&str>) -> bool {
    project.is_none() || lesson.project.is_none() || lesson.project.as_deref() == project
}

/// Returns the size of a layer in tokens. Fails if it is too short or too long.
fn check_size(content: &str) -> Result<u32, MemoryError> {
    let size = tokens::count(content);
    match LAYER_TOKENS.contains(&size) {
        true => Ok(size),
        false => Err(MemoryError::LayerSize { tokens: size }),
    }
}

/// Returns the words that find a layer: its topics, then the words of its text.
fn keywords(content: &str, topics: &[String]) -> Vec<String> {
    let mut words: Vec<String> = topics.to_vec();
    words.extend(extract_keywords(content));
    words
}

fn find_layer(connection: &Connection, id: &str) -> Result<Lesson, MemoryError> {
    let sql = "SELECT 1 FROM memory_lessons WHERE id = ?1 AND kind = ?2";
    let found: Option<i64> = query_first(connection, sql, params![id, LessonKind::Layer], |row| {
        row.get(0)
    })?;
    let mut lessons = match found {
        Some(_) => read_lessons(connection, None, None, u32::MAX)?,
        None => Vec::new(),
    };
    lessons.retain(|lesson| lesson.lesson_id == id);
    lessons
        .pop()
        .ok_or_else(|| MemoryError::LayerNotFound(id.to_owned()))
}
