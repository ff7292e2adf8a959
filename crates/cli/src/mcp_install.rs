//! `selvedge mcp install`: adds `selvedge mcp serve` to the configuration of an agent.

use std::path::{Path, PathBuf};

use anyhow::Result;
use selvedge_files::{CredentialFiles, ProjectFiles};
use serde_json::{Map, Value, json};
use toml_edit::{Array, DocumentMut, TomlError, Value as TomlValue};

use crate::CliStatus;
use crate::config_edit::set_value;
use crate::json_comments;
use crate::mcp_args::{InstallClient, McpInstallArgs};
use crate::output::{print_line, print_text};
use crate::private_file::replace_file;
use crate::problem::Problem;
use crate::setup::working_directory;

/// Largest configuration of a client that is changed, in bytes.
const MAX_CLIENT_CONFIG_BYTES: usize = 16 << 20;

/// Hint for a file that cannot be changed safely.
const EDIT_BY_HAND_HINT: &str =
    "run the command without --write, and add the printed lines by hand";

pub(crate) fn install(args: McpInstallArgs) -> Result<CliStatus> {
    let command = std::env::current_exe()
        .ok()
        .and_then(|path| path.to_str().map(str::to_owned));
    let command = command.unwrap_or_else(|| "selvedge".to_owned());
    let mut serve_args = vec!["mcp".to_owned(), "serve".to_owned()];
    // A desktop program has no folder of a project.
    if args.client == InstallClient::ClaudeDesktop {
        let folder = working_directory(None)?.display().to_string();
        serve_args.extend(["-C".to_owned(), folder]);
    }
    serve_args.extend(args.args.iter().cloned());
    let location = client_config_location(args.client)?;
    let path = location.path();
    if !args.write {
        eprint_line!(
            "add this to {}, or pass --write to write it:",
            path.display()
        );
        print_text(snippet(args.client, &command, &serve_args).trim_end())?;
        return Ok(CliStatus::Success);
    }
    let before = read_client_config(&location)?;
    let after = match args.client {
        InstallClient::Codex => insert_toml(path, &before, &command, &serve_args)?,
        client => {
            let (key, entry) = json_entry(client, &command, &serve_args);
            insert_json(path, &before, key, entry)?
        }
    };
    if before == after {
        print_line(&format!("{} is up to date", path.display()))?;
        return Ok(CliStatus::Success);
    }
    write_client_config(&location, &after).map_err(|error| {
        Problem::new(format!("cannot write {}: {error}", path.display())).hint(EDIT_BY_HAND_HINT)
    })?;
    print_line(&format!("wrote {}", path.display()))?;
    Ok(CliStatus::Success)
}

/// The file that configures a client.
enum ClientConfigLocation {
    /// A file of the project in the current folder.
    Project(PathBuf),
    /// A file of the user.
    User(PathBuf),
}

impl ClientConfigLocation {
    fn path(&self) -> &Path {
        match self {
            Self::Project(path) | Self::User(path) => path,
        }
    }
}

/// Reads the configuration of a client. The file of a project must not be a link to a place outside
/// of the project, because its text is written back into the project.
fn read_client_config(location: &ClientConfigLocation) -> Result<String> {
    let text = match location {
        ClientConfigLocation::User(path) => {
            selvedge_files::read_user_text(path, MAX_CLIENT_CONFIG_BYTES)
        }
        ClientConfigLocation::Project(path) => {
            ProjectFiles::of_folder(Path::new("."), CredentialFiles::default())
                .read_text(path, MAX_CLIENT_CONFIG_BYTES)
        }
    };
    let text = text.map_err(|refusal| Problem::new(refusal.to_string()).hint(EDIT_BY_HAND_HINT))?;
    Ok(text.unwrap_or_default())
}

fn client_config_location(client: InstallClient) -> Result<ClientConfigLocation> {
    const CLINE_SETTINGS: &str =
        "Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json";
    let in_project = |path: &str| Ok(ClientConfigLocation::Project(path.into()));
    let path = match client {
        InstallClient::ClaudeCode => return in_project(".mcp.json"),
        InstallClient::Cursor => return in_project(".cursor/mcp.json"),
        InstallClient::GeminiCli => return in_project(".gemini/settings.json"),
        InstallClient::Vscode => return in_project(".vscode/mcp.json"),
        InstallClient::ClaudeDesktop => {
            application_folder()?.join("Claude/claude_desktop_config.json")
        }
        InstallClient::Cline => application_folder()?.join(CLINE_SETTINGS),
        InstallClient::Codex => match std::env::var_os("CODEX_HOME") {
            Some(home) => PathBuf::from(home).join("config.toml"),
            None => home_folder()?.join(".codex/config.toml"),
        },
        InstallClient::Windsurf => home_folder()?.join(".codeium/windsurf/mcp_config.json"),
        InstallClient::Zed if cfg!(target_os = "macos") => {
            home_folder()?.join(".config/zed/settings.json")
        }
        InstallClient::Zed => application_folder()?.join("zed/settings.json"),
    };
    Ok(ClientConfigLocation::User(path))
}

