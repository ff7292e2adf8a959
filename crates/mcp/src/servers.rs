//! All configured MCP servers: registers their tools, starts those that a script needs, and reports
//! their status.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::join_all;
use selvedge_protocol::ToolSpec;
use selvedge_script::{Harness, Mentions};
use selvedge_tools::{Registry, Tool, search_tool};

use crate::callbacks::Asked;
use crate::catalogue::{Catalogue, identifier};
use crate::error::ServerError;
use crate::server::{Common, Server, ServerStatus};
use crate::settings::ServerSettings;
use crate::tool::{McpTool, Missing};

/// The configured MCP servers. Clones share the servers. A server is started on first use.
#[derive(Clone)]
pub struct Servers {
    list: Arc<Vec<Arc<Server>>>,
    common: Arc<Common>,
    built: Arc<Mutex<Option<Built>>>,
    keep: Option<Arc<Keep>>,
}

/// Decides whether scripts can call a tool.
type Keep = dyn Fn(&ToolSpec) -> bool + Send + Sync;

/// The last registry that was built, and what it was built from.
struct Built {
    changes: u64,
    base: Registry,
    registry: Registry,
}

/// Tools that work on the catalogues of all servers.
const NEED_ALL_SERVERS: [&str; 3] = ["search", "mcpCallTool", "mcp_call_tool"];

impl Servers {
    /// Creates the servers without starting them. Catalogues and logins are stored in the folder
    /// `cache`; `None` turns that off.
    pub fn new(settings: Vec<ServerSettings>, asked: Asked, cache: Option<PathBuf>) -> Self {
        let common = Arc::new(Common {
            asked,
            cache,
            changes: AtomicU64::new(0),
            changed: Default::default(),
        });
        let list = settings
            .into_iter()
            .map(|settings| Server::new(settings, common.clone()))
            .collect();
        Self {
            list: Arc::new(list),
            common,
            built: Arc::default(),
            keep: None,
        }
    }

    /// Offers scripts only the tools that `keep` accepts, whether they are from a server or not.
    pub fn keeping(mut self, keep: impl Fn(&ToolSpec) -> bool + Send + Sync + 'static) -> Self {
        self.keep = Some(Arc::new(keep));
        self
    }

    /// Whether no server is configured.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Starts the servers that a script may call and whose catalogue is unknown, concurrently.
    ///
    /// Waits at most for their startup timeouts. A server that fails is an error of the calls to
    /// it, not of this function.
    pub async fn prepare_for(&self, harness: &Harness, source: &[u8]) {
        if self.is_empty() {
            return;
        }
        let mentions = harness.mentions(source);
        let needed = |server: &&Arc<Server>| needs(&mentions, &server.settings.name);
        learn(self.list.iter().filter(needed)).await;
    }

    /// Starts all servers whose catalogue is unknown, concurrently.
    pub async fn prepare_all(&self) {
        learn(self.list.iter()).await;
    }

    /// Returns the tools of `base`, those of all known catalogues, and `search`.
    pub fn onto(&self, base: &Registry) -> Registry {
        let changes = self.common.changes.load(Ordering::Acquire);
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(built) = built.as_ref()
            && built.changes == changes
            && built.base.is_same(base)
        {
            return built.registry.clone();
        }
        let registry = self.build(base);
        *built = Some(Built {
            changes,
            base: base.clone(),
            registry: registry.clone(),
        });
        registry
    }

