//! Answers a script's calls from a recording.

use std::collections::HashMap;

use selvedge_protocol::{CallError, CallRecord, CallStatus, ErrorCode, Phase, ScriptError};
use serde_json::json;

use crate::call_log::call_number;
use crate::errors::truncate_bytes;
use crate::in_flight::{GuestCall, InFlightCalls};
use crate::recording::RecordingEntry;
use crate::run::{GuestAnswer, WakeReason};

/// Returns the message of a call that the replay forces to fail.
fn forced_failure_message(call_id: &str) -> String {
    format!("forced to fail by --fail {call_id}")
}

/// The calls of a recorded run.
#[derive(Default)]
pub(crate) struct ReplayAnswers {
    /// Returned values as JSON, by call id.
    pub(crate) values: HashMap<String, String>,
    pub(crate) records: Vec<CallRecord>,
    /// Id of the call that is forced to fail.
    pub(crate) forced_failure: Option<String>,
    /// Called for each call when it is answered.
    pub(crate) observer: Option<ReplayObserver>,
}

/// Observes the calls of a replay.
pub type ReplayObserver = Box<dyn Fn(&ReplayedCall<'_>) + Send + Sync>;

/// A call of a replay, with its answer.
#[derive(Debug)]
pub struct ReplayedCall<'a> {
    /// The call's id.
    pub call_id: &'a str,
    /// The tool as the script names it.
    pub tool: &'a str,
    /// The arguments, as a JSON array.
    pub args: &'a str,
    /// The value or the error, as JSON.
    pub answer: Result<&'a str, &'a str>,
}

impl ReplayAnswers {
    pub(crate) fn new(
        values: impl Iterator<Item = (String, String)>,
        records: Vec<CallRecord>,
    ) -> Self {
        Self {
            values: values.collect(),
            records,
            ..Self::default()
        }
    }

    /// Creates the record of a call that is forced to fail.
    fn forced_failure_record(&self, pending: &GuestCall) -> CallRecord {
        let recorded = self
            .records
            .iter()
            .find(|record| record.id == pending.call_id);
        CallRecord {
            id: pending.call_id.clone(),
            tool: pending.tool.clone(),
            status: CallStatus::Failed,
            reused: false,
            duration_ms: 0.0,
            args_digest: recorded
                .map(|record| record.args_digest.clone())
                .unwrap_or_default(),
            line: pending.line(),
            error: Some(CallError {
                code: ErrorCode::ToolExecutionError,
                message: forced_failure_message(&pending.call_id),
            }),
            exit_code: None,
        }
    }
}

