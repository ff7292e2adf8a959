//! [`ToolCache`]: what registries with the same tools share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use selvedge_protocol::ToolSpec;

use crate::FieldCase;
use crate::arguments::ArgumentChecker;
use crate::schema_type::ToolTypes;

/// Most specs of a cache. A full one starts again, because clients can name any number of tools.
const MAX_CACHED_SPECS: usize = 2000;

/// The specs of tools and what is derived from them, for programs that make many registries: each
/// turn of a server has its own tools, but their specs are the same. Has one entry per name.
#[derive(Default)]
pub struct ToolCache(Mutex<HashMap<String, CachedSpec>>);

struct CachedSpec {
    spec: Arc<ToolSpec>,
    field_case: FieldCase,
    derived: Arc<DerivedToolData>,
}

/// What is derived from the spec of a tool, each on first use.
#[derive(Default)]
pub(crate) struct DerivedToolData {
    pub(crate) checker: OnceLock<Result<ArgumentChecker, String>>,
    pub(crate) types: OnceLock<ToolTypes>,
    /// The types of arguments and result, as short declarations have them.
    pub(crate) compact_types: OnceLock<(String, String)>,
}

impl ToolCache {
    /// Returns a spec and its derived data, those of an earlier tool if its spec was equal.
    pub(crate) fn share(
        &self,
        spec: ToolSpec,
        field_case: FieldCase,
    ) -> (Arc<ToolSpec>, Arc<DerivedToolData>) {
        let mut tools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = tools.get(&spec.name);
        let known = known.filter(|known| known.field_case == field_case && *known.spec == spec);
        if let Some(known) = known {
            return (known.spec.clone(), known.derived.clone());
        }
        let (spec, derived) = (Arc::new(spec), Arc::<DerivedToolData>::default());
        let new = CachedSpec {
            spec: spec.clone(),
            field_case,
            derived: derived.clone(),
        };
        if tools.len() >= MAX_CACHED_SPECS {
            tools.clear();
        }
        tools.insert(spec.name.clone(), new);
        (spec, derived)
    }
}

impl std::fmt::Debug for ToolCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ToolCache").finish_non_exhaustive()
    }
}
