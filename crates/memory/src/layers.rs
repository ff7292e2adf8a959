//! Lessons that a person writes, and layers: reference texts of 500 to 5,000 tokens about topics.
//! They are used from the start, while layers that distilling proposes wait for a person.

use selvedge_database::{Connection, params};
use selvedge_protocol::new_id;

use crate::distill_unit::is_session_key;
use crate::lesson_edit::{check_topics, check_unique, lesson_size};
use crate::lesson_learning::{lesson_id, remove_lesson};
use crate::lesson_rules::extract_keywords;
use crate::lessons::find_lesson;
use crate::store::{execute, now_ms};
use crate::{Lesson, LessonEdit, LessonKind, LessonStatus, Memory, MemoryError, tokens};

/// The size of a layer, in tokens.
pub const LAYER_TOKENS: std::ops::RangeInclusive<u32> = 500..=5_000;
/// The weight of a layer that a person wrote: the highest.
pub(crate) const WRITTEN_LAYER_WEIGHT: f64 = 1.0;

/// A lesson or a layer to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewLesson<'a> {
    /// What kind of lesson it is. A person does not write a [`LessonKind::Gap`].
    pub kind: LessonKind,
    /// A short title for lists. No other layer of the project has the title of a layer.
    pub title: &'a str,
    /// The topics that it is about.
    pub topics: &'a [String],
    /// The text for the model; that of a layer has [`LAYER_TOKENS`].
    pub content: &'a str,
    /// The project in which it is used; `None` if in all.
    pub project: Option<&'a str>,
}

impl Memory {
    /// Stores a lesson that a person wrote, with secrets redacted, and returns its id. It is used
    /// from now on. Fails if its text is empty or too long, or as a layer not within
    /// [`LAYER_TOKENS`], or if the project has a layer with this title.
    pub fn add_lesson(&self, lesson: &NewLesson<'_>) -> Result<String, MemoryError> {
        let is_layer = lesson.kind == LessonKind::Layer;
        let content = self.redact(lesson.content);
        let size = match is_layer {
            true => check_size(&content)?,
            false => lesson_size(&content)?,
        };
        let title = self.check_title(lesson.title)?;
        let topics = check_topics(lesson.topics)?;
        let keywords = match is_layer {
            true => layer_keywords(&content, &topics),
            false => extract_keywords(&content),
        };
        let id = self.write(|connection| {
            if is_layer {
                check_unique(connection, lesson.project, &title, None)?;
            }
            let project = lesson.project.unwrap_or_default();
            let id = lesson_id(connection, project, lesson.kind, &new_id("layer"));
            let sql = "INSERT INTO memory_lessons (id, kind, status, title, topics, keywords,
                    content, tokens, weight, updated_ms, project)
                 VALUES (?1, ?2, ?3, encrypt(?4), encrypt(?5), encrypt(?6), encrypt(?7), ?8, ?9,
                    ?10, ?11)";
            let row = params![
                id,
                lesson.kind,
                LessonStatus::Used,
                title,
                topics.join("\n"),
                keywords.join("\n"),
                content.as_ref(),
                size,
                WRITTEN_LAYER_WEIGHT,
                now_ms(),
                project
            ];
            execute(connection, sql, row)?;
            Ok(id)
        })?;
        self.encode_new_lessons(lesson.project.unwrap_or_default());
        Ok(id)
    }

    /// Changes a layer as [`Memory::edit_lesson`] does. Fails if it is not a layer.
    pub fn edit_layer(&self, id: &str, edit: &LessonEdit) -> Result<(), MemoryError> {
        self.read(|reader| require_layer(&reader.connection, id))?;
        self.edit_lesson(id, edit)
    }

    /// Deletes a layer, and the briefs, which may name it.
    pub fn remove_layer(&self, id: &str) -> Result<(), MemoryError> {
        self.write(|connection| {
            require_layer(connection, id)?;
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

    /// Returns what waits for a person's decision in a project: its proposals, those for all
    /// projects, and those of sessions without a project, such as imported conversations.
    pub fn proposals(&self, project: Option<&str>) -> Result<Vec<Lesson>, MemoryError> {
        let mut lessons = self.lessons(Some(LessonStatus::Proposed))?;
        lessons.retain(|lesson| {
            lesson
                .project
                .as_deref()
                .is_none_or(|of| Some(of) == project || is_session_key(of))
        });
        Ok(lessons)
    }
}

fn is_used_in(lesson: &Lesson, project: Option<&str>) -> bool {
    project.is_none() || lesson.project.is_none() || lesson.project.as_deref() == project
}

/// Returns the size of a layer in tokens. Fails if it is too short or too long.
pub(crate) fn check_size(content: &str) -> Result<u32, MemoryError> {
    let size = tokens::count(content);
    match LAYER_TOKENS.contains(&size) {
        true => Ok(size),
        false => Err(MemoryError::LayerSize { tokens: size }),
    }
}

/// Returns the words that find a layer: its topics, then the words of its text.
pub(crate) fn layer_keywords(content: &str, topics: &[String]) -> Vec<String> {
    let mut words: Vec<String> = topics.to_vec();
    words.extend(extract_keywords(content));
    words
}

fn require_layer(connection: &Connection, id: &str) -> Result<(), MemoryError> {
    match find_lesson(connection, id) {
        Ok(lesson) if lesson.kind == LessonKind::Layer => Ok(()),
        Ok(_) | Err(MemoryError::LessonNotFound(_)) => {
            Err(MemoryError::LayerNotFound(id.to_owned()))
        }
        Err(error) => Err(error),
    }
}
