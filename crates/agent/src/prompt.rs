//! What the model is told before everything else: one file per concern, and the tools there are, as far as they fit.

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

/// The system text. The same settings and tools give the same bytes, so that caches hold.
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
            "# Where you are\n\nThe working folder is {} ({}).",
            settings.directory,
            std::env::consts::OS
        ));
    }
    if let Some(project) = &settings.project {
        add(&format!("# What the project says to agents\n\n{project}"));
    }
    if let Some(instructions) = &settings.instructions {
        add(instructions);
    }
    text.push('\n');
    text
}

/// The tools as TypeScript; where that is too much, their names and what they do.
fn tools(registry: &Registry, most_tokens: usize) -> String {
    let whole = signatures(registry);
    if crate::size::estimate(&whole) <= most_tokens {
        let note = "`return help(\"name\")` tells what a tool's fields mean.";
        return format!("# The tools\n\n{note}\n\n```ts\n{whole}```");
    }
    let line = |tool: &std::sync::Arc<selvedge_tools::Registered>| {
        let first = tool.spec.description.lines().next().unwrap_or_default();
        format!("tools.{}  // {first}\n", tool.spec.js_name)
    };
    let mut list: String = registry.iter().map(line).collect();
    let most = list.floor_char_boundary(most_tokens * 3);
    if list.len() > most {
        let cut = list[..most].rfind('\n').map_or(0, |end| end + 1);
        let left = list[cut..].lines().count();
        list.truncate(cut);
        list.push_str(&format!(
            "// and {left} more: `await tools.search(\"what it does\")` finds them\n"
        ));
    }
    let note = "`return help(\"name\")` gives a tool's types.";
    format!("# The tools\n\n{note}\n\n```ts\n{list}```")
}

/// What the model may call: the tool that runs scripts, and the others where they are offered.
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
                    "timeoutMs": {"type": "integer", "description": "More time than 30 s, in milliseconds."},
                    "resume": {"type": "string", "description": "A run to resume (scr_…): completed changes are reused, reads run again."},
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

/// About how many tokens the definition of a tool has.
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

/// The name in a form every provider takes: letters, digits and underscores.
fn wire_name(name: &str) -> String {
    name.replace('.', "__")
}

/// The tool a model means.
pub(crate) fn tool_name(called: &str, offered: &[Offered]) -> String {
    let meant = offered
        .iter()
        .find(|offered| wire_name(&offered.name) == called);
    meant.map_or_else(|| called.to_owned(), |offered| offered.name.clone())
}
