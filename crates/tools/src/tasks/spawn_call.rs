//! The call with which a script starts a task, as it is looked up and recorded.

use std::sync::Arc;

use selvedge_protocol::{
    CallEnd, CallRecord, CallStatus, Ledger, ResumeAs, SPAWN_TOOL, StartDetails,
};
use serde_json::{Map, Value, json};

use crate::digest::without_fields;
use crate::orchestrator::{always_reruns, is_read_only_call};
use crate::prior::{CallEffect, PriorLookup};
use crate::{CallArguments, CallFailure, Orchestrator, Scope, ToolError, ToolLookup};

/// The call with which a script starts a task. It is recorded as a call of the script.
pub(super) struct SpawnCall {
    ledger: Option<Arc<dyn Ledger>>,
    /// The scope of the script.
    scope: Scope,
    /// Canonical tool name and arguments if the tool exists and accepts them, else as written.
    args: Value,
    digest: String,
    effect: CallEffect,
    /// What a started task means to a resumed run: `Rerun` if it only reads and costs nothing, or
    /// if it fails because the tool does not exist or does not accept the arguments.
    resume_as: ResumeAs,
}

/// Where a task comes from.
pub(super) enum TaskOrigin {
    /// Started by this call, possibly to repeat a recorded task.
    Started { repeats: Option<String> },
    /// Started by the resumed run.
    Reused,
    /// Not started: the script decided what it returns.
    Skipped,
}

impl SpawnCall {
    pub(super) fn new(
        orchestrator: &Orchestrator,
        scope: &Scope,
        tool: &str,
        args: &Map<String, Value>,
    ) -> Self {
        let given = Value::Object(args.clone());
        let found = match orchestrator.registry().look_up(tool) {
            ToolLookup::Tool(tool) => Some(tool),
            ToolLookup::Namespace | ToolLookup::NotFound(_) => None,
        };
        let accepted = found.and_then(|tool| {
            let args = tool.validate(CallArguments::Object(given.clone())).ok()?;
            let read_only = is_read_only_call(tool, &args);
            let resume_as = match always_reruns(tool, read_only) {
                true => ResumeAs::Rerun,
                false => ResumeAs::Reuse,
            };
            let effect = CallEffect::from_read_only(read_only);
            Some((tool.spec.name.as_str(), effect, resume_as, args))
        });
        // A task without such a tool fails, also if a resumed run has recorded one.
        let (tool, effect, resume_as, args) =
            accepted.unwrap_or((tool, CallEffect::MayChange, ResumeAs::Rerun, given));
        let explanatory = found.map_or(&[][..], |tool| tool.spec.explanatory);
        let compared = json!({"tool": tool, "args": without_fields(args.clone(), explanatory)});
        let digest = orchestrator.digest_of(SPAWN_TOOL, &compared, &[]);
        Self {
            ledger: orchestrator.ledger().cloned(),
            scope: scope.clone(),
            args: json!({"tool": tool, "args": args}),
            digest,
            effect,
            resume_as,
        }
    }

    /// Returns the id of the run that starts the task.
    pub(super) fn run_id(&self) -> &str {
        &self.scope.id
    }

    /// Looks up the recorded calls that the script resumes from.
    pub(super) fn look_up(&self, id: &str) -> PriorLookup {
        match &self.scope.prior_calls {
            Some(prior) if self.resume_as != ResumeAs::Rerun => {
                prior.look_up(id, &self.digest, self.effect)
            }
            _ => PriorLookup::Run,
        }
    }

    pub(super) async fn record(&self, id: &str, origin: TaskOrigin) -> Result<(), CallFailure> {
        let Some(ledger) = &self.ledger else {
            return Ok(());
        };
        let (prior_call, reused, resume_as) = match origin {
            TaskOrigin::Started { repeats } => (repeats, false, self.resume_as),
            TaskOrigin::Reused => (Some(id.to_owned()), true, ResumeAs::Reuse),
            TaskOrigin::Skipped => (None, true, ResumeAs::Rerun),
        };
        let record = CallRecord {
            id: id.to_owned(),
            tool: SPAWN_TOOL.to_owned(),
            status: CallStatus::Done,
            reused,
            duration_ms: 0.0,
            args_digest: self.digest.clone(),
            line: None,
            error: None,
            exit_code: None,
        };
        let value = json!({"id": id});
        let start = StartDetails {
            prior_call,
            args: self.args.clone(),
            read_only: self.effect == CallEffect::ReadOnly,
        };
        let end = CallEnd {
            run: &self.scope.id,
            record: &record,
            value: Some(&value),
            shown: None,
            resume_as,
            start_details: Some(&start),
        };
        self.scope.note_resume_as(id, resume_as);
        ledger.record_call_end(end).await.map_err(|error| {
            let message =
                format!("the task was not started, because it could not be recorded: {error}");
            ToolError::new(message).into()
        })
    }
}
