//! When projects are distilled: the last run of each, and which are due.

use std::time::Duration;

use selvedge_database::{Connection, params};
use serde::Serialize;

use crate::distill::DistillReport;
use crate::distill_unit::unit_key;
use crate::store::{execute, now_ms, query_first, query_rows};
use crate::{Memory, MemoryError};

/// The time between two runs of a project.
pub const DISTILL_INTERVAL: Duration = Duration::from_secs(12 * 3600);
/// The time after which another process continues a run that was interrupted, or fetches the
/// answers of a provider's batch.
const CONTINUE_INTERVAL: Duration = Duration::from_secs(15 * 60);

/// The last run of a project.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DistillRun {
    /// When it began, in milliseconds since 1970.
    pub started_ms: i64,
    /// When all turns were distilled; `None` if that was not reached.
    pub ended_ms: Option<i64>,
    /// Turns that were distilled.
    pub turns: u32,
    /// Lessons that were new or learned again.
    pub learned: u32,
    /// Lessons that were deleted because their weight had decayed.
    pub dropped: u32,
    /// Requests that the model answered.
    pub requests: u32,
    /// Input tokens of these requests.
    pub input_tokens: u64,
    /// Output tokens of these requests.
    pub output_tokens: u64,
    /// Cost of these requests in the currency of the prices; `None` if no price is known.
    pub cost: Option<f64>,
}

/// What is known about the runs of a project, or of a session without one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DistillState {
    /// One of the sessions, for [`Memory::distill`].
    pub session: String,
    /// The project; `None` for a session without one.
    pub project: Option<String>,
    /// Turns that are not distilled.
    pub new_turns: u32,
    /// Requests whose answer is not recorded.
    pub open_requests: u32,
    /// Whether a process distills it now.
    pub running: bool,
    /// When the next run is due, in milliseconds since 1970; `None` if there are no new turns.
    pub due_ms: Option<i64>,
    /// The last run.
    pub last_run: Option<DistillRun>,
}

impl DistillState {
    /// Returns whether a run is due now.
    pub fn is_due(&self) -> bool {
        !self.running && self.due_ms.is_some_and(|due| due <= now_ms())
    }
}

/// The sessions of a unit, as the database counts them.
struct UnitCounts {
    project: String,
    session: i64,
    name: String,
    new_turns: u32,
    created_ms: i64,
}

impl Memory {
    /// Returns the state of every project and of every session without one, the oldest first.
    pub fn distill_states(&self) -> Result<Vec<DistillState>, MemoryError> {
        let (units, runs) = self.read(|reader| {
            let connection = &reader.connection;
            let units = read_units(connection)?;
            let read_run = |unit: &UnitCounts| {
                let key = unit_key(&unit.project, unit.session);
                Ok((
                    read_run(connection, &key)?,
                    open_requests(connection, &key)?,
                ))
            };
            let runs: Result<Vec<_>, MemoryError> = units.iter().map(read_run).collect();
            Ok((units, runs?))
        })?;
        let states = units
            .into_iter()
            .zip(runs)
            .map(|(unit, (run, open_requests))| {
                let key = unit_key(&unit.project, unit.session);
                let running = unit.new_turns > 0 && self.try_lock_unit(&key)?.is_none();
                let due_ms = match &run {
                    Some((run, touched_ms)) => match run.ended_ms {
                        Some(ended_ms) => ended_ms + DISTILL_INTERVAL.as_millis() as i64,
                        None => touched_ms + CONTINUE_INTERVAL.as_millis() as i64,
                    },
                    None => unit.created_ms + DISTILL_INTERVAL.as_millis() as i64,
                };
                Ok(DistillState {
                    session: unit.name,
                    project: Some(unit.project).filter(|project| !project.is_empty()),
                    new_turns: unit.new_turns,
                    open_requests,
                    running,
                    due_ms: (unit.new_turns > 0).then_some(due_ms),
                    last_run: run.map(|(run, _)| run),
                })
            });
        states.collect()
    }

