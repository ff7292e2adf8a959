//! The tool `update_plan`: shows the steps of a task and their status to the user.

use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use selvedge_protocol::{Event, PlanStep, StepStatus, ToolSpec};
use selvedge_tools::{Call, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::spec;

/// The new plan, which replaces the earlier one.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Why the plan changed.
    explanation: Option<String>,
    /// All steps in order; at most one may be in progress.
    plan: Vec<Step>,
}

/// One step. Its text is in `step` or `description`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Step {
    /// What to do in this step.
    step: Option<String>,
    /// Alternative name of `step`.
    description: Option<String>,
    /// Identifier; used as the text if the step has no other.
    id: Option<String>,
    /// Status of the step.
    status: StepStatus,
}

impl Step {
    /// Picks the text of the step. Fails if there is none.
    fn plain(self) -> Result<PlanStep, ToolError> {
        let Self {
            step,
            description,
            id,
            status,
        } = self;
        let text = step.or(description).or(id);
        let step =
            text.ok_or_else(|| ToolError::new("a step of the plan has no text: set its `step`"))?;
        Ok(PlanStep { step, status })
    }
}

/// The current plan of an agent. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct Plan(Arc<Mutex<Vec<PlanStep>>>);

impl Plan {
    /// Returns the steps in order; empty before the first update.
    pub fn steps(&self) -> Vec<PlanStep> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// A summary of the updated plan.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    content: String,
    success: bool,
}

/// The tool `update_plan`.
pub(crate) struct UpdatePlan(pub(crate) Plan);

impl Tool for UpdatePlan {
    fn spec(&self) -> ToolSpec {
        let description = "Shows the user the steps of the task and their status.";
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
    let in_progress = steps
        .iter()
        .filter(|step| step.status == StepStatus::InProgress)
        .count();
    if in_progress > 1 {
        return Err(ToolError::new(format!(
            "{in_progress} steps are in progress, but at most one is allowed"
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
