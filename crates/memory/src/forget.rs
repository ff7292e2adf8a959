//! Forgets turns and sessions: deletes them from every table (levels, index, eras, lessons and so
//! on), from the free pages of the file and from its write-ahead log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use selvedge_database::{Connection, params};

use crate::distill_requests::forget_requests;
use crate::distill_unit::{DistillUnit, unit_key};
use crate::lesson_bounds::lessons_to_forget;
use crate::lesson_learning::{forget_contradictions, remove_lesson};
use crate::level_writer::read_level_text;
use crate::store::{MemorySessionRow, load_turn, lock_session, query_rows, turn_id};
use crate::topic_clusters::OTHER_AREA;
use crate::turn_metrics::{MetricsRowCache, TurnMetrics};
use crate::words::for_each_term;
use crate::{
    ANNOUNCEMENT_TURNS, LessonsToForget, Level, Memory, MemoryError, eras, postings, turn_pieces,
};

/// What was deleted by forgetting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ForgottenCounts {
    /// Number of turns that were deleted.
    pub turns: u32,
    /// Deleted lessons: those that name a deleted turn as a source.
    pub lessons: u32,
}

impl Memory {
    /// Forgets a whole session, and lessons that were learned from it. A process that distills it
    /// discards what it has read.
    pub fn forget_session(
        &self,
        session: &str,
        lessons: LessonsToForget,
    ) -> Result<ForgottenCounts, MemoryError> {
        let forgotten = self.write(|connection| {
            let MemorySessionRow {
                id,
                turn_count: turns,
                ..
            } = lock_session(connection, session)?;
            let unit = DistillUnit::load(connection, session)?;
            let areas = area_words(connection, &unit, |term| {
                Ok(postings::count_turns_with(connection, term, id)? > 0)
            })?;
            let lessons = forget_lessons(connection, (id, 1, turns), lessons)?;
            for table in ["turns", "levels", "turn_metrics", "vectors"] {
                let sql = format!("DELETE FROM memory_{table} WHERE id >= ?1 AND id < ?2");
                connection.execute(&sql, params![id << 32, (id + 1) << 32])?;
            }
            delete_quotes(connection, &unit, id, None)?;
            forget_requests(connection, id)?;
            forget_contradictions(connection, id, None)?;
            let by_session =
                "parts speakers postings eras gradients board documents topics topic_weeks \
                 encoders";
            for table in by_session.split(' ') {
                let sql = format!("DELETE FROM memory_{table} WHERE session = ?1");
                connection.execute(&sql, params![id])?;
            }
            forget_area_names(connection, &unit, &areas)?;
            let sql = "DELETE FROM memory_passes WHERE unit = ?1";
            connection.execute(sql, params![unit_key("", id)])?;
            connection.execute("DELETE FROM memory_sessions WHERE id = ?1", params![id])?;
            Ok(ForgottenCounts { turns, lessons })
        })?;
        self.truncate_log()?;
        Ok(forgotten)
    }

