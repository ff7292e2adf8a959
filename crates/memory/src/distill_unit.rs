//! What is distilled together: the sessions of a project, or one session without a project. Also
//! the turns to be distilled.
//!
//! Access to memory ends at folders. So a request, and what is learned from it, is about sessions
//! of one folder of the project: a model that reads it cannot carry text from one folder to
//! another.

use selvedge_database::{Connection, params};

use crate::lesson_rules::ObservedTurn;
use crate::level_writer::read_turn_record;
use crate::store::{load_turn, query_first, query_rows, require_session};
use crate::turn_pieces::TurnPiece;
use crate::{Memory, MemoryError};

/// The role of messages in which an agent asked for a turn.
pub const AGENT_ROLE: &str = "agent";

/// The sessions that are distilled together.
#[derive(Debug, Clone)]
pub(crate) struct DistillUnit {
    /// Identifies the unit in the database: the id of the project, or the row of the session. What
    /// is learned in a session without a project is used in this session only.
    pub(crate) key: String,
    /// The sessions, the oldest first.
    pub(crate) sessions: Vec<UnitSession>,
}

/// A session of a unit.
#[derive(Debug, Clone)]
pub(crate) struct UnitSession {
    pub(crate) id: i64,
    pub(crate) name: String,
    /// The folder in which it works; empty for an imported conversation.
    pub(crate) directory: String,
    pub(crate) turn_count: u32,
    /// The last turn that was distilled.
    pub(crate) distilled_to: u32,
    /// How many turns were forgotten.
    pub(crate) forgotten: u32,
}

/// The sessions of a unit that work in one folder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnitFolder<'a> {
    pub(crate) unit: &'a DistillUnit,
    pub(crate) directory: &'a str,
}

impl<'a> UnitFolder<'a> {
    /// Returns the sessions of the folder, the oldest first.
    pub(crate) fn sessions(&self) -> impl DoubleEndedIterator<Item = &'a UnitSession> + use<'a> {
        let directory = self.directory;
        let sessions = self.unit.sessions.iter();
        sessions.filter(move |session| session.directory == directory)
    }

