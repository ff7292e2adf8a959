//! The text that `help()` returns without arguments.

use std::collections::BTreeMap;

use selvedge_protocol::{CallReach, Limits};
use selvedge_tools::Registry;

use crate::globals::{callable_name, server_globals};

/// Number of tools up to which all are listed. Beyond it, MCP servers are listed with the number of
/// their tools.
const MAX_LISTED_TOOLS: usize = 100;

/// Returns the text of `help()`: how scripts are written, their limits, and the list of tools.
pub fn help_overview(registry: &Registry, limits: &Limits) -> String {
    let mut text = format!("{HELP_INTRODUCTION}{}Tools:\n", limits_text(limits));
    let mut servers: BTreeMap<&str, usize> = BTreeMap::new();
    for tool in registry.iter() {
        let name = callable_name(&tool.spec.js_name);
        if let Some(server) = tool.spec.mcp_server()
            && registry.len() > MAX_LISTED_TOOLS
        {
            *servers.entry(server).or_default() += 1;
            continue;
        }
        text.push_str(&format!("  {name}  {}\n", tool.spec.summary()));
    }
    for (server, tools) in servers {
        text.push_str(&format!(
            "  tools.mcp.{server}  {}: help(\"mcp.{server}\"), or \
             tools.search(\"what it should do\")\n",
            selvedge_text::count_noun(tools, "tool")
        ));
    }
    let globals = server_globals(registry);
    if !globals.is_empty() {
        let shown = globals.iter().take(MAX_LISTED_TOOLS).cloned();
        text.push_str(&format!(
            "These MCP servers are also globals, as in server.tool({{...}}): {}\n",
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
  await tools.readFile(\"a.txt\")           if only one field is required, its value can be passed alone
  await Promise.all([...])                make several calls side by side
  text(v), image(v)                       show output besides the returned value
  console.log(v)                          write a log line
  store(key, v), load(key)                share values with later scripts of the session
  await recall(id, {offset, limit})       read what an earlier run or call returned
  context                                 ids, working directory, limits
  exit()                                  end the script successfully
Results are frozen: copy before changing ({...x}, [...list], toSorted()).
";

/// Returns the limits of a script in a few short lines, for `help()` and prompts.
pub fn limits_text(limits: &Limits) -> String {
    let duration = |ms: u64| match ms {
        ms if ms >= 60_000 && ms % 60_000 == 0 => format!("{} min", ms / 60_000),
        ms if ms % 1000 == 0 => format!("{} s", ms / 1000),
        ms => format!("{ms} ms"),
    };
    let size = |bytes: usize| match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => {
            format!("{} MB", bytes >> 20)
        }
        bytes if bytes.is_multiple_of(1 << 10) => format!("{} KB", bytes >> 10),
        bytes => format!("{bytes} bytes"),
    };
    let of_call = |reach: CallReach| duration(reach.default_timeout().as_millis() as u64);
    format!(
        "\
Limits:
  time    {} for the script without its calls, {} in all; waiting for a person does not count
  a call  files {}, commands {} (timeoutMs), web {}, MCP {}, agents {}
  calls   {} that leave the process (commands, web, MCP, agents), {} others, {} at a time
  size    {} returned, {} shown (text, image, notify, logs), {} of memory, {} of source
",
        duration(limits.timeout_ms),
        duration(limits.max_timeout_ms),
        of_call(CallReach::Local),
        of_call(CallReach::Command),
        of_call(CallReach::Web),
        of_call(CallReach::Service),
        of_call(CallReach::Agent),
        limits.max_tool_calls,
        limits.max_file_calls,
        limits.max_concurrent_tool_calls,
        size(limits.max_return_bytes),
        size(limits.max_output_bytes),
        size((limits.memory_mb as usize) << 20),
        size(limits.max_source_bytes),
    )
}
