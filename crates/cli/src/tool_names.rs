//! Checks the names of tools in the configuration.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use selvedge_agent::SubAgents;
use selvedge_toolbox::command_tasks;
use selvedge_tools::{Registry, similar_names};

use crate::memory_setup::memory_specs;
use crate::setup::CliSetup;

/// Tools that `mcp` and the journal add, and that no registry here has.
const OTHER_TOOLS: [&str; 2] = ["search", "recall"];

/// Prints a warning for each name in `tool_packs`, `script_harness.expose.tools` and
/// `tool_timeouts_ms` that no tool has. Only the first call in a process prints. Tools of MCP
/// servers are not checked: their names are known only when the servers run.
pub(crate) fn warn_of_unknown_tools(setup: &CliSetup) -> Result<()> {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let names = configured_names(setup);
    if names.is_empty() || WARNED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let known = known_names(setup)?;
    for (key, name) in names {
        let is_pattern = name.ends_with('*');
        let is_server_tool = name.starts_with("mcp") || name.contains("_mcp_");
        if is_pattern || is_server_tool || known.contains(&name) {
            continue;
        }
        let path: Vec<&str> = key.iter().map(String::as_str).collect();
        let (home, project) = (setup.home.as_deref(), setup.project.as_ref());
        let place = selvedge_config::place_of_key(home, project, &path);
        let place = place.map(|place| format!("{place}: ")).unwrap_or_default();
        // A name is suggested in the spelling in which it was probably meant.
        let is_other_spelling = |known: &&String| match name.contains('_') {
            true => known.contains(char::is_uppercase),
            false => known.contains('_'),
        };
        let near = known.iter().filter(|known| !is_other_spelling(known));
        let near = similar_names(&name, near.map(String::as_str));
        let near = near.first().map(|near| format!("; did you mean `{near}`?"));
        eprint_line!(
            "warning: {place}there is no tool `{name}`{}",
            near.unwrap_or_default()
        );
    }
    Ok(())
}

/// Returns the names of tools in the configuration, each with the path of its key.
fn configured_names(setup: &CliSetup) -> Vec<(Vec<String>, String)> {
    let path = |names: &[&str]| -> Vec<String> { names.iter().map(|&name| name.into()).collect() };
    let mut names = Vec::new();
    for (pack, settings) in &setup.config.tool_packs {
        for (key, tools) in [("tools", &settings.tools), ("without", &settings.without)] {
            let key = path(&["tool_packs", pack, key]);
            names.extend(tools.iter().map(|tool| (key.clone(), tool.clone())));
        }
    }
    let harness = &setup.config.script_harness;
    for tool in harness.expose.tools.iter().flatten() {
        let key = path(&["script_harness", "expose", "tools"]);
        names.push((key, tool.clone()));
    }
    for tool in harness.limits.tool_timeouts_ms.keys() {
        let key = path(&["script_harness", "limits", "tool_timeouts_ms", tool]);
        names.push((key, tool.clone()));
    }
    names
}

/// Returns the names of all tools that can exist, in both spellings.
fn known_names(setup: &CliSetup) -> Result<Vec<String>> {
    let mut all = Registry::new();
    let mut toolbox = setup.toolbox.clone();
    toolbox.offer_http = true;
    toolbox.register(&mut all)?;
    SubAgents::default().register(&mut all)?;
    command_tasks().register(&mut all)?;
    let of_memory = memory_specs();
    let specs = all.iter().map(|tool| &*tool.spec).chain(&of_memory);
    let names = specs.flat_map(|spec| [spec.name.clone(), spec.js_name.clone()]);
    Ok(names.chain(OTHER_TOOLS.map(str::to_owned)).collect())
}
