//! When projects are distilled: the last pass of each, and which are due.

use std::time::Duration;

use selvedge_database::{Connection, params};
use selvedge_journal::machine_name;
use serde::Serialize;

use crate::distill::DistillReport;
use crate::distill_requests::UNANSWERED;
use crate::distill_unit::{DistillUnit, TurnSpan, parse_spans, unit_key};
use crate::store::{execute, find_session, now_ms, query_first, query_rows};
use crate::{Memory, MemoryError};

/// The time between two passes of a project.
pub const DISTILL_INTERVAL: Duration = Duration::from_secs(12 * 3600);
/// The time after which another process continues a pass that was interrupted, or fetches the
/// answers of a provider's batch.
const CONTINUE_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// The time after which a machine continues a pass of another one that did nothing: longer than any
/// request.
const MACHINE_TIMEOUT: Duration = Duration::from_secs(3600);

/// The last pass of a project.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DistillPass {
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

/// What is known about the passes of a project, or of a session without one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DistillState {
    /// One of the sessions, for [`Memory::distill`].
    pub session: String,
    /// The project; `None` for a session without one.
    pub project: Option<String>,
    /// The folder of this session; `None` for an imported conversation.
    pub directory: Option<String>,
    /// Turns that are not distilled.
    pub new_turns: u32,
    /// Requests that were sent, or are about to be, and whose answer is not recorded.
    pub open_requests: u32,
    /// Requests without an answer whose turns rules read. [`Memory::retry_distilling`] sends them
    /// again.
    pub unanswered_requests: u32,
    /// The turns of these requests.
    pub unanswered_turns: u32,
    /// Whether a process distills it now.
    pub running: bool,
    /// When the next pass is due, in milliseconds since 1970; `None` if there are no new turns.
    pub due_ms: Option<i64>,
    /// The last pass.
    pub last_pass: Option<DistillPass>,
}

impl DistillState {
    /// Returns whether a pass is due now.
    pub fn is_due(&self) -> bool {
        !self.running && self.due_ms.is_some_and(|due| due <= now_ms())
    }
}

/// The sessions of a unit, as the database counts them.
struct UnitCounts {
    project: String,
    session: i64,
    name: String,
    directory: Option<String>,
    new_turns: u32,
    created_ms: i64,
}

impl Memory {
    /// Returns the state of every project and of every session without one, the oldest first.
    pub fn distill_states(&self) -> Result<Vec<DistillState>, MemoryError> {
        self.states_of(|_| true)
    }

    /// Returns the state of the project of a session, or of the session if it has none.
    pub fn distill_state(&self, session: &str) -> Result<Option<DistillState>, MemoryError> {
        let unit = self.read(|reader| {
            let connection = &reader.connection;
            match find_session(connection, session)? {
                Some(_) => Ok(Some(DistillUnit::load(connection, session)?.key)),
                None => Ok(None),
            }
        })?;
        let states = self.states_of(|key| Some(key) == unit.as_deref())?;
        Ok(states.into_iter().next())
    }

    /// Postpones the due pass of a session's project, because it cannot begin now: it is due again
    /// as if it had been interrupted.
    pub fn postpone_distilling(&self, session: &str) -> Result<(), MemoryError> {
        let unit = self.read(|reader| DistillUnit::load(&reader.connection, session))?;
        let machine = self.machine();
        self.write(|connection| begin_pass(connection, &unit.key, machine.as_deref()).map(drop))
    }

    /// Returns the name of this machine and its folder, within which lock files work; `None` if no
    /// other machine shares the database.
    pub(crate) fn machine(&self) -> Option<String> {
        self.location.database()?;
        let folder = self.location.folder().display();
        Some(format!("{}:{folder}", machine_name()))
    }

