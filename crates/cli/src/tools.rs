//! `selvedge tools`: lists the tools that scripts can call.

use anyhow::Result;
use selvedge_mcp::ServerRequestHandlers;

use crate::CliStatus;
use crate::args::ToolsArgs;
use crate::output::{print_json_text, print_line, print_text};
use crate::setup::CliSetup;

pub(crate) fn tools(args: ToolsArgs) -> Result<CliStatus> {
    let setup = CliSetup::new(&args.workspace)?.with_journal_if_possible(&args.workspace);
    let servers = setup.servers(ServerRequestHandlers::default())?;
    let tools = setup.built_in_tools()?;
    let registry = crate::run::runtime()?.block_on(async {
        servers.ensure_all_catalogues().await;
        let registry = servers.script_registry(&tools);
        servers.stop().await;
        registry
    });
    if args.json {
        let specs: Vec<_> = registry.iter().map(|tool| &tool.spec).collect();
        print_json_text(&serde_json::to_string_pretty(&specs)?)?;
    } else if args.ts {
        print_text(selvedge_script::script_declarations(&registry).trim_end())?;
    } else {
        let width = registry
            .iter()
            .map(|tool| tool.spec.js_name.len())
            .max()
            .unwrap_or(0);
        for tool in registry.iter() {
            let first = tool.spec.description.lines().next().unwrap_or_default();
            print_line(&format!("tools.{:width$}  {first}", tool.spec.js_name))?;
        }
        if registry.is_empty() {
            eprint_line!("note: no tools are registered");
        }
    }
    Ok(CliStatus::Success)
}
