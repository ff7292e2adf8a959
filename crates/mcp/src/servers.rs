//! All servers together: what they have, which of them a script needs, and how they are doing.

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

/// Other people's servers. Clones share them; none is started before something needs it.
#[derive(Clone)]
pub struct Servers {
    list: Arc<Vec<Arc<Server>>>,
    common: Arc<Common>,
    built: Arc<Mutex<Option<Built>>>,
    keep: Option<Arc<Keep>>,
}

/// Says of a tool whether scripts get it.
type Keep = dyn Fn(&ToolSpec) -> bool + Send + Sync;

/// The tools of all servers over those there were, and when that was so.
struct Built {
    changes: u64,
    base: Registry,
    registry: Registry,
}

/// Tools that need to know what all servers have.
const NEED_ALL_SERVERS: [&str; 3] = ["search", "mcpCallTool", "mcp_call_tool"];

impl Servers {
    /// These servers. Catalogues are kept in `cache`, where one is given.
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

    /// The same, but of all tools, theirs and others, only those that `keep` agrees to are there.
    pub fn keeping(mut self, keep: impl Fn(&ToolSpec) -> bool + Send + Sync + 'static) -> Self {
        self.keep = Some(Arc::new(keep));
        self
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Learns what the servers have that a script may call, side by side, starting those that are not
    /// known yet. A server that fails takes no longer than it may to start, and is an error for the
    /// script that calls it.
    pub async fn prepare_for(&self, harness: &Harness, source: &[u8]) {
        if self.is_empty() {
            return;
        }
        let mentions = harness.mentions(source);
        let needed = |server: &&Arc<Server>| needs(&mentions, &server.settings.name);
        learn(self.list.iter().filter(needed)).await;
    }

    /// Learns what all servers have.
    pub async fn prepare_all(&self) {
        learn(self.list.iter()).await;
    }

    /// These tools, with those of all servers as far as they are known, and `search` to find one among them.
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
            // Of two names that are spelled alike the first has it.
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
        // Where servers have tools, they must be found; elsewhere a pack may do without.
        let needed = registry.is_namespace("mcp");
        if needed || self.keep.as_ref().is_none_or(|keep| keep(&search.spec())) {
            // A tool of that name goes first.
            let _ = registry.register(search);
        }
        registry
    }

    /// Waits until what the servers have is another than it was at this [`Self::generation`], and gives the new one.
    pub async fn changed_since(&self, generation: u64) -> u64 {
        loop {
            let news = self.common.changed.notified();
            tokio::pin!(news);
            // Heard from here on, so that nothing falls between looking and waiting.
            news.as_mut().enable();
            let now = self.generation();
            if now != generation {
                return now;
            }
            news.await;
        }
    }

    /// A number that is another one after every change.
    pub fn generation(&self) -> u64 {
        self.common.changes.load(Ordering::Acquire)
    }

    /// How each server is doing, as it is: nothing is started.
    pub async fn status(&self) -> Vec<ServerStatus> {
        join_all(self.list.iter().map(|server| server.status())).await
    }

    /// Starts each server and tells how it is doing.
    pub async fn try_out(&self) -> Vec<ServerStatus> {
        // What went wrong is in the status.
        join_all(self.list.iter().map(|server| server.link())).await;
        self.status().await
    }

    /// Ends all servers.
    pub async fn stop(&self) {
        join_all(self.list.iter().map(|server| server.stop())).await;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.list
            .iter()
            .filter(|server| server.settings.options.enabled)
    }

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
    // Whoever calls a server that failed is told why.
    join_all(unknown.map(|server| server.link())).await;
}

/// Whether a script may call tools of the server, by either spelling of its name.
fn needs(mentions: &Mentions, server: &str) -> bool {
    let spelled = identifier(server);
    let below = |path: &str, name: &str| {
        let rest = path
            .strip_prefix("mcp.")
            .and_then(|path| path.strip_prefix(name));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let reaches = |path: &String| {
        let first = path.split('.').next().unwrap_or_default();
        path == "mcp"
            || NEED_ALL_SERVERS.contains(&first)
            || below(path, server)
            || below(path, &spelled)
    };
    mentions.dynamic || mentions.globals.contains(&spelled) || mentions.paths.iter().any(reaches)
}

fn add(registry: &mut Registry, server: &Arc<Server>, catalogue: &Catalogue, space: &str) {
    registry.reserve(&format!("mcp.{space}"));
    let mut taken = HashSet::new();
    for listed in catalogue
        .tools
        .iter()
        .filter(|tool| server.settings.has(&tool.name))
    {
        let spelled = identifier(&listed.name);
        let mut unique = spelled.clone();
        let mut number = 2;
        // `get-sum` and `get_sum` are two tools: the second is found by its own name in brackets.
        while !taken.insert(unique.clone()) {
            unique = format!("{spelled}_{number}");
            number += 1;
        }
        // A name nobody can say is no tool.
        let _ = registry.register(McpTool::new(
            server.clone(),
            listed,
            format!("mcp.{space}.{unique}"),
        ));
    }
}
