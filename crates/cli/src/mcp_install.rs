//! `selvedge mcp install`: the line an agent's configuration needs.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::Exit;
use crate::mcp_args::{Client, InstallArgs};
use crate::out::line;
use crate::problem::Problem;

pub(crate) fn install(args: InstallArgs) -> Result<Exit> {
    let command = std::env::current_exe()
        .ok()
        .and_then(|path| path.to_str().map(str::to_owned));
    let command = command.unwrap_or_else(|| "selvedge".to_owned());
    let mut words = vec!["mcp".to_owned(), "serve".to_owned()];
    words.extend(args.args.iter().cloned());
    let place = place(args.client)?;
    let before = std::fs::read_to_string(&place).unwrap_or_default();
    let after = match args.client {
        Client::Codex => in_toml(&place, &before, &command, &words)?,
        client => {
            let (key, entry) = entry(client, &command, &words);
            in_json(&place, &before, key, entry)?
        }
    };
    if !args.write {
        tell!(
            "this belongs into {} (--write puts it there):",
            place.display()
        );
        line(snippet(args.client, &command, &words).trim_end())?;
        return Ok(Exit::Done);
    }
    if before == after {
        line(&format!("{} has it already", place.display()))?;
        return Ok(Exit::Done);
    }
    write(&place, &after).map_err(|error| {
        Problem::new(format!("cannot write {}: {error}", place.display()))
            .hint("leave out --write to see what belongs there")
    })?;
    line(&format!("wrote {}", place.display()))?;
    Ok(Exit::Done)
}

fn place(client: Client) -> Result<PathBuf> {
    Ok(match client {
        Client::ClaudeCode => PathBuf::from(".mcp.json"),
        Client::Cursor => PathBuf::from(".cursor/mcp.json"),
        Client::Vscode => PathBuf::from(".vscode/mcp.json"),
        Client::Codex => {
            let home = std::env::var_os("CODEX_HOME").map(PathBuf::from);
            let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".codex")));
            let home =
                home.ok_or_else(|| Problem::new("there is no home folder").hint("set CODEX_HOME"))?;
            home.join("config.toml")
        }
    })
}

/// The key of the servers in a JSON file, and what is below it.
fn entry(client: Client, command: &str, words: &[String]) -> (&'static str, Value) {
    match client {
        Client::Vscode => (
            "servers",
            json!({"command": command, "args": words, "type": "stdio"}),
        ),
        _ => ("mcpServers", json!({"command": command, "args": words})),
    }
}

/// What is printed: the part that is new.
fn snippet(client: Client, command: &str, words: &[String]) -> String {
    if client == Client::Codex {
        return section(command, words);
    }
    let (key, entry) = entry(client, command, words);
    serde_json::to_string_pretty(&json!({key: {"selvedge": entry}})).unwrap_or_default()
}

fn section(command: &str, words: &[String]) -> String {
    // A JSON string is a TOML string.
    format!(
        "[mcp_servers.selvedge]\ncommand = {}\nargs = {}\n",
        json!(command),
        json!(words)
    )
}

fn in_json(place: &Path, before: &str, key: &str, entry: Value) -> Result<String> {
    let mut file: Value = match before.trim() {
        "" => Value::Object(Map::new()),
        text => serde_json::from_str(text).map_err(|error| {
            Problem::new(format!("{} cannot be read: {error}", place.display()))
                .hint("add the printed part by hand")
        })?,
    };
    if !file.is_object() || !(file[key].is_object() || file[key].is_null()) {
        let problem = Problem::new(format!("{} has no place for servers", place.display()));
        return Err(problem.hint("add the printed part by hand").into());
    }
    if file[key]["selvedge"] == entry {
        return Ok(before.to_owned());
    }
    file[key]["selvedge"] = entry;
    Ok(format!("{}\n", serde_json::to_string_pretty(&file)?))
}

/// The file with our section in the place of an older one, everything else as it was.
fn in_toml(place: &Path, before: &str, command: &str, words: &[String]) -> Result<String> {
    let ours = section(command, words);
    let is_ours = |line: &str| {
        line.trim() == "[mcp_servers.selvedge]" || line.trim().starts_with("[mcp_servers.selvedge.")
    };
    let mut kept = Vec::new();
    let mut skipping = false;
    for text in before.lines() {
        if text.trim_start().starts_with('[') {
            skipping = is_ours(text);
        }
        if !skipping {
            kept.push(text);
        }
    }
    if before.contains(&ours) {
        return Ok(before.to_owned());
    }
    if before.contains("mcp_servers")
        && before.contains("selvedge")
        && !before.contains("[mcp_servers.selvedge")
    {
        let problem = Problem::new(format!(
            "{} names the server in a way that is not understood",
            place.display()
        ));
        return Err(problem.hint("add the printed part by hand").into());
    }
    let rest = kept.join("\n");
    Ok(match rest.trim_end() {
        "" => ours,
        rest => format!("{rest}\n\n{ours}"),
    })
}

/// Whole or not at all.
fn write(place: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = place
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        std::fs::create_dir_all(folder)?;
    }
    let mut new = place.as_os_str().to_owned();
    new.push(".new");
    std::fs::write(&new, text)?;
    std::fs::rename(new, place)
}
