//! Reads runs and their calls.

use std::collections::HashMap;
use std::sync::PoisonError;

use selvedge_database::{Connection, DatabaseValue, Row, ToParameter, params};
use selvedge_protocol::{
    ApprovalRequest, CallError, CallStatus, ResumeAs, SPAWN_TOOL, ScriptToolCallOutput,
};
use serde::Serialize;
use serde_json::Value;

use crate::connection::{in_folders_condition, query_column, query_first};
use crate::payloads::Payloads;
use crate::run_call_counts::called_tool_condition;
use crate::{Journal, JournalError};

/// The overview of a run, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunSummary {
    /// The id of the run (`scr_…`, `trn_…`, `agt_…` or `tsk_…`).
    pub id: String,
    /// The state of the run at the time it was read.
    pub state: StoredRunState,
    /// When the run started, in milliseconds since 1970.
    pub started_ms: i64,
    /// When the run ended, in milliseconds since 1970; `None` if it has not ended.
    pub ended_ms: Option<i64>,
    /// The working folder of the run.
    pub directory: String,
    /// The number of calls of the run.
    pub calls: u32,
    /// The run that this run resumed.
    pub resumes: Option<String>,
    /// The session that the run belongs to.
    pub session: String,
}

/// A run with everything that the journal recorded for it.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRun {
    /// The overview of the run.
    pub summary: RunSummary,
    /// The source code of the script.
    pub source: String,
    /// The seed of `Math.random` in the script.
    pub seed: String,
    /// The output of the run; `None` if it has not ended.
    pub output: Option<ScriptToolCallOutput>,
    /// The calls of the run, in the order in which they were made.
    pub calls: Vec<StoredCall>,
    /// The configuration from which the tools of the run were created, to restore or replay it.
    pub saved_config: String,
    /// The recording of the host's inputs, for replay; `None` if the run has not ended or has no
    /// complete recording.
    pub recording: Option<Vec<u8>>,
    /// The approval requests that a suspended run waits for.
    pub open_approvals: Vec<ApprovalRequest>,
}

impl RunSummary {
    /// Returns whether the run is one of a script. Only such runs can be resumed.
    pub fn is_script(&self) -> bool {
        self.id.starts_with("scr_")
    }
}

impl StoredRun {
    /// Returns what the run means as a whole to a run that resumes it.
    pub fn resume_as(&self) -> ResumeAs {
        ResumeAs::of_run(self.calls.iter().map(|call| call.resume_as))
    }
}

/// A call of a run, as the journal recorded it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoredCall {
    /// The id of the call, unique in its run.
    pub id: String,
    /// Canonical name of the tool.
    pub tool: String,
    /// The state of the call at the time it was read.
    pub state: StoredCallState,
    /// The arguments; `None` if the call never started.
    pub args: Option<Value>,
    /// The keyed digest of tool and arguments.
    pub digest: String,
    /// Whether the call changes nothing.
    pub read_only: bool,
    /// The line of the call in the script, counted from 1.
    pub line: Option<u32>,
    /// The value that the call returned.
    pub value: Option<Value>,
    /// The text that the model got, if it differs from the value; of a cancelled call, what it had
    /// written.
    pub shown: Option<String>,
    /// The error of a call that did not succeed.
    pub error: Option<CallError>,
    /// Whether the call returned without running: a recorded result, or the value of `resume.skip`.
    pub reused: bool,
    /// When the call started, in milliseconds since 1970.
    pub started_ms: i64,
    /// The time from start to end, in milliseconds; `None` if the call has not ended.
    pub duration_ms: Option<f64>,
    /// When the call started, in nanoseconds since 1970, strictly increasing within a process.
    pub started_ns: Option<i64>,
    /// The call of the resumed run whose result this call reused, or which this call repeats.
    pub prior_call: Option<String>,
    /// What the call means to a run that resumes this run.
    pub resume_as: ResumeAs,
    /// How long the call waited for a free slot before it started, in milliseconds; `None` if it
    /// did not wait.
    pub queued_ms: Option<f64>,
}

