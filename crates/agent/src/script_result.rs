//! The text of a script's result for the model: at most a given number of tokens, with the handles
//! of what is omitted.
//!
//! Strings and the output of `text()` are plain text, other values are JSON. A section that is too
//! long keeps its beginning and its end.

use std::collections::HashMap;

use crate::token_estimate::exceeds_tokens;
use selvedge_protocol::{
    CallRecord, CallStatus, OutputPart, RunStatus, ScriptError, ScriptToolCallOutput,
};
use selvedge_script::{group_calls, group_label, truncate_json};
use selvedge_text::{group_digits, truncate_middle};
use serde_json::Value;

/// Results of calls up to this size are part of the result of a failed script, in bytes of JSON.
/// Larger ones are listed by their handles.
const MAX_PARTIAL_RESULT_BYTES: usize = 400;
/// No room is reserved for the handle of a section up to this size, because it is rarely cut.
const MIN_CUT_BYTES: usize = 64;
/// More bytes than a token has on average, in any text.
const MAX_BYTES_PER_TOKEN: usize = 8;

/// Returns the parts of a script's result for the model: one text, and the images that the script
/// showed.
pub(crate) fn script_result_parts(
    output: &ScriptToolCallOutput,
    max_tokens: usize,
) -> Vec<OutputPart> {
    let text = result_text(output, max_tokens);
    let images = output.output.iter();
    let images = images.filter(|part| matches!(part, OutputPart::Image { .. }));
    let mut parts = vec![OutputPart::Text { text }];
    parts.extend(images.cloned());
    parts
}

/// Says how a model can read a whole result: of a run, or of a call of it.
pub(crate) fn recall_hint(handle: &str) -> String {
    format!("read all of it with `tools.recall({{ handle: \"{handle}\" }})`")
}

/// Returns the handle of everything that a run showed with `text()`.
pub(crate) fn text_handle(run: &str) -> String {
    format!("{run}/output")
}

