//! `selvedge mcp add`, `remove` and `get`: the MCP servers in the user's `config.toml`.

use anyhow::Result;
use toml_edit::{Array, InlineTable, Value};

use crate::CliStatus;
use crate::config_edit::ConfigEdit;
use crate::mcp_args::{McpAddArgs, McpNameArgs};
use crate::output::{print_json_text, print_line};
use crate::problem::Problem;
use crate::setup::load_user_configuration;

pub(crate) fn add(args: &McpAddArgs) -> Result<CliStatus> {
    let name = args.name.as_str();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(Problem::new(format!("`{name}` is not a name of a server"))
            .hint("use letters, digits, - and _")
            .into());
    }
    let mut edit = ConfigEdit::open()?;
    let is_known = user_servers()?.contains_key(name);
    if is_known && !args.force {
        return Err(
            Problem::new(format!("server `{name}` is configured already"))
                .hint("pass --force to replace it")
                .into(),
        );
    }
    edit.remove(&["mcp_servers", name]);
    let mut set = |key: &str, value: Value| edit.set(&["mcp_servers", name, key], value);
    match (&args.url, args.command.split_first()) {
        (Some(url), None) => {
            set("url", Value::from(url))?;
            if let Some(variable) = &args.bearer_token_env_var {
                set("bearer_token_env_var", Value::from(variable))?;
            }
        }
        (None, Some((program, rest))) => {
            set("command", Value::from(program))?;
            if !rest.is_empty() {
                set("args", Value::Array(rest.iter().collect::<Array>()))?;
            }
            let mut variables = InlineTable::new();
            for pair in &args.env {
                let (variable, value) = pair.split_once('=').ok_or_else(|| {
                    Problem::new(format!("`{pair}` is not a variable with a value"))
                        .hint("pass --env NAME=VALUE")
                })?;
                variables.insert(variable, Value::from(value));
            }
            if !variables.is_empty() {
                set("env", Value::InlineTable(variables))?;
            }
        }
        _ => {
            return Err(Problem::new("a server needs a command or a URL")
                .hint(format!(
                    "run `selvedge mcp add {name} -- PROGRAM ARGS`, or `selvedge mcp add {name} \
                     --url URL`"
                ))
                .into());
        }
    }
    edit.save()?;
    let verb = if is_known { "replaced" } else { "added" };
    print_line(&format!("{verb} {name} in {}", edit.path().display()))?;
    eprint_line!("hint: run `selvedge mcp list` to start it and list its tools");
    Ok(CliStatus::Success)
}

pub(crate) fn remove(args: &McpNameArgs) -> Result<CliStatus> {
    let mut edit = ConfigEdit::open()?;
    if !edit.remove(&["mcp_servers", &args.name]) {
        return Err(unknown_server(&args.name));
    }
    edit.save()?;
    print_line(&format!(
        "removed {} from {}",
        args.name,
        edit.path().display()
    ))?;
    Ok(CliStatus::Success)
}

/// Prints the settings of a server. Values of variables and headers may be secrets, and are hidden.
pub(crate) fn get(args: &McpNameArgs) -> Result<CliStatus> {
    let mut servers = user_servers()?;
    let Some(mut server) = servers.remove(&args.name) else {
        return Err(unknown_server(&args.name));
    };
    for value in server
        .env
        .values_mut()
        .chain(server.http_headers.values_mut())
    {
        *value = "***".to_owned();
    }
    let mut shown = serde_json::to_value(server)?;
    if let Some(fields) = shown.as_object_mut() {
        fields.retain(|_, value| {
            !value.is_null()
                && value.as_array().is_none_or(|list| !list.is_empty())
                && value.as_object().is_none_or(|table| !table.is_empty())
        });
    }
    print_json_text(&serde_json::to_string_pretty(&shown)?)?;
    Ok(CliStatus::Success)
}

fn user_servers() -> Result<std::collections::BTreeMap<String, selvedge_config::McpServer>> {
    let home = selvedge_config::home();
    let servers = load_user_configuration(home.as_deref())?.mcp_servers;
    Ok(servers.into_iter().collect())
}

fn unknown_server(name: &str) -> anyhow::Error {
    Problem::new(format!("config.toml has no server `{name}`"))
        .hint("run `selvedge mcp list` to list the servers")
        .into()
}
