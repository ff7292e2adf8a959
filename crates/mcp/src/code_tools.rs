//! Detects servers that run code which calls tools, as Selvedge does.

use crate::catalogue::{Catalogue, CatalogueTool};

/// Names, in snake case, of tools that usually run code.
const CODE_TOOL_NAMES: [&str; 14] = [
    "script",
    "execute",
    "execute_code",
    "exec",
    "run_code",
    "run_script",
    "call_tool_chain",
    "codemode",
    "code_mode",
    "code_execution",
    "execute_typescript",
    "execute_javascript",
    "run_typescript",
    "run_javascript",
];

/// Whether the server has a tool that runs code which calls other tools.
pub(crate) fn has_code_tool(catalogue: &Catalogue) -> bool {
    catalogue.tools.iter().any(is_code_tool)
}

fn is_code_tool(tool: &CatalogueTool) -> bool {
    let name = selvedge_tools::snake_case(&tool.name);
    let fields = tool.input_schema["properties"].as_object();
    let takes_code = fields.is_some_and(|fields| {
        ["code", "script", "source"]
            .iter()
            .any(|field| fields.contains_key(*field))
    });
    let description = tool.description.to_lowercase();
    let phrases = ["tools.", "call tool", "mcp"];
    let calls_tools = phrases.iter().any(|phrase| description.contains(phrase));
    takes_code && (CODE_TOOL_NAMES.contains(&name.as_str()) || calls_tools)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tools_that_run_code_are_detected() {
        let tool = |name: &str, description: &str, field: &str| Catalogue {
            tools: vec![CatalogueTool {
                name: name.into(),
                description: description.into(),
                input_schema: json!({"type": "object", "properties": {field: {"type": "string"}}}),
                output_schema: None,
                read_only: false,
                destructive: None,
            }],
            ..Catalogue::default()
        };
        assert!(has_code_tool(&tool("execute", "Runs TypeScript", "code")));
        assert!(has_code_tool(&tool(
            "do",
            "Write code that calls tools.github.x()",
            "code"
        )));
        assert!(!has_code_tool(&tool("execute", "Runs a query", "query")));
        assert!(!has_code_tool(&tool(
            "lookup_postcode",
            "Finds a place",
            "code"
        )));
    }
}
