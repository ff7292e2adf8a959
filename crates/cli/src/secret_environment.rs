//! Environment variables with secrets, which are never passed to commands.

use selvedge_config::{Config, McpServer, Project};

use crate::providers::provider_key_variables;

/// Keys of providers without built-in support. They are never passed to commands either.
const OTHER_PROVIDER_KEYS: [&str; 3] = ["GEMINI_API_KEY", "MISTRAL_API_KEY", "GROQ_API_KEY"];

/// Returns the variables that are never passed to commands, whatever the policy says.
pub(crate) fn variables_never_inherited(config: &Config) -> Vec<String> {
    let other_keys = OTHER_PROVIDER_KEYS.map(str::to_owned).to_vec();
    [
        provider_key_variables(config),
        other_keys,
        web_key_variables(config).to_vec(),
        mcp_server_variables(config),
        config.user_key_variables.clone(),
    ]
    .concat()
}

/// Returns the variables with tokens and headers for the configured MCP servers.
fn mcp_server_variables(config: &Config) -> Vec<String> {
    let of_server = |server: &McpServer| {
        let headers = server.env_http_headers.values().cloned();
        server
            .bearer_token_env_var
            .iter()
            .cloned()
            .chain(headers)
            .collect::<Vec<_>>()
    };
    config.mcp_servers.values().flat_map(of_server).collect()
}

/// Returns the variables in the headers of the servers in a project's `.mcp.json`.
pub(crate) fn project_server_variables(project: &Project) -> Vec<String> {
    // An invalid file is reported when the servers are started.
    let servers = selvedge_config::project_servers(project, |name| Some(format!("${{{name}}}")))
        .unwrap_or_default();
    let headers = servers
        .values()
        .flat_map(|server| server.http_headers.values());
    let names = |value: &String| {
        let parts = value
            .split("${")
            .skip(1)
            .filter_map(|rest| rest.split_once('}'));
        parts.map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
    };
    headers.flat_map(names).collect()
}

/// Returns the variables with keys of the web services.
fn web_key_variables(config: &Config) -> [String; 2] {
    [
        config.web.perplexity_env_key.clone(),
        config.web.firecrawl_env_key.clone(),
    ]
}
