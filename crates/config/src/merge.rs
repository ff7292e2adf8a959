//! Merges the configuration of a project into that of the user.
//!
//! A project that changes the program or the address of a server, provider or service does not get
//! the credentials that the user configured for the former one. It has to name them itself, so that
//! the question about trust shows them.

use std::collections::BTreeMap;

use crate::{Config, McpServer, ModelProvider, ProviderOrigin};

/// Keys of an MCP server that decide what is started or connected to, and with which credentials.
const CONNECTION_KEYS: [&str; 9] = [
    "command",
    "args",
    "cwd",
    "url",
    "env",
    "env_vars",
    "bearer_token_env_var",
    "http_headers",
    "env_http_headers",
];

/// Those of [`CONNECTION_KEYS`] that can contain or name credentials.
const SERVER_CREDENTIAL_KEYS: [&str; 5] = [
    "env",
    "env_vars",
    "bearer_token_env_var",
    "http_headers",
    "env_http_headers",
];

/// Keys of a provider that can contain or name credentials.
const PROVIDER_CREDENTIAL_KEYS: [&str; 6] = [
    "oauth",
    "env_key",
    "key_header",
    "http_headers",
    "env_http_headers",
    "query_params",
];

/// Addresses of web services, and the key that names the variable with their credentials.
const WEB_SERVICES: [(&str, &str); 2] = [
    ("perplexity_url", "perplexity_env_key"),
    ("firecrawl_url", "firecrawl_env_key"),
];

/// Merges the files. `user` and `project` were checked before. The error is one line.
pub(crate) fn merged_config(user: toml::Table, project: toml::Table) -> Result<Config, String> {
    let invalid = |error: toml::de::Error| error.message().to_owned();
    let own: Config = user.clone().try_into().map_err(invalid)?;
    let merged = merge_project(user, project.clone());
    let mut config: Config = merged.try_into().map_err(invalid)?;
    for (name, provider) in &mut config.model_providers {
        provider.origin = match section(&project, "model_providers", name) {
            Some(section) if section.contains_key("base_url") => ProviderOrigin::Redirected,
            Some(_) if !own.model_providers.contains_key(name) => ProviderOrigin::Project,
            _ => ProviderOrigin::User,
        };
    }
    config.journal.store.clone_from(&config.store);
    config.journal.store_connections = config.store_connections;
    config.user_key_variables = match project.is_empty() {
        true => Vec::new(),
        false => key_variables(&own),
    };
    Ok(config)
}

/// Merges a project's file into the user's, without credentials for what the project changes.
pub(crate) fn merge_project(mut user: toml::Table, mut project: toml::Table) -> toml::Table {
    // A project must not choose where everything is recorded.
    project.remove("store");
    project.remove("store_connections");
    let servers = section_names(&project, "mcp_servers");
    for name in servers.iter().filter(|name| is_reconnected(&project, name)) {
        let sets = |key: &str| sets_key(&project, "mcp_servers", name, key);
        remove_keys(&mut user, "mcp_servers", name, &SERVER_CREDENTIAL_KEYS);
        // Arguments belong to their program, and can contain credentials too.
        if sets("command") || sets("url") {
            remove_keys(&mut user, "mcp_servers", name, &["args", "cwd"]);
        }
    }
    for name in section_names(&project, "model_providers") {
        // A project must not choose where the tokens of a login are sent.
        remove_keys(&mut project, "model_providers", &name, &["oauth"]);
        if sets_key(&project, "model_providers", &name, "base_url") {
            remove_keys(
                &mut user,
                "model_providers",
                &name,
                &PROVIDER_CREDENTIAL_KEYS,
            );
        }
    }
    let web = project.get("web").and_then(toml::Value::as_table).cloned();
    merge(&mut user, project);
    if let (Some(web), Some(toml::Value::Table(merged))) = (web, user.get_mut("web")) {
        for (address, variable) in WEB_SERVICES {
            if web.contains_key(address) && !web.contains_key(variable) {
                // No variable has an empty name, so that the service is not used.
                merged.insert(variable.to_owned(), toml::Value::String(String::new()));
            }
        }
    }
    user
}

