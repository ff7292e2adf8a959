//! Where tools are found, by any of their spellings.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use selvedge_protocol::ToolSpec;

use crate::arguments::Checker;
use crate::names::{nearest, synonyms};
use crate::{Tool, snake_case};

/// A set of tools. Cheap to clone; a clone is a set of its own.
#[derive(Clone, Default)]
pub struct Registry {
    /// By canonical name.
    tools: BTreeMap<String, Arc<Registered>>,
    /// Script name to canonical name.
    js_names: HashMap<String, String>,
    /// Other canonical names to the one that is.
    aliases: HashMap<String, String>,
    /// Dotted prefixes of script names.
    namespaces: BTreeSet<String>,
}

/// A tool and what was derived from it.
pub struct Registered {
    /// The tool itself.
    pub tool: Box<dyn Tool>,
    /// Its spec, taken once.
    pub spec: ToolSpec,
    checker: OnceLock<Result<Checker, String>>,
}

/// What a name stands for.
pub enum Found<'a> {
    /// A tool.
    Tool(&'a Arc<Registered>),
    /// A prefix of tools.
    Namespace,
    /// Nothing; these are near.
    Nothing(Vec<String>),
}

/// Why a tool cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Another tool has the name.
    #[error("two tools are called `{0}`")]
    Duplicate(String),
    /// The name cannot be called from a script.
    #[error("`{0}` cannot be a tool's name: use letters, digits and `_`")]
    BadName(String),
}

impl Registry {
    /// No tools.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool.
    pub fn register(&mut self, tool: impl Tool + 'static) -> Result<(), RegistryError> {
        let spec = tool.spec();
        let identifier = |part: &str| {
            !part.is_empty()
                && !part.starts_with(|c: char| c.is_ascii_digit())
                && part.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$')
        };
        if !spec.js_name.split('.').all(identifier) {
            return Err(RegistryError::BadName(spec.name));
        }
        if self.tools.contains_key(&spec.name) || self.js_names.contains_key(&spec.js_name) {
            return Err(RegistryError::Duplicate(spec.name));
        }
        for (dot, _) in spec.js_name.match_indices('.') {
            self.namespaces.insert(spec.js_name[..dot].to_owned());
        }
        self.js_names.insert(spec.js_name.clone(), spec.name.clone());
        self.tools
            .insert(spec.name.clone(), Arc::new(Registered { tool: Box::new(tool), spec, checker: OnceLock::new() }));
        Ok(())
    }

    /// Lets a tool be called by another name as well. A tool of that name goes first.
    pub fn alias(&mut self, alias: &str, name: &str) {
        self.aliases.insert(alias.to_owned(), name.to_owned());
    }

    /// Adds a tool and returns the set, for building one in a single expression.
    pub fn with(mut self, tool: impl Tool + 'static) -> Result<Self, RegistryError> {
        self.register(tool)?;
        Ok(self)
    }

    /// The tool of this canonical or script name.
    pub fn get(&self, name: &str) -> Option<&Arc<Registered>> {
        self.tools
            .get(name)
            .or_else(|| self.js_names.get(name).and_then(|name| self.tools.get(name)))
            .or_else(|| self.tools.get(&snake_case(name)))
            .or_else(|| self.aliases.get(&snake_case(name)).and_then(|name| self.tools.get(name)))
    }

    /// What a script means by `tools.<path>`.
    pub fn find(&self, path: &str) -> Found<'_> {
        match self.get(path) {
            Some(tool) => Found::Tool(tool),
            None if self.namespaces.contains(path) => Found::Namespace,
            None => {
                let same = synonyms(path).filter_map(|name| self.tools.get(name)).map(|tool| tool.spec.js_name.clone());
                let mut near: Vec<String> =
                    same.chain(nearest(path, self.js_names.keys().map(String::as_str))).collect();
                near.truncate(3);
                near.dedup();
                Found::Nothing(near)
            }
        }
    }

    /// Whether `name` is the first part of dotted names.
    pub fn is_namespace(&self, name: &str) -> bool {
        self.namespaces.contains(name)
    }

    /// Script names directly below a prefix that is empty or ends with a dot.
    pub fn names_below(&self, prefix: &str) -> BTreeSet<String> {
        let below =
            |name: &String| name.strip_prefix(prefix).map(|rest| rest.split('.').next().unwrap_or(rest).to_owned());
        self.js_names.keys().filter_map(below).collect()
    }

    /// All tools, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Registered>> {
        self.tools.values()
    }

    /// How many tools there are.
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// The set with only the tools that `keep` agrees to.
    pub fn filtered(&self, keep: impl Fn(&ToolSpec) -> bool) -> Self {
        let mut kept = Self { aliases: self.aliases.clone(), ..Self::new() };
        for tool in self.tools.values().filter(|tool| keep(&tool.spec)) {
            for (dot, _) in tool.spec.js_name.match_indices('.') {
                kept.namespaces.insert(tool.spec.js_name[..dot].to_owned());
            }
            kept.js_names.insert(tool.spec.js_name.clone(), tool.spec.name.clone());
            kept.tools.insert(tool.spec.name.clone(), tool.clone());
        }
        kept
    }
}

impl Registered {
    /// Checks arguments; made on first use, because most tools of a large catalogue are never called.
    pub(crate) fn checker(&self) -> Result<&Checker, &str> {
        self.checker.get_or_init(|| Checker::new(&self.spec, self.tool.as_ref())).as_ref().map_err(String::as_str)
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.tools.keys()).finish()
    }
}
