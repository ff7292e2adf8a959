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
    let key = parse_key(&args.key)?;
    let value = key.iter().try_fold(&config, |table, name| table.get(name));
    match value {
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
    let key = parse_key(&args.key)?;
    let key: Vec<&str> = key.iter().map(String::as_str).collect();
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

/// Splits a key at its dots. A part with a dot is quoted as in the file: `models."gpt-4.1".prices`.
fn parse_key(text: &str) -> Result<Vec<String>> {
    let parts = toml_edit::Key::parse(text).map_err(|_| {
        Problem::new(format!("`{text}` is not a key"))
            .hint("separate the parts by dots, and quote a part with other characters")
    })?;
    Ok(parts.iter().map(|part| part.get().to_owned()).collect())
}

fn unknown_key(key: &str) -> anyhow::Error {
    Problem::new(format!("the configuration has no key `{key}`"))
        .hint("run `selvedge config schema` for the keys")
        .into()
}
