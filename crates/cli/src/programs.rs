//! Programs that Selvedge starts outside of the confinement: those of MCP servers, the editor and
//! the programs of the clipboard. Commands of agents must not be able to replace them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use selvedge_config::McpServer;
use selvedge_mcp::{ProgramFinder, ServerConfigError, ServerOrigin, ServerProgram};
use selvedge_protocol::{ApiToken, ApiTokenStore, SandboxPolicy, ServerStoreError, since_epoch};
use selvedge_toolbox::{FoundProgram, Workspace, find_program, safe_search_path, writable_place};

use crate::problem::Problem;
use crate::program_arguments::{UnsafeArgument, unsafe_argument};
use crate::workspace_folders::{RecordedBefore, record_workspaces};

/// How often the workspaces of tokens are read, besides before each turn, script and program.
const WORKSPACE_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The workspaces of the agent server that this process is; unset in other processes.
static SERVED: OnceLock<ServedWorkspaces> = OnceLock::new();

/// The workspaces of an agent server: agents write in all of them.
pub(crate) struct ServedWorkspaces {
    tokens: Arc<dyn ApiTokenStore>,
    /// The workspaces of all tokens that were valid since the server started.
    folders: RwLock<BTreeSet<PathBuf>>,
}

impl ServedWorkspaces {
    /// Makes this process an agent server with these tokens.
    pub(crate) fn serve(tokens: Arc<dyn ApiTokenStore>) -> &'static Self {
        SERVED.get_or_init(|| Self {
            tokens,
            folders: RwLock::default(),
        })
    }

    /// Returns the tokens that are valid now, and records their workspaces.
    pub(crate) async fn valid_tokens(&self) -> Result<Vec<ApiToken>, ServerStoreError> {
        let now = since_epoch().as_millis() as i64;
        let mut tokens = self.tokens.tokens().await?;
        tokens.retain(|token| token.is_valid_at(now));
        let workspaces = tokens.iter().flat_map(|token| &token.workspaces);
        workspaces.for_each(|workspace| self.add(Path::new(workspace)));
        Ok(tokens)
    }

    /// Records a workspace, and which folder it is unless that is known from before.
    fn add(&self, workspace: &Path) {
        if self.contains(|folder| folder == workspace) {
            return;
        }
        let one = std::iter::once(workspace);
        if let Err(error) = record_workspaces(one, RecordedBefore::Keep) {
            let error = format!("{error:#}");
            tracing::error!(error, "cannot record which folder a workspace is");
        }
        let mut folders = self.folders.write().unwrap_or_else(PoisonError::into_inner);
        folders.insert(workspace.to_owned());
    }

    fn contains(&self, is_wanted: impl Fn(&Path) -> bool) -> bool {
        let folders = self.folders.read().unwrap_or_else(PoisonError::into_inner);
        folders.iter().any(|folder| is_wanted(folder))
    }
}

/// Records a workspace of a valid token, if this process is an agent server.
pub(crate) fn add_served_workspace(workspace: &Path) {
    if let Some(served) = SERVED.get() {
        served.add(workspace);
    }
}

/// Reads the workspaces of all valid tokens, if this process is an agent server: a token that no
/// client has used yet counts as well.
pub(crate) async fn refresh_served_workspaces() -> Result<(), ServerStoreError> {
    if let Some(served) = SERVED.get() {
        served.valid_tokens().await?;
    }
    Ok(())
}

/// Reads the workspaces of valid tokens again and again, for turns that are running.
pub(crate) async fn watch_served_workspaces() {
    let mut was_read = true;
    loop {
        tokio::time::sleep(WORKSPACE_REFRESH_INTERVAL).await;
        let refreshed = refresh_served_workspaces().await;
        if let (true, Err(error)) = (was_read, &refreshed) {
            tracing::error!(%error, "cannot read the workspaces of the tokens");
        }
        was_read = refreshed.is_ok();
    }
}

/// Returns the workspaces of the agent server that this process is; none in other processes.
pub(crate) fn served_workspaces() -> Vec<PathBuf> {
    let folders = SERVED.get().map(|served| &served.folders);
    let folders = folders.map(|folders| folders.read().unwrap_or_else(PoisonError::into_inner));
    folders.map_or_else(Vec::new, |folders| folders.iter().cloned().collect())
}

/// Returns whether this process is an agent server.
pub(crate) fn is_server() -> bool {
    SERVED.get().is_some()
}

