//! The system prompt, assembled from one file per topic and the tool declarations, and the tools
//! that the model may call.

use selvedge_models::{Tool, ToolInput};
use selvedge_protocol::{Mode, WireApi};
use selvedge_tools::{Offered, Registry, Shape, signatures};
use serde_json::json;

use crate::{Offer, Settings};

/// The name of the tool that runs scripts.
pub(crate) const SCRIPT: &str = "script";

const AGENT: &str = include_str!("../prompts/agent.md");
const SCRIPTS: &str = include_str!("../prompts/scripts.md");
const FAILURES: &str = include_str!("../prompts/failures.md");
const DRY_RUN: &str = include_str!("../prompts/dry-run.md");
const SCRIPT_TOOL: &str = include_str!("../prompts/script-tool.md");

/// Returns the system prompt. Equal settings and tools give equal text, so that prompt caches
/// remain valid.
pub(crate) fn system(
    settings: &Settings,
    registry: &Registry,
    mode: Mode,
    memory: Option<&str>,
) -> String {
    let mut text = AGENT.trim_end().to_owned();
    let mut add = |part: &str| {
        text.push_str("\n\n");
        text.push_str(part.trim_end());
    };
    if mode != Mode::Disabled {
        add(SCRIPTS);
        add(FAILURES);
        add(&tools(registry, settings.declaration_tokens));
    }
    if mode == Mode::DryRun {
        add(DRY_RUN);
    }
    if let Some(memory) = memory {
        add(&format!("# Memory\n\n{memory}"));
    }
    if !settings.directory.is_empty() {
        add(&format!(
            "# Environment\n\nThe working folder is {} ({}).",
            settings.directory,
            std::env::consts::OS
        ));
    }
    if let Some(project) = &settings.project {
        add(&format!("# Project instructions\n\n{project}"));
    }
    if let Some(instructions) = &settings.instructions {
        add(instructions);
    }
    text.push('\n');
    text
}

/// Returns the section about tools: their TypeScript declarations, or a list of names and
/// descriptions if the declarations exceed `max_tokens`.
fn tools(registry: &Registry, max_tokens: usize) -> String {
    let declarations = signatures(registry);
    if crate::size::estimate(&declarations) <= max_tokens {
        let note = "`return help(\"name\")` explains a tool's fields.";
        return format!("# Tools\n\n{note}\n\n```ts\n{declarations}```");
    }
    let line = |tool: &std::sync::Arc<selvedge_tools::Registered>| {
        let first = tool.spec.description.lines().next().unwrap_or_default();
        format!("tools.{}  // {first}\n", tool.spec.js_name)
    };
    let mut list: String = registry.iter().map(line).collect();
    let max_bytes = list.floor_char_boundary(max_tokens * 3);
    if list.len() > max_bytes {
        let cut = list[..max_bytes].rfind('\n').map_or(0, |end| end + 1);
        let omitted = list[cut..].lines().count();
        list.truncate(cut);
        list.push_str(&format!(
            "// and {omitted} more: `await tools.search(\"what it does\")` finds them\n"
        ));
    }
    let note = "`return help(\"name\")` returns a tool's types.";
    format!("# Tools\n\n{note}\n\n```ts\n{list}```")
}

/// Returns the tools of the API request: `script`, and the offered tools if structured calls are
/// enabled.
pub(crate) fn offered(
    settings: &Settings,
    offered: &[Offered],
    wire: WireApi,
    freeform: bool,
) -> Vec<Tool> {
    let script = match wire == WireApi::Responses && freeform {
        true => Tool {
            name: SCRIPT.to_owned(),
            description: SCRIPT_TOOL.trim_end().to_owned(),
            input: ToolInput::Freeform {
                argument: "code".to_owned(),
                description: "The script.".to_owned(),
            },
        },
        false => Tool::function(
            SCRIPT,
            SCRIPT_TOOL.trim_end(),
            json!({
                "type": "object",
                "properties": {
                    "code": {"type": "string", "description": "The script, in TypeScript."},
                    "timeoutMs": {
                        "type": "integer",
                        "description": "Timeout in milliseconds (default 30000).",
                    },
                    "resume": {
                        "type": "string",
                        "description": "A run to resume (scr_…): completed changes are reused, \
                                        reads run again.",
                    },
                },
                "required": ["code"],
                "additionalProperties": false,
            }),
        ),
    };
    let others = offered
        .iter()
        .filter(|_| settings.offer == Offer::ScriptsAndCalls)
        .map(|offered| Tool {
            name: wire_name(&offered.name),
            description: offered.description.clone(),
            input: match &offered.shape {
                Shape::Function { parameters, .. } => ToolInput::Schema(parameters.clone()),
                Shape::Freeform {
                    argument,
                    description,
                } => ToolInput::Freeform {
                    argument: argument.clone(),
                    description: description.clone(),
                },
            },
        });
    std::iter::once(script).chain(others).collect()
}

/// Returns the estimated number of tokens of a tool's definition.
pub(crate) fn tokens_of_tool(tool: &Tool) -> u64 {
    let input = match &tool.input {
        ToolInput::Schema(schema) => schema.to_string().len(),
        ToolInput::Freeform {
            argument,
            description,
        } => argument.len() + description.len(),
    };
    (tool.name.len() + tool.description.len() + input).div_ceil(3) as u64
}

/// Returns a tool's name in a form that every provider accepts: letters, digits and underscores.
fn wire_name(name: &str) -> String {
    name.replace('.', "__")
}

/// Returns the name of the offered tool that a model called by its wire name.
pub(crate) fn tool_name(called: &str, offered: &[Offered]) -> String {
    let tool = offered
        .iter()
        .find(|offered| wire_name(&offered.name) == called);
    tool.map_or_else(|| called.to_owned(), |offered| offered.name.clone())
}
