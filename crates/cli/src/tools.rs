//! `selvedge tools`: lists the tools that scripts can call.

use anyhow::Result;
use selvedge_mcp::Asked;
use selvedge_tools::declarations;

use crate::Exit;
use crate::args::ToolsArgs;
use crate::out::line;
use crate::setup::Setup;

pub(crate) fn tools(args: ToolsArgs) -> Result<Exit> {
    let setup = Setup::new(&args.place)?.with_journal_if_possible(&args.place);
    let servers = setup.servers(Asked::default())?;
    let tools = setup.all_tools()?;
    let registry = crate::run::runtime()?.block_on(async {
        servers.prepare_all().await;
        let registry = servers.onto(&tools);
        servers.stop().await;
        registry
    });
    if args.json {
        let specs: Vec<_> = registry.iter().map(|tool| &tool.spec).collect();
        line(&serde_json::to_string_pretty(&specs)?)?;
    } else if args.ts {
        line(format!("{}{}", declarations(&registry), *selvedge_script::GLOBALS).trim_end())?;
    } else {
        let width = registry
            .iter()
            .map(|tool| tool.spec.js_name.len())
            .max()
            .unwrap_or(0);
        for tool in registry.iter() {
            let first = tool.spec.description.lines().next().unwrap_or_default();
            line(&format!("tools.{:width$}  {first}", tool.spec.js_name))?;
        }
        if registry.is_empty() {
            tell!("note: no tools are registered");
        }
    }
    Ok(Exit::Done)
}
