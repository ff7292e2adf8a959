//! Servers that are themselves a way to run code that calls tools.

use crate::catalogue::{Catalogue, Listed};

/// Names under which such servers offer it.
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

/// Whether the server offers to run code in which its own tools can be called.
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
    let words = tool.description.to_lowercase();
    let calls_tools =
        words.contains("tools.") || words.contains("call tool") || words.contains("mcp");
    takes_code && (NAMES.contains(&name.as_str()) || calls_tools)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn code_mode_is_recognised() {
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