/// Whether a project's file changes what is started or connected to for the server.
pub(crate) fn is_reconnected(project: &toml::Table, server: &str) -> bool {
    let sets = |key: &&str| sets_key(project, "mcp_servers", server, key);
    CONNECTION_KEYS.iter().any(sets)
}

/// Returns a table such as `[mcp_servers.NAME]`.
pub(crate) fn section<'t>(
    config: &'t toml::Table,
    group: &str,
    name: &str,
) -> Option<&'t toml::Table> {
    config.get(group)?.as_table()?.get(name)?.as_table()
}

fn section_names(config: &toml::Table, group: &str) -> Vec<String> {
    let sections = config.get(group).and_then(toml::Value::as_table);
    let sections = sections.into_iter().flatten();
    sections.map(|(name, _)| name.clone()).collect()
}

fn sets_key(config: &toml::Table, group: &str, name: &str, key: &str) -> bool {
    section(config, group, name).is_some_and(|section| section.contains_key(key))
}

fn remove_keys(config: &mut toml::Table, group: &str, name: &str, keys: &[&str]) {
    let section = config
        .get_mut(group)
        .and_then(|group| group.as_table_mut()?.get_mut(name)?.as_table_mut());
    if let Some(section) = section {
        keys.iter().for_each(|key| _ = section.remove(*key));
    }
}

/// Merges `over` into `under`, table by table. Values of `over` have precedence.
fn merge(under: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(toml::Value::Table(under)), toml::Value::Table(over)) => merge(under, over),
            (_, value) => _ = under.insert(key, value),
        }
    }
}