fn home_folder() -> Result<PathBuf> {
    let home = std::env::home_dir();
    home.ok_or_else(|| {
        Problem::new("cannot find the home folder")
            .hint("set HOME")
            .into()
    })
}

/// Returns the folder in which programs keep the settings of the user.
fn application_folder() -> Result<PathBuf> {
    let (variable, default) = match std::env::consts::OS {
        "macos" => (None, "Library/Application Support"),
        "windows" => (std::env::var_os("APPDATA"), "AppData/Roaming"),
        _ => (std::env::var_os("XDG_CONFIG_HOME"), ".config"),
    };
    match variable.filter(|folder| Path::new(folder).is_absolute()) {
        Some(folder) => Ok(folder.into()),
        None => Ok(home_folder()?.join(default)),
    }
}

/// Returns the key of the servers in a JSON file, and the entry for Selvedge.
fn json_entry(
    client: InstallClient,
    command: &str,
    serve_args: &[String],
) -> (&'static str, Value) {
    match client {
        InstallClient::Vscode => (
            "servers",
            json!({"command": command, "args": serve_args, "type": "stdio"}),
        ),
        InstallClient::Zed => (
            "context_servers",
            json!({"source": "custom", "command": command, "args": serve_args, "env": {}}),
        ),
        _ => (
            "mcpServers",
            json!({"command": command, "args": serve_args}),
        ),
    }
}

/// Returns the text to add, for printing.
fn snippet(client: InstallClient, command: &str, serve_args: &[String]) -> String {
    if client == InstallClient::Codex {
        return insert_toml(Path::new("config.toml"), "", command, serve_args).unwrap_or_default();
    }
    let (key, entry) = json_entry(client, command, serve_args);
    serde_json::to_string_pretty(&json!({key: {"selvedge": entry}})).unwrap_or_default()
}

/// Returns the file with the entry added or replaced. Comments stay; in a file with comments, an
/// entry is not replaced.
fn insert_json(path: &Path, before: &str, key: &str, entry: Value) -> Result<String> {
    let cannot_parse = |error: serde_json::Error| {
        Problem::new(format!("cannot parse {}: {error}", path.display())).hint(EDIT_BY_HAND_HINT)
    };
    let plain = match before.trim() {
        "" => Ok(Value::Object(Map::new())),
        text => serde_json::from_str(text),
    };
    let has_comments = plain.is_err();
    let mut file = match plain {
        Ok(file) => file,
        Err(error) => json_comments::parse(before).map_err(|_| cannot_parse(error))?,
    };
    if !file.is_object() || !(file[key].is_object() || file[key].is_null()) {
        let problem = Problem::new(format!("`{key}` in {} is not an object", path.display()));
        return Err(problem.hint(EDIT_BY_HAND_HINT).into());
    }
    if file[key]["selvedge"] == entry {
        return Ok(before.to_owned());
    }
    if has_comments {
        let after = json_comments::with_member(before, key, "selvedge", &entry);
        return after.ok_or_else(|| {
            let text = "has comments and another entry for selvedge";
            Problem::new(format!("{} {text}", path.display()))
                .hint(EDIT_BY_HAND_HINT)
                .into()
        });
    }
    file[key]["selvedge"] = entry;
    Ok(format!("{}\n", serde_json::to_string_pretty(&file)?))
}

/// Returns the file with the command in Selvedge's section, and everything else unchanged.
fn insert_toml(path: &Path, before: &str, command: &str, serve_args: &[String]) -> Result<String> {
    let refused =
        |text: String| Problem::new(format!("{}: {text}", path.display())).hint(EDIT_BY_HAND_HINT);
    let mut document: DocumentMut = before
        .parse()
        .map_err(|error: TomlError| refused(format!("cannot parse: {}", error.message())))?;
    let args = Array::from_iter(serve_args.iter().map(String::as_str));
    for (key, value) in [("command", command.into()), ("args", TomlValue::from(args))] {
        set_value(&mut document, &["mcp_servers", "selvedge", key], value)
            .map_err(|error| refused(error.to_string()))?;
    }
    // An address would be another server.
    if let Some(entry) = document["mcp_servers"]["selvedge"].as_table_like_mut() {
        entry.remove("url");
    }
    Ok(document.to_string())
}

/// Replaces the file atomically, and creates its folder if it is missing. The folder of a project's
/// file must not be a link to a place outside of the project. A file of the user may be a link to
/// a file in another folder.
fn write_client_config(location: &ClientConfigLocation, text: &str) -> std::io::Result<()> {
    let path = location.path();
    let folder = path.parent();
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)?;
    }
    match location {
        ClientConfigLocation::Project(path) => {
            let folder = folder.unwrap_or(Path::new(".")).canonicalize()?;
            if !folder.starts_with(Path::new(".").canonicalize()?) {
                let message = format!("{} is outside of the project", folder.display());
                return Err(std::io::Error::other(message));
            }
            replace_file(path, text)
        }
        ClientConfigLocation::User(path) => {
            let target = path.canonicalize().unwrap_or_else(|_| path.clone());
            replace_file(&target, text)
        }
    }
}
