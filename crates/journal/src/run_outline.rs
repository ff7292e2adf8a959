//! What lists and pages say about a run besides its summary: what it did first, which of its
//! commands failed, and who decided about its calls.

use selvedge_database::params;
use selvedge_protocol::{
    ApprovalRequest, CallStatus, ErrorCode, ScriptToolCallOutput, command_exit_code,
};
use serde::Serialize;
use serde_json::Value;

use crate::{Journal, JournalError};

/// The source code of a run, and how it ended.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOutline {
    /// The source code of the script.
    pub source: String,
    /// The error with which the run ended.
    pub error: Option<ErrorCode>,
}

/// What the calls of a run say about it in one line.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CallOverview {
    /// The tool and the arguments of the first call.
    pub first_call: Option<(String, Value)>,
    /// Commands that ended with another exit code than 0.
    pub failed_commands: u32,
}

/// An approval request of a run, and how long it waited for its decision.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoredApproval {
    /// The calls that waited.
    pub calls: Vec<GatedCallDecision>,
    /// When approval was requested, in milliseconds since 1970.
    pub asked_ms: i64,
    /// When the request was decided or closed, in milliseconds since 1970; `None` if it is open.
    pub answered_ms: Option<i64>,
    /// The name of the token whose client decided; `None` if no client of a server did.
    pub decided_by: Option<String>,
}

/// A call that needed approval, and the decision about it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GatedCallDecision {
    /// The id of the call.
    pub id: String,
    /// The arguments of the call.
    pub args: Value,
    /// The decision as text, such as `yes` or `no: …`; `None` if it is open.
    pub answer: Option<String>,
}

/// The id, the tool and the arguments of a call, as far as they are recorded.
type FirstCall = (String, String, Option<Value>);

impl Journal {
    /// Returns the source code of a run, and the error with which it ended.
    pub fn run_outline(&self, id: &str) -> Result<RunOutline, JournalError> {
        let connection = self.flushed_connection();
        let sql = "SELECT source, status, output FROM runs WHERE id = ?1";
        let mut read = connection.prepare_cached(sql)?;
        let mut rows = read.query(params![id])?;
        let row = rows.next()?;
        let row = row.ok_or_else(|| JournalError::RunNotFound(id.to_owned()))?;
        let source = self.payloads.require_text(&connection, row.get_ref(0)?)?;
        let status: String = row.get(1)?;
        let output: Option<ScriptToolCallOutput> = match status.as_str() {
            "completed" => None,
            _ => self.payloads.get_json(&connection, row.get_ref(2)?)?,
        };
        let error = output.and_then(|output| Some(output.error?.code));
        Ok(RunOutline { source, error })
    }

    /// Returns what the calls of a run say about it. Reads the values of all its calls.
    pub fn call_overview(&self, run: &str) -> Result<CallOverview, JournalError> {
        let (first_call, failed_commands) = self.read_call_overview(run)?;
        let first_call = match first_call {
            // A call that was not allowed has its arguments only in the approval request.
            Some((id, tool, None)) => Some((tool, self.requested_args(run, &id)?)),
            Some((_, tool, Some(args))) => Some((tool, args)),
            None => None,
        };
        Ok(CallOverview {
            first_call,
            failed_commands,
        })
    }

    /// Returns the id, the tool and the arguments of the first call of a run, and the number of
    /// commands that failed in it.
    fn read_call_overview(&self, run: &str) -> Result<(Option<FirstCall>, u32), JournalError> {
        let connection = self.flushed_connection();
        let sql = "SELECT id, tool, args, value, state FROM calls WHERE run = ?1
                   ORDER BY started_ns, started_ms, id";
        let mut read = connection.prepare_cached(sql)?;
        let mut rows = read.query(params![run])?;
        let mut first_call = None;
        let mut failed_commands = 0;
        while let Some(row) = rows.next()? {
            if first_call.is_none() {
                let args = self.payloads.get_json(&connection, row.get_ref(2)?)?;
                first_call = Some((row.get(0)?, row.get(1)?, args));
            }
            let state: String = row.get(4)?;
            let is_done = serde_json::from_value(Value::from(state)).ok() == Some(CallStatus::Done);
            if is_done {
                let value: Option<Value> = self.payloads.get_json(&connection, row.get_ref(3)?)?;
                let exit = value.as_ref().and_then(command_exit_code);
                failed_commands += u32::from(exit.is_some_and(|code| code != 0));
            }
        }
        Ok((first_call, failed_commands))
    }

    /// Returns the arguments of a call in the approval requests of its run; null if there are none.
    fn requested_args(&self, run: &str, call: &str) -> Result<Value, JournalError> {
        let approvals = self.approvals_of(run)?;
        let mut calls = approvals.into_iter().flat_map(|approval| approval.calls);
        let found = calls.find(|gated| gated.id == call);
        Ok(found.map_or(Value::Null, |gated| gated.args))
    }

    /// Returns the approval requests of a run with the decisions, the oldest first.
    pub fn approvals_of(&self, run: &str) -> Result<Vec<StoredApproval>, JournalError> {
        let connection = self.flushed_connection();
        let sql = "SELECT request, asked_ms, answered_ms, answers,
                       (SELECT coalesce(name, token) FROM approval_deciders
                        LEFT JOIN api_tokens ON api_tokens.id = token WHERE approval = approvals.id)
                   FROM approvals WHERE run = ?1 ORDER BY asked_ms, id";
        let mut read = connection.prepare_cached(sql)?;
        let mut rows = read.query(params![run])?;
        let mut approvals = Vec::new();
        while let Some(row) = rows.next()? {
            let request = self.payloads.require_json(&connection, row.get_ref(0)?);
            // They only describe the run, which can be used without them.
            let Ok(request) = request else { continue };
            let ApprovalRequest { calls, .. } = request;
            let answers: Option<String> = row.get(3)?;
            let answers: Vec<String> = answers
                .and_then(|json| serde_json::from_str(&json).ok())
                .unwrap_or_default();
            let calls = calls.into_iter().enumerate().map(|(at, call)| {
                // One answer about the whole request, such as `cancelled`, is about each call.
                let answer = answers.get(at).or_else(|| answers.first());
                GatedCallDecision {
                    id: call.call_id,
                    args: call.args,
                    answer: answer.cloned(),
                }
            });
            approvals.push(StoredApproval {
                calls: calls.collect(),
                asked_ms: row.get(1)?,
                answered_ms: row.get(2)?,
                decided_by: row.get(4)?,
            });
        }
        Ok(approvals)
    }
}