/// Returns whether commands of agents may write to a path without links.
fn is_writable(workspace: &Workspace, path: &Path) -> bool {
    // Without confinement commands can write everywhere, and nothing protects programs.
    let is_confined = workspace.policy() != SandboxPolicy::DangerFullAccess;
    let served = SERVED.get();
    is_confined && workspace.is_writable_by_commands(path)
        || served.is_some_and(|served| served.contains(|folder| path.starts_with(folder)))
}

/// Finds the program of a local MCP server.
#[derive(Debug)]
pub(crate) struct LocalServer {
    /// The workspace whose configuration has the server.
    pub(crate) workspace: Workspace,
    /// The settings of the server.
    pub(crate) server: McpServer,
    /// Where the server is configured.
    pub(crate) origin: ServerOrigin,
    /// What kind of folder `cwd` is.
    pub(crate) folder: ServerFolder,
}

/// The folder in which a local MCP server starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerFolder {
    /// The folder below SELVEDGE_HOME, which is private.
    Own,
    /// Another folder, which commands of agents may be able to write.
    Other,
}

#[async_trait]
impl ProgramFinder for LocalServer {
    async fn find(&self) -> Result<ServerProgram, ServerConfigError> {
        let refreshed = refresh_served_workspaces().await;
        refreshed.map_err(|error| ServerConfigError {
            reason: format!("cannot read where agents may write: {error}"),
            hint: "try again when the store can be read".to_owned(),
        })?;
        self.program()
    }
}

impl LocalServer {
    /// Returns the program, or why it is not started. A server of the project may be a program of
    /// the workspace and run there, because a person trusted the project, except in the agent
    /// server.
    pub(crate) fn program(&self) -> Result<ServerProgram, ServerConfigError> {
        let (workspace, server) = (&self.workspace, &self.server);
        let Some(command) = &server.command else {
            return Ok(ServerProgram::Missing);
        };
        let is_strict = self.origin == ServerOrigin::User || is_server();
        let may_write = |path: &Path| is_strict && is_writable(workspace, path);
        let folder = server.cwd.as_deref().unwrap_or(workspace.root());
        if is_server()
            && self.folder == ServerFolder::Other
            && let Some(place) = writable_place(folder, &may_write)
        {
            return Err(folder_error(folder, &place));
        }
        if is_server()
            && let Some(found) = unsafe_argument(server, folder, &may_write)
        {
            return Err(argument_error(&found));
        }
        let configured = server.env.get("PATH").map(OsString::from);
        let is_filtered = is_server() || is_strict && configured.is_none();
        let inherited = || std::env::var_os("PATH").unwrap_or_default();
        let search_path = configured.unwrap_or_else(inherited);
        let found = match is_path(command) {
            true => {
                let path = folder.join(command);
                // A person who names a file of the workspace means this file.
                let place = is_server().then(|| writable_place(&path, &may_write));
                match place.flatten() {
                    Some(place) if path.exists() => FoundProgram::Replaceable { path, place },
                    // Where an agent may create it.
                    Some(_) => FoundProgram::Missing,
                    None => FoundProgram::Found(path),
                }
            }
            false => find_program(command, &search_path, &may_write),
        };
        match found {
            FoundProgram::Found(path) => Ok(ServerProgram::Found {
                path,
                search_path: match is_filtered {
                    true => safe_search_path(&search_path, &may_write),
                    false => search_path,
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
}

/// Returns why a server is not started in a folder. `place` is on the way to it, and can be written
/// by commands or does not exist.
fn folder_error(folder: &Path, place: &Path) -> ServerConfigError {
    let reason = match place.exists() {
        true => format!(
            "it would start in {}, where commands of agents could put files that it executes",
            folder.display()
        ),
        false => format!("its folder {} does not exist", folder.display()),
    };
    ServerConfigError {
        reason,
        hint: "remove `cwd`, or set it to a folder that commands cannot write".to_owned(),
    }
}

/// Returns why a server is not started with an argument or variable.
fn argument_error(found: &UnsafeArgument) -> ServerConfigError {
    match found {
        UnsafeArgument::Path(path) => ServerConfigError {
            reason: format!(
                "its `args` or `env` name {}, where commands of agents could put what it executes",
                path.display()
            ),
            hint: "name a file in a folder that commands cannot write, or a folder after the name \
                of the server"
                .to_owned(),
        },
        UnsafeArgument::ShellText(text) => ServerConfigError {
            reason: format!(
                "it is not known which files `{text}` names, because the shell replaces a part"
            ),
            hint: "write the values instead of `$` and backticks, or put the command in a file \
                that commands cannot write"
                .to_owned(),
        },
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
