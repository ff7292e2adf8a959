//! Reads the MCP servers from the configuration and from the project.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;

use anyhow::Result;
use selvedge_config::McpServer;
use selvedge_mcp::{
    McpTransport, NESTED_ENV_VAR, ServerOrigin, ServerRequestHandlers, ServerSettings, Servers,
};

use crate::problem::Problem;
use crate::setup::CliSetup;

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
                "note: started by an MCP server of Selvedge, so the {} configured MCP servers are not used",
                servers.len()
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
                server_settings_of(name, server, origin)
            })
            .collect()
    }
}

fn server_settings_of(
    name: String,
    server: McpServer,
    origin: ServerOrigin,
) -> Result<ServerSettings> {
    let problem = |fault: &str| {
        let file = match (origin, selvedge_config::home()) {
            (ServerOrigin::User, Some(home)) => home.join("config.toml").display().to_string(),
            _ => "the configuration of the project".to_owned(),
        };
        Problem::new(format!("the MCP server `{name}` {fault}")).hint(format!(
            "set either `command` or `url` under [mcp_servers.{name}] in {file}"
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
        config_error: missing_variable
            .map(|variable| format!("the environment variable {variable} is not set")),
        ..ServerSettings::new(name, transport)
    })
}
