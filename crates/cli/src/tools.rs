//! `selvedge tools`: lists the tools that scripts can call, and where each is available.

use anyhow::Result;
use selvedge_agent::SubAgents;
use selvedge_mcp::ServerRequestHandlers;
use selvedge_protocol::ToolSpec;
use selvedge_toolbox::command_tasks;
use selvedge_tools::Registry;
use serde::Serialize;

use crate::CliStatus;
use crate::args::ToolsArgs;
use crate::memory_setup::memory_specs;
use crate::output::{print_json_text, print_line, print_text};
use crate::problem::Problem;
use crate::servers::{wait_for_servers, warn_of_start_failures};
use crate::setup::CliSetup;

/// Most columns to which the names of tools are padded.
const MAX_NAME_COLUMNS: usize = 60;

/// A tool as the list shows it.
#[derive(Debug, Serialize)]
struct ListedTool {
    #[serde(flatten)]
    spec: ToolSpec,
    available: ToolAvailability,
}

/// Where scripts can call a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ToolAvailability {
    /// In every script.
    Always,
    /// In the scripts of an agent: `selvedge exec` and the chat.
    AgentTurn,
    /// If `script_harness.expose.enable_spawn` is set.
    EnableSpawn,
    /// If `script_harness.expose.enable_http` is set.
    EnableHttp,
}

impl ToolAvailability {
    /// Returns the mark behind a tool in the list.
    fn mark(self) -> &'static str {
        match self {
            Self::Always => "",
            Self::AgentTurn => "  [in agent turns]",
            Self::EnableSpawn => "  [with script_harness.expose.enable_spawn]",
            Self::EnableHttp => "  [with script_harness.expose.enable_http]",
        }
    }
}

pub(crate) fn tools(args: ToolsArgs) -> Result<CliStatus> {
    let mut setup = CliSetup::new(&args.workspace)?.with_journal_if_possible(&args.workspace);
    let servers = setup.servers(ServerRequestHandlers::default())?;
    let tools = setup.built_in_tools()?;
    let (registry, failures) = crate::run::runtime()?.block_on(async {
        wait_for_servers(&servers, servers.ensure_all_catalogues()).await;
        let registry = servers.script_registry(&tools);
        let failures = servers.start_failures();
        servers.stop().await;
        (registry, failures)
    });
    let status = print_tools(&args, &registry, &mut setup)?;
    warn_of_start_failures(&failures);
    Ok(status)
}

fn print_tools(args: &ToolsArgs, registry: &Registry, setup: &mut CliSetup) -> Result<CliStatus> {
    if args.ts {
        print_text(selvedge_script::script_declarations(registry).trim_end())?;
        return Ok(CliStatus::Success);
    }
    let mut listed = all_tools(registry, setup)?;
    if let Some(name) = &args.name {
        listed = vec![find_tool(listed, name)?];
        if !args.json {
            return show_tool(&listed[0], registry);
        }
    }
    if args.json {
        print_json_text(&serde_json::to_string_pretty(&listed)?)?;
        return Ok(CliStatus::Success);
    }
    let name = |tool: &ListedTool| selvedge_script::callable_name(&tool.spec.js_name);
    let widths = listed.iter().map(|tool| name(tool).len());
    let width = widths.max().unwrap_or(0).min(MAX_NAME_COLUMNS);
    for tool in &listed {
        let (summary, mark) = (tool.spec.summary(), tool.available.mark());
        print_line(&format!("{:width$}  {summary}{mark}", name(tool)))?;
    }
    if listed.is_empty() {
        eprint_line!("note: no tools are registered");
    }
    Ok(CliStatus::Success)
}

/// Returns the tool of this name: `readFile`, `read_file` or `tools.readFile`.
fn find_tool(listed: Vec<ListedTool>, name: &str) -> Result<ListedTool> {
    let wanted = name.strip_prefix("tools.").unwrap_or(name);
    let names: Vec<String> = listed
        .iter()
        .map(|tool| tool.spec.js_name.clone())
        .collect();
    let is_wanted = |tool: &ListedTool| {
        tool.spec.name == wanted
            || tool.spec.js_name == wanted
            || selvedge_script::callable_name(&tool.spec.js_name) == name
    };
    let found = listed.into_iter().find(is_wanted);
    Ok(found.ok_or_else(|| {
        let similar = selvedge_tools::similar_names(wanted, names.iter().map(String::as_str));
        let problem = Problem::new(format!("there is no tool `{name}`"));
        match similar.first() {
            Some(similar) => problem.hint(format!("run `selvedge tools {similar}`")),
            None => problem.hint("run `selvedge tools` to list the tools"),
        }
    })?)
}

/// Prints the description and the types of a tool.
fn show_tool(tool: &ListedTool, registry: &Registry) -> Result<CliStatus> {
    let name = selvedge_script::callable_name(&tool.spec.js_name);
    print_line(&format!("{name}{}", tool.available.mark()))?;
    print_text(tool.spec.description.trim_end())?;
    print_text("")?;
    match registry.get(&tool.spec.name) {
        Some(registered) => print_text(selvedge_tools::signature(registered).trim_end())?,
        // A tool of other places has no types here.
        None => print_json_text(&serde_json::to_string_pretty(&tool.spec.input_schema)?)?,
    }
    Ok(CliStatus::Success)
}

/// Returns the tools of a registry, and those that exist only in other places or with other
/// settings, by name.
fn all_tools(registry: &Registry, setup: &mut CliSetup) -> Result<Vec<ListedTool>> {
    let mut in_turns = Registry::new();
    SubAgents::default().register(&mut in_turns)?;
    let mut tasks = Registry::new();
    command_tasks().register(&mut tasks)?;
    setup.toolbox.offer_http = true;
    let mut with_http = Registry::new();
    setup.toolbox.register(&mut with_http)?;

    let is_included = setup.tool_filter()?;
    let is_new = |spec: &ToolSpec| registry.get(&spec.name).is_none() && is_included(spec);
    let specs = |registry: &Registry| -> Vec<ToolSpec> {
        registry.iter().map(|tool| (*tool.spec).clone()).collect()
    };
    let mut listed = Vec::new();
    let mut add = |specs: Vec<ToolSpec>, available| {
        let tools = specs.into_iter();
        listed.extend(tools.map(|spec| ListedTool { spec, available }));
    };
    add(specs(registry), ToolAvailability::Always);
    for (mut others, available) in [
        (specs(&in_turns), ToolAvailability::AgentTurn),
        (memory_specs().into(), ToolAvailability::AgentTurn),
        (specs(&tasks), ToolAvailability::EnableSpawn),
        (specs(&with_http), ToolAvailability::EnableHttp),
    ] {
        others.retain(is_new);
        add(others, available);
    }
    listed.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
    Ok(listed)
}
