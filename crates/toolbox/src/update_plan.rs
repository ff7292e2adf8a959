//! `update_plan`: the steps of the task, for people to follow.

use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use selvedge_protocol::{Event, PlanStep, StepStatus, ToolSpec};
use selvedge_tools::{Call, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::spec;

/// The plan.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Why it changed.
    explanation: Option<String>,
    /// All steps, in order; at most one in progress.
    plan: Vec<Step>,
}

/// One step. What is to be done stands in `step` or in `description`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Step {
    /// What is to be done.
    step: Option<String>,
    /// The same, under another name.
    description: Option<String>,
    /// A name for it, if it has one.
    id: Option<String>,
    /// How far it is.
    status: StepStatus,
}

impl Step {
    fn plain(self) -> Result<PlanStep, ToolError> {
        let Self {
            step,
            description,
            id,
            status,
        } = self;
        let words = step.or(description).or(id);
        let step = words.ok_or_else(|| {
            ToolError::new("a step does not say what is to be done: give it `step`")
        })?;
        Ok(PlanStep { step, status })
    }
}

/// The plan as it stands; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Plan(Arc<Mutex<Vec<PlanStep>>>);

impl Plan {
    /// The steps.
    pub fn steps(&self) -> Vec<PlanStep> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The plan in words.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    content: String,
    success: bool,
}

/// The tool `update_plan`.
pub(crate) struct UpdatePlan(pub(crate) Plan);

impl Tool for UpdatePlan {
    fn spec(&self) -> ToolSpec {
        let description = "Tells people the steps of the task and how far each is.";
        spec::<Args, Output>("update_plan", &[], description).as_read_only()
    }

    fn call(&self, args: Value, call: Call) -> CallFuture<'_> {
        let run = async move |args| update(&self.0, args, &call);
        typed_call(args, run, |output: &Output| Some(output.content.clone()))
    }
}

fn update(plan: &Plan, args: Args, call: &Call) -> Result<Output, ToolError> {
    let steps = args
        .plan
        .into_iter()
        .map(Step::plain)
        .collect::<Result<Vec<_>, _>>()?;
    let running = steps
        .iter()
        .filter(|step| step.status == StepStatus::InProgress)
        .count();
    if running > 1 {
        return Err(ToolError::new(format!(
            "{running} steps are in progress, and at most one may be"
        )));
    }
    let done = steps
        .iter()
        .filter(|step| step.status == StepStatus::Completed)
        .count();
    let mut content = format!("plan updated: {done} of {} done", steps.len());
    if let Some(explanation) = &args.explanation {
        content.push_str(&format!(" ({explanation})"));
    }
    call.events.emit(Event::PlanUpdated {
        parent_id: call.scope_id.clone(),
        plan: steps.clone(),
        explanation: args.explanation,
    });
    *plan.0.lock().unwrap_or_else(PoisonError::into_inner) = steps;
    Ok(Output {
        content,
        success: true,
    })
}
