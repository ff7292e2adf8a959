//! The configuration that a run was started with, as the journal stores it. A restored run uses it
//! instead of the current configuration. Only the saved approval rules are read again.

use std::path::PathBuf;

use anyhow::Result;
use selvedge_config::{Config, Project};
use selvedge_protocol::ScriptMode;
use selvedge_script::ScriptContext;
use serde::{Deserialize, Serialize};

use crate::args::ScriptLimitArgs;
use crate::journal::JournalNeed;
use crate::problem::Problem;
use crate::setup::CliSetup;

/// Configuration and arguments of a run. The field names are part of the stored JSON.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct SavedRunConfig {
    /// Configuration files and flags, combined.
    config: Config,
    args: Vec<String>,
    session: String,
    /// The trusted project files, as they were when the run started.
    project_files: Option<Project>,
    /// Name of the HTTP client of `mcp serve` that the run belongs to; `None` if the user started
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client: Option<String>,
}

impl SavedRunConfig {
    /// Saves the configuration of `setup` with these limits and arguments.
    pub(crate) fn from_setup(
        setup: &CliSetup,
        limits: &ScriptLimitArgs,
        args: Vec<String>,
    ) -> Self {
        let mut config = setup.config.clone();
        config.script_harness.limits = setup.limits(limits);
        config.script_harness.mode = ScriptMode::Enabled;
        Self {
            config,
            args,
            session: setup.session.clone(),
            project_files: setup.project.clone(),
            client: setup
                .mcp_run_access
                .as_ref()
                .and_then(|access| access.http_client_name.clone()),
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        Ok(serde_json::from_str(text).map_err(|_| {
            Problem::new("the stored configuration of the run is missing or from another version")
                .hint("continue it with the version of Selvedge that started it")
        })?)
    }

    /// Returns the HTTP client that a recorded run belongs to; `None` if the user started it.
    pub(crate) fn client_of(text: &str) -> Option<String> {
        #[derive(Deserialize)]
        struct SavedClient {
            #[serde(default)]
            client: Option<String>,
        }
        serde_json::from_str::<SavedClient>(text).ok()?.client
    }

    /// Sets up the tools of the run in its folder.
    pub(crate) fn setup(&self, directory: PathBuf) -> Result<CliSetup> {
        let setup =
            CliSetup::from_config(self.config.clone(), directory, self.project_files.clone())?
                .with_session(&self.session);
        setup.with_journal(&Default::default(), JournalNeed::Required)
    }

    /// Returns what the script sees as `context`.
    pub(crate) fn script_context(&self, setup: &CliSetup) -> ScriptContext {
        ScriptContext {
            args: self.args.clone(),
            ..setup.script_context()
        }
    }
}
