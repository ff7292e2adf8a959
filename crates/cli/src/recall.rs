//! `recall`: reads what an earlier run returned, or one of its calls, from the journal.

use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_journal::{Journal, JournalError, Run};
use selvedge_tools::{Tool, ToolError, tool};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What to read again.
#[derive(Debug, Deserialize, JsonSchema)]
struct Args {
    /// A run (`scr_…`), for what it returned, or a call of it (`scr_…/tool_3`).
    handle: String,
    /// Where in the value to look, as a JSON pointer such as `/items/0/name`.
    pointer: Option<String>,
    /// First item of a list or character of a string, from zero.
    offset: Option<usize>,
    /// Items or characters at most.
    limit: Option<usize>,
}

/// The value, or a slice of it.
#[derive(Debug, Serialize, JsonSchema)]
struct Recalled {
    /// The value: a slice of it where it is a list or a string and a slice was asked for.
    value: Value,
    /// Items or characters in all, of a list or a string.
    total: Option<usize>,
    /// Whether more follows.
    truncated: bool,
}

/// Whose runs may be read again: those of the same folder, or of the same session.
#[derive(Debug, Clone)]
pub(crate) struct Ours {
    pub(crate) directory: String,
    pub(crate) session: String,
}

pub(crate) fn recall(journal: &Arc<Journal>, ours: Ours) -> impl Tool + use<> {
    let (journal, ours) = (journal.clone(), Arc::new(ours));
    let description =
        "Reads again what an earlier run returned, or one of its calls, whole or in slices.";
    tool("recall", description, move |args: Args| {
        let (journal, ours) = (journal.clone(), ours.clone());
        async move {
            let read = move |journal: &Journal| Ok(read(journal, &ours, &args));
            let failed = |error: JournalError| Err(ToolError::new(error.to_string()));
            journal.spawn_blocking(read).await.unwrap_or_else(failed)
        }
    })
    .read_only()
    .positional(&["handle"])
}

fn read(journal: &Journal, ours: &Ours, args: &Args) -> Result<Recalled, ToolError> {
    let (run, call) = match args.handle.split_once('/') {
        Some((run, call)) => (run, Some(call)),
        None => (args.handle.as_str(), None),
    };
    // Only whole ids: nobody finds runs by trying letters. What is not ours is as if it were not there.
    let is_ours = |found: &Run| {
        let of = &found.summary;
        of.id == run
            && (of.directory == ours.directory
                || !of.session.is_empty() && of.session == ours.session)
    };
    let none = || {
        ToolError::new(format!("there is no run `{run}`"))
            .suggest("a handle is the id of a run, such as scr_…, or scr_…/tool_3")
    };
    let run = match journal.run(run) {
        Ok(found) if is_ours(&found) => found,
        Ok(_) | Err(JournalError::NoRun(_) | JournalError::Ambiguous(_)) => return Err(none()),
        Err(error) => return Err(ToolError::new(error.to_string())),
    };
    let id = run.summary.id;
    let (what, value) = match call {
        None => (id, run.output.and_then(|output| output.value())),
        Some(call) => {
            let made = run.calls.into_iter().find(|made| made.id == call);
            let made = made.ok_or_else(|| ToolError::new(format!("{id} made no call `{call}`")))?;
            (format!("{call} of {id}"), made.value)
        }
    };
    let value = value.ok_or_else(|| ToolError::new(format!("{what} returned nothing")))?;
    let pointer = args.pointer.as_deref().unwrap_or_default();
    let value = value
        .pointer(pointer)
        .ok_or_else(|| ToolError::new(format!("there is nothing at `{pointer}`")))?;
    let limit = args.limit.unwrap_or(usize::MAX);
    Ok(slice(value, args.offset.unwrap_or(0), limit))
}

fn slice(value: &Value, offset: usize, limit: usize) -> Recalled {
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
    Recalled {
        value,
        total,
        truncated,
    }
}
