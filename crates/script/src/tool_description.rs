//! The description of the `script` tool for models: how to write scripts, and as many tool
//! declarations as fit into a budget.

use std::collections::BTreeMap;

use selvedge_tools::{RegisteredTool, Registry, compact_signature};

/// How to write scripts, in few tokens.
const INSTRUCTIONS: &str = "\
Runs a TypeScript program that calls tools. Write one script instead of many calls: you read only \
what it returns.
- Top-level `await`; `return value` (JSON) is the result. Each script runs in a fresh sandbox and \
reaches files, network and processes only through `tools`.
- Batch: `await Promise.all(list.map(x => tools.a({ id: x.id })))`, then filter, count and join in \
the script; return little.
- A failed call throws (`e.name`, `e.message`, `e.retryable`): use `try`, or `Promise.allSettled`. \
Results are frozen: copy to change.
- `store(key, v)`/`load(key)` last for the session; `text(v)`, `image(block)` show more; \
`notify(v)` reports early.
- `help(\"name\")` shows types. `const [t] = await tools.search(\"what it does\")` finds tools: \
`await tools[t.name](args)`.
- After an error, send the corrected script with `resume: \"<id>\"`: completed changes are reused, \
reads run again.
";

/// Lower bound of the bytes per token for code and short English, so that the budget is not
/// exceeded.
const MIN_BYTES_PER_TOKEN: usize = 3;
/// Maximum length of a declaration, in characters. A longer one loses its optional fields.
const MAX_SIGNATURE_CHARS: usize = 260;
/// Maximum number of servers that are named if not all tools are declared.
const MAX_LISTED_SERVERS: usize = 60;

/// Returns the description of the `script` tool, in at most about `budget` tokens. `uses` returns
/// how often a tool was called before: such tools come first, then built-in tools, then the tools
/// of the servers in turn.
pub fn script_tool_description(
    registry: &Registry,
    budget: usize,
    uses: impl Fn(&str) -> u64,
) -> String {
    let mut text = String::from(INSTRUCTIONS);
    let mut room = (budget * MIN_BYTES_PER_TOKEN).saturating_sub(text.len());
    let servers = tools_by_server(registry);
    let index = server_list(&servers);
    room = room.saturating_sub(index.len() + 80);
    let mut shown = Vec::new();
    let mut omitted = 0;
    for tool in ranked_tools(registry, &servers, uses) {
        let line = declaration(tool);
        if line.len() > room {
            omitted += 1;
            // Some of the next may be shorter, but a long list is not searched to its end.
            if omitted > 20 {
                break;
            }
            continue;
        }
        room -= line.len();
        shown.push(line);
    }
    let all = registry.len();
    match shown.len() {
        0 if all == 0 => text.push_str("No tools are registered.\n"),
        count if count == all => {
            text.push_str("Tools (call as `tools.NAME`; the type after `:` is awaited):\n")
        }
        count => text.push_str(&format!(
            "Tools (call as `tools.NAME`; the type after `:` is awaited), {count} of {all}; \
             `tools.search` finds the others:\n"
        )),
    }
    shown.iter().for_each(|line| text.push_str(line));
    if shown.len() < all {
        text.push_str(&index);
    }
    text
}

/// Returns the MCP servers and their tools, sorted by server name.
fn tools_by_server(registry: &Registry) -> BTreeMap<&str, Vec<&RegisteredTool>> {
    let mut servers: BTreeMap<&str, Vec<&RegisteredTool>> = BTreeMap::new();
    for tool in registry.iter() {
        if let Some(server) = tool.spec.mcp_server() {
            servers.entry(server).or_default().push(tool);
        }
    }
    servers
}

/// Lists the servers with the number of their tools.
fn server_list(servers: &BTreeMap<&str, Vec<&RegisteredTool>>) -> String {
    if servers.is_empty() {
        return String::new();
    }
    let named = servers.iter().take(MAX_LISTED_SERVERS);
    let named = named.map(|(name, tools)| format!("{name} ({})", tools.len()));
    let more = match servers.len().saturating_sub(MAX_LISTED_SERVERS) {
        0 => None,
        more => Some(format!("{more} more")),
    };
    let named: Vec<_> = named.chain(more).collect();
    let named = named.join(", ");
    format!("Servers, as `tools.mcp.<server>.<tool>`: {named}\n")
}

/// Returns all tools in the order in which they are declared.
fn ranked_tools<'a>(
    registry: &'a Registry,
    servers: &BTreeMap<&str, Vec<&'a RegisteredTool>>,
    uses: impl Fn(&str) -> u64,
) -> Vec<&'a RegisteredTool> {
    let all = registry.iter().map(AsRef::as_ref);
    let built_in = all.filter(|tool: &&RegisteredTool| tool.spec.mcp_server().is_none());
    let mut built_in: Vec<&RegisteredTool> = built_in.collect();
    let longest = servers.values().map(Vec::len).max().unwrap_or(0);
    for index in 0..longest {
        built_in.extend(servers.values().filter_map(|tools| tools.get(index)));
    }
    // The sort is stable: tools that were never used keep their order.
    built_in.sort_by_key(|tool| std::cmp::Reverse(uses(&tool.spec.name)));
    built_in
}

/// Declares a tool on one line.
fn declaration(tool: &RegisteredTool) -> String {
    let line = compact_signature(tool, MAX_SIGNATURE_CHARS);
    let sentence = tool.spec.summary().split('.').next();
    let sentence = sentence.unwrap_or_default().trim();
    let summary: String = sentence.chars().take(80).collect();
    match summary.as_str() {
        "" => format!("{line}\n"),
        summary => format!("{line} // {summary}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_tools::tool;

    fn registry(servers: usize, tools: usize) -> Registry {
        let mut registry = Registry::new();
        registry
            .register(tool("read_file", "Reads a file.", |(): ()| async {
                Ok(())
            }))
            .unwrap();
        for server in 0..servers {
            for number in 0..tools {
                let name = format!("mcp.server{server}.do_something_{number}");
                registry
                    .register(tool(&name, "Does something. And more.", |(): ()| async {
                        Ok(())
                    }))
                    .unwrap();
            }
        }
        registry
    }

    #[test]
    fn all_tools_are_declared_if_they_fit() {
        let text = script_tool_description(&registry(1, 2), 2000, |_| 0);
        assert!(
            text.contains("readFile(") && text.contains("mcp.server0.doSomething1("),
            "{text}"
        );
        assert!(!text.contains("tools.search` finds the others"));
    }

    #[test]
    fn used_tools_come_first_and_every_server_is_named() {
        let text = script_tool_description(&registry(10, 50), 1500, |name| {
            u64::from(name == "mcp.server7.do_something_33")
        });
        assert!(text.len() <= 1500 * MIN_BYTES_PER_TOKEN, "{}", text.len());
        assert!(
            text.contains("mcp.server7.doSomething33(") && text.contains("of 501"),
            "{text}"
        );
        assert!(
            (0..10).all(|server| text.contains(&format!("mcp.server{server}."))),
            "{text}"
        );
        assert!(text.contains("server9 (50)"), "{text}");
    }

    #[test]
    fn a_budget_too_small_for_declarations_still_gives_the_instructions() {
        let text = script_tool_description(&registry(100, 20), 100, |_| 0);
        assert!(
            text.starts_with(INSTRUCTIONS) && text.contains("40 more"),
            "{text}"
        );
    }
}
