//! Stores what was learned: new lessons, lessons that are learned again, merged, contradicted or
//! forgotten with time.

use std::collections::BTreeSet;

use selvedge_database::{Connection, DatabaseValue, params};

use crate::contradictions::contradicts;
use crate::distill_unit::UnitFolder;
use crate::lesson_bounds::{is_lesson_of, may_contradict};
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
    /// A text that is equal for two drafts of the same lesson in a folder. The id is a hash of it.
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

/// Stores a draft as a new lesson of a folder, or raises the weight of the lesson that says the
/// same. A problem that is solved a second time is used from then on, and so is a contradicted
/// lesson that is learned again. Lessons that the draft takes back are contradicted.
pub(crate) fn learn_lesson(
    connection: &Connection,
    folder: UnitFolder<'_>,
    draft: &LessonDraft,
) -> Result<String, MemoryError> {
    let project = &folder.unit.key;
    if matches!(draft.kind, LessonKind::Preference | LessonKind::Convention) {
        contradict_earlier(connection, project, draft)?;
    }
    let id = match find_same_lesson(connection, folder, draft)? {
        Some(id) => {
            let sql = "UPDATE memory_lessons SET updated_ms = ?3,
                 weight = CASE WHEN weight + ?2 > 1.0 THEN 1.0 ELSE weight + ?2 END,
                 status = CASE WHEN status IN ('seen', 'contradicted') THEN 'used'
                     ELSE status END WHERE id = ?1";
            execute(connection, sql, params![id, REPEAT_WEIGHT_GAIN, now_ms()])?;
            if draft.kind != LessonKind::Layer {
                remove_note(connection, &id)?;
            }
            id
        }
        None => {
            let id = draft_id(connection, folder, draft);
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
    for (id, content) in stored {
        if contradicts(&draft.content, &content) {
            contradict_lesson(connection, &id, &draft.content, &draft.turns)?;
        }
    }
    Ok(())
}

/// Marks a lesson as contradicted, and stores by what. It is kept, but no longer used. A layer,
/// which a person wrote or accepted, stays in use. Returns whether there is such a lesson that the
/// turns may contradict. Without turns nothing is stored: it could not be forgotten with them.
pub(crate) fn contradict_lesson(
    connection: &Connection,
    lesson: &str,
    statement: &str,
    turns: &[SourceTurn],
) -> Result<bool, MemoryError> {
    if turns.is_empty() || !may_contradict(connection, lesson, turns)? {
        return Ok(false);
    }
    let sql = "UPDATE memory_lessons SET note = encrypt(?2), updated_ms = ?3,
         status = CASE WHEN kind <> 'layer' THEN 'contradicted' ELSE status END
         WHERE id = ?1 AND status IN ('used', 'seen')";
    if execute(connection, sql, params![lesson, statement.trim(), now_ms()])? == 0 {
        return Ok(false);
    }
    let sql = "DELETE FROM memory_contradictions WHERE lesson = ?1";
    execute(connection, sql, params![lesson])?;
    for SourceTurn { session, number } in turns {
        let sql = "INSERT INTO memory_contradictions (lesson, session, turn) VALUES (?1, ?2, ?3)
            ON CONFLICT DO NOTHING";
        execute(connection, sql, params![lesson, session, number])?;
    }
    Ok(true)
}

/// Removes what contradicts a lesson.
pub(crate) fn remove_note(connection: &Connection, lesson: &str) -> Result<(), MemoryError> {
    let sql = "DELETE FROM memory_contradictions WHERE lesson = ?1";
    execute(connection, sql, params![lesson])?;
    let sql = "UPDATE memory_lessons SET note = NULL WHERE id = ?1";
    execute(connection, sql, params![lesson])?;
    Ok(())
}

/// Restores the lessons that a turn contradicted, or any turn of a session for `None`, because the
/// turn is forgotten. What contradicts them may quote it, also if other turns say the same.
pub(crate) fn forget_contradictions(
    connection: &Connection,
    session: i64,
    turn: Option<u32>,
) -> Result<(), MemoryError> {
    let sql = "SELECT DISTINCT lesson FROM memory_contradictions
         WHERE session = ?1 AND (turn = ?2 OR ?2 IS NULL)";
    let lessons: Vec<String> =
        query_rows(connection, sql, params![session, turn], |row| row.get(0))?;
    for lesson in lessons {
        remove_note(connection, &lesson)?;
        let sql = "UPDATE memory_lessons SET status = 'used'
             WHERE id = ?1 AND status = 'contradicted'";
        execute(connection, sql, params![lesson])?;
    }
    Ok(())
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

/// Returns the id of the stored lesson that says the same in this folder: one with the same id,
/// with nearly the same keywords, or with the same title and keywords.
fn find_same_lesson(
    connection: &Connection,
    folder: UnitFolder<'_>,
    draft: &LessonDraft,
) -> Result<Option<String>, MemoryError> {
    let id = draft_id(connection, folder, draft);
    let mut by_id = connection.prepare_cached("SELECT 1 FROM memory_lessons WHERE id = ?1")?;
    if by_id.exists(params![id])? {
        return Ok(Some(id));
    }
    let words: BTreeSet<&str> = draft.keywords.iter().map(String::as_str).collect();
    let sql = "SELECT id, decrypt(title), decrypt(keywords), decrypt(content) FROM memory_lessons
         WHERE kind = ?1 AND project = ?2";
    let key = params![draft.kind, folder.unit.key];
    let stored: Vec<(String, String, String, String)> =
        query_rows(connection, sql, key, |row| row.try_into())?;
    for (id, title, other, content) in stored {
        let other: BTreeSet<&str> = other.split('\n').collect();
        let shared = words.intersection(&other).count() as f64;
        let is_near = words.len() >= 3
            && shared / words.union(&other).count().max(1) as f64 >= MIN_KEYWORD_OVERLAP;
        let is_same = is_near || (title == draft.title && words == other);
        if is_same
            && !contradicts(&draft.content, &content)
            && is_lesson_of(connection, folder, &id)?
        {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Deletes lessons whose weight has decayed, and returns how many. Proposed and declined ones stay,
/// except gaps, and so do layers, which a person wrote or accepted.
pub(crate) fn prune_lessons(connection: &Connection) -> Result<u32, MemoryError> {
    let now = now_ms();
    let sql = "SELECT id, weight, updated_ms FROM memory_lessons
         WHERE (status IN ('used', 'seen') AND kind <> 'layer')
             OR (status = 'proposed' AND kind = 'gap')";
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
    for table in ["memory_sources", "memory_contradictions"] {
        let sql = format!("DELETE FROM {table} WHERE lesson = ?1");
        connection.execute(&sql, params![lesson])?;
    }
    let sql = "DELETE FROM memory_lessons WHERE id = ?1";
    execute(connection, sql, params![lesson])
}

fn draft_id(connection: &Connection, folder: UnitFolder<'_>, draft: &LessonDraft) -> String {
    let identity = format!("{}\n{}", folder.directory, draft.identity);
    lesson_id(connection, &folder.unit.key, draft.kind, &identity)
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
