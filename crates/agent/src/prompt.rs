//! The system prompt, assembled from one file per topic and the tool declarations, and the tools
//! that the model may call.

use selvedge_models::{ModelTool, ModelToolInput};
use selvedge_protocol::{Limits, ScriptMode, WireApi};
use selvedge_tools::{
    OfferInScriptMode, OfferedShape, OfferedTool, Registry, compact_declarations,
};
use serde_json::json;

use crate::environment::environment_section;
use crate::token_estimate::{bytes_of_tokens, estimate_tokens, tokens_of_bytes};
use crate::{AgentOptions, AgentToolOffer};

/// The name of the tool that runs scripts.
pub(crate) const SCRIPT_TOOL_NAME: &str = "script";

const AGENT_PROMPT: &str = include_str!("../prompts/agent.md");
const SCRIPTS_PROMPT: &str = include_str!("../prompts/scripts.md");
const FAILURES_PROMPT: &str = include_str!("../prompts/failures.md");
const DRY_RUN_PROMPT: &str = include_str!("../prompts/dry-run.md");
const SCRIPT_TOOL_DESCRIPTION: &str = include_str!("../prompts/script-tool.md");

/// Returns the system prompt. Equal options and tools give equal text, so that prompt caches
/// remain valid.
pub(crate) fn system_prompt(
    options: &AgentOptions,
    registry: &Registry,
    mode: ScriptMode,
    limits: &Limits,
    memory: Option<&str>,
) -> String {
    let mut text = AGENT_PROMPT.trim_end().to_owned();
    let mut add = |part: &str| {
        text.push_str("\n\n");
        text.push_str(part.trim_end());
    };
    if mode != ScriptMode::Disabled {
        add(SCRIPTS_PROMPT);
        add(&call_limits_note(limits));
        add(FAILURES_PROMPT);
        add(&tools_section(registry, options.max_declaration_tokens));
    }
    if mode == ScriptMode::DryRun {
        add(DRY_RUN_PROMPT);
    }
    if let Some(memory) = memory {
        add(&format!("# Memory\n\n{memory}"));
    }
    if let Some(section) = environment_section(&options.directory, options.environment.as_ref()) {
        add(&section);
    }
    if let Some(project) = &options.project_instructions {
        add(&format!("# Project instructions\n\n{project}"));
    }
    if let Some(instructions) = &options.extra_instructions {
        add(instructions);
    }
    text.push('\n');
    text
}

/// Returns the limits that scripts reach most often, for the prompt.
fn call_limits_note(limits: &Limits) -> String {
    format!(
        "A script can make at most {} calls to commands, the web, MCP servers and agents, and {} \
         other calls. To work on more files, use one `grepFiles` call or one command. Its time \
         limit is {} s, not counting the time of its calls. `help()` lists all limits.",
        limits.max_tool_calls,
        limits.max_file_calls,
        limits.timeout_ms.div_ceil(1000)
    )
}

/// Returns the section about tools: their TypeScript declarations. If those exceed `max_tokens`,
/// the tools of MCP servers, or all tools, are listed by name.
fn tools_section(registry: &Registry, max_tokens: usize) -> String {
    let declarations = compact_declarations(registry);
    if estimate_tokens(&declarations) <= max_tokens {
        return format!("# Tools\n\n{TOOLS_NOTE}\n\n```ts\n{declarations}```");
    }
    let built_in = registry.filtered(|spec| spec.mcp_server().is_none());
    let declarations = compact_declarations(&built_in);
    let left = max_tokens.saturating_sub(estimate_tokens(&declarations));
    let (declarations, left) = match left {
        0 => (String::new(), max_tokens),
        left => (declarations, left),
    };
    let listed = registry
        .iter()
        .filter(|tool| declarations.is_empty() || tool.spec.mcp_server().is_some());
    let line = |tool: &std::sync::Arc<selvedge_tools::RegisteredTool>| {
        format!("{}  // {}\n", tool.spec.js_name, tool.spec.summary())
    };
    let mut list: String = listed.map(line).collect();
    let max_bytes = list.floor_char_boundary(bytes_of_tokens(left));
    if list.len() > max_bytes {
        let cut = list[..max_bytes].rfind('\n').map_or(0, |end| end + 1);
        let omitted = list[cut..].lines().count();
        list.truncate(cut);
        list.push_str(&format!(
            "// and {omitted} more: `await tools.search(\"what it does\")` finds them\n"
        ));
    }
    format!("# Tools\n\n{TOOLS_NOTE}\n\n```ts\n{declarations}{list}```")
}

/// How to read the declarations.
const TOOLS_NOTE: &str = "Call them as `tools.NAME(args)`. Each returns a promise of the type after \
    the colon.";

/// Returns the tools of the API request if the model may write scripts: `script`, and the offered
/// tools that are worth a direct call.
pub(crate) fn tools_with_scripts(
    options: &AgentOptions,
    offered: &[OfferedTool],
    registry: &Registry,
    limits: &Limits,
    wire: WireApi,
    freeform: bool,
) -> Vec<ModelTool> {
    let others = offered
        .iter()
        .filter(|_| options.tool_offer == AgentToolOffer::ScriptsAndCalls)
        .filter(|offered| offered.in_script_mode == OfferInScriptMode::Define)
        .map(|offered| match registry.get(&offered.tool) {
            Some(tool) => model_tool(offered.clone().with_brief_description(&tool.spec.js_name)),
            None => model_tool(offered.clone()),
        });
    std::iter::once(script_tool(limits, wire, freeform))
        .chain(others)
        .collect()
}

/// Returns the tools of the API request without scripts: all offered tools, fully described.
pub(crate) fn tools_without_scripts(
    options: &AgentOptions,
    offered: &[OfferedTool],
) -> Vec<ModelTool> {
    let offered = offered
        .iter()
        .filter(|_| options.tool_offer == AgentToolOffer::ScriptsAndCalls);
    offered.cloned().map(model_tool).collect()
}

fn model_tool(offered: OfferedTool) -> ModelTool {
    ModelTool {
        name: wire_name(&offered.name),
        description: offered.description,
        strict: matches!(offered.shape, OfferedShape::Function { strict: true, .. }),
        input: match offered.shape {
            OfferedShape::Function { parameters, .. } => ModelToolInput::Schema(parameters),
            OfferedShape::Freeform {
                argument,
                description,
            } => ModelToolInput::Freeform {
                argument,
                description,
            },
        },
    }
}

/// Returns the definition of the tool `script`.
fn script_tool(limits: &Limits, wire: WireApi, freeform: bool) -> ModelTool {
    let description = SCRIPT_TOOL_DESCRIPTION.trim_end();
    if wire == WireApi::Responses && freeform {
        return ModelTool {
            name: SCRIPT_TOOL_NAME.to_owned(),
            description: description.to_owned(),
            input: ModelToolInput::Freeform {
                argument: "code".to_owned(),
                description: "The script.".to_owned(),
            },
            strict: false,
        };
    }
    ModelTool::function(
        SCRIPT_TOOL_NAME,
        description,
        json!({
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "The script, in TypeScript."},
                "timeoutMs": {
                    "type": "integer",
                    "description": format!(
                        "Timeout in milliseconds (default {}).",
                        limits.timeout_ms
                    ),
                },
                "resume": {
                    "type": "string",
                    "description": "A run to resume (scr_…): completed changes are reused, reads \
                                    run again.",
                },
            },
            "required": ["code"],
            "additionalProperties": false,
        }),
    )
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
    tokens_of_bytes(tool.name.len() + tool.description.len() + input) as u64
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
