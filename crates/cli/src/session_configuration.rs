//! The configuration of a folder in which sessions work.

use std::path::PathBuf;

use anyhow::Result;
use selvedge_config::{Config, EnvironmentSettings, Project};
use selvedge_protocol::{SandboxPolicy, SessionFolder};
use selvedge_toolbox::{WorktreeError, is_in_repository};

use crate::instructions::InstructionUse;
use crate::problem::Problem;
use crate::setup::{CliSetup, LoadedConfiguration};

/// The configuration for turns of sessions in one folder. Those of other folders are read from
/// their files.
#[derive(Clone)]
pub(crate) struct SessionConfiguration {
    pub(crate) config: Config,
    pub(crate) directory: PathBuf,
    pub(crate) project: Option<Project>,
    pub(crate) instruction_use: InstructionUse,
}

impl From<LoadedConfiguration> for SessionConfiguration {
    fn from(loaded: LoadedConfiguration) -> Self {
        Self {
            config: loaded.config,
            directory: loaded.directory,
            project: loaded.project,
            instruction_use: loaded.instruction_use,
        }
    }
}

impl SessionConfiguration {
    /// Returns the folder in which sessions of an environment work, and whether they change files
    /// there. `worktree` overrides the environment.
    pub(crate) fn session_place(
        &self,
        environment: Option<&str>,
        worktree: Option<bool>,
    ) -> Result<(PathBuf, SessionFolder)> {
        let environment = match environment {
            Some(name) => {
                let environment = self.config.environments.get(name);
                environment.ok_or_else(|| no_environment(name))?.clone()
            }
            None => EnvironmentSettings::default(),
        };
        let directory = match &environment.workspace {
            Some(workspace) => {
                let path = self.directory.join(workspace);
                path.canonicalize().unwrap_or(path)
            }
            None => self.directory.clone(),
        };
        let sandbox = environment.sandbox_mode.unwrap_or(self.config.sandbox_mode);
        // A session that changes nothing needs no worktree.
        let can_change = sandbox != SandboxPolicy::ReadOnly;
        if !can_change || !worktree.unwrap_or(environment.worktree) {
            return Ok((directory, SessionFolder::Shared));
        }
        if !is_in_repository(&directory) {
            let error = WorktreeError::NotARepository(directory);
            let problem = Problem::new(error.to_string());
            return Err(problem.hint(error.hint().unwrap_or_default()).into());
        }
        Ok((directory, SessionFolder::Worktree))
    }

    /// Returns the names of the environments.
    pub(crate) fn environment_names(&self) -> Vec<String> {
        self.config.environments.keys().cloned().collect()
    }

    /// Sets up the tools of the folder, without a session.
    pub(crate) fn into_setup(self) -> Result<CliSetup> {
        let mut setup = CliSetup::from_config(self.config, self.directory, self.project)?;
        setup.instruction_use = self.instruction_use;
        Ok(setup)
    }
}

/// Returns the error for an environment that is not configured.
pub(crate) fn no_environment(name: &str) -> Problem {
    Problem::new(format!("there is no environment `{name}`"))
        .hint(format!("add `[environments.{name}]` to config.toml"))
}
