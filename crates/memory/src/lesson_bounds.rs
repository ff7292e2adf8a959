//! Which lessons a session may change. A lesson is learned in one folder of a project: the same
//! sentence in another folder is another lesson. The memory of a session of the agent server ends
//! at its folder: it can neither read nor change a lesson of another one, also not by contradicting
//! it or by being deleted.

use std::collections::BTreeSet;

use selvedge_database::{Connection, params};

use crate::distill_unit::UnitFolder;
use crate::lesson_learning::SourceTurn;
use crate::store::{execute, query_first, query_rows};
use crate::{Memory, MemoryError};

/// Which lessons are deleted together with a turn from which they were learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LessonsToForget {
    /// All of them.
    All,
    /// Those that were learned only in the folder of the session. The others lose the turn as a
    /// source.
    OfFolder,
}

impl Memory {
    /// Records that the memory of a session ends at its folder. What such a session says changes
    /// only lessons that were learned in this folder.
    pub fn bound_to_folder(&self, session: &str) -> Result<(), MemoryError> {
        let sql = "SELECT 1 FROM memory_sessions WHERE name = ?1 AND is_bounded = 0";
        let is_unknown = self.read(|reader| {
            let mut found = reader.connection.prepare_cached(sql)?;
            Ok(found.exists(params![session])?)
        })?;
        match is_unknown {
            false => Ok(()),
            true => self.write(|connection| {
                let sql = "UPDATE memory_sessions SET is_bounded = 1 WHERE name = ?1";
                execute(connection, sql, params![session])?;
                Ok(())
            }),
        }
    }
}

/// Returns whether what these turns say may contradict a lesson.
pub(crate) fn may_contradict(
    connection: &Connection,
    lesson: &str,
    turns: &[SourceTurn],
) -> Result<bool, MemoryError> {
    let sessions: BTreeSet<i64> = turns.iter().map(|turn| turn.session).collect();
    for session in sessions {
        let sql = "SELECT coalesce(directory, '') FROM memory_sessions
             WHERE id = ?1 AND is_bounded = 1";
        let bound: Option<String> =
            query_first(connection, sql, params![session], |row| row.get(0))?;
        if let Some(directory) = bound
            && has_other_folder(connection, lesson, &directory)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether a lesson is one of a folder of a project: what is learned in the folder may
/// repeat it or be merged with it.
pub(crate) fn is_lesson_of(
    connection: &Connection,
    folder: UnitFolder<'_>,
    lesson: &str,
) -> Result<bool, MemoryError> {
    let sql = "SELECT 1 FROM memory_lessons WHERE id = ?1 AND project = ?2";
    let mut found = connection.prepare_cached(sql)?;
    Ok(found.exists(params![lesson, folder.unit.key])?
        && !has_other_folder(connection, lesson, folder.directory)?)
}

/// Returns the lessons that name a turn of a range as a source, and may be deleted with it.
pub(crate) fn lessons_to_forget(
    connection: &Connection,
    (session, first, last): (i64, u32, u32),
    which: LessonsToForget,
) -> Result<Vec<String>, MemoryError> {
    let sql = "SELECT DISTINCT lesson FROM memory_sources
         WHERE session = ?1 AND turn BETWEEN ?2 AND ?3";
    let all: Vec<String> = query_rows(connection, sql, params![session, first, last], |row| {
        row.get(0)
    })?;
    let sql = "SELECT coalesce(directory, '') FROM memory_sessions WHERE id = ?1";
    let directory: Option<String> =
        query_first(connection, sql, params![session], |row| row.get(0))?;
    let directory = directory.unwrap_or_default();
    let mut lessons = Vec::new();
    for lesson in all {
        let is_kept = which == LessonsToForget::OfFolder
            && has_other_folder(connection, &lesson, &directory)?;
        if !is_kept {
            lessons.push(lesson);
        }
    }
    Ok(lessons)
}

/// Returns whether a lesson was learned in another folder.
fn has_other_folder(
    connection: &Connection,
    lesson: &str,
    directory: &str,
) -> Result<bool, MemoryError> {
    let sql = "SELECT 1 FROM memory_sources JOIN memory_sessions ON memory_sessions.id = session
         WHERE lesson = ?1 AND coalesce(directory, '') <> ?2";
    let mut found = connection.prepare_cached(sql)?;
    Ok(found.exists(params![lesson, directory])?)
}
