//! The prior calls of a script that resumes a run, and what they mean for its own calls.
//!
//! They are the calls of a chain of runs, each of which resumed the one before, oldest first.
//!
//! 1. An identical call returns the result of a recorded call that is to be reused. Each recorded
//!    call is used once, in recorded order.
//! 2. Calls that only read and cost nothing always run; they are not looked up.
//! 3. While a recorded call is undecided, no call that may change something runs. The script
//!    decides each one: `resume.repeat(callId)` or `resume.skip(callId, value)`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use selvedge_protocol::{
    CallRecord, CallStatus, ErrorCode, ResumeAs, StartDetails, command_exit_code,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::orchestrator::{PreparedCall, always_reruns, not_run_outcome};
use crate::{CallFailure, CallOutcome, Orchestrator, Scope, ToolOutput, camel_case};

/// Number of calls whose arguments the warning about reused calls shows. It names the others by
/// their ids.
const MAX_DESCRIBED_CALLS: usize = 8;
/// Characters of a call's arguments that an error or warning shows.
const MAX_SHOWN_ARGS_CHARS: usize = 300;

/// The recorded calls of a chain of runs that matter to the script that resumes the newest of them.
#[derive(Debug)]
pub struct PriorCalls {
    run: String,
    calls: Vec<PriorCall>,
    /// Recorded calls that a later run of the chain repeated.
    repeated: BTreeSet<String>,
    progress: Mutex<PriorProgress>,
}

/// A recorded call that is reused or has to be decided.
#[derive(Debug, Clone, PartialEq)]
pub struct PriorCall {
    /// `scr_1/tool_3`, or the id of a task.
    pub id: String,
    /// Canonical name of the tool.
    pub tool: String,
    /// Arguments of the call in canonical form.
    pub args: Value,
    /// Digest of tool and arguments. Calls with the same digest are identical.
    pub digest: String,
    /// What the call means to the script.
    pub use_as: PriorUse,
    /// Idempotency key of the first attempt. Repetitions of an undecided call have the same key.
    pub idempotency_key: String,
}

/// What a recorded call means to the script: [`ResumeAs`] without calls that run again.
#[derive(Debug, Clone, PartialEq)]
pub enum PriorUse {
    /// An identical call returns this value.
    Reuse(Value),
    /// The call may have changed something, and its outcome is unknown.
    Undecided,
}

/// Which recorded calls were used and what the script decided, so that a suspended script can be
/// restored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PriorProgress {
    /// By recorded call: the call of this run that reuses, skips or repeats it.
    used: BTreeMap<String, String>,
    decisions: BTreeMap<String, ResumeDecision>,
}

/// What a script decides about a recorded call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ResumeDecision {
    /// The identical call that uses the recorded call runs.
    Repeat,
    /// The identical call that uses the recorded call returns this value without running.
    Skip(Value),
}

/// Why a decision about a recorded call is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecisionError {
    /// The script does not resume a run.
    #[error("this script does not resume a run, so there is no recorded call `{0}`")]
    NotResumed(String),
    /// No prior call has this id.
    #[error("`{id}` cannot be decided: {known}")]
    NoCall {
        /// As the script spelled it.
        id: String,
        /// Which calls can be decided, as part of a sentence.
        known: String,
    },
    /// A later run of the chain has repeated the call.
    #[error("`{0}` was repeated by a later run: remove this line, or decide about the repetition")]
    Repeated(String),
    /// A call of this run has already used the recorded call.
    #[error("`{id}` cannot be decided any more: {by} has used it")]
    Used {
        /// Id of the recorded call.
        id: String,
        /// Id of the call of this run.
        by: String,
    },
}

/// Whether a call may change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallEffect {
    ReadOnly,
    MayChange,
}

impl CallEffect {
    pub(crate) fn from_read_only(read_only: bool) -> Self {
        match read_only {
            true => Self::ReadOnly,
            false => Self::MayChange,
        }
    }
}

/// What the recorded calls say about a call that is about to run.
#[derive(Debug, PartialEq)]
pub(crate) enum PriorLookup {
    /// No recorded call applies: the call runs.
    Run,
    /// The call runs, as a repetition of this recorded call.
    Repeat {
        prior_call: String,
        /// The key of the first attempt, if the recorded call is undecided.
        idempotency_key: Option<String>,
    },
    /// The call returns the value of this recorded call.
    Reuse { prior_call: String, value: Value },
    /// The call returns the value that the script passed to `resume.skip`.
    Skip { value: Value },
    /// The call may change something, and a recorded call is undecided.
    Undecided,
}

impl PriorCalls {
    /// Creates the list from the calls of `run` and of the runs it resumed, in recorded order, and
    /// the ids of calls that a later run of the chain repeated.
    pub fn new(run: impl Into<String>, calls: Vec<PriorCall>, repeated: BTreeSet<String>) -> Self {
        Self {
            run: run.into(),
            calls,
            repeated,
            progress: Mutex::default(),
        }
    }