    /// Forgets one turn, and all lessons that were learned from it. The numbers of the other turns
    /// do not change. Forgetting a turn again is not an error, so that an interrupted call can be
    /// repeated. A process that distills the session discards what it has read.
    pub fn forget_turn(&self, session: &str, number: u32) -> Result<ForgottenCounts, MemoryError> {
        let forgotten = self.write(|connection| {
            let found = lock_session(connection, session)?;
            if !(1..=found.turn_count).contains(&number) {
                return Err(MemoryError::turn_not_found(session, &format!("T-{number}")));
            }
            let Some(turn) = load_turn(connection, found.id, number)? else {
                return Ok(ForgottenCounts::default());
            };
            let text = turn_pieces::searchable_text(turn.format, &turn.raw);
            let mut terms = BTreeSet::new();
            // When the turn was indexed, the redactor may have known fewer secrets.
            for text in [self.redactor.redact_text(&text).as_ref(), &text] {
                for_each_term(text, |term| _ = terms.insert(term.to_owned()));
            }
            // The words of a model's summary are indexed, too.
            for level in [Level::Smoothed, Level::Compressed, Level::Tiny] {
                let text =
                    read_level_text(connection, found.id, number, level)?.unwrap_or_default();
                for_each_term(&text, |term| _ = terms.insert(term.to_owned()));
            }
            let unit = DistillUnit::load(connection, session)?;
            let areas = area_words(connection, &unit, |term| Ok(terms.contains(term)))?;
            postings::remove_turn(
                connection,
                found.id,
                number,
                terms.iter().map(String::as_str),
            )?;
            let id = turn_id(found.id, number);
            for table in ["memory_turns", "memory_levels"] {
                connection.execute(&format!("DELETE FROM {table} WHERE id = ?1"), params![id])?;
            }
            clear_metrics(connection, &found, number)?;
            forget_unused_names(connection, &found, number, turn.speaker.as_deref())?;
            connection.execute(
                "DELETE FROM memory_gradients WHERE session = ?1",
                params![found.id],
            )?;
            forget_topics(connection, found.id, &terms)?;
            forget_area_names(connection, &unit, &areas)?;
            // A recorded request contains the turn: nothing is learned from its answer.
            forget_requests(connection, found.id)?;
            forget_contradictions(connection, found.id, Some(number))?;
            // Announcements made in the turn, and announcements that quote it.
            connection.execute(
                "DELETE FROM memory_board WHERE session = ?1
                 AND (turn = ?2 OR until - ?3 BETWEEN ?2 - 1 AND ?2)",
                params![found.id, number, ANNOUNCEMENT_TURNS],
            )?;
            connection.execute(
                "DELETE FROM memory_documents WHERE session = ?1 AND turn BETWEEN ?2 - 1 AND ?2",
                params![found.id, number],
            )?;
            delete_quotes(connection, &unit, found.id, Some(number))?;
            eras::rewrite_eras_of_turn(connection, &found, number)?;
            crate::vectors::clear_vector(connection, found.id, number)?;
            let of_turn = (found.id, number, number);
            let lessons = forget_lessons(connection, of_turn, LessonsToForget::All)?;
            Ok(ForgottenCounts { turns: 1, lessons })
        })?;
        self.truncate_log()?;
        Ok(forgotten)
    }

    /// Truncates the write-ahead log, which still has the deleted text. (Freed pages of the file
    /// are overwritten by `secure_delete`.) Fails with [`MemoryError::LogInUse`] if another
    /// process is reading the log for a second.
    pub fn truncate_log(&self) -> Result<(), MemoryError> {
        self.truncate_log_within(LOG_READERS_TIMEOUT)
    }

    /// Like [`Memory::truncate_log`], with another limit for the readers.
    pub fn truncate_log_within(&self, limit: Duration) -> Result<(), MemoryError> {
        match self.writer().truncate_log(limit)? {
            true => Ok(()),
            false => Err(MemoryError::LogInUse),
        }
    }
}

/// How long the truncation of the log waits for readers.
const LOG_READERS_TIMEOUT: Duration = Duration::from_secs(1);

/// Deletes what other sessions keep of a turn, or of all turns of a session: announcements that
/// quote it, the briefs, and the descriptions of areas of its folder, which may quote it.
fn delete_quotes(
    connection: &Connection,
    unit: &DistillUnit,
    session: i64,
    turn: Option<u32>,
) -> Result<(), MemoryError> {
    let sql = "DELETE FROM memory_board WHERE source = ?1 AND (turn = ?2 OR ?2 IS NULL)";
    connection.execute(sql, params![session, turn])?;
    connection.execute("DELETE FROM memory_briefs", params![])?;
    let directory = unit.session(session).map(|session| &session.directory);
    let sql = "DELETE FROM memory_areas WHERE unit = ?1 AND directory = ?2";
    connection.execute(sql, params![unit.key, directory])?;
    Ok(())
}

/// Returns the names of areas of a unit that have words of what is forgotten, with these words.
fn area_words(
    connection: &Connection,
    unit: &DistillUnit,
    is_forgotten: impl Fn(&str) -> Result<bool, MemoryError>,
) -> Result<BTreeMap<String, Vec<String>>, MemoryError> {
    let mut areas: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for session in &unit.sessions {
        let sql = "SELECT DISTINCT decrypt(category) FROM memory_topics WHERE session = ?1";
        let names: Vec<String> =
            query_rows(connection, sql, params![session.id], |row| row.get(0))?;
        for name in names.into_iter().filter(|name| name != OTHER_AREA) {
            let mut terms = Vec::new();
            for_each_term(&name, |term| terms.push(term.to_owned()));
            let mut forgotten = Vec::new();
            for term in terms {
                if is_forgotten(&term)? {
                    forgotten.push(term);
                }
            }
            areas.insert(name, forgotten);
        }
    }
    areas.retain(|_, words| !words.is_empty());
    Ok(areas)
}

