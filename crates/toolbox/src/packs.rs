//! Tool packs: named sets of tools. Packs can extend other packs.

use std::collections::{BTreeMap, BTreeSet};

use selvedge_protocol::{ToolPack, ToolSpec};
use selvedge_tools::similar_names;

/// The built-in packs, each with the names of its tools.
const BUILT_IN_PACKS: &[(&str, &str)] = &[
    (
        "core-codex",
        "exec apply_patch edit_file read_file list_dir grep_files file_search",
    ),
    ("anthropic-standard", "exec read_file update_plan list_dir"),
    (
        "file-ops",
        "read_file list_dir grep_files apply_patch edit_file file_search",
    ),
    (
        "research",
        "web_search fetch_url save_to_fc fetch_from_fc write_file edit_file",
    ),
    ("all", "*"),
];

/// All packs: the built-in ones and those of the configuration, which may replace a built-in pack
/// by its name.
#[derive(Debug, Clone, Default)]
pub struct ToolPacks(BTreeMap<String, ToolPack>);

/// The tools of a pack, after resolving the packs that it extends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PackSelection {
    tools: BTreeSet<String>,
    excluded: BTreeSet<String>,
}

/// Why a pack cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// No pack has this name.
    #[error("unknown tool pack `{name}`")]
    Unknown {
        /// The unknown name.
        name: String,
        /// Names of existing packs that are similar, best first.
        similar: Vec<String>,
    },
    /// The pack with this name extends itself, directly or through other packs.
    #[error("the tool pack `{0}` extends itself")]
    Cycle(String),
}

impl ToolPacks {
    /// Adds packs to the built-in ones.
    pub fn with_custom(own: impl IntoIterator<Item = (String, ToolPack)>) -> Self {
        Self(own.into_iter().collect())
    }

    /// Returns the names of all packs.
    pub fn names(&self) -> BTreeSet<&str> {
        BUILT_IN_PACKS
            .iter()
            .map(|(name, _)| *name)
            .chain(self.0.keys().map(String::as_str))
            .collect()
    }

    /// Returns the tools of a pack.
    pub fn resolve(&self, name: &str) -> Result<PackSelection, PackError> {
        self.resolve_within(name, &mut Vec::new())
    }

    /// Resolves a pack. `resolving` has the names of the packs that are being resolved.
    fn resolve_within(
        &self,
        name: &str,
        resolving: &mut Vec<String>,
    ) -> Result<PackSelection, PackError> {
        let Some(pack) = self
            .0
            .get(name)
            .filter(|_| !resolving.iter().any(|open| open == name))
        else {
            return self.built_in(name, resolving);
        };
        resolving.push(name.to_owned());
        let mut selection = PackSelection::default();
        for extended in &pack.extends {
            let base = self.resolve_within(extended, resolving)?;
            selection.tools.extend(base.tools);
            selection.excluded.extend(base.excluded);
        }
        selection.tools.extend(pack.tools.iter().cloned());
        // A tool that the pack itself names overrides exclusions of the packs it extends.
        selection.excluded.retain(|name| !pack.tools.contains(name));
        selection.excluded.extend(pack.without.iter().cloned());
        resolving.pop();
        Ok(selection)
    }

    fn built_in(&self, name: &str, resolving: &[String]) -> Result<PackSelection, PackError> {
        if let Some((_, tools)) = BUILT_IN_PACKS.iter().find(|(pack, _)| *pack == name) {
            return Ok(PackSelection {
                tools: tools.split(' ').map(str::to_owned).collect(),
                ..PackSelection::default()
            });
        }
        if resolving.iter().any(|open| open == name) {
            return Err(PackError::Cycle(name.to_owned()));
        }
        Err(PackError::Unknown {
            name: name.to_owned(),
            similar: similar_names(name, self.names()),
        })
    }
}

impl PackSelection {
    /// Returns whether the pack contains this tool.
    pub fn contains(&self, spec: &ToolSpec) -> bool {
        let matches = |name: &String| {
            let namespace = name
                .strip_suffix('*')
                .filter(|prefix| prefix.is_empty() || prefix.ends_with('.'));
            *name == spec.name
                || *name == spec.js_name
                || namespace.is_some_and(|prefix| {
                    spec.js_name.starts_with(prefix) || spec.name.starts_with(prefix)
                })
        };
        self.tools.iter().any(matches) && !self.excluded.iter().any(matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> ToolSpec {
        selvedge_tools::spec_of::<(), ()>(name, "")
    }

    fn pack(extends: &[&str], tools: &[&str], without: &[&str]) -> ToolPack {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        ToolPack {
            extends: own(extends),
            tools: own(tools),
            without: own(without),
        }
    }

    #[test]
    fn the_packs_that_change_files_can_edit_them() {
        let packs = ToolPacks::default();
        for name in ["core-codex", "file-ops", "research"] {
            let pack = packs.resolve(name).unwrap();
            assert!(pack.tools.contains("edit_file"), "{name}");
        }
    }

    #[test]
    fn packs_that_change_files_can_edit_them() {
        for (name, tools) in BUILT_IN_PACKS {
            let has = |tool: &str| tools.split(' ').any(|listed| listed == tool);
            let changes_files = has("apply_patch") || has("write_file");
            assert!(!changes_files || has("edit_file"), "{name}");
        }
    }

    #[test]
    fn packs_extend_each_other() {
        let packs = ToolPacks::with_custom([
            (
                "mine".to_owned(),
                pack(&["file-ops"], &["updatePlan"], &["apply_patch"]),
            ),
            ("more".to_owned(), pack(&["mine"], &["apply_patch"], &[])),
            ("most".to_owned(), pack(&["all"], &[], &["exec"])),
            // A pack can replace a built-in one and extend it.
            (
                "file-ops".to_owned(),
                pack(&["file-ops"], &["write_file"], &[]),
            ),
            ("circle".to_owned(), pack(&["back"], &[], &[])),
            ("back".to_owned(), pack(&["circle"], &[], &[])),
        ]);
        let has = |name: &str, tool: &str| packs.resolve(name).unwrap().contains(&spec(tool));
        assert!(
            has("mine", "read_file") && has("mine", "update_plan") && has("mine", "write_file")
        );
        assert!(!has("mine", "apply_patch") && has("more", "apply_patch") && !has("mine", "exec"));
        assert!(has("most", "anything") && !has("most", "exec") && has("all", "exec"));
        assert_eq!(
            packs.resolve("circle"),
            Err(PackError::Cycle("circle".into()))
        );
        let Err(PackError::Unknown { similar: near, .. }) = packs.resolve("fileops") else {
            panic!()
        };
        assert_eq!(near.first().map(String::as_str), Some("file-ops"));
    }
}
