//! The tool `recall`: reads from the journal what an earlier run returned or showed with `text()`,
//! or the result of one of its calls.

use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_journal::{Journal, JournalError, StoredRun};
use selvedge_protocol::{CallReach, ToolSpec};
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, spec_of, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use selvedge_agent::shown_text;

use crate::run_access::RunAccess;

/// The arguments of `recall`.
#[derive(Debug, Deserialize, JsonSchema)]
struct RecallRunArgs {
    /// A run (`scr_…`), one of its calls (`scr_…/tool_3`), or its `text()` (`scr_…/output`).
    handle: String,
    /// The part of the value to read, as a JSON pointer such as `/items/0/name`.
    pointer: Option<String>,
    /// First item of a list or first character of a string, from zero.
    offset: Option<usize>,
    /// Maximum number of items or characters.
    limit: Option<usize>,
}

/// The value, or a slice of it.
#[derive(Debug, Serialize, JsonSchema)]
struct RecalledRunValue {
    /// The value; of a list or a string, the requested slice.
    value: Value,
    /// Number of items or characters of the whole list or string.
    total: Option<usize>,
    /// Whether items or characters follow the slice.
    truncated: bool,
}

/// The tool `recall`.
pub(crate) struct RecallTool(pub(crate) Arc<Journal>, pub(crate) RunAccess);

impl Tool for RecallTool {
    fn spec(&self) -> ToolSpec {
        let description = "Reads what an earlier run or call returned, whole or in slices.";
        let spec = spec_of::<RecallRunArgs, RecalledRunValue>("recall", description);
        spec.as_read_only()
            .with_positional(&["handle"])
            .with_reach(CallReach::Local)
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let run = async move |args: RecallRunArgs| {
            let access = self.1.clone();
            let read = move |journal: &Journal| {
                let may_read = |run: &StoredRun| access.run_may_use(journal, &call.scope_id, run);
                Ok(read_value(journal, may_read, &args))
            };
            let failed = |error: JournalError| Err(ToolError::new(error.to_string()));
            self.0.spawn_blocking(read).await.unwrap_or_else(failed)
        };
        typed_call(args, run, |_| None)
    }
}

fn read_value(
    journal: &Journal,
    may_read: impl Fn(&StoredRun) -> bool,
    args: &RecallRunArgs,
) -> Result<RecalledRunValue, ToolError> {
    let (run, call) = match args.handle.split_once('/') {
        Some((run, call)) => (run, Some(call)),
        None => (args.handle.as_str(), None),
    };
    let not_found = || {
        ToolError::new(format!("there is no run `{run}`"))
            .suggest("pass the id of a run, such as scr_…, or of a call, such as scr_…/tool_3")
    };
    let run = match journal.run(run) {
        // Only whole ids are accepted, so that runs cannot be found by trying prefixes. Runs that
        // may not be read are reported as missing.
        Ok(found) if found.summary.id == run && may_read(&found) => found,
        Ok(_) | Err(JournalError::RunNotFound(_) | JournalError::AmbiguousId(_)) => {
            return Err(not_found());
        }
        Err(error) => return Err(ToolError::new(error.to_string())),
    };
    let id = run.summary.id;
    let (source, value) = match call {
        None => (id, run.output.and_then(|output| output.value())),
        Some(SHOWN_TEXT) => {
            let shown = run.output.map(|output| shown_text(&output));
            let shown = shown.filter(|text| !text.is_empty());
            (format!("`text()` of {id}"), shown.map(Value::String))
        }
        Some(call) => {
            let found = run.calls.into_iter().find(|found| found.id == call);
            let found =
                found.ok_or_else(|| ToolError::new(format!("{id} has no call `{call}`")))?;
            (format!("{call} of {id}"), found.value)
        }
    };
    let value = value.ok_or_else(|| ToolError::new(format!("{source} returned no value")))?;
    let pointer = args.pointer.as_deref().unwrap_or_default();
    let value = value
        .pointer(pointer)
        .ok_or_else(|| ToolError::new(format!("no value at JSON pointer `{pointer}`")))?;
    let limit = args.limit.unwrap_or(usize::MAX);
    Ok(slice(value, args.offset.unwrap_or(0), limit))
}

/// The last part of the handle of what a run showed with `text()`.
const SHOWN_TEXT: &str = "output";

fn slice(value: &Value, offset: usize, limit: usize) -> RecalledRunValue {
    let (value, total) = match value {
        Value::Array(items) => (
            Value::Array(items.iter().skip(offset).take(limit).cloned().collect()),
            Some(items.len()),
        ),
        Value::String(text) => (
            Value::String(text.chars().skip(offset).take(limit).collect()),
            Some(text.chars().count()),
        ),
        other => (other.clone(), None),
    };
    let truncated = total.is_some_and(|total| offset.saturating_add(limit) < total);
    RecalledRunValue {
        value,
        total,
        truncated,
    }
}
