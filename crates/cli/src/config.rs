//! `selvedge config`: prints the schema and the paths of the configuration files.

use anyhow::Result;

use crate::CliStatus;
use crate::args::ConfigCommand;
use crate::output::{print_json_text, print_line};
use crate::setup::working_directory;

/// Does not read the configuration files, so that it works if they are invalid.
pub(crate) fn config(command: ConfigCommand) -> Result<CliStatus> {
    match command {
        ConfigCommand::Schema => {
            print_json_text(&serde_json::to_string_pretty(&selvedge_config::schema())?)?
        }
        ConfigCommand::Path(args) => {
            let project = working_directory(args.directory.as_deref())?;
            let user = selvedge_config::home().map(|home| home.join("config.toml"));
            for file in user
                .into_iter()
                .chain([project.join(selvedge_config::PROJECT_FILES[0])])
            {
                let missing = if file.exists() { "" } else { " (not found)" };
                print_line(&format!("{}{missing}", file.display()))?;
            }
        }
    }
    Ok(CliStatus::Success)
}
