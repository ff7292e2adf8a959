//! Structured calls: a model's function calls on their way to the tools, and the answers it gets.

use selvedge_protocol::CallRecord;
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use crate::offer::{Offered, Shape};
use crate::{Arguments, CallOutcome, CallRequest, Orchestrator, Report, Scope};

/// What a model sees of one result, in bytes.
const SHOWN: usize = 10 * 1024;

/// Takes structured calls to the tools, in the flavours a model was offered.
#[derive(Clone)]
pub struct ToolRouter {
    orchestrator: Orchestrator,
    offered: Vec<Offered>,
}

/// A function call as a model made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StructuredCall {
    /// The model's own id.
    pub call_id: String,
    /// As it was offered, or any spelling of the tool's name.
    pub name: String,
    /// JSON; plain text for a freeform tool.
    pub arguments: String,
}

/// What a model is told of a call.
#[derive(Debug)]
pub struct StructuredOutput {
    /// The call.
    pub call_id: String,
    /// What the model reads.
    pub content: String,
    /// The value, for those who are not models.
    pub value: Option<Value>,
    /// Its lines in the ledger; the last one is the call's own.
    pub records: Vec<CallRecord>,
}

impl StructuredOutput {
    /// Whether it worked.
    pub fn success(&self) -> bool {
        self.value.is_some()
    }
}

impl ToolRouter {
    /// A router for a model that is offered these tools.
    pub fn new(orchestrator: Orchestrator, offered: Vec<Offered>) -> Self {
        // What was not offered cannot be called, by whatever name.
        let orchestrator =
            orchestrator.only(|spec| offered.iter().any(|offered| offered.tool == spec.name));
        Self {
            orchestrator,
            offered,
        }
    }

    /// What the model is offered.
    pub fn offered(&self) -> &[Offered] {
        &self.offered
    }

    /// Makes the calls of a turn, side by side where the limits allow, and returns the answers in their order.
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
                    let before = repeated
                        .extract_if(.., |record| record.id == outcome.settles)
                        .collect();
                    // Ids are the model's own: should two be the same, each answer goes to one of them.
                    let place = ids
                        .iter()
                        .zip(&outputs)
                        .position(|(id, at)| *id == outcome.settles && at.is_none());
                    if let Some(place) = place {
                        let handle = self
                            .orchestrator
                            .ledger()
                            .map(|_| format!("{}/{}", scope.id, outcome.settles));
                        outputs[place] = Some(answer(*outcome, before, handle));
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
        // Every request of a batch is reported once.
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

/// Where every field is required, null stands for one that is not there.
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
    before: Vec<CallRecord>,
    handle: Option<String>,
) -> StructuredOutput {
    let (content, value) = match outcome.result {
        Ok(output) => (
            output.rendering.unwrap_or_else(|| output.value.to_string()),
            Some(output.value),
        ),
        Err(failure) => (failure.in_words(), None),
    };
    let records = before.into_iter().chain([outcome.record]).collect();
    StructuredOutput {
        call_id: outcome.settles,
        content: shown_of_result(content, handle.as_deref()),
        value,
        records,
    }
}

/// What a model sees of one result: the beginning and the end of a text that is too long, and by which handle it can
/// be read whole.
pub fn shown_of_result(text: String, handle: Option<&str>) -> String {
    if text.len() <= SHOWN {
        return text;
    }
    let head = text.floor_char_boundary(SHOWN / 2);
    let tail = text.ceil_char_boundary(text.len() - SHOWN / 2);
    let whole =
        handle.map(|handle| format!("; `tools.recall({{ handle: \"{handle}\" }})` reads it whole"));
    format!(
        "{}\n… {} bytes left out{} …\n{}",
        &text[..head],
        tail - head,
        whole.unwrap_or_default(),
        &text[tail..]
    )
}
