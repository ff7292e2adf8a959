//! Stores what was learned: new lessons, lessons that are learned again, merged, contradicted or
//! forgotten with time.

use std::collections::BTreeSet;

use selvedge_database::{Connection, DatabaseValue, params};

use crate::contradictions::contradicts;
use crate::lessons::decayed_weight;
use crate::store::{execute, now_ms, query_first, query_rows};
use crate::{LessonKind, LessonStatus, MemoryError, tokens};

/// A turn from which something was learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SourceTurn {
    /// The row of the session.
    pub(crate) session: i64,
    pub(crate) number: u32,
}

/// A lesson to be stored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LessonDraft {
    pub(crate) kind: LessonKind,
    pub(crate) status: LessonStatus,
    pub(crate) title: String,
    pub(crate) topics: Vec<String>,
    pub(crate) keywords: Vec<String>,
    pub(crate) content: String,
    pub(crate) turns: Vec<SourceTurn>,
    /// A text that is equal for two drafts of the same lesson. The id is a hash of it.
    pub(crate) identity: String,
}

/// The weight of a new lesson.
const INITIAL_WEIGHT: f64 = 0.5;
/// What a lesson's weight gains each time it is learned again.
const REPEAT_WEIGHT_GAIN: f64 = 0.15;
/// Lessons with a lower weight are deleted.
const MIN_LESSON_WEIGHT: f64 = 0.05;
/// Two lessons are the same if they share this fraction of all their keywords.
const MIN_KEYWORD_OVERLAP: f64 = 0.8;

/// Stores a draft as a new lesson of a project ('' for all), or raises the weight of the lesson
/// that says the same. A problem that is solved a second time is used from then on, and so is a
/// contradicted lesson that is learned again. Lessons that the draft takes back are contradicted.
pub(crate) fn learn_lesson(
    connection: &Connection,
    project: &str,
    draft: &LessonDraft,
) -> Result<String, MemoryError> {
    if matches!(draft.kind, LessonKind::Preference | LessonKind::Convention) {
        contradict_earlier(connection, project, draft)?;
    }
    let id = match find_same_lesson(connection, project, draft)? {
        Some(id) => {
            let sql = "UPDATE memory_lessons SET updated_ms = ?3,
                 weight = CASE WHEN weight + ?2 > 1.0 THEN 1.0 ELSE weight + ?2 END,
                 note = CASE status WHEN 'contradicted' THEN NULL ELSE note END,
                 status = CASE WHEN status IN ('seen', 'contradicted') THEN 'used'
                     ELSE status END WHERE id = ?1";
            execute(connection, sql, params![id, REPEAT_WEIGHT_GAIN, now_ms()])?;
            id
        }
        None => {
            let id = lesson_id(connection, project, draft.kind, &draft.identity);
            let LessonDraft {
                kind,
                status,
                title,
                content,
                ..
            } = draft;
            let (topics, keywords) = (draft.topics.join("\n"), draft.keywords.join("\n"));
            let (size, now) = (tokens::count(content), now_ms());
            execute(
                connection,
                "INSERT INTO memory_lessons (id, kind, status, title, topics, keywords, content,
                    tokens, weight, updated_ms, project)
                 VALUES (?1, ?2, ?3, encrypt(?4), encrypt(?5), encrypt(?6), encrypt(?7), ?8, ?9,
                    ?10, ?11)",
                params![
                    id,
                    kind,
                    status,
                    title,
                    topics,
                    keywords,
                    content,
                    size,
                    INITIAL_WEIGHT,
                    now,
                    project
                ],
            )?;
            id
        }
    };
    for SourceTurn { session, number } in &draft.turns {
        let sql = "INSERT INTO memory_sources (lesson, session, turn) VALUES (?1, ?2, ?3)
            ON CONFLICT DO NOTHING";
        execute(connection, sql, params![id, session, number])?;
    }
    Ok(id)
}