/// Resets the areas with a word that no turn of the unit has any more.
fn forget_area_names(
    connection: &Connection,
    unit: &DistillUnit,
    areas: &BTreeMap<String, Vec<String>>,
) -> Result<(), MemoryError> {
    let is_said = |term: &String| {
        for session in &unit.sessions {
            if postings::count_turns_with(connection, term, session.id)? > 0 {
                return Ok(true);
            }
        }
        Ok::<_, MemoryError>(false)
    };
    for (name, words) in areas {
        let mut is_known = true;
        for word in words {
            is_known &= is_said(word)?;
        }
        if is_known {
            continue;
        }
        for session in &unit.sessions {
            let sql = "UPDATE memory_topics SET category = encrypt(?3)
                 WHERE session = ?1 AND category = encrypt(?2)";
            connection.execute(sql, params![session.id, name, OTHER_AREA])?;
        }
    }
    Ok(())
}

/// Clears a turn's metrics and subtracts its words from the sums of its session and part.
fn clear_metrics(
    connection: &Connection,
    session: &MemorySessionRow,
    number: u32,
) -> Result<(), MemoryError> {
    let mut metrics_rows = MetricsRowCache::default();
    let words = metrics_rows.get(connection, session.id, number)?.words;
    metrics_rows.set(connection, session.id, number, &TurnMetrics::default())?;
    metrics_rows.finish(connection)?;
    let sql =
        "UPDATE memory_sessions SET words = words - ?2, forgotten = forgotten + 1 WHERE id = ?1";
    connection.execute(sql, params![session.id, words])?;
    connection.execute(
        "UPDATE memory_parts SET words = words - ?3 WHERE session = ?1
         AND first = (SELECT max(first) FROM memory_parts WHERE session = ?1 AND first <= ?2)",
        params![session.id, number, words],
    )?;
    Ok(())
}

/// Clears the name of the speaker and the label of the part if no other turn has them.
fn forget_unused_names(
    connection: &Connection,
    session: &MemorySessionRow,
    number: u32,
    speaker: Option<&str>,
) -> Result<(), MemoryError> {
    connection.execute(
        "UPDATE memory_speakers SET name = '' WHERE session = ?1 AND name = encrypt(?2)
         AND NOT EXISTS (SELECT 1 FROM memory_turns
             WHERE id >= ?3 AND id < ?4 AND speaker = encrypt(?2))",
        params![
            session.id,
            speaker,
            session.id << 32,
            (session.id + 1) << 32
        ],
    )?;
    connection.execute(
        "UPDATE memory_parts SET label = NULL WHERE session = ?1
         AND first = (SELECT max(first) FROM memory_parts WHERE session = ?1 AND first <= ?2)
         AND NOT EXISTS (SELECT 1 FROM memory_turns WHERE id >= ?3 + first AND id < ?3 + coalesce(
             (SELECT min(first) FROM memory_parts WHERE session = ?1 AND first > ?2), CAST(?4 AS BIGINT) + 1))",
        params![session.id, number, session.id << 32, session.turn_count],
    )?;
    Ok(())
}

/// Deletes topics whose name is a word of the turn.
fn forget_topics(
    connection: &Connection,
    session: i64,
    terms: &BTreeSet<String>,
) -> Result<(), MemoryError> {
    let sql = "SELECT decrypt(name) FROM memory_topics WHERE session = ?1";
    let names: Vec<String> = query_rows(connection, sql, params![session], |row| row.get(0))?;
    for name in names {
        let mut is_in_turn = false;
        for_each_term(&name, |term| is_in_turn |= terms.contains(term));
        if is_in_turn {
            for table in ["memory_topics", "memory_topic_weeks"] {
                let sql = format!("DELETE FROM {table} WHERE session = ?1 AND name = encrypt(?2)");
                connection.execute(&sql, params![session, name])?;
            }
        }
    }
    Ok(())
}

/// Deletes the lessons that were learned from any turn of a range, because they may quote it.
fn forget_lessons(
    connection: &Connection,
    range: (i64, u32, u32),
    which: LessonsToForget,
) -> Result<u32, MemoryError> {
    let lessons = lessons_to_forget(connection, range, which)?;
    for lesson in &lessons {
        remove_lesson(connection, lesson)?;
    }
    let (session, first, last) = range;
    let sql = "DELETE FROM memory_sources WHERE session = ?1 AND turn BETWEEN ?2 AND ?3";
    connection.execute(sql, params![session, first, last])?;
    Ok(lessons.len() as u32)
}