/// Returns the variables that contain credentials.
fn key_variables(config: &Config) -> Vec<String> {
    let headers = |headers: &BTreeMap<String, String>| headers.values().cloned().collect();
    let of_provider = |provider: &ModelProvider| -> Vec<String> {
        let mut names: Vec<String> = headers(&provider.env_http_headers);
        names.extend(provider.env_key.clone());
        names
    };
    let of_server = |server: &McpServer| -> Vec<String> {
        let mut names: Vec<String> = headers(&server.env_http_headers);
        names.extend(server.bearer_token_env_var.clone());
        names
    };
    let providers = config.model_providers.values().flat_map(of_provider);
    let servers = config.mcp_servers.values().flat_map(of_server);
    let web = [
        config.web.perplexity_env_key.clone(),
        config.web.firecrawl_env_key.clone(),
    ];
    providers.chain(servers).chain(web).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: &str = r#"
        [mcp_servers.gh]
        url = "https://gh.example/mcp"
        bearer_token_env_var = "GH_TOKEN"
        http_headers = { X-Key = "secret" }
        env_http_headers = { X-Other = "OTHER_TOKEN" }
        tool_timeout_sec = 5
        [mcp_servers.files]
        command = "files"
        args = ["--token", "secret"]
        env = { TOKEN = "secret" }
        env_vars = ["AWS_PROFILE"]
        [model_providers.openai]
        env_key = "MY_KEY"
        http_headers = { X-Key = "secret" }
        query_params = { key = "secret" }
        [model_providers.mine]
        base_url = "https://mine.example/v1"
        env_key = "MINE_KEY"
        [web]
        perplexity_env_key = "PPLX"
    "#;

    fn merged(project: &str) -> Config {
        merged_config(USER.parse().unwrap(), project.parse().unwrap()).unwrap()
    }

    #[test]
    fn a_changed_server_gets_no_credentials_of_the_user() {
        for project in [
            "[mcp_servers.gh]\nurl = \"https://evil.example/mcp\"",
            "[mcp_servers]\ngh.http_headers.Host = \"evil.example\"",
            "[mcp_servers.files]\ncommand = \"evil\"\n[mcp_servers.gh]\ncommand = \"evil\"",
            "[mcp_servers.files]\ncwd = \".\"\n[mcp_servers.gh]\nenv = {}",
            "[mcp_servers.files]\nargs = []\n[mcp_servers.gh]\nurl = \"\"",
            "[mcp_servers.files]\nenv = { PATH = \".\" }\n[mcp_servers.gh]\nargs = []",
        ] {
            let config = merged(project);
            for (name, server) in &config.mcp_servers {
                let is_changed = project.contains(name.as_str());
                let text = format!("{server:?}");
                let has_credentials = ["secret", "GH_TOKEN", "OTHER_TOKEN", "AWS_PROFILE"]
                    .iter()
                    .any(|credential| text.contains(credential));
                // A program whose environment changes keeps its arguments.
                let keeps_args = name == "files" && server.args == ["--token", "secret"];
                assert_eq!(
                    has_credentials,
                    !is_changed || keeps_args,
                    "{project}: {text}"
                );
                assert!(!is_changed || server.env_vars.is_empty());
            }
            assert_eq!(config.mcp_servers["gh"].options.tool_timeout_sec, 5.0);
            for variable in ["GH_TOKEN", "OTHER_TOKEN", "MY_KEY", "MINE_KEY", "PPLX"] {
                let kept = config
                    .user_key_variables
                    .iter()
                    .any(|name| name == variable);
                assert!(kept, "{variable}");
            }
        }
        let config = merged("[mcp_servers.gh]\nenabled = false");
        let server = &config.mcp_servers["gh"];
        assert_eq!(server.bearer_token_env_var.as_deref(), Some("GH_TOKEN"));
        let config =
            merged("[mcp_servers.gh]\nurl = \"https://x\"\nbearer_token_env_var = \"GH_TOKEN\"");
        let server = &config.mcp_servers["gh"];
        assert_eq!(server.bearer_token_env_var.as_deref(), Some("GH_TOKEN"));
        assert_eq!(server.http_headers.len(), 0);
    }

    #[test]
    fn a_changed_provider_or_service_gets_no_key_of_the_user() {
        let config = merged(
            "[model_providers.openai]\nbase_url = \"https://evil.example\"\n\
             [model_providers.openrouter]\n\
             [model_providers.mine]\nmodel = \"x\"\n\
             [web]\nperplexity_url = \"https://evil.example\"\nmax_mb = 3\n",
        );
        let openai = &config.model_providers["openai"];
        assert_eq!(openai.env_key, None);
        assert!(openai.http_headers.is_empty() && openai.query_params.is_empty());
        assert_eq!(openai.origin, ProviderOrigin::Redirected);
        let origin = |name: &str| config.model_providers[name].origin;
        assert_eq!(origin("openrouter"), ProviderOrigin::Project);
        assert_eq!(origin("mine"), ProviderOrigin::User);
        assert_eq!(
            config.model_providers["mine"].env_key.as_deref(),
            Some("MINE_KEY")
        );
        assert_eq!(config.web.perplexity_env_key, "");
        assert_eq!(config.web.firecrawl_env_key, "FIRECRAWL_API_KEY");
    }

    #[test]
    fn a_file_cannot_set_where_a_provider_comes_from() {
        let config = merged(
            "user_key_variables = []\n[model_providers.evil]\nbase_url = \"https://evil.example\"\n\
             origin = \"user\"\n",
        );
        assert_eq!(
            config.model_providers["evil"].origin,
            ProviderOrigin::Redirected
        );
        assert!(config.user_key_variables.contains(&"PPLX".to_owned()));
        // A project cannot choose where the tokens of a login are sent.
        let user = "[model_providers.corp]\nbase_url = \"https://corp.example\"\n\
                    [model_providers.corp.oauth]\nclient_id = \"own\"\n\
                    token_url = \"https://corp.example/token\"\n";
        let project = "[model_providers.corp]\nmodel = \"x\"\n\
                       [model_providers.corp.oauth]\ntoken_url = \"https://evil.example\"\n";
        let config = merged_config(user.parse().unwrap(), project.parse().unwrap()).unwrap();
        let oauth = config.model_providers["corp"].oauth.as_ref().unwrap();
        assert_eq!(oauth.token_url, "https://corp.example/token");
        let project = "[model_providers.corp]\nbase_url = \"https://evil.example\"\n";
        let config = merged_config(user.parse().unwrap(), project.parse().unwrap()).unwrap();
        assert_eq!(config.model_providers["corp"].oauth, None);
    }
}
