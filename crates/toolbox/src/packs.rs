//! Tool packs: sets of tools by name.

use std::collections::{BTreeMap, BTreeSet};

use selvedge_protocol::{ToolPack, ToolSpec};
use selvedge_tools::nearest;

/// The packs there always are, and their tools.
const BUILT_IN: &[(&str, &str)] = &[
    (
        "core-codex",
        "exec apply_patch read_file list_dir grep_files file_search",
    ),
    ("anthropic-standard", "exec read_file update_plan list_dir"),
    (
        "file-ops",
        "read_file list_dir grep_files apply_patch file_search",
    ),
    (
        "research",
        "web_search fetch_url save_to_fc fetch_from_fc write_file",
    ),
    ("all", "*"),
];

/// All packs: the built-in ones and one's own, which may take a built-in one's name.
#[derive(Debug, Clone, Default)]
pub struct Packs(BTreeMap<String, ToolPack>);

/// The tools of a pack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    tools: BTreeSet<String>,
    without: BTreeSet<String>,
}

/// Why a pack cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// Nobody knows it.
    #[error("there is no tool pack `{name}`")]
    Unknown {
        /// As it was named.
        name: String,
        /// What may have been meant.
        near: Vec<String>,
    },
    /// It extends itself.
    #[error("the tool pack `{0}` extends itself")]
    Circle(String),
}

impl Packs {
    /// The built-in packs and these.
    pub fn with(own: impl IntoIterator<Item = (String, ToolPack)>) -> Self {
        Self(own.into_iter().collect())
    }

    /// The names of all packs.
    pub fn names(&self) -> BTreeSet<&str> {
        BUILT_IN
            .iter()
            .map(|(name, _)| *name)
            .chain(self.0.keys().map(String::as_str))
            .collect()
    }

    /// The tools of a pack.
    pub fn open(&self, name: &str) -> Result<Selection, PackError> {
        self.open_within(name, &mut Vec::new())
    }

    fn open_within(&self, name: &str, above: &mut Vec<String>) -> Result<Selection, PackError> {
        let Some(pack) = self
            .0
            .get(name)
            .filter(|_| !above.iter().any(|open| open == name))
        else {
            return self.built_in(name, above);
        };
        above.push(name.to_owned());
        let mut selection = Selection::default();
        for extended in &pack.extends {
            let below = self.open_within(extended, above)?;
            selection.tools.extend(below.tools);
            selection.without.extend(below.without);
        }
        selection.tools.extend(pack.tools.iter().cloned());
        // What a pack names itself it has, whatever those it extends leave out.
        selection.without.retain(|name| !pack.tools.contains(name));
        selection.without.extend(pack.without.iter().cloned());
        above.pop();
        Ok(selection)
    }

    fn built_in(&self, name: &str, above: &[String]) -> Result<Selection, PackError> {
        if let Some((_, tools)) = BUILT_IN.iter().find(|(pack, _)| *pack == name) {
            return Ok(Selection {
                tools: tools.split(' ').map(str::to_owned).collect(),
                ..Selection::default()
            });
        }
        if above.iter().any(|open| open == name) {
            return Err(PackError::Circle(name.to_owned()));
        }
        Err(PackError::Unknown {
            name: name.to_owned(),
            near: nearest(name, self.names()),
        })
    }
}

impl Selection {
    /// Whether the pack has this tool.
    pub fn has(&self, spec: &ToolSpec) -> bool {
        let named = |name: &String| {
            let below = name
                .strip_suffix('*')
                .filter(|prefix| prefix.is_empty() || prefix.ends_with('.'));
            *name == spec.name
                || *name == spec.js_name
                || below.is_some_and(|prefix| {
                    spec.js_name.starts_with(prefix) || spec.name.starts_with(prefix)
                })
        };
        self.tools.iter().any(named) && !self.without.iter().any(named)
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
    fn packs_extend_each_other() {
        let packs = Packs::with([
            (
                "mine".to_owned(),
                pack(&["file-ops"], &["updatePlan"], &["apply_patch"]),
            ),
            ("more".to_owned(), pack(&["mine"], &["apply_patch"], &[])),
            ("most".to_owned(), pack(&["all"], &[], &["exec"])),
            // A pack may stand in for a built-in one and extend it.
            (
                "file-ops".to_owned(),
                pack(&["file-ops"], &["write_file"], &[]),
            ),
            ("circle".to_owned(), pack(&["back"], &[], &[])),
            ("back".to_owned(), pack(&["circle"], &[], &[])),
        ]);
        let has = |name: &str, tool: &str| packs.open(name).unwrap().has(&spec(tool));
        assert!(
            has("mine", "read_file") && has("mine", "update_plan") && has("mine", "write_file")
        );
        assert!(!has("mine", "apply_patch") && has("more", "apply_patch") && !has("mine", "exec"));
        assert!(has("most", "anything") && !has("most", "exec") && has("all", "exec"));
        assert_eq!(
            packs.open("circle"),
            Err(PackError::Circle("circle".into()))
        );
        let Err(PackError::Unknown { near, .. }) = packs.open("fileops") else {
            panic!()
        };
        assert_eq!(near.first().map(String::as_str), Some("file-ops"));
    }
}
