//! Changes that a person makes to a lesson or a layer.

use selvedge_database::{Connection, params};

use crate::layers::{LAYER_TOKENS, WRITTEN_LAYER_WEIGHT, check_size, layer_keywords};
use crate::lesson_rules::extract_keywords;
use crate::lessons::{find_lesson, read_layer_titles};
use crate::store::{execute, now_ms};
use crate::{Lesson, LessonKind, Memory, MemoryError, tokens};

/// Most characters of a title.
const MAX_TITLE_CHARS: usize = 200;
/// Most topics of a lesson.
const MAX_LESSON_TOPICS: usize = 20;

/// What to change in a lesson or a layer. `None` keeps a field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LessonEdit {
    /// The new title, one line. No other layer of the project has the title of a layer.
    pub title: Option<String>,
    /// The new text for the model. That of a layer has [`LAYER_TOKENS`].
    pub content: Option<String>,
    /// The new topics.
    pub topics: Option<Vec<String>>,
    /// The project in which it is used; `Some(None)` for all.
    pub project: Option<Option<String>>,
}

impl Memory {
    /// Changes a lesson or a layer, also one that was proposed. Its id stays the same, secrets in
    /// the new texts are redacted, and the earlier text is removed from the briefs and the
    /// write-ahead log. Fails without a change if a text is empty, too short or too long.
    pub fn edit_lesson(&self, lesson: &str, edit: &LessonEdit) -> Result<(), MemoryError> {
        let project = self.write(|connection| self.change_lesson(connection, lesson, edit))?;
        self.encode_new_lessons(&project);
        self.truncate_log()
    }

    /// Changes a lesson, and returns its project; empty if it is used in all.
    fn change_lesson(
        &self,
        connection: &Connection,
        id: &str,
        edit: &LessonEdit,
    ) -> Result<String, MemoryError> {
        let lesson = find_lesson(connection, id)?;
        let is_layer = lesson.kind == LessonKind::Layer;
        let content = match edit.content.as_deref() {
            Some(content) => self.redact(content.trim()).into_owned(),
            None => lesson.content.clone(),
        };
        let size = match is_layer {
            true => check_size(&content)?,
            false => lesson_size(&content)?,
        };
        let topics = match &edit.topics {
            Some(topics) => check_topics(topics)?,
            None => lesson.topic.clone(),
        };
        let project = match &edit.project {
            Some(project) => project.as_deref(),
            None => lesson.project.as_deref(),
        };
        let title = match edit.title.as_deref() {
            Some(title) => self.check_title(title)?,
            None => lesson.title.clone(),
        };
        if is_layer {
            check_unique(connection, project, &title, Some(id))?;
        }
        let (keywords, weight) = match is_layer {
            true => (layer_keywords(&content, &topics), WRITTEN_LAYER_WEIGHT),
            false => (changed_keywords(&lesson, &content), lesson.weight),
        };
        let sql = "UPDATE memory_lessons SET title = encrypt(?2), topics = encrypt(?3),
             keywords = encrypt(?4), content = encrypt(?5), tokens = ?6, updated_ms = ?7,
             project = ?8, weight = ?9, encoder = NULL, vector = NULL WHERE id = ?1";
        let row = params![
            id,
            title,
            topics.join("\n"),
            keywords.join("\n"),
            content,
            size,
            now_ms(),
            project.unwrap_or_default(),
            weight
        ];
        execute(connection, sql, row)?;
        // A brief may quote the lesson as it was.
        execute(connection, "DELETE FROM memory_briefs", params![])?;
        Ok(project.unwrap_or_default().to_owned())
    }

    /// Returns a title as it is stored, with secrets redacted. Fails if it is empty, too long or
    /// has more than one line.
    pub(crate) fn check_title(&self, title: &str) -> Result<String, MemoryError> {
        let title = self.redact(title.trim()).into_owned();
        match title.chars().count() {
            0 => Err(invalid("its title is empty")),
            _ if title.contains('\n') => Err(invalid("its title has more than one line")),
            length if length > MAX_TITLE_CHARS => Err(invalid(format!(
                "its title has {length} characters; at most {MAX_TITLE_CHARS} are possible"
            ))),
            _ => Ok(title),
        }
    }
}

/// Fails if a project has another layer with this title.
pub(crate) fn check_unique(
    connection: &Connection,
    project: Option<&str>,
    title: &str,
    own: Option<&str>,
) -> Result<(), MemoryError> {
    let others = read_layer_titles(connection, project)?;
    let is_taken = others.iter().any(|(id, other)| {
        Some(id.as_str()) != own && other.to_lowercase() == title.to_lowercase()
    });
    match is_taken {
        true => Err(MemoryError::LayerExists(title.to_owned())),
        false => Ok(()),
    }
}