impl StoredCall {
    /// Returns the id by which `resume.repeat` and `resume.skip` name this call of `run`. The id of
    /// a call that started a task is the task's id.
    pub fn resume_id(&self, run: &str) -> String {
        match self.tool == SPAWN_TOOL {
            true => self.id.clone(),
            false => format!("{run}/{}", self.id),
        }
    }
}

/// The state of a recorded run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredRunState {
    /// The run is executing, in this process or another.
    Running,
    /// The script returned a value.
    Completed,
    /// The script failed.
    Failed,
    /// The run waits for an approval. Any process can restore it.
    Suspended,
    /// The process ended before the run did.
    Died,
}

/// The state of a recorded call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredCallState {
    /// The call is executing.
    Running,
    /// The call ended, or its process died and the outcome will stay unknown.
    Ended(CallStatus),
}

impl StoredCallState {
    /// Returns the state as text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Ended(status) => status.as_str(),
        }
    }

    /// Returns the state of a call whose end was recorded as `ended`, or not recorded.
    fn new(ended: Option<CallStatus>, alive: bool) -> Self {
        match ended {
            Some(status) => Self::Ended(status),
            None if alive => Self::Running,
            None => Self::Ended(CallStatus::OutcomeUnknown),
        }
    }
}

impl Serialize for StoredCallState {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Selects the runs of a list.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    /// Only runs that started at or after this time, in milliseconds since 1970.
    pub since_ms: Option<i64>,
    /// Only runs that called the tool with this canonical name.
    pub tool: Option<String>,
    /// Only runs in one of these folders or below, or in the worktree of a session that works in
    /// one of them; `None` for all.
    pub workspaces: Option<Vec<String>>,
    /// Only runs of the session with this id.
    pub session: Option<String>,
    /// Only runs that follow the run with this id in the list.
    pub after: Option<String>,
    /// The maximum number of runs; `None` returns all.
    pub limit: Option<u32>,
}

const SELECT_RUN_SUMMARY: &str =
    "SELECT id, owner, status, started_ms, ended_ms, directory, resumes,
    coalesce(calls, (SELECT count(*) FROM calls WHERE run = runs.id)),
    (SELECT coalesce(claimed_by, '') FROM suspensions WHERE run = runs.id), session FROM runs";

/// Returns the SQL of a list and its parameters.
fn list_runs_sql(filter: &RunFilter) -> Result<(String, Vec<DatabaseValue>), JournalError> {
    let since = filter.since_ms.unwrap_or(i64::MIN);
    let limit = i64::from(filter.limit.unwrap_or(u32::MAX));
    let mut values = vec![DatabaseValue::Integer(since), DatabaseValue::Integer(limit)];
    let mut add = |text: String| {
        values.push(DatabaseValue::Text(text));
        format!("?{}", values.len())
    };
    let mut conditions = String::from("started_ms >= ?1");
    if let Some(tool) = &filter.tool {
        conditions += &format!(" AND {}", called_tool_condition(&add(tool.clone())));
    }
    if let Some(session) = &filter.session {
        conditions += &format!(" AND session = {}", add(session.clone()));
    }
    let mut in_folders = String::new();
    if let Some(workspaces) = &filter.workspaces {
        let folders = add(serde_json::to_string(workspaces)?);
        let in_folder = in_folders_condition("directory", &folders);
        in_folders = format!(
            " AND ({in_folder} OR session IN
                 (SELECT id FROM sessions WHERE worktree = 1 AND {in_folder}))"
        );
        conditions += &in_folders;
    }
    if let Some(after) = &filter.after {
        // A row value cannot compare one column in descending and one in ascending order. A run of
        // another folder is as one that does not exist.
        let id = add(after.clone());
        let after = format!("(SELECT started_ms FROM runs WHERE id = {id}{in_folders})");
        conditions +=
            &format!(" AND started_ms <= {after} AND (started_ms < {after} OR id > {id})");
    }
    let sql =
        format!("{SELECT_RUN_SUMMARY} WHERE {conditions} ORDER BY started_ms DESC, id LIMIT ?2");
    Ok((sql, values))
}

