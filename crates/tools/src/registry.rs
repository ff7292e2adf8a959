//! The registry of tools, which finds a tool by any spelling of its name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock, Weak};

use selvedge_protocol::ToolSpec;

use crate::arguments::ArgumentChecker;
use crate::compact_declarations::compact_types;
use crate::names::similar_names;
use crate::schema_type::ToolTypes;
use crate::search::ToolIndex;
use crate::tool_cache::{DerivedToolData, ToolCache};
use crate::{Tool, snake_case};

/// Longest name that is looked up, in bytes. Scripts look up any text; a longer one is no tool.
const MAX_NAME_BYTES: usize = 256;

/// A set of tools. Clones are cheap, and a change to one does not affect the others, so that a
/// script keeps its tools while MCP servers start and stop.
#[derive(Clone, Default)]
pub struct Registry(Arc<RegistryTables>);

/// Identifies a registry without keeping it alive.
#[derive(Clone)]
pub struct RegistryIdentity(Weak<RegistryTables>);

#[derive(Clone, Default)]
struct RegistryTables {
    /// Tools by canonical name.
    tools: BTreeMap<String, Arc<RegisteredTool>>,
    /// Canonical names by name in scripts.
    js_names: HashMap<String, String>,
    /// Canonical names by alias.
    aliases: HashMap<String, String>,
    /// Names that are not tools, and the tools to suggest to a script that calls one of them.
    synonyms: HashMap<&'static str, &'static str>,
    /// Dotted prefixes of names in scripts and of canonical names.
    namespaces: BTreeSet<String>,
    /// Prefixes whose tools are not known yet, and the tool that handles all calls below them.
    catch_alls: BTreeMap<String, Arc<RegisteredTool>>,
    /// Created on the first search.
    index: OnceLock<Arc<ToolIndex>>,
    /// What other registries with the same tools have; `None` if there is none.
    cache: Option<Arc<ToolCache>>,
}

/// A registered tool with its spec.
pub struct RegisteredTool {
    /// The tool itself.
    pub tool: Box<dyn Tool>,
    /// Spec of the tool, cached.
    pub spec: Arc<ToolSpec>,
    derived: Arc<DerivedToolData>,
    raw: OnceLock<Option<Arc<RegisteredTool>>>,
}

/// Result of looking up a name.
pub enum ToolLookup<'a> {
    /// The tool of this name.
    Tool(&'a Arc<RegisteredTool>),
    /// A prefix of tool names.
    Namespace,
    /// Neither. These names are similar.
    NotFound(Vec<String>),
}

/// Why a tool cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Another tool has the name.
    #[error("a tool named `{0}` is already registered")]
    Duplicate(String),
    /// The name cannot be called from a script.
    #[error("invalid tool name `{0}`: use letters, digits and `_`")]
    InvalidName(String),
}

impl Registry {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty registry that shares with others what is derived from the specs of tools.
    pub fn with_cache(cache: &Arc<ToolCache>) -> Self {
        Self(Arc::new(RegistryTables {
            cache: Some(cache.clone()),
            ..RegistryTables::default()
        }))
    }

    /// Adds a tool.
    pub fn register(&mut self, tool: impl Tool + 'static) -> Result<(), RegistryError> {
        let spec = tool.spec();
        let is_identifier = |part: &str| {
            !part.is_empty()
                && !part.starts_with(|c: char| c.is_ascii_digit())
                && part
                    .chars()
                    .all(|c| c.is_alphanumeric() || c == '_' || c == '$')
        };
        if !spec.js_name.split('.').all(is_identifier) {
            return Err(RegistryError::InvalidName(spec.name));
        }
        if self.0.tools.contains_key(&spec.name) || self.0.js_names.contains_key(&spec.js_name) {
            return Err(RegistryError::Duplicate(spec.name));
        }
        let tables = Arc::make_mut(&mut self.0);
        let tool = RegisteredTool::new(Box::new(tool), spec, tables.cache.as_deref());
        tables.insert(Arc::new(tool));
        Ok(())
    }

    /// Adds another name for a tool. A tool that is registered under that name has precedence.
    pub fn add_alias(&mut self, alias: &str, name: &str) {
        Arc::make_mut(&mut self.0)
            .aliases
            .insert(alias.to_owned(), name.to_owned());
    }

    /// Adds suggestions: if a script calls one of `names`, which is not a tool, the error suggests
    /// those of `tools` that are registered. Both are in snake_case, separated by spaces.
    pub fn add_suggestions(&mut self, names: &'static str, tools: &'static str) {
        let synonyms = names.split(' ').map(|name| (name, tools));
        Arc::make_mut(&mut self.0).synonyms.extend(synonyms);
    }