    /// Returns a session of the folder.
    pub(crate) fn session(&self, id: i64) -> Option<&'a UnitSession> {
        self.sessions().find(|session| session.id == id)
    }
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

    /// Returns whether both have a turn.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.session == other.session && self.first <= other.last && other.first <= self.last
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
        let sql = "SELECT id, name, coalesce(directory, ''), turns, distilled, forgotten
             FROM memory_sessions WHERE id = ?1 OR (?2 <> '' AND project = ?2) ORDER BY id";
        let sessions = query_rows(connection, sql, params![found.id, project], |row| {
            Ok(UnitSession {
                id: row.get(0)?,
                name: row.get(1)?,
                directory: row.get(2)?,
                turn_count: row.get(3)?,
                distilled_to: row.get(4)?,
                forgotten: row.get(5)?,
            })
        })?;
        Ok(Self {
            key: unit_key(&project, found.id),
            sessions,
        })
    }

    /// Returns how many turns are not distilled.
    pub(crate) fn remaining_turns(&self) -> u32 {
        let waiting = |session: &UnitSession| session.turn_count - session.distilled_to;
        self.sessions.iter().map(waiting).sum()
    }

    /// Returns whether all turns of some spans are distilled.
    pub(crate) fn has_distilled(&self, spans: &[TurnSpan]) -> bool {
        spans.iter().all(|span| {
            let session = self.session(span.session);
            session.is_some_and(|session| span.last <= session.distilled_to)
        })
    }

    /// Returns whether nothing was forgotten in the sessions of some spans since the unit was
    /// loaded. Locks the sessions, so that nothing is forgotten until the transaction ends.
    pub(crate) fn is_current(
        &self,
        connection: &Connection,
        spans: &[TurnSpan],
    ) -> Result<bool, MemoryError> {
        let lock = connection.row_lock();
        let sql = format!("SELECT name, forgotten FROM memory_sessions WHERE id = ?1{lock}");
        for span in spans {
            let found: Option<(String, u32)> =
                query_first(connection, &sql, params![span.session], |row| {
                    row.try_into()
                })?;
            let session = self.session(span.session);
            let known = session.map(|session| (session.name.clone(), session.forgotten));
            if found != known {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(crate) fn session(&self, id: i64) -> Option<&UnitSession> {
        self.sessions.iter().find(|session| session.id == id)
    }

    /// Returns the folder of all sessions of some spans; `None` if they have no turns, or turns of
    /// several folders.
    pub(crate) fn folder_of(&self, spans: &[TurnSpan]) -> Option<UnitFolder<'_>> {
        let directory = |span: &TurnSpan| Some(self.session(span.session)?.directory.as_str());
        let first = directory(spans.first()?)?;
        let is_one = spans.iter().all(|span| directory(span) == Some(first));
        is_one.then_some(UnitFolder {
            unit: self,
            directory: first,
        })
    }

    /// Returns the next turns of one folder to distill: at most `max_turns`, after those in
    /// `taken`.
    pub(crate) fn next_spans(&self, taken: &[TurnSpan], max_turns: u32) -> Vec<TurnSpan> {
        let (mut spans, mut room) = (Vec::new(), max_turns);
        let mut directory: Option<&String> = None;
        for session in &self.sessions {
            let of_session = taken.iter().filter(|span| span.session == session.id);
            let done = of_session.map(|span| span.last).max();
            let done = done.unwrap_or(0).max(session.distilled_to);
            let last = session.turn_count.min(done.saturating_add(room));
            let is_same_folder = directory.is_none_or(|it| *it == session.directory);
            if last > done && is_same_folder {
                directory = Some(&session.directory);
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

/// How the key of the unit of a session without a project begins.
const SESSION_KEY: &str = "session-";

/// Returns the key of the unit of a session.
pub(crate) fn unit_key(project: &str, session: i64) -> String {
    match project {
        "" => format!("{SESSION_KEY}{session}"),
        project => project.to_owned(),
    }
}

/// Returns whether a key is that of a session without a project, as of an imported conversation.
pub(crate) fn is_session_key(key: &str) -> bool {
    key.starts_with(SESSION_KEY)
}

/// Returns whether an agent asked for a turn. Nothing is learned from it, so that an agent cannot
/// instruct later sessions.
pub(crate) fn is_asked_by_agent(pieces: &[TurnPiece]) -> bool {
    pieces.iter().any(|piece| match piece {
        TurnPiece::Message { role, .. } => role == AGENT_ROLE,
        _ => false,
    })
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
    /// Loads the turns of spans from which something may be learned, with secrets redacted: those
    /// that were not forgotten, and that no agent asked for.
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
                let pieces = self.redacted_pieces(&turn);
                if is_asked_by_agent(&pieces) {
                    continue;
                }
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
                    pieces,
                });
            }
        }
        Ok(turns)
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
            directory: match id {
                3 => "/a/below".into(),
                _ => "/a".into(),
            },
            turn_count,
            distilled_to,
            forgotten: 0,
        };
        let mut unit = DistillUnit {
            key: "prj_x".into(),
            sessions: vec![session(1, 10, 4), session(2, 5, 0)],
        };
        assert_eq!(unit.remaining_turns(), 11);
        let first = unit.next_spans(&[], 8);
        assert_eq!(format_spans(&first), "1:5-10 2:1-2");
        assert_eq!(parse_spans("1:5-10 2:1-2"), first);
        assert_eq!(format_spans(&unit.next_spans(&first, 100)), "2:3-5");
        let all = unit.next_spans(&[], 100);
        assert_eq!(unit.next_spans(&all, 100), []);
        // Spans are of one folder, also if another session has turns.
        unit.sessions.insert(1, session(3, 7, 0));
        assert_eq!(unit.next_spans(&[], 100), all);
        assert_eq!(unit.folder_of(&all).map(|it| it.directory), Some("/a"));
        let below = unit.next_spans(&all, 100);
        assert_eq!(format_spans(&below), "3:1-7");
        assert!(unit.folder_of(&[all, below].concat()).is_none());
    }
}