    fn progress(&self) -> MutexGuard<'_, PriorProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn snapshot(&self) -> PriorProgress {
        self.progress().clone()
    }

    pub(crate) fn restore(&self, progress: &PriorProgress) {
        *self.progress() = progress.clone();
    }

    /// Frees the recorded call that this call was to repeat, because it was denied or cancelled and
    /// never ran.
    pub(crate) fn release(&self, call_id: &str) {
        self.progress().used.retain(|_, by| by != call_id);
    }

    /// Stores what the script decided about a recorded call. `Repeat` has no effect if a later run
    /// of the chain has already repeated the call.
    pub fn decide(&self, id: &str, decision: ResumeDecision) -> Result<(), DecisionError> {
        if self.repeated.contains(id) {
            return match decision {
                ResumeDecision::Repeat => Ok(()),
                ResumeDecision::Skip(_) => Err(DecisionError::Repeated(id.to_owned())),
            };
        }
        if !self.calls.iter().any(|call| call.id == id) {
            let ids: Vec<&str> = self.calls.iter().map(|call| call.id.as_str()).collect();
            let known = match &ids[..] {
                [] => "the resumed run has no call to reuse or of unknown outcome".to_owned(),
                ids => format!(
                    "only calls to reuse or of unknown outcome can, which are {}",
                    ids.join(", ")
                ),
            };
            let id = id.chars().take(80).collect();
            return Err(DecisionError::NoCall { id, known });
        }
        let mut progress = self.progress();
        if let Some(by) = progress.used.get(id) {
            let (id, by) = (id.to_owned(), by.clone());
            return Err(DecisionError::Used { id, by });
        }
        progress.decisions.insert(id.to_owned(), decision);
        Ok(())
    }

    /// Looks up a call with this digest, and marks the recorded call as used by `call_id`. Each
    /// recorded call is used once, in recorded order, also if the script has decided about it. A
    /// call that has already used it finds it again: a restored script makes its open calls again
    /// under the same ids.
    pub(crate) fn look_up(&self, call_id: &str, digest: &str, effect: CallEffect) -> PriorLookup {
        let mut progress = self.progress();
        let mut identical = self.calls.iter().filter(|call| call.digest == digest);
        let found = identical.find(|call| {
            let used_by = progress.used.get(&call.id);
            used_by.is_none_or(|used_by| used_by == call_id)
        });
        let blocked =
            effect == CallEffect::MayChange && self.undecided_calls(&progress).next().is_some();
        let lookup = match found.map(|call| (call, progress.decisions.get(&call.id))) {
            Some((_, Some(ResumeDecision::Skip(value)))) => PriorLookup::Skip {
                value: value.clone(),
            },
            Some((call, None)) if let PriorUse::Reuse(value) = &call.use_as => PriorLookup::Reuse {
                prior_call: call.id.clone(),
                value: value.clone(),
            },
            _ if blocked => return PriorLookup::Undecided,
            Some((call, Some(ResumeDecision::Repeat))) => PriorLookup::Repeat {
                prior_call: call.id.clone(),
                idempotency_key: (call.use_as == PriorUse::Undecided)
                    .then(|| call.idempotency_key.clone()),
            },
            Some((_, None)) | None => return PriorLookup::Run,
        };
        if let Some(call) = found {
            progress.used.insert(call.id.clone(), call_id.to_owned());
        }
        lookup
    }

    fn undecided_calls(&self, progress: &PriorProgress) -> impl Iterator<Item = &PriorCall> {
        self.calls.iter().filter(|call| {
            call.use_as == PriorUse::Undecided && !progress.decisions.contains_key(&call.id)
        })
    }

    /// Returns the failure of a call that must not run yet. It names each undecided call and how to
    /// decide it.
    pub(crate) fn undecided_failure(&self, tool: &str) -> CallFailure {
        let progress = self.progress();
        let undecided: Vec<&PriorCall> = self.undecided_calls(&progress).collect();
        let described: Vec<String> = undecided.iter().map(|call| call.describe()).collect();
        let message = format!(
            "{} did not run, because it may change something: first decide these calls of unknown \
             outcome: {}",
            camel_case(tool),
            described.join("; ")
        );
        let mut failure = CallFailure::new(ErrorCode::OutcomeUnknownError, message);
        failure.suggestions.push(
            "check with calls that only read whether each one took effect, then write one of these \
             lines for it before the first call that changes something:"
                .to_owned(),
        );
        for call in &undecided {
            let id = &call.id;
            failure.suggestions.push(format!(
                "resume.repeat(\"{id}\") // it had no effect: run it again"
            ));
            failure.suggestions.push(format!(
                "resume.skip(\"{id}\", value) // it took effect: return value instead"
            ));
        }
        let list: Vec<Value> = undecided
            .iter()
            .map(|call| json!({"callId": call.id, "tool": call.tool, "args": call.args}))
            .collect();
        failure.metadata.insert("run".to_owned(), json!(self.run));
        failure.metadata.insert("undecided".to_owned(), json!(list));
        failure
    }

    /// Returns warnings that name each recorded call whose result was reused, and each decision
    /// that no identical call used.
    pub fn warnings(&self) -> Vec<String> {
        self.reuse_warning()
            .into_iter()
            .chain(self.unused_decisions())
            .collect()
    }

    fn unused_decisions(&self) -> Vec<String> {
        let progress = self.progress();
        let unused = progress
            .decisions
            .keys()
            .filter(|id| !progress.used.contains_key(*id));
        unused
            .map(|id| format!("the decision about {id} was not used: no identical call ran"))
            .collect()
    }

    fn reuse_warning(&self) -> Option<String> {
        let progress = self.progress();
        let is_reused = |call: &&PriorCall| {
            progress.used.contains_key(&call.id) && !progress.decisions.contains_key(&call.id)
        };
        let reused: Vec<&PriorCall> = self.calls.iter().filter(is_reused).collect();
        let first = reused.first()?;
        Some(format!(
            "reused recorded results instead of running these calls: {}; to run one of them instead, \
             write resume.repeat(\"{}\") before it",
            describe_first(&reused),
            first.id
        ))
    }
}