    /// Adds a tool and returns the registry, to build one in a single expression.
    pub fn with(mut self, tool: impl Tool + 'static) -> Result<Self, RegistryError> {
        self.register(tool)?;
        Ok(self)
    }

    /// Returns the tool with this name, in any spelling. `x.raw` is the raw variant of `x`.
    pub fn get(&self, name: &str) -> Option<&Arc<RegisteredTool>> {
        self.find_by_name(name)
            .or_else(|| self.find_by_name(name.strip_suffix(".raw")?)?.raw())
    }

    fn find_by_name(&self, name: &str) -> Option<&Arc<RegisteredTool>> {
        let set = &self.0;
        if name.len() > MAX_NAME_BYTES {
            return None;
        }
        set.tools
            .get(name)
            .or_else(|| set.js_names.get(name).and_then(|name| set.tools.get(name)))
            .or_else(|| set.tools.get(&snake_case(name)))
            .or_else(|| {
                set.aliases
                    .get(&snake_case(name))
                    .and_then(|name| set.tools.get(name))
            })
            .or_else(|| {
                name.match_indices('.')
                    .find_map(|(dot, _)| set.catch_alls.get(&name[..dot]))
            })
    }

    /// Registers a tool that handles all calls below its name, whatever their names. It is not
    /// listed.
    pub fn register_catch_all(&mut self, tool: impl Tool + 'static) {
        let spec = tool.spec();
        let set = Arc::make_mut(&mut self.0);
        let names = [spec.js_name.clone(), spec.name.clone()];
        let tool = Arc::new(RegisteredTool::new(Box::new(tool), spec, None));
        for name in names {
            set.namespaces.extend(namespaces_of(&name));
            set.namespaces.insert(name.clone());
            set.catch_alls.insert(name, tool.clone());
        }
    }

    /// Registers a namespace that has no tools yet.
    pub fn reserve_namespace(&mut self, namespace: &str) {
        let set = Arc::make_mut(&mut self.0);
        set.namespaces.extend(namespaces_of(namespace));
        set.namespaces.insert(namespace.to_owned());
    }

    /// Returns whether both are unchanged clones of the same registry.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the identity of this registry. A change gives it another one.
    pub fn identity(&self) -> RegistryIdentity {
        RegistryIdentity(Arc::downgrade(&self.0))
    }

    /// Returns whether a registry is an unchanged clone of the one with this identity.
    pub fn has_identity(&self, identity: &RegistryIdentity) -> bool {
        // `Arc::make_mut` moves tables that have an identity, so an address stands for a state.
        std::ptr::eq(Arc::as_ptr(&self.0), identity.0.as_ptr())
    }

    /// Returns the tools that match the text best, the best first.
    pub fn search(&self, words: &str, limit: usize) -> Vec<&Arc<RegisteredTool>> {
        let index = self
            .0
            .index
            .get_or_init(|| Arc::new(ToolIndex::new(self.iter().map(|tool| &*tool.spec))));
        let names = index.search(words, limit);
        names
            .into_iter()
            .filter_map(|name| self.0.tools.get(name))
            .collect()
    }

