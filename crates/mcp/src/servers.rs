//! All configured MCP servers: registers their tools, starts those that a script needs, and reports
//! their status.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::join_all;
use selvedge_protocol::ToolSpec;
use selvedge_script::{Harness, ToolMentions};
use selvedge_tools::{Registry, Tool, ToolSearch};

use crate::catalogue::{Catalogue, to_identifier};
use crate::client_handler::ServerRequestHandlers;
use crate::configured_server::{ConfiguredServer, McpSharedState};
use crate::error::ServerError;
use crate::server_status::ServerStatus;
use crate::settings::{ServerConfigError, ServerOrigin, ServerSettings};
use crate::tool::{McpTool, UnavailableServerTool};

/// The configured MCP servers. Clones share the servers. A server is started on first use; in
/// `mcp serve`, servers without a cached catalogue are started when a client connects.
#[derive(Clone)]
pub struct Servers {
    servers: Arc<Vec<Arc<ConfiguredServer>>>,
    shared: Arc<McpSharedState>,
    cached_registry: Arc<Mutex<Option<CachedRegistry>>>,
    filter: Option<Arc<McpToolFilter>>,
}

/// Decides whether scripts can call a tool.
type McpToolFilter = dyn Fn(&ToolSpec) -> bool + Send + Sync;

/// The last registry that was built, and what it was built from.
struct CachedRegistry {
    generation: u64,
    base: Registry,
    registry: Registry,
}

/// Tools that work on the catalogues of all servers.
const TOOLS_FOR_ALL_SERVERS: [&str; 3] = ["search", "mcpCallTool", "mcp_call_tool"];

impl Servers {
    /// Creates the servers without starting them. Catalogues and logins are stored in the folder
    /// `cache`; `None` turns that off.
    pub fn new(
        settings: Vec<ServerSettings>,
        handlers: ServerRequestHandlers,
        cache: Option<PathBuf>,
    ) -> Self {
        let shared = Arc::new(McpSharedState {
            handlers,
            storage_dir: cache,
            generation: AtomicU64::new(0),
            change_notify: Default::default(),
        });
        // If two names become the same identifier, the first server has it. A server that a
        // project brings along does not take that of a user's server.
        let mut settings = settings;
        settings.sort_by_key(|settings| {
            let is_projects = settings.origin == ServerOrigin::Project;
            (is_projects, !settings.options.enabled)
        });
        let mut names: HashMap<String, String> = HashMap::new();
        for settings in &mut settings {
            let identifier = to_identifier(&settings.name);
            match names.get(&identifier) {
                Some(other) if settings.config_error.is_none() => {
                    settings.config_error = Some(ServerConfigError {
                        reason: format!(
                            "scripts would call it `mcp.{identifier}`, as they call the server \
                             `{other}`"
                        ),
                        hint: format!("rename [mcp_servers.{}]", settings.name),
                    });
                }
                Some(_) => {}
                None => _ = names.insert(identifier, settings.name.clone()),
            }
        }
        let list = settings
            .into_iter()
            .map(|settings| ConfiguredServer::new(settings, shared.clone()))
            .collect();
        Self {
            servers: Arc::new(list),
            shared,
            cached_registry: Arc::default(),
            filter: None,
        }
    }

    /// Offers scripts only the tools that `keep` accepts, whether they are from a server or not.
    /// Other clones are not affected.
    pub fn with_filter(mut self, keep: impl Fn(&ToolSpec) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Some(Arc::new(keep));
        self.cached_registry = Arc::default();
        self
    }

    /// Whether no server is configured.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// Starts the servers that a script may call and whose catalogue is unknown, concurrently.
    ///
    /// Waits at most for their startup timeouts. Returns the errors of those that the script may
    /// call and that did not start; calls to them fail with the same error.
    pub async fn ensure_catalogues_for_script(
        &self,
        harness: &Harness,
        source: &[u8],
    ) -> Vec<ServerError> {
        if self.is_empty() {
            return Vec::new();
        }
        let mentions = harness.mentioned_tools(source).await;
        let needed =
            |server: &&Arc<ConfiguredServer>| may_call_server(&mentions, &server.settings.name);
        start_servers_without_catalogue(self.servers.iter().filter(needed)).await;
        let needed = self.servers.iter().filter(needed);
        needed.filter_map(|server| server.start_failure()).collect()
    }