impl InFlightCalls<'_> {
    /// Returns the next answer from the recording.
    pub(crate) fn replay_next(
        &mut self,
        recorded: &ReplayAnswers,
    ) -> Result<WakeReason, ScriptError> {
        if self.context.lock_recorder().may_diverge() {
            return self.replay_after_divergence(recorded);
        }
        let input = self.context.lock_recorder().next_settlement();
        if let Some(divergence) = self.context.lock_recorder().take_divergence() {
            return Err(divergence_error(&divergence));
        }
        match input {
            None => Ok(WakeReason::RecordingEnded),
            Some(RecordingEntry::TimerFired { id }) => {
                self.remove_timer(id);
                Ok(WakeReason::Answer(GuestAnswer::Timer(id)))
            }
            Some(RecordingEntry::Settled { id, call, error }) => {
                let Some(pending) = self.pending.remove(&id) else {
                    return Err(divergence_error(&format!(
                        "the recording answers {call}, which the script did not make"
                    )));
                };
                self.answer_from_recording(recorded, id, &pending.call, &call, error)
            }
            Some(_) => Err(divergence_error(
                "the script waits, the recorded run did not",
            )),
        }
    }

    /// After a call was forced to fail: answers calls that are equal to recorded ones with the
    /// recorded answers.
    fn replay_after_divergence(
        &mut self,
        recorded: &ReplayAnswers,
    ) -> Result<WakeReason, ScriptError> {
        let found = self.context.lock_recorder().take_answer(|path, args| {
            let pending = self.pending.iter();
            let equal = pending
                .filter(|(_, pending)| pending.call.path == path && pending.call.args == args);
            // Of several equal calls, the first is answered.
            let first = equal.min_by_key(|(_, pending)| call_number(&pending.call.call_id));
            first.map(|(id, _)| *id)
        });
        if let Some((id, call, error)) = found
            && let Some(pending) = self.pending.remove(&id)
        {
            return self.answer_from_recording(recorded, id, &pending.call, &call, error);
        }
        if let Some((_, id)) = self.timers.pop_first() {
            return Ok(WakeReason::Answer(GuestAnswer::Timer(id)));
        }
        Err(match self.pending_in_order().first() {
            Some(pending) => divergence_error(&format!(
                "the script calls {} with {}, and the recording has no answer to this call",
                pending.path,
                truncate_bytes(&pending.args, 200)
            )),
            None => divergence_error("the script waits for an input that is not in the recording"),
        })
    }

    /// Answers a pending call with the recorded answer of `call`.
    fn answer_from_recording(
        &mut self,
        recorded: &ReplayAnswers,
        id: u32,
        pending: &GuestCall,
        call: &str,
        error: Option<String>,
    ) -> Result<WakeReason, ScriptError> {
        let is_this_call = |fail: &str| call_number(fail) == call_number(&pending.call_id);
        let fails = recorded.forced_failure.as_deref().is_some_and(is_this_call)
            && !self.context.lock_recorder().may_diverge();
        let answer = match error {
            _ if fails => Err(self.forced_failure_error(pending)),
            Some(error) => Err(error),
            None => match recorded.values.get(call) {
                Some(value) => Ok(value.clone()),
                None => {
                    return Err(divergence_error(&format!(
                        "the value of {call} was not recorded"
                    )));
                }
            },
        };
        if let Some(watch) = &recorded.observer {
            watch(&ReplayedCall {
                call_id: &pending.call_id,
                tool: &pending.path,
                args: &pending.args,
                answer: answer.as_deref().map_err(String::as_str),
            });
        }
        match fails {
            true => self.log.add_record(recorded.forced_failure_record(pending)),
            false => self.copy_records(recorded, call, &pending.call_id),
        }
        if let Ok(value) = &answer {
            self.log.add_result(&pending.call_id, &pending.tool, value);
        }
        let answer = (id, pending.call_id.clone(), answer);
        Ok(WakeReason::Answer(GuestAnswer::Call(answer)))
    }

    /// Returns the error of a call that is forced to fail. From here on the script may deviate from
    /// the recording.
    fn forced_failure_error(&mut self, pending: &GuestCall) -> String {
        // The answers of settled calls are used. The recorded answer of this call is not: it
        // answers a retry.
        let used = self.log.records().map(|record| record.id.clone()).collect();
        self.context.lock_recorder().allow_divergence(used);
        json!({
            "name": "ToolExecutionError", "code": "ToolExecutionError", "toolName": pending.tool,
            "callId": pending.call_id, "retryable": false,
            "message": forced_failure_message(&pending.call_id),
            "at": pending.at.map(|(line, column)| format!("{line}:{column}")),
        })
        .to_string()
    }

    /// Ends the pending calls with their recorded status, and returns them.
    pub(crate) fn end_as_recorded(&mut self, recorded: &ReplayAnswers) -> Vec<GuestCall> {
        let pending = self.pending_in_order();
        self.pending.clear();
        for call in &pending {
            self.copy_records(recorded, &call.call_id, &call.call_id);
        }
        self.context.scope.end();
        pending
    }

    fn copy_records(&mut self, recorded: &ReplayAnswers, call: &str, to: &str) {
        let from = call_number(call);
        let records = recorded.records.iter();
        for record in records.filter(|record| call_number(&record.id) == from) {
            let id = record.id.replacen(&format!("tool_{from}"), to, 1);
            self.log.add_record(CallRecord {
                id,
                ..record.clone()
            });
        }
    }
}

pub(crate) fn divergence_error(description: &str) -> ScriptError {
    ScriptError::new(
        ErrorCode::ReplayDivergenceError,
        Phase::Executing,
        format!("the replay differs from the recording: {description}"),
    )
    .suggest("replay with the script, the recording and the build of the recorded run")
}
