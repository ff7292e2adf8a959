//! `selvedge config`: prints the schema and the paths of the configuration files, and prints and
//! sets keys.

use anyhow::Result;

use crate::CliStatus;
use crate::args::{ConfigCommand, ConfigGetArgs, ConfigSetArgs};
use crate::config_edit::{ConfigEdit, parse_value};
use crate::output::{print_json_text, print_line, print_text};
use crate::problem::Problem;
use crate::setup::{load_configuration, working_directory};

/// `schema` and `path` do not read the files, so that they work if the files are invalid.
pub(crate) fn config(command: ConfigCommand) -> Result<CliStatus> {
    match command {
        ConfigCommand::Schema => {
            print_json_text(&serde_json::to_string_pretty(&selvedge_config::schema())?)?
        }
        ConfigCommand::Get(args) => get(&args)?,
        ConfigCommand::Set(args) => set(&args)?,
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

fn get(args: &ConfigGetArgs) -> Result<()> {
    let config = load_configuration(&args.workspace)?.config;
    let config = serde_json::to_value(config)?;
    let path = format!("/{}", args.key.replace('.', "/"));
    match config.pointer(&path) {
        // The address of a database may have a password.
        Some(serde_json::Value::String(text)) if args.key == "store" => {
            print_text(&crate::runs::user_redactor()?.redact_text(text))?
        }
        Some(serde_json::Value::String(text)) => print_text(text)?,
        Some(serde_json::Value::Null) => print_line("not set")?,
        Some(value) => print_json_text(&serde_json::to_string_pretty(value)?)?,
        None => return Err(unknown_key(&args.key)),
    }
    Ok(())
}

fn set(args: &ConfigSetArgs) -> Result<()> {
    let key: Vec<&str> = args.key.split('.').collect();
    let mut edit = ConfigEdit::open()?;
    match &args.value {
        Some(value) => edit.set(&key, parse_value(value))?,
        None if edit.remove(&key) => {}
        None => return Err(unknown_key(&args.key)),
    }
    edit.save()?;
    print_line(&format!("wrote {}", edit.path().display()))?;
    Ok(())
}

fn unknown_key(key: &str) -> anyhow::Error {
    Problem::new(format!("the configuration has no key `{key}`"))
        .hint("run `selvedge config schema` for the keys")
        .into()
}