/// Returns the keywords of a lesson with another text.
fn changed_keywords(lesson: &Lesson, content: &str) -> Vec<String> {
    match content == lesson.content {
        true => lesson.keywords.clone(),
        false => extract_keywords(content),
    }
}

/// Returns the tokens of the text of a lesson. Fails if it is empty or too long.
pub(crate) fn lesson_size(content: &str) -> Result<u32, MemoryError> {
    let most = *LAYER_TOKENS.end();
    match tokens::count(content) {
        _ if content.is_empty() => Err(invalid("its text is empty")),
        size if size > most => Err(invalid(format!(
            "its text has {size} tokens; at most {most} are possible"
        ))),
        size => Ok(size),
    }
}

/// Returns topics as they are stored: each in one line, and once.
pub(crate) fn check_topics(topics: &[String]) -> Result<Vec<String>, MemoryError> {
    let mut lines: Vec<String> = Vec::new();
    for topic in topics {
        let topic = topic.split_whitespace().collect::<Vec<_>>().join(" ");
        if !topic.is_empty() && !lines.contains(&topic) {
            lines.push(topic);
        }
    }
    match lines.len() {
        count if count > MAX_LESSON_TOPICS => Err(invalid(format!(
            "it has {count} topics; at most {MAX_LESSON_TOPICS} are possible"
        ))),
        _ => Ok(lines),
    }
}

fn invalid(reason: impl Into<String>) -> MemoryError {
    MemoryError::InvalidLesson(reason.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use selvedge_journal::Redactor;

    use super::*;
    use crate::NewTurn;

    #[tokio::test]
    async fn a_person_changes_the_text_of_a_lesson_and_it_is_not_learned_back() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Arc::new(Memory::open(dir.path(), Redactor::new([])).unwrap());
        let preference = NewTurn::text("user", "From now on always answer in German.");
        memory.append("a", &preference).unwrap();
        memory.distill("a", None).await.unwrap();
        let id = memory.lessons(None).unwrap().remove(0).lesson_id;
        let edit = LessonEdit {
            title: Some(" Language ".to_owned()),
            content: Some("Answer in Swedish.\n".to_owned()),
            topics: Some(vec![
                "chat  language".to_owned(),
                "chat language".to_owned(),
            ]),
            ..LessonEdit::default()
        };
        memory.edit_lesson(&id, &edit).unwrap();
        memory.append("a", &preference).unwrap();
        memory.distill("a", None).await.unwrap();
        let lessons = memory.lessons(None).unwrap();
        let lesson = &lessons[0];
        assert_eq!(lessons.len(), 1, "{lessons:?}");
        assert_eq!(
            (lesson.title.as_str(), lesson.content.as_str()),
            ("Language", "Answer in Swedish.")
        );
        assert_eq!(lesson.topic, ["chat language"]);
        assert_eq!(lesson.source_turns.len(), 2);
        let found = memory.find_lessons(None, "swedish", 1).unwrap();
        assert_eq!(found.len(), 1);
    }

    #[tokio::test]
    async fn a_text_that_is_empty_or_too_long_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Arc::new(Memory::open(dir.path(), Redactor::new([])).unwrap());
        let preference = NewTurn::text("user", "From now on always answer in German.");
        memory.append("a", &preference).unwrap();
        memory.distill("a", None).await.unwrap();
        let before = memory.lessons(None).unwrap();
        let id = &before[0].lesson_id;
        let content = |text: &str| LessonEdit {
            content: Some(text.to_owned()),
            title: Some("Other".to_owned()),
            ..LessonEdit::default()
        };
        let title = |text: &str| LessonEdit {
            title: Some(text.to_owned()),
            ..LessonEdit::default()
        };
        let topics = LessonEdit {
            topics: Some((0..=MAX_LESSON_TOPICS).map(|n| n.to_string()).collect()),
            ..LessonEdit::default()
        };
        let long = "word ".repeat(*LAYER_TOKENS.end() as usize + 1);
        for edit in [
            content(" \n"),
            content(&long),
            title(""),
            title("a\nb"),
            title(&"x".repeat(MAX_TITLE_CHARS + 1)),
            topics,
        ] {
            let error = memory.edit_lesson(id, &edit).unwrap_err();
            assert!(matches!(error, MemoryError::InvalidLesson(_)), "{error}");
        }
        assert_eq!(memory.lessons(None).unwrap(), before);
        let error = memory.edit_lesson("les_none", &title("a")).unwrap_err();
        assert!(matches!(error, MemoryError::LessonNotFound(_)), "{error}");
    }
}