impl Journal {
    /// Returns the runs that the filter selects, newest first.
    pub fn runs(&self, filter: &RunFilter) -> Result<Vec<RunSummary>, JournalError> {
        let connection = self.flushed_connection();
        let (sql, values) = list_runs_sql(filter)?;
        let values: Vec<&dyn ToParameter> = values
            .iter()
            .map(|value| value as &dyn ToParameter)
            .collect();
        let mut read = connection.prepare_cached(&sql)?;
        let mut rows = read.query(&values)?;
        let mut runs = Vec::new();
        // Each process is checked once, because it may have many runs.
        let mut alive: HashMap<String, bool> = HashMap::new();
        while let Some(row) = rows.next()? {
            let is_alive = |owner: &str| match alive.get(owner) {
                Some(known) => Ok(*known),
                None => {
                    let is_alive = self.is_owner_alive(&connection, owner)?;
                    Ok(*alive.entry(owner.to_owned()).or_insert(is_alive))
                }
            };
            runs.push(read_run_summary(row, is_alive)?);
        }
        Ok(runs)
    }

    /// Returns the run with this id, or with the only id that begins with it.
    pub fn run(&self, id: &str) -> Result<StoredRun, JournalError> {
        let connection = self.flushed_connection();
        let id = resolve_run_id(&connection, id)?;
        self.read_run(&connection, &id)
    }

    /// Returns the summary of the run with exactly this id.
    pub(crate) fn run_summary(
        &self,
        connection: &Connection,
        id: &str,
    ) -> Result<RunSummary, JournalError> {
        let mut read = connection.prepare_cached(&format!("{SELECT_RUN_SUMMARY} WHERE id = ?1"))?;
        let mut rows = read.query(params![id])?;
        match rows.next()? {
            Some(row) => read_run_summary(row, |owner| self.is_owner_alive(connection, owner)),
            None => Err(JournalError::RunNotFound(id.to_owned())),
        }
    }

    /// Returns the run with exactly this id.
    pub(crate) fn read_run(
        &self,
        connection: &Connection,
        id: &str,
    ) -> Result<StoredRun, JournalError> {
        let summary = self.run_summary(connection, id)?;
        let mut read = connection.prepare_cached(
            "SELECT source, seed, output, saved_config, recording FROM runs WHERE id = ?1",
        )?;
        let mut rows = read.query(params![id])?;
        let row = rows
            .next()?
            .ok_or_else(|| JournalError::RunNotFound(id.to_owned()))?;
        let source = self.payloads.require_text(connection, row.get_ref(0)?)?;
        let output = self.payloads.get_json(connection, row.get_ref(2)?)?;
        let seed = row.get(1)?;
        let saved_config = self.payloads.require_text(connection, row.get_ref(3)?)?;
        let recording = self.payloads.get(connection, row.get_ref(4)?)?;
        let alive = summary.state == StoredRunState::Running;
        let open_approvals = match summary.state {
            StoredRunState::Suspended => read_open_approvals(connection, &self.payloads, id)?,
            _ => Vec::new(),
        };
        let mut calls = read_calls(connection, &self.payloads, id, alive)?;
        for call in &mut calls {
            if call.tool == SPAWN_TOOL && call.resume_as == ResumeAs::Reuse {
                call.resume_as = self.task_resume_as(connection, call)?;
            }
        }
        Ok(StoredRun {
            calls,
            summary,
            source,
            seed,
            output,
            saved_config,
            recording,
            open_approvals,
        })
    }

