//! Converts results of scripts to MCP responses: the output item as structured content, and the
//! same as text.

use std::sync::{Arc, OnceLock};

use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock, JsonObject, Tool};
use schemars::JsonSchema;
use selvedge_protocol::{
    CallStatus, ErrorCode, Limits, OutputPart, Phase, RunStatus, ScriptError, ScriptToolCallOutput,
    new_id,
};
use selvedge_script::{LiveRun, group_calls, group_label, help_overview};
use selvedge_tools::{Registry, ToolLookup, declarations};
use serde_json::Value;

/// Returns the MCP definition of a tool with these arguments and a `ScriptToolCallOutput`.
pub(crate) fn tool_definition<Args: JsonSchema>(name: &'static str, description: String) -> Tool {
    static OUTPUT: OnceLock<Arc<JsonObject>> = OnceLock::new();
    let output = OUTPUT.get_or_init(|| {
        Arc::new(trimmed_schema::<ScriptToolCallOutput>(
            SchemaDescriptions::Strip,
        ))
    });
    Tool::new(
        name,
        description,
        Arc::new(trimmed_schema::<Args>(SchemaDescriptions::Keep)),
    )
    .with_raw_output_schema(output.clone())
}

/// Whether a schema keeps the descriptions of its fields.
#[derive(Clone, Copy, PartialEq)]
enum SchemaDescriptions {
    Keep,
    Strip,
}

fn trimmed_schema<T: JsonSchema>(descriptions: SchemaDescriptions) -> JsonObject {
    let settings = schemars::generate::SchemaSettings::draft2020_12()
        .with(|settings| settings.meta_schema = None);
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut schema = schema.to_value();
    trim_schema(&mut schema, descriptions);
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    schema.remove("description");
    schema
}

/// Removes keywords that a model does not need.
fn trim_schema(schema: &mut Value, descriptions: SchemaDescriptions) {
    match schema {
        Value::Object(object) => {
            // A property may have such a name, too; then its value is not a string.
            let mut unneeded = vec!["title", "format"];
            if descriptions == SchemaDescriptions::Strip {
                unneeded.push("description");
            }
            object.retain(|key, value| !(unneeded.contains(&key.as_str()) && value.is_string()));
            if descriptions == SchemaDescriptions::Keep {
                object.retain(|key, value| !(key == "minimum" && *value == 0));
            }
            object
                .values_mut()
                .for_each(|value| trim_schema(value, descriptions));
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| trim_schema(item, descriptions)),
        _ => {}
    }
}

/// Returns the response for a run. `notifications` are texts that the script sent with
/// `notify()`; they come first.
pub(crate) fn run_response(
    output: &ScriptToolCallOutput,
    notifications: &[String],
) -> CallToolResponse {
    let mut content: Vec<ContentBlock> = notifications.iter().map(ContentBlock::text).collect();
    for part in &output.output {
        content.push(match part {
            OutputPart::Text { text } => ContentBlock::text(text),
            OutputPart::Image { data, mime_type } => ContentBlock::image(data, mime_type),
            OutputPart::Audio { data, mime_type } => ContentBlock::audio(data, mime_type),
        });
    }
    content.push(ContentBlock::text(response_text(output)));
    let failed = output.error.is_some() && output.status != RunStatus::DryRun;
    let mut result = match failed {
        true => CallToolResult::error(content),
        false => CallToolResult::success(content),
    };
    result.structured_content = serde_json::to_value(output).ok();
    CallToolResponse::Complete(result)
}

/// Returns the response for a run that is still running. Its id is the handle for `script_wait`.
pub(crate) fn running_response(run: &LiveRun, notifications: Vec<String>) -> CallToolResponse {
    let mut item = run.progress_output(notifications);
    let id = item.id.clone();
    item.warnings.push(format!(
        "still running: call script_wait({{\"id\": \"{id}\"}}) for its result"
    ));
    run_response(&item, &[])
}

/// Returns the response for a request that started no run.
pub(crate) fn error_response(message: &str) -> CallToolResponse {
    let mut item = unstarted_output();
    let code = ErrorCode::ScriptRejectedError;
    item.error = Some(ScriptError::new(code, Phase::Parsing, message));
    run_response(&item, &[])
}