    /// Returns the states of the units that are wanted by their key.
    fn states_of(
        &self,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<DistillState>, MemoryError> {
        let units = self.read(|reader| {
            let connection = &reader.connection;
            let mut found = Vec::new();
            for unit in read_units(connection)? {
                let key = unit_key(&unit.project, unit.session);
                if is_wanted(&key) {
                    let pass = read_pass(connection, &key)?;
                    let requests = count_requests(connection, &key)?;
                    found.push((key, unit, pass, requests));
                }
            }
            Ok(found)
        })?;
        let state = |(key, unit, pass, requests): (String, UnitCounts, _, RequestCounts)| {
            let pass: Option<(DistillPass, i64)> = pass;
            let due_ms = match &pass {
                Some((pass, touched_ms)) => match pass.ended_ms {
                    Some(ended_ms) => ended_ms + DISTILL_INTERVAL.as_millis() as i64,
                    None => touched_ms + CONTINUE_INTERVAL.as_millis() as i64,
                },
                None => unit.created_ms + DISTILL_INTERVAL.as_millis() as i64,
            };
            DistillState {
                session: unit.name,
                project: Some(unit.project).filter(|project| !project.is_empty()),
                directory: unit.directory,
                new_turns: unit.new_turns,
                open_requests: requests.open,
                unanswered_requests: requests.unanswered,
                unanswered_turns: requests.unanswered_turns,
                running: unit.new_turns > 0 && self.is_distilling(&key),
                due_ms: (unit.new_turns > 0).then_some(due_ms),
                last_pass: pass.map(|(pass, _)| pass),
            }
        };
        Ok(units.into_iter().map(state).collect())
    }
}

fn read_units(connection: &Connection) -> Result<Vec<UnitCounts>, MemoryError> {
    let sql = "SELECT min(coalesce(project, '')), max(id), CAST(sum(turns - distilled) AS BIGINT),
             min(created_ms)
         FROM memory_sessions WHERE turns > 0
         GROUP BY CASE WHEN coalesce(project, '') = '' THEN 'session-' || CAST(id AS TEXT)
             ELSE project END ORDER BY max(id)";
    let rows: Vec<(String, i64, u32, i64)> =
        query_rows(connection, sql, params![], |row| row.try_into())?;
    let units = rows
        .into_iter()
        .map(|(project, session, new_turns, created_ms)| {
            let sql = "SELECT name, directory FROM memory_sessions WHERE id = ?1";
            let found: Option<(String, Option<String>)> =
                query_first(connection, sql, params![session], |row| row.try_into())?;
            let (name, directory) = found.unwrap_or_default();
            Ok(UnitCounts {
                project,
                session,
                name,
                directory,
                new_turns,
                created_ms,
            })
        });
    units.collect()
}

/// Reads the last pass of a unit, and when it last did something.
fn read_pass(
    connection: &Connection,
    unit: &str,
) -> Result<Option<(DistillPass, i64)>, MemoryError> {
    let sql = "SELECT started_ms, ended_ms, turns, learned, dropped, requests, input_tokens,
         output_tokens, cost, touched_ms FROM memory_passes WHERE unit = ?1";
    query_first(connection, sql, params![unit], |row| {
        let pass = DistillPass {
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
        Ok((pass, row.get(9)?))
    })
}

/// The requests of a unit without an answer.
#[derive(Default)]
struct RequestCounts {
    open: u32,
    unanswered: u32,
    unanswered_turns: u32,
}

fn count_requests(connection: &Connection, unit: &str) -> Result<RequestCounts, MemoryError> {
    let sql = "SELECT answered, spans FROM memory_requests WHERE unit = ?1 AND answered <> 1";
    let rows: Vec<(i64, String)> =
        query_rows(connection, sql, params![unit], |row| row.try_into())?;
    let mut counts = RequestCounts::default();
    for (answered, spans) in rows {
        match answered {
            UNANSWERED => {
                counts.unanswered += 1;
                let spans = parse_spans(&spans);
                counts.unanswered_turns += spans.iter().map(TurnSpan::turns).sum::<u32>();
            }
            _ => counts.open += 1,
        }
    }
    Ok(counts)
}

/// Writes that a pass begins on this machine, unless an interrupted one is continued. Returns false
/// if another machine that shares the database works on it. `machine` is `None` if none does.
pub(crate) fn begin_pass(
    connection: &Connection,
    unit: &str,
    machine: Option<&str>,
) -> Result<bool, MemoryError> {
    let sql = "DELETE FROM memory_passes WHERE unit = ?1 AND ended_ms IS NOT NULL";
    execute(connection, sql, params![unit])?;
    let sql = "INSERT INTO memory_passes (unit, started_ms, touched_ms, machine)
         VALUES (?1, ?2, ?2, ?3)
         ON CONFLICT (unit) DO UPDATE SET touched_ms = excluded.touched_ms,
             machine = excluded.machine
         WHERE memory_passes.machine IS NULL OR memory_passes.machine = excluded.machine
             OR memory_passes.touched_ms < ?4";
    let now = now_ms();
    let abandoned = now - MACHINE_TIMEOUT.as_millis() as i64;
    Ok(execute(connection, sql, params![unit, now, machine, abandoned])? > 0)
}

/// Adds what was learned to a pass, and ends it if no turns remain. An answer about turns that were
/// distilled before does not change whether the pass has ended.
pub(crate) fn count_pass(
    connection: &Connection,
    unit: &str,
    report: &DistillReport,
) -> Result<(), MemoryError> {
    let ended_ms = (report.remaining_turns == 0).then(now_ms);
    let sql = "UPDATE memory_passes SET turns = turns + ?2, learned = learned + ?3,
         dropped = dropped + ?4, touched_ms = ?5,
         ended_ms = CASE WHEN ?2 = 0 THEN ended_ms ELSE ?6 END WHERE unit = ?1";
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

#[cfg(test)]
mod tests {
    use selvedge_journal::Redactor;

    use super::*;

    #[test]
    fn one_machine_at_a_time_distills_a_unit() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::open(dir.path(), Redactor::new([])).unwrap();
        let begin = |machine: Option<&str>| {
            let begun = memory.write(|connection| begin_pass(connection, "prj_x", machine));
            begun.unwrap()
        };
        let change = |sql: &str| {
            let changed = memory.write(|connection| execute(connection, sql, params![]));
            assert_eq!(changed.unwrap(), 1);
        };
        assert!(begin(Some("a:/home")));
        assert!(!begin(Some("b:/home")));
        assert!(
            begin(Some("a:/home")),
            "a process of the same machine continues"
        );
        change("UPDATE memory_passes SET touched_ms = touched_ms - 3600001");
        assert!(
            begin(Some("b:/home")),
            "the other machine did nothing for an hour"
        );
        change("UPDATE memory_passes SET ended_ms = touched_ms");
        assert!(begin(Some("a:/home")), "the pass has ended");
        // Without a shared database, the lock file decides.
        change("UPDATE memory_passes SET machine = NULL");
        assert!(begin(None) && begin(None));
        assert_eq!(memory.machine(), None);
    }
}