/// Marks the preferences and conventions of the project that a draft takes back.
fn contradict_earlier(
    connection: &Connection,
    project: &str,
    draft: &LessonDraft,
) -> Result<(), MemoryError> {
    let sql = "SELECT id, decrypt(content) FROM memory_lessons
         WHERE kind IN ('preference', 'convention') AND status = 'used'
         AND coalesce(project, '') = ?1";
    let stored: Vec<(String, String)> =
        query_rows(connection, sql, params![project], |row| row.try_into())?;
    let Some(turn) = draft.turns.first() else {
        return Ok(());
    };
    for (id, content) in stored {
        if contradicts(&draft.content, &content) {
            contradict_lesson(connection, &id, &draft.content, *turn)?;
        }
    }
    Ok(())
}

/// Marks a lesson as contradicted, and stores by what. It is kept, but no longer used. A layer,
/// which a person wrote or accepted, stays in use. Returns whether there is such a lesson.
pub(crate) fn contradict_lesson(
    connection: &Connection,
    lesson: &str,
    statement: &str,
    turn: SourceTurn,
) -> Result<bool, MemoryError> {
    let sql = "SELECT name FROM memory_sessions WHERE id = ?1";
    let session: Option<String> =
        query_first(connection, sql, params![turn.session], |row| row.get(0))?;
    let note = format!(
        "{} ({})",
        statement.trim(),
        turn_name(&session.unwrap_or_default(), turn.number)
    );
    let sql = "UPDATE memory_lessons SET note = encrypt(?2), updated_ms = ?3,
         status = CASE WHEN kind <> 'layer' THEN 'contradicted' ELSE status END
         WHERE id = ?1 AND status IN ('used', 'seen')";
    Ok(execute(connection, sql, params![lesson, note, now_ms()])? > 0)
}

/// Returns whether a lesson is one of a project. What was learned in a project must not change the
/// lessons of others, nor those of the user.
pub(crate) fn is_lesson_of(
    connection: &Connection,
    project: &str,
    lesson: &str,
) -> Result<bool, MemoryError> {
    let sql = "SELECT 1 FROM memory_lessons WHERE id = ?1 AND coalesce(project, '') = ?2";
    let mut found = connection.prepare_cached(sql)?;
    Ok(found.exists(params![lesson, project])?)
}

/// Restores the lessons that only a turn contradicted, or any turn of a session for `None`, because
/// the turn is forgotten.
pub(crate) fn forget_contradictions(
    connection: &Connection,
    session: i64,
    turn: Option<u32>,
) -> Result<(), MemoryError> {
    let sql = "SELECT name FROM memory_sessions WHERE id = ?1";
    let name: Option<String> = query_first(connection, sql, params![session], |row| row.get(0))?;
    let name = name.unwrap_or_default();
    let sql = "SELECT id, decrypt(note) FROM memory_lessons WHERE note IS NOT NULL";
    let notes: Vec<(String, String)> =
        query_rows(connection, sql, params![], |row| row.try_into())?;
    for (id, note) in notes {
        let quotes = match turn {
            Some(number) => note.ends_with(&format!("({})", turn_name(&name, number))),
            None => note.contains(&format!("({name}/T-")),
        };
        if quotes {
            let sql = "UPDATE memory_lessons SET note = NULL,
                 status = CASE status WHEN 'contradicted' THEN 'used' ELSE status END
                 WHERE id = ?1";
            execute(connection, sql, params![id])?;
        }
    }
    Ok(())
}

fn turn_name(session: &str, number: u32) -> String {
    format!("{session}/T-{number}")
}