    /// Returns what a call that started a task means to a resumed run: `Reuse` while the task runs,
    /// then the meaning of the last call of the task's own run.
    fn task_resume_as(
        &self,
        connection: &Connection,
        spawn: &StoredCall,
    ) -> Result<ResumeAs, JournalError> {
        let sql = "SELECT owner FROM runs WHERE id = ?1 AND ended_ms IS NULL";
        let owner: Option<String> = query_first(connection, sql, params![spawn.id])?;
        if let Some(owner) = owner
            && self.is_owner_alive(connection, &owner)?
        {
            return Ok(ResumeAs::Reuse);
        }
        let calls = read_calls(connection, &self.payloads, &spawn.id, false)?;
        let last = calls.last().map(|call| call.resume_as);
        Ok(last.unwrap_or_else(|| ResumeAs::without_end(spawn.read_only)))
    }

    /// Returns the run that resumed this run, if any.
    pub fn resumed_by(&self, run: &str) -> Result<Option<String>, JournalError> {
        let connection = self.flushed_connection();
        let sql = "SELECT id FROM runs WHERE resumes = ?1 ORDER BY started_ms DESC, id LIMIT 1";
        query_first(&connection, sql, params![run])
    }

    /// Returns whether the run was started by another process that is still running.
    pub fn is_run_of_other_process(&self, run: &str) -> Result<bool, JournalError> {
        let connection = self.flushed_connection();
        let sql = "SELECT owner FROM runs WHERE id = ?1";
        let owner: Option<String> = query_first(&connection, sql, params![run])?;
        match owner.filter(|owner| *owner != self.owner.id) {
            Some(owner) => self.is_owner_alive(&connection, &owner),
            None => Ok(false),
        }
    }

    /// Returns the saved state of a suspended run that this process has claimed. The restored
    /// script makes its approval requests again. The earlier requests are closed by the next write
    /// for the run; if this process dies before that, they stay open.
    pub fn read_suspension(&self, run: &str) -> Result<Option<Vec<u8>>, JournalError> {
        let connection = self.flushed_connection();
        let open = "SELECT id FROM approvals WHERE run = ?1 AND answered_ms IS NULL";
        let open = query_column(&connection, open, params![run])?;
        self.inherited_approvals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(run.to_owned(), open);
        let mut read = connection.prepare_cached("SELECT state FROM suspensions WHERE run = ?1")?;
        let mut rows = read.query(params![run])?;
        match rows.next()? {
            Some(row) => self.payloads.get(&connection, row.get_ref(0)?),
            None => Ok(None),
        }
    }
}

fn read_run_summary(
    row: Row<'_>,
    mut is_alive: impl FnMut(&str) -> Result<bool, JournalError>,
) -> Result<RunSummary, JournalError> {
    let (owner, status): (String, String) = (row.get(1)?, row.get(2)?);
    let ended_ms: Option<i64> = row.get(4)?;
    let claimed_by: Option<String> = row.get(8)?;
    let state = match (ended_ms, status.as_str(), claimed_by) {
        (Some(_), "completed", _) => StoredRunState::Completed,
        (Some(_), _, _) => StoredRunState::Failed,
        (None, _, Some(by)) if by.is_empty() || !is_alive(&by)? => StoredRunState::Suspended,
        (None, _, _) if is_alive(&owner)? => StoredRunState::Running,
        (None, _, _) => StoredRunState::Died,
    };
    Ok(RunSummary {
        id: row.get(0)?,
        state,
        started_ms: row.get(3)?,
        ended_ms,
        directory: row.get(5)?,
        resumes: row.get(6)?,
        calls: row.get(7)?,
        session: row.get(9)?,
    })
}

fn read_open_approvals(
    connection: &Connection,
    payloads: &Payloads,
    run: &str,
) -> Result<Vec<ApprovalRequest>, JournalError> {
    let sql = "SELECT request FROM approvals
               WHERE run = ?1 AND answered_ms IS NULL ORDER BY asked_ms, id";
    let mut read = connection.prepare_cached(sql)?;
    let mut rows = read.query(params![run])?;
    let mut open_approvals = Vec::new();
    while let Some(row) = rows.next()? {
        open_approvals.push(payloads.require_json(connection, row.get_ref(0)?)?);
    }
    Ok(open_approvals)
}

