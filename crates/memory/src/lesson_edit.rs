//! Changes that a person makes to the text of a lesson.

use selvedge_database::params;

use crate::store::{execute, now_ms};
use crate::{Memory, MemoryError, tokens};

/// Most tokens of the text of a lesson: a layer has no more either.
const MAX_CONTENT_TOKENS: u32 = 5000;
/// Most characters of a title.
const MAX_TITLE_CHARS: usize = 200;
/// Most topics of a lesson.
const MAX_LESSON_TOPICS: usize = 20;

/// What to change in a lesson. `None` keeps a field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LessonEdit {
    /// The new title, one line.
    pub title: Option<String>,
    /// The new text for the model.
    pub content: Option<String>,
    /// The new topics.
    pub topics: Option<Vec<String>>,
}

impl Memory {
    /// Changes a lesson. Secrets in the new texts are redacted. Fails without a change if a text is
    /// empty or too long.
    pub fn edit_lesson(&self, lesson: &str, edit: &LessonEdit) -> Result<(), MemoryError> {
        let title = edit.title.as_deref().map(|title| self.redact(title.trim()));
        let content = edit.content.as_deref().map(|text| self.redact(text.trim()));
        let topics = edit.topics.as_deref().map(joined_topics).transpose()?;
        if let Some(title) = &title {
            check_title(title)?;
        }
        let size = content.as_deref().map(checked_size).transpose()?;
        self.write(|connection| {
            let sql = "UPDATE memory_lessons SET updated_ms = ?2 WHERE id = ?1";
            if execute(connection, sql, params![lesson, now_ms()])? == 0 {
                return Err(MemoryError::LessonNotFound(lesson.to_owned()));
            }
            if let Some(title) = title.as_deref() {
                let sql = "UPDATE memory_lessons SET title = encrypt(?2) WHERE id = ?1";
                execute(connection, sql, params![lesson, title])?;
            }
            if let Some((content, size)) = content.as_deref().zip(size) {
                let sql = "UPDATE memory_lessons SET content = encrypt(?2), tokens = ?3
                     WHERE id = ?1";
                execute(connection, sql, params![lesson, content, size])?;
            }
            if let Some(topics) = topics.as_deref() {
                let sql = "UPDATE memory_lessons SET topics = encrypt(?2) WHERE id = ?1";
                execute(connection, sql, params![lesson, topics])?;
            }
            Ok(())
        })
    }
}

fn check_title(title: &str) -> Result<(), MemoryError> {
    let length = title.chars().count();
    match length {
        0 => Err(invalid("its title is empty")),
        _ if title.contains('\n') => Err(invalid("its title has more than one line")),
        _ if length > MAX_TITLE_CHARS => Err(invalid(format!(
            "its title has {length} characters; at most {MAX_TITLE_CHARS} are possible"
        ))),
        _ => Ok(()),
    }
}

/// Returns the tokens of a text that can be stored.
fn checked_size(content: &str) -> Result<u32, MemoryError> {
    match tokens::count(content) {
        _ if content.is_empty() => Err(invalid("its text is empty")),
        size if size > MAX_CONTENT_TOKENS => Err(invalid(format!(
            "its text has {size} tokens; at most {MAX_CONTENT_TOKENS} are possible"
        ))),
        size => Ok(size),
    }
}

/// Returns topics as they are stored: one per line, each once.
fn joined_topics(topics: &[String]) -> Result<String, MemoryError> {
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
        _ => Ok(lines.join("\n")),
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
        };
        memory.edit_lesson(&id, &edit).unwrap();
        memory.append("b", &preference).unwrap();
        memory.distill("b", None).await.unwrap();
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
        let long = "word ".repeat(MAX_CONTENT_TOKENS as usize + 1);
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
