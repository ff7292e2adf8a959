//! MCP servers from a project's `.mcp.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use selvedge_protocol::McpServerOptions;
use serde_json::Value;

use crate::{ConfigError, McpServer, PROJECT_FILES, Project};

/// Returns the servers of a project's `.mcp.json`.
///
/// `${NAME}` and `${NAME:-default}` are replaced by the environment variable that `variable`
/// returns. If a variable is not set, the server has its name in [`McpServer::missing_variable`];
/// other servers are not affected.
pub fn project_servers(
    project: &Project,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<BTreeMap<String, McpServer>, ConfigError> {
    let path = project.folder.join(PROJECT_FILES[1]);
    let invalid = |message: String| ConfigError::Invalid {
        path: path.clone(),
        message,
    };
    let Some(text) = &project.servers else {
        return Ok(BTreeMap::new());
    };
    let file: Value = serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
    let mut servers = BTreeMap::new();
    for (name, entry) in file["mcpServers"].as_object().into_iter().flatten() {
        let (entry, missing) = match expand_value(entry.clone(), &variable) {
            Ok(entry) => (entry, None),
            Err(missing) => (entry.clone(), Some(missing)),
        };
        let server = parse_server(name, &entry).map_err(invalid)?;
        let server = McpServer {
            missing_variable: missing,
            ..server
        };
        servers.insert(name.clone(), server);
    }
    Ok(servers)
}

/// Returns the servers of a project's `.mcp.json` as they are written, without replacing variables.
/// Invalid entries are omitted.
pub(crate) fn servers_as_written(text: &str) -> BTreeMap<String, McpServer> {
    let file: Value = serde_json::from_str(text).unwrap_or_default();
    let entries = file["mcpServers"].as_object().into_iter().flatten();
    entries
        .filter_map(|(name, entry)| Some((name.clone(), parse_server(name, entry).ok()?)))
        .collect()
}

/// Returns the names of the servers that a project's `.selvedge/config.toml` adds or changes.
pub fn servers_in_project_config(project: &Project) -> BTreeSet<String> {
    let config = project.config.as_deref().unwrap_or_default();
    // A file that cannot be parsed has no effect.
    let config: toml::Table = config.parse().unwrap_or_default();
    let servers = config.get("mcp_servers").and_then(toml::Value::as_table);
    servers
        .into_iter()
        .flat_map(toml::Table::keys)
        .cloned()
        .collect()
}

/// Parses one entry of `mcpServers`. The error is one line for the user.
fn parse_server(name: &str, entry: &Value) -> Result<McpServer, String> {
    check_types(name, entry)?;
    let text = |field: &str| entry[field].as_str().map(str::to_owned);
    let pairs = |field: &str| {
        let pairs = entry[field].as_object().into_iter().flatten();
        pairs
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect()
    };
    let server = McpServer {
        command: text("command"),
        args: entry["args"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        env: pairs("env"),
        cwd: text("cwd").map(PathBuf::from),
        url: text("url"),
        http_headers: pairs("headers"),
        options: McpServerOptions {
            // Other programs that read the file use one key or the other.
            enabled: entry["disabled"] != Value::Bool(true)
                && entry["enabled"] != Value::Bool(false),
            ..McpServerOptions::default()
        },
        ..McpServer::default()
    };
    match (&server.command, &server.url) {
        (None, None) => Err(format!(
            "the server `{name}` has neither `command` nor `url`"
        )),
        (_, Some(_)) if entry["type"] == "sse" => Err(format!(
            "the server `{name}` uses the unsupported `sse` transport: use streamable HTTP"
        )),
        _ => Ok(server),
    }
}

/// Checks the types of the fields that an entry of `mcpServers` has.
fn check_types(name: &str, entry: &Value) -> Result<(), String> {
    let is_valid = |field: &str| match (field, &entry[field]) {
        (_, Value::Null) => true,
        ("command" | "cwd" | "url", value) => value.is_string(),
        ("args", Value::Array(items)) => items.iter().all(Value::is_string),
        ("env" | "headers", Value::Object(fields)) => fields.values().all(Value::is_string),
        _ => false,
    };
    for (field, expected) in [
        ("command", "a string"),
        ("cwd", "a string"),
        ("url", "a string"),
        ("args", "a list of strings"),
        ("env", "an object of strings"),
        ("headers", "an object of strings"),
    ] {
        if !is_valid(field) {
            return Err(format!("mcpServers.{name}.{field} must be {expected}"));
        }
    }
    Ok(())
}

/// Replaces `${NAME}` in every string of a value. The error is the name of a variable that is not
/// set.
fn expand_value(value: Value, variable: &impl Fn(&str) -> Option<String>) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) => Value::String(expand_text(&text, variable)?),
        Value::Array(items) => items
            .into_iter()
            .map(|item| expand_value(item, variable))
            .collect::<Result<Vec<_>, _>>()?
            .into(),
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .map(|(key, value)| Ok((key, expand_value(value, variable)?)))
                .collect::<Result<_, String>>()?,
        ),
        other => other,
    })
}