/// Returns the only run id that is equal to `id` or begins with it.
fn resolve_run_id(connection: &Connection, id: &str) -> Result<String, JournalError> {
    // No id contains the last character of Unicode.
    let after = format!("{id}{}", char::MAX);
    let sql = "SELECT id FROM runs WHERE id >= ?1 AND id < ?2 LIMIT 3";
    let found: Vec<String> = query_column(connection, sql, params![id, after])?;
    match &found[..] {
        [] => Err(JournalError::RunNotFound(id.to_owned())),
        [one] => Ok(one.clone()),
        several if several.iter().any(|one| one == id) => Ok(id.to_owned()),
        _ => Err(JournalError::AmbiguousId(id.to_owned())),
    }
}

fn read_calls(
    connection: &Connection,
    payloads: &Payloads,
    run: &str,
    alive: bool,
) -> Result<Vec<StoredCall>, JournalError> {
    let mut read = connection.prepare_cached(
        "SELECT id, tool, state, args, digest, read_only, line, value, error, reused, started_ms,
             duration_ms, shown, started_ns, prior_call, resume_as, queued_ms
         FROM calls WHERE run = ?1",
    )?;
    let mut rows = read.query(params![run])?;
    let mut calls = Vec::new();
    while let Some(row) = rows.next()? {
        let state: String = row.get(2)?;
        // The state of a call without a recorded end is no `CallStatus`.
        let ended: Option<CallStatus> = serde_json::from_value(Value::from(state)).ok();
        let read_only = row.get(5)?;
        let resume_as: Option<String> = row.get(15)?;
        calls.push(StoredCall {
            id: row.get(0)?,
            tool: row.get(1)?,
            state: StoredCallState::new(ended, alive),
            args: payloads.get_json(connection, row.get_ref(3)?)?,
            digest: row.get(4)?,
            read_only,
            line: row.get(6)?,
            value: payloads.get_json(connection, row.get_ref(7)?)?,
            error: payloads.get_json(connection, row.get_ref(8)?)?,
            shown: payloads
                .get(connection, row.get_ref(12)?)?
                .map(|shown| String::from_utf8_lossy(&shown).into_owned()),
            reused: row.get(9)?,
            started_ms: row.get(10)?,
            duration_ms: row.get(11)?,
            started_ns: row.get(13)?,
            prior_call: row.get(14)?,
            queued_ms: row.get(16)?,
            resume_as: match resume_as {
                Some(word) => serde_json::from_value(Value::from(word))?,
                None if ended.is_none() => ResumeAs::without_end(read_only),
                None => ResumeAs::Rerun,
            },
        });
    }
    calls.sort_by_key(|call| call_sort_key(&call.id));
    Ok(calls)
}

/// Returns the sort key of a call id: `tool_12`, then `tool_12.again`, then `tool_13`. Ids without
/// a number come last, in alphabetical order.
fn call_sort_key(id: &str) -> (u64, String) {
    let digits: String = id
        .chars()
        .skip_while(|c| !c.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect();
    (digits.parse().unwrap_or(u64::MAX), id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::unwrap_used)]
    fn a_list_of_runs_reads_a_single_index() {
        let dir = tempfile::tempdir().unwrap();
        let _journal = Journal::open(dir.path()).unwrap();
        let connection = rusqlite::Connection::open(dir.path().join("journal.sqlite")).unwrap();
        for tool in [None, Some("exec".to_owned())] {
            let filter = RunFilter {
                tool,
                ..RunFilter::default()
            };
            let (sql, _) = list_runs_sql(&filter).unwrap();
            let mut read = connection
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .unwrap();
            for n in 1..=read.parameter_count() {
                read.raw_bind_parameter(n, 1).unwrap();
            }
            let mut rows = read.raw_query();
            let mut plan = String::new();
            while let Some(row) = rows.next().unwrap() {
                plan += &row.get::<_, String>(3).unwrap();
                plan += "\n";
            }
            assert!(
                plan.starts_with("SEARCH runs USING COVERING INDEX runs_listed"),
                "{plan}"
            );
            assert!(!plan.contains("TEMP B-TREE"), "{plan}");
        }
    }
}
