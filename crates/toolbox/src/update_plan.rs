//! The tool `update_plan`: shows the steps of a task and their status to the user.

use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use selvedge_protocol::{PlanStep, PlanStepStatus, RuntimeEvent, ToolSpec};
use selvedge_tools::{CallContext, CallFuture, PlanReader, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::built_in_spec;

/// The new plan, which replaces the earlier one.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct UpdatePlanArgs {
    /// Why the plan changed.
    explanation: Option<String>,
    /// All steps in order; at most one may be in progress.
    plan: Vec<PlanStepArgs>,
}

/// One step. Its text is in `step` or `description`.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct PlanStepArgs {
    /// What to do in this step.
    step: Option<String>,
    /// Alternative name of `step`.
    description: Option<String>,
    /// Identifier; used as the text if the step has no other.
    id: Option<String>,
    /// Status of the step.
    status: PlanStepStatus,
}

impl PlanStepArgs {
    /// Picks the text of the step. Fails if there is none.
    fn into_plan_step(self) -> Result<PlanStep, ToolError> {
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
pub struct SharedPlan(Arc<Mutex<Vec<PlanStep>>>);

impl SharedPlan {
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
pub(crate) struct UpdatePlanOutput {
    content: String,
    success: bool,
}

/// The tool `update_plan`.
pub(crate) struct UpdatePlan(pub(crate) SharedPlan);

impl Tool for UpdatePlan {
    fn spec(&self) -> ToolSpec {
        let description = "Shows the user the steps of the task and their status.";
        built_in_spec::<UpdatePlanArgs, UpdatePlanOutput>("update_plan", &[], description)
            .as_read_only()
    }

    fn plan_reader(&self) -> Option<PlanReader> {
        Some(|args| {
            let line = |step: &Value| {
                let status = step["status"].as_str().unwrap_or("pending");
                let args = PlanStepArgs::deserialize(step).ok();
                let text = args.and_then(|args| args.into_plan_step().ok());
                format!(
                    "[{status}] {}",
                    text.map_or(String::new(), |step| step.step)
                )
            };
            let lines: Vec<String> = args["plan"].as_array()?.iter().map(line).collect();
            Some(lines.join("\n"))
        })
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let run = async move |args| update(&self.0, args, &call);
        typed_call(args, run, |output: &UpdatePlanOutput| {
            Some(output.content.clone())
        })
    }
}

fn update(
    plan: &SharedPlan,
    args: UpdatePlanArgs,
    call: &CallContext,
) -> Result<UpdatePlanOutput, ToolError> {
    let steps = args
        .plan
        .into_iter()
        .map(PlanStepArgs::into_plan_step)
        .collect::<Result<Vec<_>, _>>()?;
    let in_progress = steps
        .iter()
        .filter(|step| step.status == PlanStepStatus::InProgress)
        .count();
    if in_progress > 1 {
        return Err(ToolError::new(format!(
            "{in_progress} steps are in progress, but at most one is allowed"
        )));
    }
    let done = steps
        .iter()
        .filter(|step| step.status == PlanStepStatus::Completed)
        .count();
    let mut content = format!("plan updated: {done} of {} done", steps.len());
    if let Some(explanation) = &args.explanation {
        content.push_str(&format!(" ({explanation})"));
    }
    call.events.emit(RuntimeEvent::PlanUpdated {
        parent_id: call.scope_id.clone(),
        plan: steps.clone(),
        explanation: args.explanation,
    });
    *plan.0.lock().unwrap_or_else(PoisonError::into_inner) = steps;
    Ok(UpdatePlanOutput {
        content,
        success: true,
    })
}
