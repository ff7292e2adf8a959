//! Routes structured calls of a model to tools, and converts the outcomes to text for the model.

use selvedge_protocol::CallRecord;
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use crate::offer::{Offered, Shape};
use crate::{Arguments, CallOutcome, CallRequest, Orchestrator, Report, Scope};

/// Longest result that a model is shown in full, in bytes.
const SHOWN: usize = 10 * 1024;

/// Runs structured calls of the tools that a model was offered.
#[derive(Clone)]
pub struct ToolRouter {
    orchestrator: Orchestrator,
    offered: Vec<Offered>,
}

/// A structured call as a model made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StructuredCall {
    /// The model's id for the call.
    pub call_id: String,
    /// Name under which the tool was offered, or any spelling of the tool's own name.
    pub name: String,
    /// JSON object as text; for a freeform tool, plain text.
    pub arguments: String,
}

/// Result of a structured call.
#[derive(Debug)]
pub struct StructuredOutput {
    /// The model's id for the call.
    pub call_id: String,
    /// Text for the model.
    pub content: String,
    /// Returned value, for programs. `None` if the call failed.
    pub value: Option<Value>,
    /// Records of all attempts; the last one is the outcome.
    pub records: Vec<CallRecord>,
}

impl StructuredOutput {
    /// Returns whether the call succeeded.
    pub fn success(&self) -> bool {
        self.value.is_some()
    }
}

impl ToolRouter {
    /// Creates a router for a model that is offered these tools.
    pub fn new(orchestrator: Orchestrator, offered: Vec<Offered>) -> Self {
        // A tool that was not offered cannot be called under any name.
        let orchestrator =
            orchestrator.only(|spec| offered.iter().any(|offered| offered.tool == spec.name));
        Self {
            orchestrator,
            offered,
        }
    }

    /// Returns the tools that the model is offered.
    pub fn offered(&self) -> &[Offered] {
        &self.offered
    }

    /// Runs the calls of one answer, in parallel within the limits, and returns the results in the
    /// order of the calls.
    pub async fn route(&self, scope: &Scope, calls: Vec<StructuredCall>) -> Vec<StructuredOutput> {
        let ids: Vec<String> = calls.iter().map(|call| call.call_id.clone()).collect();
        let batch = calls
            .into_iter()
            .map(|call| self.request(scope, call))
            .collect();
        let (report, mut reports) = unbounded_channel();
        self.orchestrator.run_batch(scope, batch, report).await;
        let mut outputs: Vec<Option<StructuredOutput>> = ids.iter().map(|_| None).collect();
        let mut repeated: Vec<CallRecord> = Vec::new();
        while let Some(report) = reports.recv().await {
            match report {
                Report::Repeated(record) => repeated.push(record),
                Report::Finished(outcome) => {
                    let first_attempts = repeated
                        .extract_if(.., |record| record.id == outcome.settles)
                        .collect();
                    // Models choose the ids: if two are equal, each result goes to one of them.
                    let index = ids
                        .iter()
                        .zip(&outputs)
                        .position(|(id, output)| *id == outcome.settles && output.is_none());
                    if let Some(index) = index {
                        let handle = self
                            .orchestrator
                            .ledger()
                            .map(|_| format!("{}/{}", scope.id, outcome.settles));
                        outputs[index] = Some(answer(*outcome, first_attempts, handle));
                    }
                }
                Report::Asking { .. }
                | Report::Answered(_)
                | Report::Waits(..)
                | Report::GoesOn(..)
                | Report::Later
                | Report::TakenOver => {}
            }
        }
        // Every request of a batch is reported as finished once.
        outputs.into_iter().flatten().collect()
    }

    fn request(&self, scope: &Scope, call: StructuredCall) -> CallRequest {
        let offered = self
            .offered
            .iter()
            .find(|offered| offered.name == call.name);
        let tool = offered.map_or_else(|| call.name.clone(), |offered| offered.tool.clone());
        let args = match offered.map(|offered| &offered.shape) {
            Some(Shape::Freeform { argument, .. }) => {
                Arguments::Object(json!({argument: call.arguments}))
            }
            _ => parse(&call.arguments, offered),
        };
        CallRequest {
            id: call.call_id,
            tool,
            args,
            line: None,
            cancel: scope.cancel.child_token(),
        }
    }
}

fn parse(text: &str, offered: Option<&Offered>) -> Arguments {
    let text = if text.trim().is_empty() { "{}" } else { text };
    let mut args = match serde_json::from_str(text) {
        Ok(args @ Value::Object(_)) => args,
        Ok(_) => return Arguments::Unreadable("the arguments are not a JSON object".to_owned()),
        Err(error) => {
            return Arguments::Unreadable(format!("the arguments are not valid JSON: {error}"));
        }
    };
    if let Some(Offered { shape, adapt, .. }) = offered {
        if let Shape::Function { strict: true, .. } = shape {
            drop_nulls(&mut args);
        }
        adapt(&mut args);
    }
    Arguments::Object(args)
}

/// Removes null fields: in a strict schema they represent absent fields.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, value| !value.is_null());
            object.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn answer(
    outcome: CallOutcome,
    first_attempts: Vec<CallRecord>,
    handle: Option<String>,
) -> StructuredOutput {
    let (content, value) = match outcome.result {
        Ok(output) => (
            output.rendering.unwrap_or_else(|| output.value.to_string()),
            Some(output.value),
        ),
        Err(failure) => (failure.in_words(), None),
    };
    let records = first_attempts.into_iter().chain([outcome.record]).collect();
    StructuredOutput {
        call_id: outcome.settles,
        content: shown_of_result(content, handle.as_deref()),
        value,
        records,
    }
}

/// Truncates a result for a model: keeps the beginning and the end of a text that is too long, and
/// says with which handle all of it can be read.
pub fn shown_of_result(text: String, handle: Option<&str>) -> String {
    if text.len() <= SHOWN {
        return text;
    }
    let head = text.floor_char_boundary(SHOWN / 2);
    let tail = text.ceil_char_boundary(text.len() - SHOWN / 2);
    let hint = handle
        .map(|handle| format!("; read all of it with `tools.recall({{ handle: \"{handle}\" }})`"));
    format!(
        "{}\n… {} bytes left out{} …\n{}",
        &text[..head],
        tail - head,
        hint.unwrap_or_default(),
        &text[tail..]
    )
}