    fn build(&self, base: &Registry) -> Registry {
        let mut registry = base.clone();
        let mut spaces = HashSet::new();
        for server in self.list.iter() {
            let space = identifier(&server.settings.name);
            // If two server names become the same identifier, the first server has it.
            if !spaces.insert(space.clone()) {
                continue;
            }
            match (server.catalogue(), server.trouble()) {
                (Some(catalogue), _) => add(&mut registry, server, &catalogue, &space),
                (None, Some(_)) => registry.stand_in(Missing(server.clone())),
                (None, None) => {}
            }
        }
        crate::common_tools::register(&mut registry, self);
        if let Some(keep) = &self.keep {
            registry = registry.filtered(|spec| keep(spec));
        }
        let search = search_tool(registry.clone());
        // Tools of servers can only be found with `search`. Without them, the filter decides.
        let needed = registry.is_namespace("mcp");
        if needed || self.keep.as_ref().is_none_or(|keep| keep(&search.spec())) {
            // Fails if a tool of this name is registered, which then stays.
            let _ = registry.register(search);
        }
        registry
    }

    /// Waits until [`Self::generation`] differs from `generation`, and returns the new one.
    pub async fn changed_since(&self, generation: u64) -> u64 {
        loop {
            let changed = self.common.changed.notified();
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
        self.common.changes.load(Ordering::Acquire)
    }

    /// Returns the status of each server without starting one.
    pub async fn status(&self) -> Vec<ServerStatus> {
        join_all(self.list.iter().map(|server| server.status())).await
    }

    /// Starts all servers and returns the status of each.
    pub async fn try_out(&self) -> Vec<ServerStatus> {
        // Errors are part of the status.
        join_all(self.list.iter().map(|server| server.link())).await;
        self.status().await
    }

    /// Closes all connections and ends the processes of the servers.
    pub async fn stop(&self) {
        join_all(self.list.iter().map(|server| server.stop())).await;
    }

    /// Iterates over the servers that are not disabled.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.list
            .iter()
            .filter(|server| server.settings.options.enabled)
    }

    /// Finds a server by its name, or by its name as an identifier.
    pub(crate) fn find(&self, name: &str) -> Result<&Arc<Server>, ServerError> {
        let found = self.list.iter().find(|server| server.settings.name == name);
        let found = found.or_else(|| {
            self.list
                .iter()
                .find(|server| identifier(&server.settings.name) == name)
        });
        found.ok_or_else(|| ServerError::Unknown(name.chars().take(80).collect()))
    }
}

async fn learn<'a>(servers: impl Iterator<Item = &'a Arc<Server>>) {
    let unknown =
        servers.filter(|server| server.catalogue().is_none() && server.trouble().is_none());
    // A failure is reported by the calls to the server.
    join_all(unknown.map(|server| server.link())).await;
}

/// Whether a script may call tools of the server, by its name or by its name as an identifier.
fn needs(mentions: &Mentions, server: &str) -> bool {
    let identifier = identifier(server);
    let is_below = |path: &str, name: &str| {
        let rest = path
            .strip_prefix("mcp.")
            .and_then(|path| path.strip_prefix(name));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let uses_server = |path: &String| {
        let first = path.split('.').next().unwrap_or_default();
        path == "mcp"
            || NEED_ALL_SERVERS.contains(&first)
            || is_below(path, server)
            || is_below(path, &identifier)
    };
    mentions.dynamic
        || mentions.globals.contains(&identifier)
        || mentions.paths.iter().any(uses_server)
}

/// Registers the tools of a server in the namespace `mcp.<space>`.
fn add(registry: &mut Registry, server: &Arc<Server>, catalogue: &Catalogue, space: &str) {
    registry.reserve(&format!("mcp.{space}"));
    let mut taken = HashSet::new();
    for listed in catalogue
        .tools
        .iter()
        .filter(|tool| server.settings.has(&tool.name))
    {
        let identifier = identifier(&listed.name);
        let mut unique = identifier.clone();
        let mut number = 2;
        // `get-sum` and `get_sum` become the same identifier, so the second gets a number. It can
        // also be called by its name on the server, in brackets.
        while !taken.insert(unique.clone()) {
            unique = format!("{identifier}_{number}");
            number += 1;
        }
        // Fails if the name is not valid in the registry. Such a tool is not offered.
        let _ = registry.register(McpTool::new(
            server.clone(),
            listed,
            format!("mcp.{space}.{unique}"),
        ));
    }
}