    /// Looks up `tools.<path>` of a script.
    pub fn look_up(&self, path: &str) -> ToolLookup<'_> {
        match self.get(path) {
            Some(tool) => ToolLookup::Tool(tool),
            None if self.0.namespaces.contains(path) => ToolLookup::Namespace,
            None if path.len() > MAX_NAME_BYTES => ToolLookup::NotFound(Vec::new()),
            None => {
                let synonyms = self.0.synonyms.get(snake_case(path).as_str());
                let suggested = synonyms
                    .into_iter()
                    .flat_map(|names| names.split(' '))
                    .filter_map(|name| self.0.tools.get(name))
                    .map(|tool| tool.spec.js_name.clone());
                let mut near: Vec<String> = suggested
                    .chain(similar_names(
                        path,
                        self.0.js_names.keys().map(String::as_str),
                    ))
                    .collect();
                near.truncate(3);
                near.dedup();
                ToolLookup::NotFound(near)
            }
        }
    }

    /// Returns whether `name` is a prefix of tool names.
    pub fn is_namespace(&self, name: &str) -> bool {
        self.0.namespaces.contains(name)
    }

    /// Returns the next part of all script names with this prefix, which is empty or ends with a
    /// dot.
    pub fn child_names(&self, prefix: &str) -> BTreeSet<String> {
        let below = |name: &String| {
            name.strip_prefix(prefix)
                .map(|rest| rest.split('.').next().unwrap_or(rest).to_owned())
        };
        self.0.js_names.keys().filter_map(below).collect()
    }

    /// Returns all tools, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<RegisteredTool>> {
        self.0.tools.values()
    }

    /// Returns the number of tools.
    pub fn len(&self) -> usize {
        self.0.tools.len()
    }

    /// Returns whether there are no tools.
    pub fn is_empty(&self) -> bool {
        self.0.tools.is_empty()
    }

    /// Returns a registry with only the tools for which `keep` returns true.
    pub fn filtered(&self, keep: impl Fn(&ToolSpec) -> bool) -> Self {
        let mut filtered = RegistryTables {
            aliases: self.0.aliases.clone(),
            synonyms: self.0.synonyms.clone(),
            catch_alls: self.0.catch_alls.clone(),
            cache: self.0.cache.clone(),
            ..RegistryTables::default()
        };
        for name in self.0.catch_alls.keys() {
            filtered
                .namespaces
                .extend(namespaces_of(name).chain([name.clone()]));
        }
        self.0
            .tools
            .values()
            .filter(|tool| keep(&tool.spec))
            .for_each(|tool| filtered.insert(tool.clone()));
        Self(Arc::new(filtered))
    }
}

/// Returns the dotted prefixes of a name.
fn namespaces_of(name: &str) -> impl Iterator<Item = String> {
    let dots = name.match_indices('.');
    dots.map(|(dot, _)| name[..dot].to_owned())
}

impl RegistryTables {
    fn insert(&mut self, tool: Arc<RegisteredTool>) {
        let spec = &tool.spec;
        for name in [&spec.js_name, &spec.name] {
            self.namespaces.extend(namespaces_of(name));
        }
        self.js_names
            .insert(spec.js_name.clone(), spec.name.clone());
        self.tools.insert(spec.name.clone(), tool);
        self.index = OnceLock::new();
    }
}

impl RegisteredTool {
    fn new(tool: Box<dyn Tool>, spec: ToolSpec, cache: Option<&ToolCache>) -> Self {
        let (spec, derived) = match cache {
            Some(cache) => cache.share(spec, tool.field_case()),
            None => (Arc::new(spec), Arc::default()),
        };
        Self {
            tool,
            spec,
            derived,
            raw: OnceLock::new(),
        }
    }

    /// Returns the raw variant of the tool, if it has one. See [`Tool::raw`].
    pub fn raw(&self) -> Option<&Arc<RegisteredTool>> {
        let raw = || {
            let tool = self.tool.raw()?;
            let spec = tool.spec();
            Some(Arc::new(Self::new(tool, spec, None)))
        };
        self.raw.get_or_init(raw).as_ref()
    }

    /// Returns the types of arguments and result. They are read from the schemas on first use, once
    /// for all scripts and all registries with this tool.
    pub fn types(&self) -> &ToolTypes {
        self.derived.types.get_or_init(|| ToolTypes::of(self))
    }

    /// Returns the checker of arguments. It is created on first use, because most tools of a large
    /// catalogue are never called.
    pub(crate) fn checker(&self) -> Result<&ArgumentChecker, &str> {
        self.derived
            .checker
            .get_or_init(|| ArgumentChecker::new(&self.spec))
            .as_ref()
            .map_err(String::as_str)
    }

    /// Returns the types of arguments and result in one line each, as short declarations have them.
    pub(crate) fn compact_types(&self) -> &(String, String) {
        let compact = &self.derived.compact_types;
        compact.get_or_init(|| compact_types(self))
    }
}

impl std::fmt::Debug for RegistryIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RegistryIdentity").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.tools.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_not_looked_up() {
        let registry = Registry::default();
        let long = "name.".repeat(MAX_NAME_BYTES);
        assert!(registry.get(&long).is_none());
        assert!(matches!(registry.look_up(&long), ToolLookup::NotFound(near) if near.is_empty()));
        // Not even a tool of that name is found.
        let mut registry = Registry::default();
        let answer = |_: BTreeMap<String, String>| async { Ok::<_, crate::ToolError>(1) };
        for name in ["a".repeat(MAX_NAME_BYTES), "a".repeat(MAX_NAME_BYTES + 1)] {
            let registered = registry.register(crate::tool(&name, "Answers.", answer));
            let is_found = registered.is_ok() && registry.get(&name).is_some();
            assert_eq!(is_found, name.len() <= MAX_NAME_BYTES);
        }
    }
}
