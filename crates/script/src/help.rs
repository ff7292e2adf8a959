//! The text of `help()`.

use std::collections::BTreeMap;

use selvedge_tools::{Registered, Registry};

/// Tools that `help()` names one by one; of more, only how many each server has.
const MAX_LISTED: usize = 100;

/// The MCP server a tool belongs to.
pub(crate) fn server_of(tool: &Registered) -> Option<&str> {
    tool.spec.js_name.strip_prefix("mcp.")?.split('.').next()
}

/// What `help()` says: how a script is written, and which tools there are.
pub fn overview(registry: &Registry) -> String {
    let mut text = String::from(HELP);
    let mut servers: BTreeMap<&str, usize> = BTreeMap::new();
    for tool in registry.iter() {
        let name = &tool.spec.js_name;
        if let Some(server) = server_of(tool)
            && registry.len() > MAX_LISTED
        {
            *servers.entry(server).or_default() += 1;
            continue;
        }
        let first = tool.spec.description.lines().next().unwrap_or_default();
        text.push_str(&format!("  tools.{name}  {first}\n"));
    }
    for (server, tools) in servers {
        text.push_str(&format!(
            "  tools.mcp.{server}  {tools} tools: help(\"mcp.{server}\"), or tools.search(\"what it should do\")\n"
        ));
    }
    if registry.is_empty() {
        text.push_str("  (no tools are registered)\n");
    }
    text
}

const HELP: &str = "\
A script is TypeScript with top-level await; `return value` gives a value back.
  await tools.name({...})                 call a tool; help(\"name\") shows its types
  await Promise.all([...])                several at once; four run at a time
  text(v), image(v)                       show something besides the returned value
  console.log(v)                          leave a note
  store(key, v), load(key)                keep a value for later scripts of the session
  await recall(id, {offset, limit})       what an earlier run or call returned
  context                                 ids, working directory, limits
  exit()                                  stop here, successfully
Results are frozen: copy before changing ({...x}, [...list], toSorted()).
Tools:
";