    /// Starts all servers whose catalogue is unknown, concurrently.
    pub async fn ensure_all_catalogues(&self) {
        start_servers_without_catalogue(self.servers.iter()).await;
    }

    /// Returns the names of the servers that were started and have not listed their tools yet.
    pub fn starting(&self) -> Vec<String> {
        let servers = self.servers.iter().filter(|server| server.is_starting());
        servers.map(|server| server.settings.name.clone()).collect()
    }

    /// Returns the errors of the servers whose tools are unknown, because they did not start or are
    /// not configured correctly.
    pub fn start_failures(&self) -> Vec<ServerError> {
        let servers = self.servers.iter();
        servers
            .filter_map(|server| server.start_failure())
            .collect()
    }

    /// Returns the tools of `base`, those of all known catalogues, and `search`.
    pub fn script_registry(&self, base: &Registry) -> Registry {
        let changes = self.shared.generation.load(Ordering::Acquire);
        let mut built = self
            .cached_registry
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(built) = built.as_ref()
            && built.generation == changes
            && built.base.ptr_eq(base)
        {
            return built.registry.clone();
        }
        let registry = self.build_registry(base);
        *built = Some(CachedRegistry {
            generation: changes,
            base: base.clone(),
            registry: registry.clone(),
        });
        registry
    }

    fn build_registry(&self, base: &Registry) -> Registry {
        let mut registry = base.clone();
        let mut namespaces = HashSet::new();
        for server in self.servers.iter() {
            let namespace = to_identifier(&server.settings.name);
            // Another server has the same identifier.
            if !namespaces.insert(namespace.clone()) {
                continue;
            }
            match (server.catalogue(), server.unavailable_reason()) {
                (Some(catalogue), _) => {
                    register_tools(&mut registry, server, &catalogue, &namespace)
                }
                // A server that failed is started again by the next call to it.
                (None, reason) if reason.is_some() || server.start_failure().is_some() => {
                    registry.register_catch_all(UnavailableServerTool(server.clone()))
                }
                (None, _) => {}
            }
        }
        // With the cache that holds the registry, the tools would hold themselves.
        let without_cache = Self {
            cached_registry: Arc::default(),
            ..self.clone()
        };
        crate::common_tools::register_common_tools(&mut registry, &without_cache);
        if let Some(keep) = &self.filter {
            registry = registry.filtered(|spec| keep(spec));
        }
        let search = ToolSearch(registry.clone());
        // Tools of servers can only be found with `search`. Without them, the filter decides.
        let needed = registry.is_namespace("mcp");
        if needed || self.filter.as_ref().is_none_or(|keep| keep(&search.spec())) {
            // Fails if a tool of this name is registered, which then stays.
            let _ = registry.register(search);
        }
        registry
    }

    /// Waits until [`Self::generation`] differs from `generation`, and returns the new one.
    pub async fn wait_for_change(&self, generation: u64) -> u64 {
        loop {
            let changed = self.shared.change_notify.notified();
            tokio::pin!(changed);
            // Registered before the generation is read: a notification in between is not lost.
            changed.as_mut().enable();
            let current = self.generation();
            if current != generation {
                return current;
            }
            changed.await;
        }
    }

    /// Returns a number that grows with each change of a server's catalogue or availability.
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Returns the status of each server without starting one.
    pub async fn status(&self) -> Vec<ServerStatus> {
        join_all(self.servers.iter().map(|server| server.status())).await
    }

    /// Starts all servers and returns the status of each.
    pub async fn start_and_check(&self) -> Vec<ServerStatus> {
        // Errors are part of the status.
        join_all(self.servers.iter().map(|server| server.connect())).await;
        self.status().await
    }

    /// Closes all connections and ends the processes of the servers.
    pub async fn stop(&self) {
        join_all(self.servers.iter().map(|server| server.stop())).await;
    }