/// Returns the output of `help`: the description of a tool, a namespace, or everything.
pub(crate) fn help_output(tools: &Registry, topic: &str, limits: &Limits) -> ScriptToolCallOutput {
    let name = topic.strip_prefix("tools.").unwrap_or(topic);
    let text = match tools.look_up(name) {
        _ if name.is_empty() => help_overview(tools, limits),
        ToolLookup::Tool(tool) => declarations(&tools.filtered(|spec| spec.name == tool.spec.name)),
        ToolLookup::Namespace => {
            declarations(&tools.filtered(|spec| spec.js_name.starts_with(&format!("{name}."))))
        }
        ToolLookup::NotFound(_) => {
            let found = tools.search(name, 5);
            let is_found = |name: &str| found.iter().any(|tool| tool.spec.name == name);
            declarations(&tools.filtered(|spec| is_found(&spec.name)))
        }
    };
    let mut item = unstarted_output();
    item.status = RunStatus::Completed;
    item.output_json = Some(Value::from(text).to_string());
    item
}

/// Returns the topic of a help request (`help`, `help()`, `help("name")`), empty if it has none;
/// `None` if the code is a script.
pub(crate) fn help_topic(code: &str) -> Option<&str> {
    let rest = code.trim().trim_end_matches(';').strip_prefix("help")?;
    let topic = rest.trim().trim_start_matches('(').trim_end_matches(')');
    let topic = topic.trim().trim_matches(['"', '\'', '`']);
    let is_name = |c: char| c.is_alphanumeric() || "._-$ ".contains(c);
    let longer_word = rest.starts_with(|c: char| c.is_alphanumeric() || c == '.');
    (topic.chars().all(is_name) && !longer_word).then_some(topic)
}

/// Shortens a text of the client to one line of at most 80 characters.
pub(crate) fn shorten_client_text(text: &str) -> String {
    selvedge_text::one_line(text, 80)
}

/// Returns the output item of a run that was not started.
fn unstarted_output() -> ScriptToolCallOutput {
    ScriptToolCallOutput::new(new_id("scr"), new_id("call"))
}

/// Returns the value of the run, or its error with the calls made so far, as text for a model.
fn response_text(output: &ScriptToolCallOutput) -> String {
    let mut text = match (&output.error, output.value()) {
        (None, Some(Value::String(value))) => value,
        (None, Some(value)) => value.to_string(),
        (None, None) if output.status == RunStatus::Running => format!("{} is running", output.id),
        (None, None) => "(no value)".to_owned(),
        (Some(error), _) => {
            let line = error.line.map(|line| format!(" (line {line})"));
            let line = line.unwrap_or_default();
            let mut text = format!("{}{line}: {}", error.code, error.message);
            for suggestion in &error.suggestions {
                text.push_str(&format!("\nhint: {suggestion}"));
            }
            for (group, ()) in group_calls(&output.calls, |_| ()) {
                let status = group.first().map_or("", |call| call.status.as_str());
                text.push_str(&format!("\n{}: {status}", group_label(group)));
            }
            let mut calls = output.calls.iter();
            if calls.any(|call| call.status == CallStatus::Done) {
                let results = output.output_json.as_deref().unwrap_or("none");
                text.push_str(&format!("\nresults so far: {results}"));
            }
            text
        }
    };
    for log in output.logs.iter().take(50) {
        text.push_str(&format!("\nlog: {}", log.message));
    }
    for warning in &output.warnings {
        text.push_str(&format!("\nnote: {warning}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_help_request_is_distinguished_from_a_script() {
        assert_eq!(help_topic("help"), Some(""));
        assert_eq!(help_topic(" help() ;"), Some(""));
        assert_eq!(help_topic("help(\"mcp.git\")"), Some("mcp.git"));
        assert_eq!(help_topic("help mcp.git"), Some("mcp.git"));
        assert_eq!(help_topic("helpful()"), None);
        assert_eq!(help_topic("help(); return 1"), None);
        assert_eq!(help_topic("return help()"), None);
    }
}
