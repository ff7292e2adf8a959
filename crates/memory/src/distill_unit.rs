//! What is distilled together: the sessions of a project, or one session without a project. Also
//! the lock, so that one process at a time distills them, and the turns to be distilled.

use std::fs::{File, TryLockError};

use selvedge_database::{Connection, params};

use crate::lesson_rules::ObservedTurn;
use crate::level_writer::read_turn_record;
use crate::store::{load_turn, query_first, query_rows, require_session};
use crate::{Memory, MemoryError};

/// How often a lock file is created again that another process removed.
const MAX_LOCK_ATTEMPTS: u32 = 10;

/// The sessions that are distilled together.
#[derive(Debug, Clone)]
pub(crate) struct DistillUnit {
    /// Identifies the unit in the database: the id of the project, or the row of the session.
    pub(crate) key: String,
    /// The project; empty for a session without one.
    pub(crate) project: String,
    /// The sessions, the oldest first.
    pub(crate) sessions: Vec<UnitSession>,
}

/// A session of a unit.
#[derive(Debug, Clone)]
pub(crate) struct UnitSession {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) turn_count: u32,
    /// The last turn that was distilled.
    pub(crate) distilled_to: u32,
}

/// Turns of a session that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TurnSpan {
    /// The row of the session.
    pub(crate) session: i64,
    pub(crate) first: u32,
    pub(crate) last: u32,
}

impl TurnSpan {
    /// Returns how many turns it has, forgotten ones included.
    pub(crate) fn turns(&self) -> u32 {
        self.last + 1 - self.first
    }
}

impl DistillUnit {
    /// Loads the unit of a session.
    pub(crate) fn load(connection: &Connection, session: &str) -> Result<Self, MemoryError> {
        let found = require_session(connection, session)?;
        let sql = "SELECT coalesce(project, '') FROM memory_sessions WHERE id = ?1";
        let project: Option<String> =
            query_first(connection, sql, params![found.id], |row| row.get(0))?;
        let project = project.unwrap_or_default();
        let sql = "SELECT id, name, turns, distilled FROM memory_sessions
             WHERE id = ?1 OR (?2 <> '' AND project = ?2) ORDER BY id";
        let sessions = query_rows(connection, sql, params![found.id, project], |row| {
            Ok(UnitSession {
                id: row.get(0)?,
                name: row.get(1)?,
                turn_count: row.get(2)?,
                distilled_to: row.get(3)?,
            })
        })?;
        Ok(Self {
            key: unit_key(&project, found.id),
            project,
            sessions,
        })
    }

    /// Returns how many turns are not distilled.
    pub(crate) fn remaining_turns(&self) -> u32 {
        let waiting = |session: &UnitSession| session.turn_count - session.distilled_to;
        self.sessions.iter().map(waiting).sum()
    }

    pub(crate) fn session(&self, id: i64) -> Option<&UnitSession> {
        self.sessions.iter().find(|session| session.id == id)
    }

    /// Returns the next turns to distill: at most `max_turns`, after those in `taken`.
    pub(crate) fn next_spans(&self, taken: &[TurnSpan], max_turns: u32) -> Vec<TurnSpan> {
        let (mut spans, mut room) = (Vec::new(), max_turns);
        for session in &self.sessions {
            let of_session = taken.iter().filter(|span| span.session == session.id);
            let done = of_session.map(|span| span.last).max();
            let done = done.unwrap_or(0).max(session.distilled_to);
            let last = session.turn_count.min(done.saturating_add(room));
            if last > done {
                room -= last - done;
                spans.push(TurnSpan {
                    session: session.id,
                    first: done + 1,
                    last,
                });
            }
        }
        spans
    }
}

/// Returns the key of the unit of a session.
pub(crate) fn unit_key(project: &str, session: i64) -> String {
    match project {
        "" => format!("session-{session}"),
        project => project.to_owned(),
    }
}

