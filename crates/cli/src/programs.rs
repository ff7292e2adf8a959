//! Programs that Selvedge starts outside of the confinement: those of MCP servers, the editor and
//! the programs of the clipboard. Commands of agents must not be able to replace them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use selvedge_config::McpServer;
use selvedge_mcp::{ServerConfigError, ServerOrigin, ServerProgram};
use selvedge_protocol::SandboxPolicy;
use selvedge_toolbox::{FoundProgram, Workspace, find_program, safe_search_path, writable_place};

use crate::problem::Problem;

/// The workspaces of an agent server: agents write in all of them.
static SERVED_WORKSPACES: RwLock<BTreeSet<PathBuf>> = RwLock::new(BTreeSet::new());

/// Records a workspace of the agent server that this process is.
pub(crate) fn add_served_workspace(workspace: &Path) {
    let known = |served: &BTreeSet<PathBuf>| served.contains(workspace);
    if known(
        &SERVED_WORKSPACES
            .read()
            .unwrap_or_else(PoisonError::into_inner),
    ) {
        return;
    }
    let mut served = SERVED_WORKSPACES
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    served.insert(workspace.to_owned());
}

fn is_server() -> bool {
    let served = SERVED_WORKSPACES
        .read()
        .unwrap_or_else(PoisonError::into_inner);
    !served.is_empty()
}

/// Returns whether commands of agents may write to a path without links.
fn is_writable(workspace: &Workspace, path: &Path) -> bool {
    let served = SERVED_WORKSPACES
        .read()
        .unwrap_or_else(PoisonError::into_inner);
    // Without confinement commands can write everywhere, and nothing protects programs.
    let is_confined = workspace.policy() != SandboxPolicy::DangerFullAccess;
    is_confined && workspace.is_writable_by_commands(path)
        || served.iter().any(|folder| path.starts_with(folder))
}

/// Returns the program of a local MCP server, or why it is not started. A server of the project may
/// be a program of the workspace, because a person trusted the project, except in the agent server.
pub(crate) fn server_program(
    workspace: &Workspace,
    server: &McpServer,
    origin: ServerOrigin,
) -> Result<ServerProgram, ServerConfigError> {
    let Some(command) = &server.command else {
        return Ok(ServerProgram::Named);
    };
    let is_strict = origin == ServerOrigin::User || is_server();
    let may_write = |path: &Path| is_strict && is_writable(workspace, path);
    let configured = server.env.get("PATH").map(OsString::from);
    let inherited = || std::env::var_os("PATH").unwrap_or_default();
    let search_path = configured.clone().unwrap_or_else(inherited);
    let found = match is_path(command) {
        true => {
            let folder = server.cwd.as_deref().unwrap_or(workspace.root());
            let path = folder.join(command);
            // A person who names a file of the workspace means this file.
            match is_server()
                .then(|| writable_place(&path, &may_write))
                .flatten()
            {
                Some(place) if path.exists() => FoundProgram::Replaceable { path, place },
                _ => FoundProgram::Found(path),
            }
        }
        false => find_program(command, &search_path, &may_write),
    };
    match found {
        FoundProgram::Found(path) => Ok(ServerProgram::Found {
            path,
            search_path: match (is_strict, configured) {
                (true, None) => safe_search_path(&search_path, &may_write),
                _ => search_path,
            },
        }),
        FoundProgram::Missing => Ok(ServerProgram::Missing),
        FoundProgram::Replaceable { path, place } => Err(ServerConfigError {
            reason: replaceable_reason(&path, &place),
            hint: "set `command` to the full path of a program that commands cannot replace"
                .to_owned(),
        }),
    }
}

/// Returns the full path of a program that the chat starts.
pub(crate) fn chat_program(workspace: &Workspace, name: &str) -> Result<PathBuf, Problem> {
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    match find_program(name, &search_path, &|path| is_writable(workspace, path)) {
        FoundProgram::Found(path) => Ok(path),
        FoundProgram::Missing => Err(Problem::new(format!("{name} is not found"))),
        FoundProgram::Replaceable { path, place } => {
            Err(Problem::new(replaceable_reason(&path, &place)))
        }
    }
}

/// Returns the command line of an editor with the full path of its program. A command line that is
/// more than a name and arguments is returned as it is.
pub(crate) fn editor_command(workspace: &Workspace, editor: &str) -> Result<String, Problem> {
    let editor = editor.trim();
    let (name, arguments) = editor.split_once(' ').unwrap_or((editor, ""));
    let is_plain = |part: char| part.is_ascii_alphanumeric() || "-_+.".contains(part);
    if !name.chars().all(is_plain) {
        return Ok(editor.to_owned());
    }
    let path = chat_program(workspace, name)?.display().to_string();
    Ok(format!("'{}' {arguments}", path.replace('\'', "'\\''")))
}

fn is_path(command: &str) -> bool {
    command.contains(std::path::is_separator)
}

fn replaceable_reason(path: &Path, place: &Path) -> String {
    format!(
        "commands of agents could replace {}, because they can write to {}",
        path.display(),
        place.display()
    )
}