fn expand_text(text: &str, variable: &impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        out.push_str(before);
        let Some((inside, following)) = after.split_once('}') else {
            out.push_str("${");
            rest = after;
            continue;
        };
        let (name, default) = inside
            .split_once(":-")
            .map_or((inside, None), |(name, default)| (name, Some(default)));
        match variable(name).or_else(|| default.map(str::to_owned)) {
            Some(value) => out.push_str(&value),
            None => return Err(name.to_owned()),
        }
        rest = following;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BTreeMap<String, McpServer>, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(".mcp.json"), text).unwrap();
        let variable = |name: &str| (name == "TOKEN").then(|| "secret".to_owned());
        project_servers(&Project::in_folder(dir.path()), variable)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn servers_of_a_project_are_read() {
        let servers = read(
            r#"{"mcpServers": {
                "files": {
                    "command": "npx",
                    "args": ["-y", "${PACKAGE:-server-files}"],
                    "env": {"A": "${TOKEN}"}
                },
                "web": {
                    "type": "http",
                    "url": "https://example.com/mcp",
                    "headers": {"Authorization": "Bearer ${TOKEN}"}
                }
            }}"#,
        )
        .unwrap();
        assert_eq!(servers["files"].args, ["-y", "server-files"]);
        assert_eq!(servers["files"].env["A"], "secret");
        assert_eq!(
            servers["web"].http_headers["Authorization"],
            "Bearer secret"
        );
        assert_eq!(read("{}"), Ok(BTreeMap::new()));
        for (field, enabled) in [
            ("\"disabled\": true", false),
            ("\"enabled\": false", false),
            ("\"enabled\": true", true),
        ] {
            let servers = read(&format!(
                r#"{{"mcpServers": {{"x": {{"command": "x", {field}}}}}}}"#
            ))
            .unwrap();
            assert_eq!(servers["x"].options.enabled, enabled, "{field}");
        }
    }

    #[test]
    fn a_missing_variable_affects_only_its_server() {
        let servers = read(
            r#"{"mcpServers": {"x": {"command": "${NOT_SET}"}, "y": {"command": "${TOKEN}"}}}"#,
        )
        .unwrap();
        assert_eq!(
            (
                servers["x"].missing_variable.as_deref(),
                servers["y"].missing_variable.as_deref()
            ),
            (Some("NOT_SET"), None)
        );
    }

    #[test]
    fn invalid_entries_are_errors() {
        for (text, part) in [
            ("{", ".mcp.json"),
            (
                r#"{"mcpServers": {"x": {}}}"#,
                "neither `command` nor `url`",
            ),
            (
                r#"{"mcpServers": {"x": {"type": "sse", "url": "http://x"}}}"#,
                "unsupported `sse` transport",
            ),
            (
                r#"{"mcpServers": {"x": {"command": 5}}}"#,
                "mcpServers.x.command must be a string",
            ),
            (
                r#"{"mcpServers": {"x": {"command": "x", "args": "y"}}}"#,
                "mcpServers.x.args must be a list of strings",
            ),
            (
                r#"{"mcpServers": {"x": {"command": "x", "env": {"A": 1}}}}"#,
                "mcpServers.x.env must be an object of strings",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
