//! `update_plan`: the steps of the task, for people to follow.

use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use selvedge_protocol::{Event, PlanStep, StepStatus};
use selvedge_tools::{Call, Tool, ToolError, tool_with_call};
use serde::{Deserialize, Serialize};

/// The plan.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Why it changed.
    explanation: Option<String>,
    /// All steps, in order; at most one in progress.
    plan: Vec<PlanStep>,
}

/// The plan as it stands; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Plan(Arc<Mutex<Vec<PlanStep>>>);

impl Plan {
    /// The steps.
    pub fn steps(&self) -> Vec<PlanStep> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The plan in words.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    content: String,
    success: bool,
}

pub(crate) fn update_plan(plan: &Plan) -> impl Tool + use<> {
    let plan = plan.clone();
    let run = move |args: Args, call: Call| {
        let result = update(&plan, args, &call);
        async move { result }
    };
    tool_with_call("update_plan", "Tells people the steps of the task and how far each is.", run)
        .read_only()
        .render(|output: &Output| output.content.clone())
        .aliases(crate::aliases::aliases_of("update_plan"))
}

fn update(plan: &Plan, args: Args, call: &Call) -> Result<Output, ToolError> {
    let running = args.plan.iter().filter(|step| step.status == StepStatus::InProgress).count();
    if running > 1 {
        return Err(ToolError::new(format!("{running} steps are in progress, and at most one may be")));
    }
    let done = args.plan.iter().filter(|step| step.status == StepStatus::Completed).count();
    let mut content = format!("plan updated: {done} of {} done", args.plan.len());
    if let Some(explanation) = &args.explanation {
        content.push_str(&format!(" ({explanation})"));
    }
    call.events.emit(Event::PlanUpdated {
        parent_id: call.scope_id.clone(),
        plan: args.plan.clone(),
        explanation: args.explanation,
    });
    *plan.0.lock().unwrap_or_else(PoisonError::into_inner) = args.plan;
    Ok(Output { content, success: true })
}
