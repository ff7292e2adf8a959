//! Where tools are found, by any of their spellings.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use selvedge_protocol::ToolSpec;

use crate::arguments::Checker;
use crate::names::nearest;
use crate::search::Index;
use crate::{Tool, snake_case};

/// A set of tools. A clone costs nothing and is a set of its own: whoever holds one while servers come and go keeps
/// what it saw.
#[derive(Clone, Default)]
pub struct Registry(Arc<Set>);

#[derive(Clone, Default)]
struct Set {
    /// By canonical name.
    tools: BTreeMap<String, Arc<Registered>>,
    /// Script name to canonical name.
    js_names: HashMap<String, String>,
    /// Other canonical names to the one that is.
    aliases: HashMap<String, String>,
    /// Names that are no tools here, and the tools to suggest to a script that calls one.
    synonyms: HashMap<&'static str, &'static str>,
    /// Dotted prefixes of script names and of canonical ones.
    namespaces: BTreeSet<String>,
    /// Prefixes below which nobody knows what there is, and the tool that stands for all of it.
    stand_ins: BTreeMap<String, Arc<Registered>>,
    /// Made on the first search.
    index: OnceLock<Arc<Index>>,
}

/// A tool and what was derived from it.
pub struct Registered {
    /// The tool itself.
    pub tool: Box<dyn Tool>,
    /// Its spec, taken once.
    pub spec: ToolSpec,
    checker: OnceLock<Result<Checker, String>>,
    raw: OnceLock<Option<Arc<Registered>>>,
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
                && part
                    .chars()
                    .all(|c| c.is_alphanumeric() || c == '_' || c == '$')
        };
        if !spec.js_name.split('.').all(identifier) {
            return Err(RegistryError::BadName(spec.name));
        }
        if self.0.tools.contains_key(&spec.name) || self.0.js_names.contains_key(&spec.js_name) {
            return Err(RegistryError::Duplicate(spec.name));
        }
        Arc::make_mut(&mut self.0).insert(Arc::new(Registered::new(Box::new(tool), spec)));
        Ok(())
    }

    /// Lets a tool be called by another name as well. A tool of that name goes first.
    pub fn alias(&mut self, alias: &str, name: &str) {
        Arc::make_mut(&mut self.0)
            .aliases
            .insert(alias.to_owned(), name.to_owned());
    }

    /// Suggests these tools, as far as they are registered, to a script that calls an unknown tool by
    /// one of these names. Both are in snake_case, separated by spaces.
    pub fn synonyms(&mut self, names: &'static str, tools: &'static str) {
        let synonyms = names.split(' ').map(|name| (name, tools));
        Arc::make_mut(&mut self.0).synonyms.extend(synonyms);
    }

    /// Adds a tool and returns the set, for building one in a single expression.
    pub fn with(mut self, tool: impl Tool + 'static) -> Result<Self, RegistryError> {
        self.register(tool)?;
        Ok(self)
    }

    /// The tool of this canonical or script name.
    ///
    /// `x.raw` is what `x` calls its raw form, where it has one.
    pub fn get(&self, name: &str) -> Option<&Arc<Registered>> {
        self.named(name)
            .or_else(|| self.named(name.strip_suffix(".raw")?)?.raw())
    }

    fn named(&self, name: &str) -> Option<&Arc<Registered>> {
        let set = &self.0;
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
                    .find_map(|(dot, _)| set.stand_ins.get(&name[..dot]))
            })
    }

    /// Puts a tool in the place of all that may be below its name: whatever is called there is that tool. Not listed.
    pub fn stand_in(&mut self, tool: impl Tool + 'static) {
        let spec = tool.spec();
        let set = Arc::make_mut(&mut self.0);
        let names = [spec.js_name.clone(), spec.name.clone()];
        let tool = Arc::new(Registered::new(Box::new(tool), spec));
        for name in names {
            set.namespaces.extend(namespaces_of(&name));
            set.namespaces.insert(name.clone());
            set.stand_ins.insert(name, tool.clone());
        }
    }

    /// Makes a prefix known although nothing is below it yet.
    pub fn reserve(&mut self, namespace: &str) {
        let set = Arc::make_mut(&mut self.0);
        set.namespaces.extend(namespaces_of(namespace));
        set.namespaces.insert(namespace.to_owned());
    }

    /// Whether this is the very set that the other one is.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The tools that have most to do with these words, the best first.
    pub fn search(&self, words: &str, limit: usize) -> Vec<&Arc<Registered>> {
        let index = self
            .0
            .index
            .get_or_init(|| Arc::new(Index::new(self.iter().map(|tool| &tool.spec))));
        let found = index.search(words, limit);
        found
            .into_iter()
            .filter_map(|name| self.0.tools.get(name))
            .collect()
    }

    /// What a script means by `tools.<path>`.
    pub fn find(&self, path: &str) -> Found<'_> {
        match self.get(path) {
            Some(tool) => Found::Tool(tool),
            None if self.0.namespaces.contains(path) => Found::Namespace,
            None => {
                let same = self.0.synonyms.get(snake_case(path).as_str());
                let same = same
                    .into_iter()
                    .flat_map(|names| names.split(' '))
                    .filter_map(|name| self.0.tools.get(name))
                    .map(|tool| tool.spec.js_name.clone());
                let mut near: Vec<String> = same
                    .chain(nearest(path, self.0.js_names.keys().map(String::as_str)))
                    .collect();
                near.truncate(3);
                near.dedup();
                Found::Nothing(near)
            }
        }
    }

    /// Whether `name` is the first part of dotted names.
    pub fn is_namespace(&self, name: &str) -> bool {
        self.0.namespaces.contains(name)
    }

    /// Script names directly below a prefix that is empty or ends with a dot.
    pub fn names_below(&self, prefix: &str) -> BTreeSet<String> {
        let below = |name: &String| {
            name.strip_prefix(prefix)
                .map(|rest| rest.split('.').next().unwrap_or(rest).to_owned())
        };
        self.0.js_names.keys().filter_map(below).collect()
    }

    /// All tools, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Registered>> {
        self.0.tools.values()
    }

    /// How many tools there are.
    pub fn len(&self) -> usize {
        self.0.tools.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.tools.is_empty()
    }

    /// The set with only the tools that `keep` agrees to.
    pub fn filtered(&self, keep: impl Fn(&ToolSpec) -> bool) -> Self {
        let mut kept = Set {
            aliases: self.0.aliases.clone(),
            synonyms: self.0.synonyms.clone(),
            stand_ins: self.0.stand_ins.clone(),
            ..Set::default()
        };
        for name in self.0.stand_ins.keys() {
            kept.namespaces
                .extend(namespaces_of(name).chain([name.clone()]));
        }
        self.0
            .tools
            .values()
            .filter(|tool| keep(&tool.spec))
            .for_each(|tool| kept.insert(tool.clone()));
        Self(Arc::new(kept))
    }
}

/// The dotted prefixes of a name.
fn namespaces_of(name: &str) -> impl Iterator<Item = String> {
    let dots = name.match_indices('.');
    dots.map(|(dot, _)| name[..dot].to_owned())
}

impl Set {
    fn insert(&mut self, tool: Arc<Registered>) {
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

impl Registered {
    fn new(tool: Box<dyn Tool>, spec: ToolSpec) -> Self {
        Self {
            tool,
            spec,
            checker: OnceLock::new(),
            raw: OnceLock::new(),
        }
    }

    /// The same tool with everything it said, where it has such a form.
    pub fn raw(&self) -> Option<&Arc<Registered>> {
        let raw = || {
            let tool = self.tool.raw()?;
            let spec = tool.spec();
            Some(Arc::new(Self::new(tool, spec)))
        };
        self.raw.get_or_init(raw).as_ref()
    }

    /// Checks arguments; made on first use, because most tools of a large catalogue are never called.
    pub(crate) fn checker(&self) -> Result<&Checker, &str> {
        self.checker
            .get_or_init(|| Checker::new(&self.spec))
            .as_ref()
            .map_err(String::as_str)
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.tools.keys()).finish()
    }
}
