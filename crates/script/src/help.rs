//! The text that `help()` returns without arguments.

use std::collections::BTreeMap;

use selvedge_tools::{RegisteredTool, Registry};

use crate::globals::server_globals;

/// Number of tools up to which all are listed. Beyond it, MCP servers are listed with the number of
/// their tools.
const MAX_LISTED_TOOLS: usize = 100;

/// Returns the MCP server that a tool belongs to.
pub(crate) fn mcp_server_of(tool: &RegisteredTool) -> Option<&str> {
    tool.spec.js_name.strip_prefix("mcp.")?.split('.').next()
}

/// Returns the text of `help()`: how scripts are written, and the list of tools.
pub fn help_overview(registry: &Registry) -> String {
    let mut text = String::from(HELP_INTRODUCTION);
    let mut servers: BTreeMap<&str, usize> = BTreeMap::new();
    for tool in registry.iter() {
        let name = &tool.spec.js_name;
        if let Some(server) = mcp_server_of(tool)
            && registry.len() > MAX_LISTED_TOOLS
        {
            *servers.entry(server).or_default() += 1;
            continue;
        }
        let first = tool.spec.description.lines().next().unwrap_or_default();
        text.push_str(&format!("  tools.{name}  {first}\n"));
    }
    for (server, tools) in servers {
        text.push_str(&format!(
            "  tools.mcp.{server}  {tools} tools: help(\"mcp.{server}\"), or \
             tools.search(\"what it should do\")\n"
        ));
    }
    let globals = server_globals(registry);
    if !globals.is_empty() {
        let shown = globals.iter().take(MAX_LISTED_TOOLS).cloned();
        text.push_str(&format!(
            "MCP servers are globals too, without tools.mcp: {}\n",
            shown.collect::<Vec<_>>().join(", ")
        ));
    }
    if registry.is_empty() {
        text.push_str("  (no tools are registered)\n");
    }
    text
}

const HELP_INTRODUCTION: &str = "\
A script is TypeScript with top-level await; `return value` returns a value.
  await tools.name({...})                 call a tool; help(\"name\") shows its types
  await tools.readFile(\"a.txt\")           the only required field can be given without its name
  await Promise.all([...])                make several calls; four run at a time
  text(v), image(v)                       show output besides the returned value
  console.log(v)                          write a log line
  store(key, v), load(key)                share values with later scripts of the session
  await recall(id, {offset, limit})       read what an earlier run or call returned
  context                                 ids, working directory, limits
  exit()                                  end the script successfully
Results are frozen: copy before changing ({...x}, [...list], toSorted()).
Tools:
";
