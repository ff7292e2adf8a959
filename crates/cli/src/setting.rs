//! What a run was started with, as the journal keeps it: whoever goes on with the run does so under the same rules,
//! whatever the configuration says by then. Only what a person has allowed for ever is looked up anew.

use std::path::PathBuf;

use anyhow::Result;
use selvedge_config::{Config, Project};
use selvedge_protocol::Mode;
use selvedge_script::Facts;
use serde::{Deserialize, Serialize};

use crate::args::LimitArgs;
use crate::problem::Problem;
use crate::setup::Setup;

/// The rules of a run, and what was said to it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Setting {
    /// What files and flags came to.
    config: Config,
    args: Vec<String>,
    session: String,
    /// The folder whose own files were followed, as they were.
    project_files: Option<Project>,
}

impl Setting {
    pub(crate) fn new(setup: &Setup, limits: &LimitArgs, args: Vec<String>) -> Self {
        let mut config = setup.config.clone();
        config.script_harness.limits = setup.limits(limits);
        config.script_harness.mode = Mode::Enabled;
        Self {
            config,
            args,
            session: setup.session.clone(),
            project_files: setup.project.clone(),
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        Ok(serde_json::from_str(text).map_err(|_| {
            Problem::new("the run does not say what it was started with, or says it in words of another version")
                .hint("go on with it with the version it was started with")
        })?)
    }

    pub(crate) fn setup(&self, directory: PathBuf) -> Result<Setup> {
        let setup = Setup::under(self.config.clone(), directory, self.project_files.clone())?
            .with_session(&self.session);
        setup.with_journal(&Default::default())
    }

    pub(crate) fn facts(&self, setup: &Setup) -> Facts {
        Facts {
            args: self.args.clone(),
            ..setup.facts()
        }
    }
}