    /// Returns the state of the project of a session, or of the session if it has none.
    pub fn distill_state(&self, session: &str) -> Result<Option<DistillState>, MemoryError> {
        let project = self.project_of(session)?;
        let mut states = self.distill_states()?.into_iter();
        Ok(states.find(|state| match &project {
            Some(_) => state.project == project,
            None => state.session == session,
        }))
    }
}

fn read_units(connection: &Connection) -> Result<Vec<UnitCounts>, MemoryError> {
    let sql = "SELECT coalesce(project, ''), max(id), sum(turns - distilled), min(created_ms)
         FROM memory_sessions WHERE turns > 0
         GROUP BY CASE WHEN coalesce(project, '') = '' THEN 'session-' || CAST(id AS TEXT)
             ELSE project END ORDER BY max(id)";
    let rows: Vec<(String, i64, u32, i64)> =
        query_rows(connection, sql, params![], |row| row.try_into())?;
    let units = rows
        .into_iter()
        .map(|(project, session, new_turns, created_ms)| {
            let sql = "SELECT name FROM memory_sessions WHERE id = ?1";
            let name: Option<String> =
                query_first(connection, sql, params![session], |row| row.get(0))?;
            Ok(UnitCounts {
                project,
                session,
                name: name.unwrap_or_default(),
                new_turns,
                created_ms,
            })
        });
    units.collect()
}

/// Reads the last run of a unit, and when it last did something.
fn read_run(connection: &Connection, unit: &str) -> Result<Option<(DistillRun, i64)>, MemoryError> {
    let sql = "SELECT started_ms, ended_ms, turns, learned, dropped, requests, input_tokens,
         output_tokens, cost, touched_ms FROM memory_runs WHERE unit = ?1";
    query_first(connection, sql, params![unit], |row| {
        let run = DistillRun {
            started_ms: row.get(0)?,
            ended_ms: row.get(1)?,
            turns: row.get(2)?,
            learned: row.get(3)?,
            dropped: row.get(4)?,
            requests: row.get(5)?,
            input_tokens: row.get::<i64>(6)? as u64,
            output_tokens: row.get::<i64>(7)? as u64,
            cost: row.get(8)?,
        };
        Ok((run, row.get(9)?))
    })
}

fn open_requests(connection: &Connection, unit: &str) -> Result<u32, MemoryError> {
    let sql = "SELECT count(*) FROM memory_requests WHERE unit = ?1 AND answered = 0";
    let count: Option<u32> = query_first(connection, sql, params![unit], |row| row.get(0))?;
    Ok(count.unwrap_or(0))
}

/// Writes that a run begins, unless an interrupted one is continued.
pub(crate) fn begin_run(connection: &Connection, unit: &str) -> Result<(), MemoryError> {
    let sql = "DELETE FROM memory_runs WHERE unit = ?1 AND ended_ms IS NOT NULL";
    execute(connection, sql, params![unit])?;
    let sql = "INSERT INTO memory_runs (unit, started_ms, touched_ms) VALUES (?1, ?2, ?2)
         ON CONFLICT (unit) DO UPDATE SET touched_ms = excluded.touched_ms";
    execute(connection, sql, params![unit, now_ms()])?;
    Ok(())
}

/// Adds what was learned to a run, and ends it if no turns remain.
pub(crate) fn count_run(
    connection: &Connection,
    unit: &str,
    report: &DistillReport,
) -> Result<(), MemoryError> {
    let ended_ms = (report.remaining_turns == 0).then(now_ms);
    let sql = "UPDATE memory_runs SET turns = turns + ?2, learned = learned + ?3,
         dropped = dropped + ?4, touched_ms = ?5, ended_ms = ?6 WHERE unit = ?1";
    let DistillReport {
        distilled_turns,
        learned,
        dropped,
        ..
    } = report;
    let row = params![unit, distilled_turns, learned, dropped, now_ms(), ended_ms];
    execute(connection, sql, row)?;
    Ok(())
}
