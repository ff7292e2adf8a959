//! Routes structured calls of a model to tools, and converts the outcomes to text for the model.

use selvedge_protocol::{CallRecord, OutputPart};
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use crate::offered::{OfferedShape, OfferedTool};
use crate::{
    BatchReport, CallArguments, CallOutcome, CallRequest, Orchestrator, Scope, camel_case,
};

/// Longest result that a model is shown in full, in bytes.
const MAX_MODEL_TEXT_BYTES: usize = 10 * 1024;

/// Runs structured calls of the tools that a model was offered.
#[derive(Clone)]
pub struct ToolRouter {
    orchestrator: Orchestrator,
    offered: Vec<OfferedTool>,
    result_hint: Option<ResultHint>,
}

/// Says how a model can read a whole result, given the handle of the call.
pub type ResultHint = fn(&str) -> String;

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
    /// Images for the model, after the text.
    pub images: Vec<OutputPart>,
    /// Returned value, for programs. `None` if the call failed.
    pub value: Option<Value>,
    /// Records of all attempts; the last one is the outcome.
    pub records: Vec<CallRecord>,
}

impl StructuredOutput {
    /// Returns whether the call succeeded.
    pub fn is_success(&self) -> bool {
        self.value.is_some()
    }
}

impl ToolRouter {
    /// Creates a router for a model that is offered these tools.
    pub fn new(orchestrator: Orchestrator, offered: Vec<OfferedTool>) -> Self {
        // A tool that was not offered cannot be called under any name.
        let orchestrator = orchestrator
            .with_tools_where(|spec| offered.iter().any(|offered| offered.tool == spec.name));
        Self {
            orchestrator,
            offered,
            result_hint: None,
        }
    }

    /// Sets the hint that is part of truncated results. It is used if there is a ledger.
    pub fn with_result_hint(mut self, hint: ResultHint) -> Self {
        self.result_hint = Some(hint);
        self
    }

    /// Returns the tools that the model is offered.
    pub fn offered(&self) -> &[OfferedTool] {
        &self.offered
    }

    /// Runs the calls of one answer, in parallel within the limits, and returns the results in the
    /// order of the calls.
    pub async fn route(&self, scope: &Scope, calls: Vec<StructuredCall>) -> Vec<StructuredOutput> {
        let ids: Vec<String> = calls.iter().map(|call| call.call_id.clone()).collect();
        let batch = calls
            .into_iter()
            .map(|call| self.call_request(scope, call))
            .collect();
        let (report, mut reports) = unbounded_channel();
        self.orchestrator.run_batch(scope, batch, report).await;
        let mut outputs: Vec<Option<StructuredOutput>> = ids.iter().map(|_| None).collect();
        let mut repeated: Vec<CallRecord> = Vec::new();
        while let Some(report) = reports.recv().await {
            match report {
                BatchReport::Retrying(record) => repeated.push(record),
                BatchReport::Finished(outcome) => {
                    let first_attempts = repeated
                        .extract_if(.., |record| record.id == outcome.requested_id)
                        .collect();
                    // Models choose the ids: if two are equal, each result goes to one of them.
                    let index = ids
                        .iter()
                        .zip(&outputs)
                        .position(|(id, output)| *id == outcome.requested_id && output.is_none());
                    if let Some(index) = index {
                        let handle = format!("{}/{}", scope.id, outcome.requested_id);
                        let hint = self
                            .result_hint
                            .filter(|_| self.orchestrator.ledger().is_some());
                        let hint = hint.map(|hint| hint(&handle));
                        outputs[index] = Some(structured_output(*outcome, first_attempts, hint));
                    }
                }
                BatchReport::ApprovalRequested { .. }
                | BatchReport::ApprovalEnded(_)
                | BatchReport::ToolStarted(_)
                | BatchReport::ToolEnded(_)
                | BatchReport::WaitStarted(..)
                | BatchReport::WaitEnded(..)
                | BatchReport::ApprovalDeferred
                | BatchReport::ClaimedByOther => {}
            }
        }
        // Every request of a batch is reported as finished once.
        outputs.into_iter().flatten().collect()
    }

