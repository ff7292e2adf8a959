//! Reads the MCP servers from the configuration and from the project.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use selvedge_config::McpServer;
use selvedge_mcp::{
    McpTransport, NESTED_ENV_VAR, ServerConfigError, ServerError, ServerOrigin,
    ServerRequestHandlers, ServerSettings, Servers,
};

use crate::output::eprint_labelled;
use crate::problem::Problem;
use crate::programs::{LocalServer, ServerFolder, is_server};
use crate::setup::CliSetup;

/// How long servers may take to start before a note says that they are waited for.
const WAIT_NOTE_DELAY: Duration = Duration::from_secs(1);

/// Folder below SELVEDGE_HOME in which local servers of the user run.
const SERVER_FOLDER: &str = "mcp-servers";

/// Awaits work that starts servers. If it takes long, prints a note that names them.
pub(crate) async fn wait_for_servers<T>(servers: &Servers, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = tokio::time::sleep(WAIT_NOTE_DELAY) => {}
    }
    for name in servers.starting() {
        eprint_line!("note: waiting for the MCP server `{name}` to start");
    }
    work.await
}

/// Prints a warning with its hint for each server that did not start.
pub(crate) fn warn_of_start_failures(failures: &[ServerError]) {
    for failure in failures {
        eprint_labelled("warning", "1;33", &failure.to_string());
        if let Some(hint) = failure.hint() {
            eprint_labelled("hint", "1;36", &hint);
        }
    }
}

impl CliSetup {
    /// Returns the servers whose tools scripts can call. None is started yet.
    pub(crate) fn servers(&self, handlers: ServerRequestHandlers) -> Result<Servers> {
        let settings = self.server_settings()?;
        let cache = self
            .home
            .as_ref()
            .filter(|_| !self.ephemeral)
            .map(|home| home.join("mcp"));
        Ok(Servers::new(settings, handlers, cache).with_filter(self.tool_filter()?))
    }

    /// Returns the settings of all configured servers.
    pub(crate) fn server_settings(&self) -> Result<Vec<ServerSettings>> {
        if !self.config.script_harness.expose.enable_mcp {
            return Ok(Vec::new());
        }
        let mut from_project = BTreeSet::new();
        let mut servers = self.config.mcp_servers.clone();
        if let Some(project) = &self.project {
            from_project = selvedge_config::servers_in_project_config(project);
            let own = selvedge_config::project_servers(project, |name| std::env::var(name).ok())
                .map_err(|error| {
                    Problem::new(error.to_string()).hint("correct the file, or remove it")
                })?;
            for (name, server) in own {
                if let Entry::Vacant(free) = servers.entry(name) {
                    from_project.insert(free.key().clone());
                    free.insert(server);
                }
            }
        }
        if std::env::var_os(NESTED_ENV_VAR).is_some() && !servers.is_empty() {
            eprint_line!(
                "note: started by an MCP server of Selvedge, so the configured MCP servers are \
                 not used"
            );
            return Ok(Vec::new());
        }
        servers
            .into_iter()
            .map(|(name, server)| {
                let origin = match from_project.contains(&name) {
                    true => ServerOrigin::Project,
                    false => ServerOrigin::User,
                };
                let key = ["mcp_servers", &name];
                let place = selvedge_config::place_of_key(
                    self.home.as_deref(),
                    self.project.as_ref(),
                    &key,
                );
                let mut server = server;
                let (cwd, folder) = self.server_folder(origin, server.cwd);
                server.cwd = Some(cwd);
                let local = server.command.is_some().then(|| LocalServer {
                    workspace: self.toolbox.workspace.clone(),
                    server: server.clone(),
                    origin,
                    folder,
                });
                let mut settings = server_settings_of(name, server, origin, place.as_deref())?;
                if let Some(local) = local {
                    if let Err(error) = local.program() {
                        let (name, reason) = (&settings.name, &error.reason);
                        tracing::warn!(server = name, reason, "an MCP server is not started");
                        settings.config_error.get_or_insert(error);
                    }
                    settings.program = Some(Arc::new(local));
                }
                Ok(settings)
            })
            .collect()
    }
}

impl CliSetup {
    /// Returns the folder in which a local server runs. `configured` is relative to the workspace.
    /// A program may execute files of the folder that it is started in, such as a Python module, so
    /// the servers of the user do not start in the workspace, whose files agents can write, and in
    /// the agent server no server does.
    fn server_folder(
        &self,
        origin: ServerOrigin,
        configured: Option<PathBuf>,
    ) -> (PathBuf, ServerFolder) {
        let root = self.toolbox.workspace.root();
        let own = || {
            let home = self.home.as_ref().filter(|_| !self.ephemeral)?;
            let folder = home.join(SERVER_FOLDER);
            let created = selvedge_files::create_private_folder(&folder);
            created.is_ok().then_some(folder)
        };
        let other = match (origin, configured) {
            (_, Some(folder)) => root.join(folder),
            (ServerOrigin::Project, None) if !is_server() => root.to_owned(),
            (_, None) => match own() {
                Some(folder) => return (folder, ServerFolder::Own),
                None => std::env::home_dir().unwrap_or_else(|| root.to_owned()),
            },
        };
        (other, ServerFolder::Other)
    }
}

/// Returns the settings of a server. `place` is where the configuration defines it.
fn server_settings_of(
    name: String,
    server: McpServer,
    origin: ServerOrigin,
    place: Option<&str>,
) -> Result<ServerSettings> {
    let problem = |fault: &str| {
        let place = place.map(|place| format!("{place}: ")).unwrap_or_default();
        Problem::new(format!("{place}the MCP server `{name}` {fault}")).hint(format!(
            "set either `command` or `url` under [mcp_servers.{name}]"
        ))
    };
    // Reported when this server is used, so that the other servers still work.
    let mut missing_variable = server.missing_variable;
    let transport = match (server.command, server.url) {
        (Some(_), Some(_)) => return Err(problem("has both `command` and `url`").into()),
        (None, None) => return Err(problem("has neither `command` nor `url`").into()),
        (Some(command), None) => McpTransport::Stdio {
            command,
            args: server.args,
            env: server.env,
            env_vars: server.env_vars,
            cwd: server.cwd,
        },
        (None, Some(url)) => {
            let mut headers = server.http_headers;
            for (header, variable) in server.env_http_headers {
                match std::env::var(&variable) {
                    Ok(value) => _ = headers.insert(header, value),
                    Err(_) => missing_variable = Some(variable),
                }
            }
            if let Some(variable) = &server.bearer_token_env_var
                && std::env::var_os(variable).is_none()
            {
                missing_variable = Some(variable.clone());
            }
            McpTransport::Http {
                url,
                bearer_token_env_var: server.bearer_token_env_var,
                headers,
            }
        }
    };
    Ok(ServerSettings {
        options: server.options,
        origin,
        config_error: missing_variable.map(|variable| ServerConfigError {
            reason: format!("the environment variable {variable} is not set"),
            hint: format!("run `export {variable}=VALUE`"),
        }),
        ..ServerSettings::new(name, transport)
    })
}
