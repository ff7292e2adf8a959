//! Calls recorded by the run that a script resumes, and what they mean for its own calls.
//!
//! 1. A recorded call that succeeded and changed something, or cost money, answers an identical
//!    call once, in recorded order. Failed calls run again.
//! 2. Calls that only read and cost nothing always run again; they are not looked up.
//! 3. While the outcome of a recorded call is unknown, no call that may change something runs. The
//!    script decides each one: `resume.repeat(callId)` or `resume.skip(callId, value)`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use selvedge_protocol::{CallStatus, ErrorCode, ResumeAs, UnrecordedStart};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::orchestrator::{PreparedCall, always_reruns, not_run_outcome};
use crate::{CallFailure, CallOutcome, Orchestrator, Scope, ToolOutput, camel_case};

/// Number of recorded calls that an error names.
const MAX_NAMED: usize = 8;
/// Characters of a call's arguments that an error or warning shows.
const MAX_ARGS_SHOWN: usize = 300;

/// The recorded calls of a resumed run that matter to the script that resumes it.
#[derive(Debug)]
pub struct PriorCalls {
    run: String,
    calls: Vec<PriorCall>,
    /// Recorded calls that a later run of the chain repeated.
    repeated: BTreeSet<String>,
    progress: Mutex<PriorProgress>,
}

/// A recorded call that answers an identical call or has to be decided.
#[derive(Debug, Clone, PartialEq)]
pub struct PriorCall {
    /// `scr_1/tool_3`, or the id of a task.
    pub id: String,
    /// Canonical name of the tool.
    pub tool: String,
    /// Canonical arguments.
    pub args: Value,
    /// Digest of tool and arguments. Calls with the same digest are identical.
    pub digest: String,
    /// How the call ended, as far as it is recorded.
    pub outcome: PriorOutcome,
    /// Idempotency key of the first attempt. Repetitions of a call of unknown outcome reuse it.
    pub idempotency_key: String,
}

/// How a recorded call ended.
#[derive(Debug, Clone, PartialEq)]
pub enum PriorOutcome {
    /// The call returned this value.
    Succeeded(Value),
    /// The call was started; its end was not recorded.
    Unknown,
}

/// Which recorded calls were used and what the script decided, so that a suspended script can be
/// restored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PriorProgress {
    /// By recorded call: the call of this run that it answered, or that repeats it.
    used: BTreeMap<String, String>,
    decisions: BTreeMap<String, ResumeDecision>,
}

/// What a script decides about a recorded call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ResumeDecision {
    /// The next identical call runs.
    Repeat,
    /// The next identical call returns this without running.
    Skip(Value),
}

