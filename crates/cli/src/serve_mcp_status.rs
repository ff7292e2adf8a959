//! What clients of the agent server see of the MCP servers of a workspace.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use selvedge_mcp::{ServerState, ServerStatus};
use selvedge_server::HostedMcpServer;

use crate::serve_errors::names_server_files;
use crate::workspace_parts::{WorkspaceCache, WorkspaceParts};

/// Returns the MCP servers of a folder, by name. Starts none.
pub(crate) async fn mcp_servers(
    workspaces: &WorkspaceCache,
    folder: &str,
) -> Result<Vec<HostedMcpServer>> {
    let mut in_use = workspaces.in_use(Path::new(folder));
    if in_use.is_empty() {
        in_use.push(workspaces.get(Path::new(folder), None)?);
    }
    let mut servers = BTreeMap::new();
    for parts in in_use {
        for server in statuses(&parts).await? {
            // The folder may be used with several environments, each with connections of its own.
            let known = servers.get(&server.name);
            let is_better = known.is_none_or(|known: &ServerStatus| {
                known.state == ServerState::NotStarted && server.state != known.state
            });
            if is_better {
                servers.insert(server.name.clone(), server);
            }
        }
    }
    let servers = servers.into_values();
    Ok(servers.map(|server| view(server, folder)).collect())
}

/// Returns the states of the servers, as far as turns have used them.
async fn statuses(parts: &Arc<WorkspaceParts>) -> Result<Vec<ServerStatus>> {
    match parts.open_connections() {
        Some(connections) => Ok(connections.servers.status().await),
        None => Ok(parts.setup.servers(Default::default())?.status().await),
    }
}

fn view(server: ServerStatus, folder: &str) -> HostedMcpServer {
    let is_hidden = |text: &str| names_server_files(text, folder);
    let error = server.reason.map(|reason| match is_hidden(&reason) {
        true => "run `selvedge mcp list` on the machine of the server for the reason".to_owned(),
        false => reason,
    });
    HostedMcpServer {
        name: server.name,
        state: server.state.as_str().to_owned(),
        tools: server.tools.len() as u64,
        hint: server
            .hint
            .filter(|hint| error.is_some() && !is_hidden(hint)),
        error,
    }
}