/// Formats spans for the database: `12:1-40 13:1-5`.
pub(crate) fn format_spans(spans: &[TurnSpan]) -> String {
    let spans = spans.iter().map(|span| {
        let TurnSpan {
            session,
            first,
            last,
        } = span;
        format!("{session}:{first}-{last}")
    });
    spans.collect::<Vec<_>>().join(" ")
}

/// Parses what `format_spans` wrote.
pub(crate) fn parse_spans(spans: &str) -> Vec<TurnSpan> {
    let span = |text: &str| {
        let (session, turns) = text.split_once(':')?;
        let (first, last) = turns.split_once('-')?;
        Some(TurnSpan {
            session: session.parse().ok()?,
            first: first.parse().ok()?,
            last: last.parse().ok()?,
        })
    };
    spans.split(' ').filter_map(span).collect()
}

impl Memory {
    /// Loads the turns of spans that were not forgotten, with secrets redacted.
    pub(crate) fn observe_turns(
        &self,
        connection: &Connection,
        spans: &[TurnSpan],
    ) -> Result<Vec<ObservedTurn>, MemoryError> {
        let mut turns = Vec::new();
        for span in spans {
            for number in span.first..=span.last {
                let Some(turn) = load_turn(connection, span.session, number)? else {
                    continue;
                };
                let record = read_turn_record(connection, span.session, number)?;
                let record = record.unwrap_or_default();
                turns.push(ObservedTurn {
                    session: span.session,
                    number,
                    at_ms: turn.at_ms,
                    // Without calls, the topics of a turn are words of its text.
                    names: match record.tool_calls {
                        0 => Vec::new(),
                        _ => record.topics,
                    },
                    pieces: self.redacted_pieces(&turn),
                });
            }
        }
        Ok(turns)
    }

    /// Takes the lock for distilling the unit of a session. It is held until the file is dropped:
    /// the operating system releases it when the process ends.
    pub(crate) fn lock_for_distilling(&self, session: &str) -> Result<File, MemoryError> {
        let unit = self.read(|reader| DistillUnit::load(&reader.connection, session))?;
        match self.try_lock_unit(&unit.key)? {
            Some(lock) => Ok(lock),
            None => Err(MemoryError::DistillLocked(session.to_owned())),
        }
    }

    /// Takes the lock of a unit; `None` if another process, or another task of this one, holds it.
    pub(crate) fn try_lock_unit(&self, key: &str) -> Result<Option<File>, MemoryError> {
        let folder = self.folder.join("live");
        let path = folder.join(format!("memory-distill-{key}"));
        let file_error = |error| MemoryError::File {
            path: path.display().to_string(),
            error,
        };
        std::fs::create_dir_all(&folder).map_err(file_error)?;
        for _ in 0..MAX_LOCK_ATTEMPTS {
            let file = File::options().create(true).append(true).open(&path);
            let file = file.map_err(file_error)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(file_error(error)),
            }
            // A process that removes unused lock files may have removed this one before it was
            // locked.
            let is_current = File::open(&path)
                .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)));
            if is_current {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_go_on_after_those_that_are_taken() {
        let session = |id, turn_count, distilled_to| UnitSession {
            id,
            name: format!("s{id}"),
            turn_count,
            distilled_to,
        };
        let unit = DistillUnit {
            key: "prj_x".into(),
            project: "prj_x".into(),
            sessions: vec![session(1, 10, 4), session(2, 5, 0)],
        };
        assert_eq!(unit.remaining_turns(), 11);
        let first = unit.next_spans(&[], 8);
        assert_eq!(format_spans(&first), "1:5-10 2:1-2");
        assert_eq!(parse_spans("1:5-10 2:1-2"), first);
        assert_eq!(format_spans(&unit.next_spans(&first, 100)), "2:3-5");
        let all = unit.next_spans(&[], 100);
        assert_eq!(unit.next_spans(&all, 100), []);
    }
}