/// Describes the first [`MAX_DESCRIBED_CALLS`] calls and names the others.
fn describe_first(calls: &[&PriorCall]) -> String {
    let named = calls.iter().enumerate().map(|(index, call)| {
        if index < MAX_DESCRIBED_CALLS {
            call.describe()
        } else {
            call.id.clone()
        }
    });
    named.collect::<Vec<_>>().join("; ")
}

impl PriorCall {
    fn describe(&self) -> String {
        let args = self.args.to_string();
        let truncated: String = args.chars().take(MAX_SHOWN_ARGS_CHARS).collect();
        let ellipsis = if truncated.len() < args.len() {
            "…"
        } else {
            ""
        };
        format!(
            "{} {} {truncated}{ellipsis}",
            self.id,
            camel_case(&self.tool)
        )
    }
}

impl Orchestrator {
    /// Compares a call with the recorded calls that its script resumes from. Returns its outcome if
    /// it does not run: a recorded result, the value of a decision, or a failure because recorded
    /// calls are undecided.
    pub(crate) fn check_prior(
        &self,
        scope: &Scope,
        prepared: &mut PreparedCall,
    ) -> Option<Box<CallOutcome>> {
        let prior = scope.prior_calls.as_ref()?;
        if always_reruns(&prepared.tool, prepared.read_only) {
            return None;
        }
        let effect = CallEffect::from_read_only(prepared.read_only);
        match prior.look_up(&prepared.request.id, &prepared.digest, effect) {
            PriorLookup::Run => None,
            PriorLookup::Repeat {
                prior_call,
                idempotency_key,
            } => {
                prepared.prior_call = Some(prior_call);
                prepared.idempotency_key = idempotency_key;
                None
            }
            PriorLookup::Reuse { prior_call, value } => {
                Some(answered_outcome(prepared, Some(prior_call), value))
            }
            PriorLookup::Skip { value } => Some(answered_outcome(prepared, None, value)),
            PriorLookup::Undecided => {
                let name = prepared.tool.spec.name.clone();
                let failure = prior.undecided_failure(&name);
                Some(not_run_outcome(&prepared.request, name, failure))
            }
        }
    }
}

/// Returns the outcome of a call that returns `value` without running: the result of this recorded
/// call, or the value of a decision.
fn answered_outcome(
    prepared: &PreparedCall,
    prior_call: Option<String>,
    value: Value,
) -> Box<CallOutcome> {
    let request = &prepared.request;
    Box::new(CallOutcome {
        requested_id: request.id.clone(),
        record: CallRecord {
            id: request.id.clone(),
            tool: prepared.tool.spec.name.clone(),
            status: CallStatus::Done,
            reused: true,
            duration_ms: 0.0,
            args_digest: prepared.digest.clone(),
            line: request.line,
            error: None,
            exit_code: command_exit_code(&value),
        },
        result: Ok(ToolOutput::from(value)),
        warnings: Vec::new(),
        ignored_cancel: false,
        tool_invoked: false,
        // A decision is not a recorded result: a run that resumes this one has to decide again.
        resume_as: match prior_call {
            Some(_) => ResumeAs::Reuse,
            None => ResumeAs::Rerun,
        },
        start_details: Some(StartDetails {
            prior_call,
            args: prepared.args.clone(),
            read_only: prepared.read_only,
        }),
    })
}

#[cfg(test)]
mod tests;
