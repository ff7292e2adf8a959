//! The system prompt, assembled from one file per topic and the tool declarations, and the tools
//! that the model may call.

use selvedge_models::{ModelTool, ModelToolInput};
use selvedge_protocol::{ScriptMode, WireApi};
use selvedge_tools::{OfferedShape, OfferedTool, Registry, signatures};
use serde_json::json;

use crate::{AgentOptions, AgentToolOffer};

/// The name of the tool that runs scripts.
pub(crate) const SCRIPT_TOOL_NAME: &str = "script";

const AGENT_PROMPT: &str = include_str!("../prompts/agent.md");
const SCRIPTS_PROMPT: &str = include_str!("../prompts/scripts.md");
const FAILURES_PROMPT: &str = include_str!("../prompts/failures.md");
const DRY_RUN_PROMPT: &str = include_str!("../prompts/dry-run.md");
const SCRIPT_TOOL_DESCRIPTION: &str = include_str!("../prompts/script-tool.md");

/// Returns the system prompt. Equal settings and tools give equal text, so that prompt caches
/// remain valid.
pub(crate) fn system_prompt(
    settings: &AgentOptions,
    registry: &Registry,
    mode: ScriptMode,
    memory: Option<&str>,
) -> String {
    let mut text = AGENT_PROMPT.trim_end().to_owned();
    let mut add = |part: &str| {
        text.push_str("\n\n");
        text.push_str(part.trim_end());
    };
    if mode != ScriptMode::Disabled {
        add(SCRIPTS_PROMPT);
        add(FAILURES_PROMPT);
        add(&tools_section(registry, settings.max_declaration_tokens));
    }
    if mode == ScriptMode::DryRun {
        add(DRY_RUN_PROMPT);
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
    if let Some(project) = &settings.project_instructions {
        add(&format!("# Project instructions\n\n{project}"));
    }
    if let Some(instructions) = &settings.user_instructions {
        add(instructions);
    }
    text.push('\n');
    text
}

/// Returns the section about tools: their TypeScript declarations, or a list of names and
/// descriptions if the declarations exceed `max_tokens`.
fn tools_section(registry: &Registry, max_tokens: usize) -> String {
    let declarations = signatures(registry);
    if crate::token_estimate::estimate_tokens(&declarations) <= max_tokens {
        let note = "`return help(\"name\")` explains a tool's fields.";
        return format!("# Tools\n\n{note}\n\n```ts\n{declarations}```");
    }
    let line = |tool: &std::sync::Arc<selvedge_tools::RegisteredTool>| {
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
pub(crate) fn model_tools(
    settings: &AgentOptions,
    offered: &[OfferedTool],
    wire: WireApi,
    freeform: bool,
) -> Vec<ModelTool> {
    let script = match wire == WireApi::Responses && freeform {
        true => ModelTool {
            name: SCRIPT_TOOL_NAME.to_owned(),
            description: SCRIPT_TOOL_DESCRIPTION.trim_end().to_owned(),
            input: ModelToolInput::Freeform {
                argument: "code".to_owned(),
                description: "The script.".to_owned(),
            },
            strict: false,
        },
        false => ModelTool::function(
            SCRIPT_TOOL_NAME,
            SCRIPT_TOOL_DESCRIPTION.trim_end(),
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
        .filter(|_| settings.tool_offer == AgentToolOffer::ScriptsAndCalls)
        .map(|offered| ModelTool {
            name: wire_name(&offered.name),
            description: offered.description.clone(),
            strict: matches!(offered.shape, OfferedShape::Function { strict: true, .. }),
            input: match &offered.shape {
                OfferedShape::Function { parameters, .. } => {
                    ModelToolInput::Schema(parameters.clone())
                }
                OfferedShape::Freeform {
                    argument,
                    description,
                } => ModelToolInput::Freeform {
                    argument: argument.clone(),
                    description: description.clone(),
                },
            },
        });
    std::iter::once(script).chain(others).collect()
}

/// Returns the estimated number of tokens of a tool's definition.
pub(crate) fn estimate_tool_tokens(tool: &ModelTool) -> u64 {
    let input = match &tool.input {
        ModelToolInput::Schema(schema) => schema.to_string().len(),
        ModelToolInput::Freeform {
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
pub(crate) fn resolve_tool_name(called: &str, offered: &[OfferedTool]) -> String {
    let tool = offered
        .iter()
        .find(|offered| wire_name(&offered.name) == called);
    tool.map_or_else(|| called.to_owned(), |offered| offered.name.clone())
}
