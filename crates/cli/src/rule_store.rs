//! Stores the rules that a person adds with "always", for the folder or for every folder.

use std::path::{Path, PathBuf};

use selvedge_config::ConfigError;
use selvedge_protocol::RuleScope;

/// Where rules are stored, and the folder that they may be limited to.
#[derive(Debug, Clone)]
pub(crate) struct RuleStore {
    /// `None` if there is no home folder: rules then end with the process.
    home: Option<PathBuf>,
    folder: PathBuf,
}

impl RuleStore {
    pub(crate) fn new(home: Option<&Path>, folder: &Path) -> Self {
        Self {
            home: home.map(Path::to_owned),
            folder: folder.to_owned(),
        }
    }

    /// Calls `save` with the home and the folder of the rule; without a folder, the rule is for
    /// every folder. Prints a warning if that fails.
    pub(crate) fn save(
        &self,
        scope: RuleScope,
        save: impl FnOnce(&Path, Option<&Path>) -> Result<(), ConfigError>,
    ) {
        let folder = match scope {
            RuleScope::Process => return,
            RuleScope::Folder => Some(self.folder.as_path()),
            RuleScope::Everywhere => None,
        };
        let saved = self.home.as_ref().map(|home| save(home, folder));
        if let Some(Err(error)) = saved {
            eprint_line!("warning: the rule applies to this run only: {error}");
        }
    }
}