/// Why a decision about a recorded call is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecisionError {
    /// The script does not resume a run.
    #[error("this script does not resume a run, so there is no recorded call `{0}`")]
    NotResumed(String),
    /// No recorded call has this id.
    #[error("there is no recorded call `{id}`: {known}")]
    NoCall {
        /// As the script spelled it.
        id: String,
        /// The ids that exist, as part of a sentence.
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
    New,
    /// The call runs, as a repetition of this recorded call.
    Repeat {
        origin: String,
        /// The key of the first attempt, if that attempt's outcome is unknown.
        idempotency_key: Option<String>,
    },
    /// The call returns the value of this recorded call.
    Recorded { origin: String, value: Value },
    /// The call returns the value that the script passed to `resume.skip`.
    Skipped { value: Value },
    /// The call may change something and must not run before the script has decided.
    Blocked,
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

    /// Frees the recorded call that this call was to repeat, because it was denied and never ran.
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
                [] => format!("{} recorded none that could be reused", self.run),
                ids => format!("there are {}", ids[..ids.len().min(MAX_NAMED)].join(", ")),
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

    /// Looks up a call with this digest, and marks the recorded call as used by `call_id`. A
    /// recorded call is used once; a restored script makes its open calls again under the same ids.
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
            Some((_, Some(ResumeDecision::Skip(value)))) => PriorLookup::Skipped {
                value: value.clone(),
            },
            Some((call, None)) if let PriorOutcome::Succeeded(value) = &call.outcome => {
                PriorLookup::Recorded {
                    origin: call.id.clone(),
                    value: value.clone(),
                }
            }
            _ if blocked => return PriorLookup::Blocked,
            Some((call, Some(ResumeDecision::Repeat))) => PriorLookup::Repeat {
                origin: call.id.clone(),
                idempotency_key: (call.outcome == PriorOutcome::Unknown)
                    .then(|| call.idempotency_key.clone()),
            },
            Some((_, None)) | None => return PriorLookup::New,
        };
        if let Some(call) = found {
            progress.used.insert(call.id.clone(), call_id.to_owned());
        }
        lookup
    }

    fn undecided_calls(&self, progress: &PriorProgress) -> impl Iterator<Item = &PriorCall> {
        self.calls.iter().filter(|call| {
            call.outcome == PriorOutcome::Unknown && !progress.decisions.contains_key(&call.id)
        })
    }

    /// Whether a recorded call has to be decided before the first call that changes something.
    pub fn has_undecided(&self) -> bool {
        self.undecided_calls(&self.progress()).next().is_some()
    }

    /// Returns the failure of a call that must not run yet. It names each undecided call and how to
    /// decide it.
    pub(crate) fn undecided_failure(&self, tool: &str) -> CallFailure {
        let progress = self.progress();
        let undecided: Vec<&PriorCall> = self.undecided_calls(&progress).collect();
        let named = &undecided[..undecided.len().min(MAX_NAMED)];
        let message = format!(
            "{} did not run: it may change something, and {} left calls of unknown outcome that \
             have to be decided first: {}",
            camel_case(tool),
            self.run,
            describe_calls(&undecided)
        );
        let mut failure = CallFailure::new(ErrorCode::OutcomeUnknownError, message);
        failure.suggestions.push(
            "check with calls that only read whether each one took effect, then write one of these \
             lines for it before the first call that changes something:"
                .to_owned(),
        );
        for call in named.iter().take(4) {
            let id = &call.id;
            failure.suggestions.push(format!(
                "resume.repeat(\"{id}\") // it had no effect: the next identical call runs"
            ));
            failure.suggestions.push(format!(
                "resume.skip(\"{id}\", value) // it took effect: the next identical call \
                 returns value"
            ));
        }
        let list: Vec<Value> = named
            .iter()
            .map(|call| json!({"callId": call.id, "tool": call.tool, "args": call.args}))
            .collect();
        failure.metadata.insert("run".to_owned(), json!(self.run));
        failure.metadata.insert("undecided".to_owned(), json!(list));
        failure
    }

    /// Returns warnings that name the recorded calls that answered calls of this run, and each
    /// decision that no identical call used.
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
            .map(|id| format!("the decision about {id} was not used: no identical call was made"))
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
            "reused recorded results instead of running these calls: {}; resume.repeat(\"{}\") \
             before such a call makes it run",
            describe_calls(&reused),
            first.id
        ))
    }
}

/// Describes the first [`MAX_NAMED`] calls and counts the others.
fn describe_calls(calls: &[&PriorCall]) -> String {
    let named: Vec<String> = calls
        .iter()
        .take(MAX_NAMED)
        .map(|call| call.describe())
        .collect();
    let more = match calls.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    named.join("; ") + &more
}

impl PriorCall {
    fn describe(&self) -> String {
        let args = self.args.to_string();
        let truncated: String = args.chars().take(MAX_ARGS_SHOWN).collect();
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
    /// Compares the call with the recorded calls. `Ok` is the call, which has to run. `Err` is its
    /// outcome without running: the recorded answer, or a failure.
    pub(crate) fn check_prior(
        &self,
        scope: &Scope,
        mut prepared: PreparedCall,
    ) -> Result<PreparedCall, Box<CallOutcome>> {
        let Some(prior) = &scope.prior_calls else {
            return Ok(prepared);
        };
        if always_reruns(&prepared.tool, prepared.read_only) {
            return Ok(prepared);
        }
        let PreparedCall { request, tool, .. } = &prepared;
        let name = tool.spec.name.clone();
        let effect = CallEffect::from_read_only(prepared.read_only);
        let (origin, value) = match prior.look_up(&request.id, &prepared.digest, effect) {
            PriorLookup::New => return Ok(prepared),
            PriorLookup::Repeat {
                origin,
                idempotency_key,
            } => {
                prepared.origin_call_id = Some(origin);
                prepared.idempotency_key = idempotency_key;
                return Ok(prepared);
            }
            PriorLookup::Blocked => {
                let failure = prior.undecided_failure(&name);
                return Err(not_run_outcome(request, name, failure));
            }
            PriorLookup::Recorded { origin, value } => (Some(origin), value),
            // Not a recorded result: a run that resumes this one has to decide again.
            PriorLookup::Skipped { value } => (None, value),
        };
        let mut outcome = not_run_outcome(request, name, crate::failure::aborted_failure(""));
        outcome.record.status = CallStatus::Done;
        outcome.record.reused = true;
        outcome.record.args_digest = prepared.digest;
        outcome.record.error = None;
        outcome.result = Ok(ToolOutput::from(value));
        outcome.resume_as = match origin {
            Some(_) => ResumeAs::Answer,
            None => ResumeAs::Rerun,
        };
        outcome.unrecorded_start = Some(UnrecordedStart {
            origin,
            args: prepared.args,
            read_only: prepared.read_only,
        });
        Err(outcome)
    }
}

#[cfg(test)]
mod tests;