/// Returns everything that a run showed with `text()`.
pub fn shown_text(output: &ScriptToolCallOutput) -> String {
    let texts = output.output.iter().filter_map(|part| match part {
        OutputPart::Text { text } => Some(text.as_str()),
        OutputPart::Image { .. } | OutputPart::Audio { .. } => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn result_text(output: &ScriptToolCallOutput, max_tokens: usize) -> String {
    let sections = result_sections(output);
    let whole = join_sections(&sections);
    let max_bytes = max_tokens.saturating_mul(MAX_BYTES_PER_TOKEN);
    if whole.len() <= max_bytes && !exceeds_tokens(&whole, max_tokens) {
        return whole;
    }
    let mut bytes = max_bytes.min(whole.len());
    loop {
        let text = truncated_text(&sections, bytes);
        let tokens = selvedge_tokens::count(&text);
        if tokens <= max_tokens || bytes <= 64 {
            return text;
        }
        // A little less than the share that fits, because the density of tokens varies.
        bytes = bytes.min(text.len()) * max_tokens / tokens * 31 / 32;
    }
}

/// A part of the result, with its heading.
struct ResultSection {
    heading: &'static str,
    body: SectionBody,
    /// The handle that reads the whole section with `tools.recall`.
    handle: Option<String>,
}

enum SectionBody {
    /// Starts on the line of the heading.
    Line(String),
    /// Starts on the line after the heading.
    Text(String),
    Json(Value),
}

impl ResultSection {
    fn len(&self) -> usize {
        match &self.body {
            SectionBody::Line(text) | SectionBody::Text(text) => text.len(),
            SectionBody::Json(value) => value.to_string().len(),
        }
    }

    /// Returns the section with at most about `bytes` bytes, and whether something is omitted.
    fn render(&self, bytes: usize) -> (String, bool) {
        let heading = self.heading;
        let is_cut = self.len() > bytes;
        let text = match &self.body {
            SectionBody::Line(text) => format!("{heading}: {}", truncate_middle(text, bytes)),
            SectionBody::Text(text) => format!("{heading}:\n{}", truncate_middle(text, bytes)),
            SectionBody::Json(value) => format!("{heading}: {}", truncate_json(value, bytes)),
        };
        (text, is_cut)
    }
}

fn join_sections(sections: &[ResultSection]) -> String {
    let texts = sections.iter().map(|section| section.render(usize::MAX).0);
    texts.collect::<Vec<_>>().join("\n")
}

/// Returns the sections in about `bytes` bytes. Short sections stay whole; the others share what is
/// left.
fn truncated_text(sections: &[ResultSection], bytes: usize) -> String {
    let mut sizes: Vec<usize> = sections.iter().map(ResultSection::len).collect();
    sizes.sort_unstable();
    let headings: usize = sections
        .iter()
        .map(|section| section.heading.len() + 3)
        .sum();
    let handles: usize = sections
        .iter()
        .filter(|section| section.len() > MIN_CUT_BYTES)
        .filter_map(|section| section.handle.as_ref())
        .map(|handle| handle.len() + 90)
        .sum();
    let mut left = bytes.saturating_sub(headings + handles);
    let mut share = left;
    for (at, size) in sizes.iter().enumerate() {
        share = left / (sizes.len() - at);
        if *size > share {
            break;
        }
        left -= size;
    }
    let mut lines = Vec::new();
    for section in sections {
        let (text, is_cut) = section.render(share.max(16));
        lines.push(text);
        if let (true, Some(handle)) = (is_cut, &section.handle) {
            lines.push(format!(
                "({} was truncated: `await tools.recall({{ handle: \"{handle}\" }})` reads all of \
                 it, in slices)",
                section.heading
            ));
        }
    }
    lines.join("\n")
}

/// Returns the sections of the result. Empty ones are omitted.
fn result_sections(output: &ScriptToolCallOutput) -> Vec<ResultSection> {
    let mut sections = Vec::new();
    let mut add = |heading, body, handle| {
        sections.push(ResultSection {
            heading,
            body,
            handle,
        });
    };
    let status = serde_json::to_value(output.status).unwrap_or_default();
    let status = status.as_str().unwrap_or_default();
    let status = match output.status {
        RunStatus::Completed => status.to_owned(),
        _ => format!("{status}, run {}", output.id),
    };
    add("status", SectionBody::Line(status), None);
    let mut value = output.value();
    // The report of a dry run contains its errors.
    let error = output
        .error
        .as_ref()
        .filter(|_| output.status != RunStatus::DryRun);
    if let Some(error) = error {
        add("error", SectionBody::Line(error_text(error)), None);
        let partial = value
            .as_mut()
            .and_then(|value| value.as_object_mut()?.remove("partialResults"));
        if let Some(Value::Array(results)) = &partial {
            value = None;
            if !output.calls.is_empty() {
                let text = calls_text(output, error, results);
                add("calls", SectionBody::Text(text), None);
            }
        }
    }
    if !output.warnings.is_empty() {
        let lines: Vec<String> = output
            .warnings
            .iter()
            .map(|line| format!("- {line}"))
            .collect();
        add("warnings", SectionBody::Text(lines.join("\n")), None);
    }
    let shown = shown_text(output);
    if !shown.is_empty() {
        add(
            "output",
            SectionBody::Text(shown),
            Some(text_handle(&output.id)),
        );
    }
    if let Some(value) = value {
        let body = match value {
            Value::String(text) => SectionBody::Text(text),
            value => SectionBody::Json(value),
        };
        add("value", body, Some(output.id.clone()));
    }
    if !output.logs.is_empty() {
        let lines: Vec<&str> = output.logs.iter().map(|log| log.message.as_str()).collect();
        add("logs", SectionBody::Text(lines.join("\n")), None);
    }
    sections
}

/// Returns the error: code, position, message, call, hints and details.
fn error_text(error: &ScriptError) -> String {
    let at = match (error.line, error.column) {
        (Some(line), Some(column)) => format!(" at {line}:{column}"),
        (Some(line), None) => format!(" at line {line}"),
        (None, _) => String::new(),
    };
    let mut text = format!("{}{at}: {}", error.code, error.message);
    if let (Some(tool), Some(call)) = (&error.tool_name, &error.call_id) {
        text.push_str(&format!("\ncall: {call} {tool}"));
    }
    // The first line repeats the message, and a single frame is the position above.
    let stack = error.stack.as_deref().unwrap_or_default();
    let frames = stack.lines().filter(|line| line.trim().starts_with("at "));
    let frames: Vec<&str> = frames.collect();
    if frames.len() > 1 {
        text.push_str(&format!("\n{}", frames.join("\n")));
    }
    for hint in &error.suggestions {
        text.push_str(&format!("\nhint: {hint}"));
    }
    // The list of calls says the same as these counts.
    let details = error
        .metadata
        .iter()
        .filter(|(key, value)| {
            !(matches!(key.as_str(), "completedTools" | "pendingTools") || value.is_null())
        })
        .map(|(key, value)| (key.clone(), value.clone()));
    let details = Value::Object(details.collect());
    if details != Value::Object(serde_json::Map::new()) {
        text.push_str(&format!("\ndetails: {details}"));
    }
    text
}

/// What the list of calls says about a call after its status.
#[derive(PartialEq)]
enum CallNote {
    /// An error message, a short result, or nothing.
    Text(String),
    /// The result is too large for the list, which has its handle instead.
    Handle,
}

/// Returns the outcomes of the calls of a failed script, with results that are short. Neighbours
/// with the same outcome share a line.
fn calls_text(output: &ScriptToolCallOutput, error: &ScriptError, results: &[Value]) -> String {
    let results_by_id: HashMap<&str, &Value> = results
        .iter()
        .filter_map(|result| Some((result["callId"].as_str()?, result)))
        .collect();
    // If results were omitted of the list, a text stands for them.
    let is_incomplete = results.iter().any(Value::is_string);
    let note = |call: &CallRecord| {
        let failure = call.error.as_ref();
        let failure = failure.filter(|failure| !error.message.contains(&failure.message));
        if let Some(failure) = failure {
            return CallNote::Text(format!(", {}", failure.message));
        }
        match results_by_id.get(call.id.as_str()) {
            // An entry with `bytes` has a preview.
            Some(result) => match result.get("bytes").is_none()
                && result_bytes(result) <= MAX_PARTIAL_RESULT_BYTES
            {
                true => CallNote::Text(format!(", {}", result["value"])),
                false => CallNote::Handle,
            },
            None if is_incomplete && call.status == CallStatus::Done => CallNote::Handle,
            None => CallNote::Text(String::new()),
        }
    };
    let line = |(group, note): (&[CallRecord], CallNote)| {
        let (first, last) = (group.first()?, group.last()?);
        let mut line = format!("- {}: {}", group_label(group), first.status.as_str());
        match note {
            CallNote::Text(text) => line.push_str(&text),
            CallNote::Handle => {
                let results = group.iter();
                let results = results.filter_map(|call| results_by_id.get(call.id.as_str()));
                let bytes: usize = results.map(|result| result_bytes(result)).sum();
                if bytes > 0 {
                    line.push_str(&format!(", {} bytes", group_digits(bytes)));
                }
                let (run, id) = (&output.id, &first.id);
                line.push_str(&format!(": tools.recall({{ handle: \"{run}/{id}\" }})"));
                if group.len() > 1 {
                    line.push_str(&format!(" to \"{run}/{}\"", last.id));
                }
            }
        }
        Some(line)
    };
    let groups = group_calls(&output.calls, note).into_iter();
    groups.filter_map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the size of a call's result as JSON, in bytes. Its value may be a preview.
fn result_bytes(result: &Value) -> usize {
    let whole = result["bytes"].as_u64();
    let whole = whole.and_then(|bytes| usize::try_from(bytes).ok());
    whole.unwrap_or_else(|| result["value"].to_string().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::{CallError, ErrorCode, LogEntry, LogLevel, Phase};
    use serde_json::json;

    fn output(value: &Value) -> ScriptToolCallOutput {
        let output = ScriptToolCallOutput::new("scr_1", "call_1");
        ScriptToolCallOutput {
            status: RunStatus::Completed,
            output_json: Some(value.to_string()),
            ..output
        }
    }

    fn text_part(text: &str) -> OutputPart {
        OutputPart::Text {
            text: text.to_owned(),
        }
    }

    #[test]
    fn strings_and_shown_text_are_not_escaped() {
        assert_eq!(
            result_text(&output(&json!({"a": 1})), 10_000),
            "status: completed\nvalue: {\"a\":1}"
        );
        let mut result = output(&json!("say \"hi\"\n\tnow"));
        result.output = vec![text_part("a\nb"), text_part("c")];
        assert_eq!(
            result_text(&result, 10_000),
            "status: completed\noutput:\na\nb\nc\nvalue:\nsay \"hi\"\n\tnow"
        );
    }

    fn call(id: &str, status: CallStatus, error: Option<&str>) -> CallRecord {
        CallRecord {
            id: id.to_owned(),
            tool: "read_file".to_owned(),
            status,
            reused: false,
            duration_ms: 1.0,
            args_digest: String::new(),
            line: None,
            error: error.map(|message| CallError {
                code: ErrorCode::ToolExecutionError,
                message: message.to_owned(),
            }),
            exit_code: None,
        }
    }

    #[test]
    fn calls_with_the_same_outcome_share_a_line() {
        let id = |number: usize| format!("tool_{number}");
        let calls = (1..=1_000).map(|number| match number {
            1 => call(&id(1), CallStatus::Failed, Some("no file")),
            2 | 3 => call(&id(number), CallStatus::OutcomeUnknown, None),
            4..=9 => call(&id(number), CallStatus::Done, None),
            10..=500 => call(&id(number), CallStatus::Aborted, Some("cancelled")),
            _ => CallRecord {
                tool: ["read_file", "exec"][number % 2].to_owned(),
                ..call(&id(number), CallStatus::NotStarted, None)
            },
        });
        let large = |number| json!({"callId": id(number), "value": "x".repeat(998)});
        let partial = json!({"partialResults": (4..=9).map(large).collect::<Vec<_>>()});
        let failed = ScriptToolCallOutput {
            status: RunStatus::Error,
            error: Some(ScriptError::new(
                ErrorCode::ToolExecutionError,
                Phase::Executing,
                "no file",
            )),
            calls: calls.collect(),
            ..output(&partial)
        };
        assert_eq!(
            result_text(&failed, 10_000),
            "status: error, run scr_1\n\
             error: ToolExecutionError: no file\n\
             calls:\n\
             - tool_1 read_file: failed\n\
             - tool_2 read_file: outcome unknown\n\
             - tool_3 read_file: outcome unknown\n\
             - tool_4 to tool_9 read_file: done, 6,000 bytes: \
             tools.recall({ handle: \"scr_1/tool_4\" }) to \"scr_1/tool_9\"\n\
             - tool_10 to tool_500 read_file: aborted, cancelled\n\
             - tool_501 to tool_1000 exec, read_file: not started"
        );
    }

    #[test]
    fn a_result_that_was_left_out_keeps_its_handle() {
        let partial = json!({"partialResults": [
            {"callId": "tool_1", "tool": "read_file", "value": "… omitted …", "bytes": 70_000},
            "… 1 item omitted …",
        ]});
        let failed = ScriptToolCallOutput {
            status: RunStatus::Error,
            error: Some(ScriptError::new(
                ErrorCode::ApprovalDeniedError,
                Phase::Executing,
                "exec was denied",
            )),
            calls: vec![
                call("tool_1", CallStatus::Done, None),
                call("tool_2", CallStatus::Done, None),
                call("tool_3", CallStatus::Failed, Some("exec was denied")),
            ],
            ..output(&partial)
        };
        let text = result_text(&failed, 10_000);
        for handle in ["scr_1/tool_1", "scr_1/tool_2"] {
            assert!(text.contains(&format!("\"{handle}\"")), "{text}");
        }
        assert!(!text.contains("omitted"), "{text}");
    }

    #[test]
    fn an_error_appears_once_and_large_results_by_their_handles() {
        let partial = json!({"partialResults": [
            {"callId": "tool_1", "tool": "read_file", "value": {"text": "short"}},
            {"callId": "tool_2", "tool": "read_file", "value": {"text": "x".repeat(9_000)}},
        ]});
        let message = "there is no file `c.txt`";
        let mut error = ScriptError::new(ErrorCode::ToolExecutionError, Phase::Executing, message)
            .with("completedTools", 2)
            .suggest("list the folder");
        (error.line, error.column) = (Some(3), Some(7));
        let failed = ScriptToolCallOutput {
            status: RunStatus::Error,
            error: Some(error),
            calls: vec![
                call("tool_1", CallStatus::Done, None),
                call("tool_2", CallStatus::Done, None),
                call("tool_3", CallStatus::Failed, Some(message)),
            ],
            ..output(&partial)
        };
        assert_eq!(
            result_text(&failed, 10_000),
            "status: error, run scr_1\n\
             error: ToolExecutionError at 3:7: there is no file `c.txt`\n\
             hint: list the folder\n\
             calls:\n\
             - tool_1 read_file: done, {\"text\":\"short\"}\n\
             - tool_2 read_file: done, 9,011 bytes: \
             tools.recall({ handle: \"scr_1/tool_2\" })\n\
             - tool_3 read_file: failed"
        );
    }

    #[test]
    fn a_long_result_is_cut_to_the_limit_with_its_beginning_and_its_end() {
        let log = format!("START {} END", "line of a log\n".repeat(2_570));
        let rows = json!({"rows": vec!["{}[]1234567890 漢字"; 20_000], "n": 7});
        for (value, max) in [
            (json!(log), 2_000),
            (json!({"log": log}), 2_000),
            (rows, 10_000),
        ] {
            let text = result_text(&output(&value), max);
            let tokens = selvedge_tokens::count(&text);
            assert!(tokens <= max && tokens > max * 3 / 4, "{tokens} of {max}");
            assert!(text.contains("handle: \"scr_1\""), "{text}");
            if let Some(json) = text.lines().find_map(|line| line.strip_prefix("value: ")) {
                let cut: Value = serde_json::from_str(json).unwrap();
                assert!(cut.is_object(), "{cut}");
            } else {
                assert!(text.contains("START") && text.contains("END"), "{text}");
            }
        }
    }

    #[test]
    fn one_long_section_does_not_displace_the_others() {
        let mut large = output(&json!({"n": 7}));
        large.logs = vec![LogEntry {
            level: LogLevel::Log,
            message: "x1y2".repeat(50_000),
        }];
        large.output = vec![text_part(&"z ".repeat(50_000))];
        large.warnings = vec!["grepFiles: 2,000 of 11,320 matches".to_owned()];
        for max in [200, 1_000, 10_000] {
            let text = result_text(&large, max);
            assert!(selvedge_tokens::count(&text) <= max);
            assert!(text.contains("value: {\"n\":7}"), "{text}");
            assert!(text.contains("2,000 of 11,320 matches"), "{text}");
            assert!(text.contains("scr_1/output"), "{text}");
        }
    }
}
