//! Finds the tools of a pack, and describes what is wrong with its name.

use selvedge_config::Config;
use selvedge_toolbox::{PackError, PackSelection, ToolPacks};

use crate::problem::Problem;

/// Returns the tools of a pack.
pub(crate) fn resolve_pack(config: &Config, name: &str) -> Result<PackSelection, Problem> {
    let packs = ToolPacks::with_custom(config.tool_packs.clone());
    packs.resolve(name).map_err(|error| {
        let hint = match &error {
            PackError::Unknown { similar: near, .. } if !near.is_empty() => {
                let near = near.iter().map(|name| format!("`{name}`"));
                format!("did you mean {}?", near.collect::<Vec<_>>().join(" or "))
            }
            _ => {
                let names: Vec<&str> = packs.names().into_iter().collect();
                format!("use one of {}", names.join(", "))
            }
        };
        Problem::new(error.to_string()).hint(hint)
    })
}