    /// Iterates over the servers that are not disabled.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<ConfiguredServer>> {
        self.servers
            .iter()
            .filter(|server| server.settings.options.enabled)
    }

    /// Finds a server by its name, or by its name as an identifier.
    pub(crate) fn find(&self, name: &str) -> Result<&Arc<ConfiguredServer>, ServerError> {
        let found = self
            .servers
            .iter()
            .find(|server| server.settings.name == name);
        let found = found.or_else(|| {
            self.servers
                .iter()
                .find(|server| to_identifier(&server.settings.name) == name)
        });
        found.ok_or_else(|| ServerError::Unknown(name.chars().take(80).collect()))
    }
}

async fn start_servers_without_catalogue<'a>(
    servers: impl Iterator<Item = &'a Arc<ConfiguredServer>>,
) {
    let unknown = servers
        .filter(|server| server.catalogue().is_none() && server.unavailable_reason().is_none());
    // A failure is reported by the calls to the server.
    join_all(unknown.map(|server| server.connect())).await;
}

/// Whether a script may call tools of the server, by its name or by its name as an identifier.
fn may_call_server(mentions: &ToolMentions, server: &str) -> bool {
    let identifier = to_identifier(server);
    let is_below = |path: &str, name: &str| {
        let rest = path
            .strip_prefix("mcp.")
            .and_then(|path| path.strip_prefix(name));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let uses_server = |path: &String| {
        let first = path.split('.').next().unwrap_or_default();
        path == "mcp"
            || TOOLS_FOR_ALL_SERVERS.contains(&first)
            || is_below(path, server)
            || is_below(path, &identifier)
    };
    mentions.dynamic
        || mentions.globals.contains(&identifier)
        || mentions.paths.iter().any(uses_server)
}

/// Registers the tools of a server in the namespace `mcp.<namespace>`.
fn register_tools(
    registry: &mut Registry,
    server: &Arc<ConfiguredServer>,
    catalogue: &Catalogue,
    namespace: &str,
) {
    registry.reserve_namespace(&format!("mcp.{namespace}"));
    let mut taken = HashSet::new();
    // The number after the last one that was tried, by identifier.
    let mut next_numbers: HashMap<String, usize> = HashMap::new();
    for listed in catalogue
        .tools
        .iter()
        .filter(|tool| server.settings.offers_tool(&tool.name))
    {
        let identifier = to_identifier(&listed.name);
        let mut unique = identifier.clone();
        let number = next_numbers.entry(identifier.clone()).or_insert(2);
        // `get-sum` and `get_sum` become the same identifier, so the second gets a number. It can
        // also be called by its name on the server, in brackets.
        while !taken.insert(unique.clone()) {
            unique = format!("{identifier}_{number}");
            *number += 1;
        }
        // Fails if the name is not valid in the registry. Such a tool is not offered.
        let _ = registry.register(McpTool::new(
            server.clone(),
            listed,
            format!("mcp.{namespace}.{unique}"),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::McpTransport;

    #[tokio::test]
    async fn a_server_of_a_project_does_not_take_the_identifier_of_a_users_server() {
        let settings = |name: &str, origin| ServerSettings {
            origin,
            ..ServerSettings::new(
                name,
                McpTransport::Http {
                    url: "http://127.0.0.1:1".to_owned(),
                    bearer_token_env_var: None,
                    headers: Default::default(),
                },
            )
        };
        let servers = Servers::new(
            vec![
                settings("git-hub", ServerOrigin::Project),
                settings("git_hub", ServerOrigin::User),
            ],
            ServerRequestHandlers::default(),
            None,
        );
        let found = servers.find("gitHub").unwrap();
        assert_eq!(found.settings.name, "git_hub");
        let refused = servers.find("git-hub").unwrap();
        let error = refused.settings.config_error.as_ref().unwrap();
        assert!(error.reason.ends_with("the server `git_hub`"));
        assert_eq!(error.hint, "rename [mcp_servers.git-hub]");
    }
}
