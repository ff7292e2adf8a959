//! Detects servers that run code which calls tools, as Selvedge does.

use crate::catalogue::{Catalogue, Listed};

/// Names, in snake case, of tools that usually run code.
const NAMES: [&str; 14] = [
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
pub(crate) fn runs_code(catalogue: &Catalogue) -> bool {
    catalogue.tools.iter().any(is_code_tool)
}

fn is_code_tool(tool: &Listed) -> bool {
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
    takes_code && (NAMES.contains(&name.as_str()) || calls_tools)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tools_that_run_code_are_detected() {
        let tool = |name: &str, description: &str, field: &str| Catalogue {
            tools: vec![Listed {
                name: name.into(),
                description: description.into(),
                input_schema: json!({"type": "object", "properties": {field: {"type": "string"}}}),
                output_schema: None,
                read_only: false,
                destructive: None,
            }],
            ..Catalogue::default()
        };
        assert!(runs_code(&tool("execute", "Runs TypeScript", "code")));
        assert!(runs_code(&tool(
            "do",
            "Write code that calls tools.github.x()",
            "code"
        )));
        assert!(!runs_code(&tool("execute", "Runs a query", "query")));
        assert!(!runs_code(&tool(
            "lookup_postcode",
            "Finds a place",
            "code"
        )));
    }
}
