//! Calls of a run that goes on from an earlier one: what is known already is not done again.

use std::panic::AssertUnwindSafe;

use selvedge_protocol::{Answered, CallStatus, ErrorCode};
use serde_json::Value;

use crate::earlier::{Asking, Known, WAIT_FOR_IT};
use crate::failure::aborted;
use crate::orchestrator::{Prepared, refused};
use crate::registry::Registered;
use crate::{CallFailure, CallOutcome, Orchestrator, Scope, ToolOutput};

impl Orchestrator {
    /// The call, unless an earlier run made it already: then its outcome.
    pub(crate) fn not_known(
        &self,
        scope: &Scope,
        mut prepared: Prepared,
    ) -> Result<Prepared, Box<CallOutcome>> {
        let Some(earlier) = &scope.earlier else {
            return Ok(prepared);
        };
        earlier.recognise(|tool, args| self.recognise(tool, args));
        let Prepared {
            request,
            tool,
            digest,
            read_only,
            asked,
            ..
        } = &prepared;
        let name = tool.spec.name.clone();
        let looks = looks(tool, &prepared.args);
        let asking = Asking {
            args_digest: digest,
            read_only: *read_only,
            looks,
            batch: *asked,
            as_task: false,
        };
        match earlier.answer(asking, |value, manner| tool.tool.kept(value, manner)) {
            Known::Nothing => Ok(prepared),
            Known::Again(first) => {
                prepared.repeats = Some(first);
                Ok(prepared)
            }
            Known::Value(value, _) => {
                let mut outcome = refused(request, name, aborted(""));
                outcome.record.status = CallStatus::Done;
                outcome.record.reused = true;
                outcome.record.args_digest = digest.clone();
                outcome.record.error = None;
                outcome.result = Ok(ToolOutput::from(value));
                outcome.answered = Some(Answered {
                    args: prepared.args,
                    read_only: prepared.read_only,
                });
                Err(outcome)
            }
            // Only whoever asks for a task is told so.
            Known::GoesOn(id) => Err(refused(
                request,
                name.clone(),
                done_already(&name, &id, WAIT_FOR_IT),
            )),
            Known::Refused(id, why) => {
                let failure = done_already(&name, &id, &why);
                let mut outcome = refused(request, name, failure);
                outcome.record.args_digest = digest.clone();
                Err(outcome)
            }
            Known::Unknown(id) => {
                let failure = unknown_outcome(&name, &id);
                let mut outcome = refused(request, name, failure);
                outcome.record.args_digest = digest.clone();
                // It still is: whoever goes on from here is told the same.
                outcome.record.status = CallStatus::OutcomeUnknown;
                Err(outcome)
            }
        }
    }
}

/// Why a call that is done is not done again, although what it came to is no answer.
pub(crate) fn done_already(tool: &str, id: &str, why: &str) -> CallFailure {
    let message = format!(
        "the earlier run made this call of {tool} as {id}, and it is not made again: {why}"
    );
    let mut failure = CallFailure::new(ErrorCode::ToolExecutionError, message);
    failure.suggestions.push(
        "what shall be done all the same is run without `resume`, or as something else".into(),
    );
    failure
}

/// Why a call is not made that may have been made.
pub(crate) fn unknown_outcome(tool: &str, id: &str) -> CallFailure {
    let message = format!(
        "{tool} was started by the earlier run as {id}, and nobody knows how it ended: it is not done again by itself"
    );
    let mut failure = CallFailure::new(ErrorCode::OutcomeUnknownError, message);
    failure.suggestions.push(
        "catch this error and look, with a call that only reads, whether it took effect: go on if it did; only then the same call is made again".into(),
    );
    failure
}

/// Whether the call tells its caller how the world is; a tool that breaks over that does not.
pub(crate) fn looks(tool: &Registered, args: &Value) -> bool {
    std::panic::catch_unwind(AssertUnwindSafe(|| tool.tool.looks(args))).unwrap_or(false)
}

/// Whether the tool has spoken: "there is no such file" is an answer, "nobody answered" and "it could not start" are
/// none.
pub(crate) fn is_an_answer(tool: &Registered, result: &Result<ToolOutput, CallFailure>) -> bool {
    match result {
        Ok(output) => tool.tool.is_over(&output.value),
        Err(failure) => {
            let spoken = failure.code == ErrorCode::ToolExecutionError && !failure.retryable;
            tool.spec.read_only && spoken && !failure.outcome_unknown
        }
    }
}