    fn call_request(&self, scope: &Scope, call: StructuredCall) -> CallRequest {
        let offered = self
            .offered
            .iter()
            .find(|offered| offered.name == call.name);
        let tool = offered.map_or_else(|| call.name.clone(), |offered| offered.tool.clone());
        let args = match offered.map(|offered| &offered.shape) {
            Some(OfferedShape::Freeform { argument, .. }) => {
                CallArguments::Object(json!({argument: call.arguments}))
            }
            _ => parse_arguments(&call.arguments, offered),
        };
        let args = match (args, self.orchestrator.registry().get(&tool)) {
            (CallArguments::Object(args), Some(tool)) => {
                CallArguments::Object(tool.add_structured_defaults(args))
            }
            (args, _) => args,
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

fn parse_arguments(text: &str, offered: Option<&OfferedTool>) -> CallArguments {
    let text = if text.trim().is_empty() { "{}" } else { text };
    let mut args = match serde_json::from_str(text) {
        Ok(args @ Value::Object(_)) => args,
        Ok(_) => return CallArguments::Invalid("the arguments are not a JSON object".to_owned()),
        Err(error) => {
            return CallArguments::Invalid(format!("the arguments are not valid JSON: {error}"));
        }
    };
    if let Some(OfferedTool { shape, adapt, .. }) = offered {
        if let OfferedShape::Function { strict: true, .. } = shape {
            drop_nulls(&mut args);
        }
        adapt(&mut args);
    }
    CallArguments::Object(args)
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

fn structured_output(
    outcome: CallOutcome,
    first_attempts: Vec<CallRecord>,
    hint: Option<String>,
) -> StructuredOutput {
    let text = outcome.model_text();
    let (content, images, value) = match outcome.result {
        Ok(output) => (
            text.unwrap_or_else(|| output.text_for_model()),
            output.images,
            Some(output.value),
        ),
        Err(_) => (text.unwrap_or_default(), Vec::new(), None),
    };
    let records = first_attempts.into_iter().chain([outcome.record]).collect();
    StructuredOutput {
        call_id: outcome.requested_id,
        content: truncate_result(content, hint.as_deref()),
        images,
        value,
        records,
    }
}

impl CallOutcome {
    /// Returns the warnings, each after the name of the tool in scripts and a colon.
    pub fn named_warnings(&self) -> impl Iterator<Item = String> {
        let tool = camel_case(&self.record.tool);
        let warnings = self.warnings.iter();
        warnings.map(move |warning| format!("{tool}: {warning}"))
    }

    /// Returns what went wrong, if the call is done and its result reports a failure.
    pub(crate) fn result_failure(&self) -> Option<String> {
        self.result.as_ref().ok()?.failure.clone()
    }

    /// Returns the text that a model reads, with the warnings. `None` if it reads the value.
    pub(crate) fn model_text(&self) -> Option<String> {
        let mut text = match &self.result {
            Ok(output) if self.warnings.is_empty() => return output.model_text.clone(),
            Ok(output) => output.text_for_model(),
            Err(failure) => failure.text_for_model(),
        };
        for warning in &self.warnings {
            if !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&format!("warning: {}: {warning}", self.record.tool));
        }
        Some(text)
    }
}

/// Truncates a result for a model: keeps the beginning and the end of a text that is too long, and
/// adds the hint.
pub fn truncate_result(text: String, hint: Option<&str>) -> String {
    if text.len() <= MAX_MODEL_TEXT_BYTES {
        return text;
    }
    let head = text.floor_char_boundary(MAX_MODEL_TEXT_BYTES / 2);
    let tail = text.ceil_char_boundary(text.len() - MAX_MODEL_TEXT_BYTES / 2);
    let hint = hint.map(|hint| format!("; {hint}"));
    format!(
        "{}\n… {} bytes omitted{} …\n{}",
        &text[..head],
        tail - head,
        hint.unwrap_or_default(),
        &text[tail..]
    )
}