/// Merges a lesson into another one of the same kind, which keeps the sources of both and the
/// higher weight. Returns whether both exist and are in use.
pub(crate) fn merge_lesson(
    connection: &Connection,
    from: &str,
    into: &str,
) -> Result<bool, MemoryError> {
    let sql = "SELECT kind, weight FROM memory_lessons
         WHERE id = ?1 AND status IN ('used', 'seen') AND kind <> 'layer'";
    let read = |id: &str| -> Result<Option<(LessonKind, f64)>, MemoryError> {
        query_first(connection, sql, params![id], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
    };
    let (Some((from_kind, weight)), Some((into_kind, _))) = (read(from)?, read(into)?) else {
        return Ok(false);
    };
    if from == into || from_kind != into_kind {
        return Ok(false);
    }
    let sql = "INSERT INTO memory_sources (lesson, session, turn)
         SELECT ?2, session, turn FROM memory_sources WHERE lesson = ?1 ON CONFLICT DO NOTHING";
    execute(connection, sql, params![from, into])?;
    let sql = "UPDATE memory_lessons SET weight = CASE WHEN weight < ?2 THEN ?2 ELSE weight END,
         updated_ms = ?3 WHERE id = ?1";
    execute(connection, sql, params![into, weight, now_ms()])?;
    remove_lesson(connection, from)?;
    Ok(true)
}

/// Returns the id of the stored lesson that says the same in this project: one with the same id, or
/// with nearly the same keywords.
fn find_same_lesson(
    connection: &Connection,
    project: &str,
    draft: &LessonDraft,
) -> Result<Option<String>, MemoryError> {
    let id = lesson_id(connection, project, draft.kind, &draft.identity);
    let mut by_id = connection.prepare_cached("SELECT 1 FROM memory_lessons WHERE id = ?1")?;
    if by_id.exists(params![id])? {
        return Ok(Some(id));
    }
    let words: BTreeSet<&str> = draft.keywords.iter().map(String::as_str).collect();
    if words.len() < 3 {
        return Ok(None);
    }
    let sql = "SELECT id, decrypt(keywords), decrypt(content) FROM memory_lessons
         WHERE kind = ?1 AND coalesce(project, '') = ?2";
    let mut read = connection.prepare_cached(sql)?;
    let mut rows = read.query(params![draft.kind, project])?;
    while let Some(row) = rows.next()? {
        let other: String = row.get(1)?;
        let other: BTreeSet<&str> = other.split('\n').collect();
        let shared = words.intersection(&other).count() as f64;
        if shared / words.union(&other).count().max(1) as f64 >= MIN_KEYWORD_OVERLAP
            && !contradicts(&draft.content, &row.get::<String>(2)?)
        {
            return Ok(Some(row.get(0)?));
        }
    }
    Ok(None)
}

/// Deletes lessons whose weight has decayed, and returns how many. Proposed and declined ones stay,
/// and so do layers, which a person wrote or accepted.
pub(crate) fn prune_lessons(connection: &Connection) -> Result<u32, MemoryError> {
    let now = now_ms();
    let sql = "SELECT id, weight, updated_ms FROM memory_lessons
         WHERE status IN ('used', 'seen') AND kind <> 'layer'";
    let mut expired: Vec<(String, f64, i64)> =
        query_rows(connection, sql, params![], |row| row.try_into())?;
    expired
        .retain(|(_, weight, updated)| decayed_weight(*weight, *updated, now) < MIN_LESSON_WEIGHT);
    let mut removed = 0;
    for (id, ..) in expired {
        removed += remove_lesson(connection, &id)?;
    }
    Ok(removed as u32)
}

pub(crate) fn remove_lesson(connection: &Connection, lesson: &str) -> Result<usize, MemoryError> {
    let sql = "DELETE FROM memory_sources WHERE lesson = ?1";
    execute(connection, sql, params![lesson])?;
    let sql = "DELETE FROM memory_lessons WHERE id = ?1";
    execute(connection, sql, params![lesson])
}

/// Returns the id of a lesson: a hash of its project, kind and identity. In an encrypted memory the
/// hash is taken of a keyed digest, so that the id reveals nothing.
pub(crate) fn lesson_id(
    connection: &Connection,
    project: &str,
    kind: LessonKind,
    identity: &str,
) -> String {
    let identity = format!("{project}{}{identity}", kind.as_str());
    let digest = match connection.keyed_digest(&identity) {
        DatabaseValue::Blob(digest) => digest,
        _ => identity.into_bytes(),
    };
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in digest {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("les_{hash:016x}")
}
