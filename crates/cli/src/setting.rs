//! What a run was started with, as the journal keeps it: whoever goes on with the run does so under the same rules.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use selvedge_script::Facts;
use serde::{Deserialize, Serialize};

use crate::args::{ApprovalArg, LimitArgs, ModeArg, PlaceArgs, RunArgs, SandboxArg};
use crate::problem::Problem;
use crate::setup::Setup;

/// The flags of a run, and what the configuration made of those that were not given.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Setting {
    approval: String,
    sandbox: String,
    pack: Option<String>,
    timeout_ms: Option<u64>,
    memory: Option<u64>,
    max_calls: Option<u32>,
    max_concurrent: Option<u32>,
    args: Vec<String>,
    pub(crate) session: String,
    #[serde(skip)]
    directory: PathBuf,
}

impl Setting {
    pub(crate) fn of(args: &RunArgs, setup: &Setup) -> Self {
        let word = |policy: serde_json::Value| policy.as_str().unwrap_or_default().to_owned();
        Self {
            approval: word(serde_json::json!(setup.config.approval_policy)),
            sandbox: word(serde_json::json!(setup.config.sandbox_mode)),
            pack: setup.config.tool_pack.clone(),
            timeout_ms: args.limits.timeout.map(|timeout| timeout.as_millis() as u64),
            memory: args.limits.memory,
            max_calls: args.limits.max_calls,
            max_concurrent: args.limits.max_concurrent,
            args: args.args.clone(),
            session: args.session.clone().unwrap_or_default(),
            directory: setup.directory.clone(),
        }
    }

    pub(crate) fn parse(text: &str, directory: &str) -> Result<Self> {
        let setting: Self = serde_json::from_str(text).map_err(|_| {
            Problem::new("the run does not say what it was started with").hint("go on with it where it was started")
        })?;
        Ok(Self { directory: directory.into(), ..setting })
    }

    /// Everything the run had.
    pub(crate) fn setup(&self) -> Result<Setup> {
        let unknown = |word: &str| Problem::new(format!("the run was started under `{word}`, which is not known here"));
        let place = PlaceArgs {
            directory: Some(self.directory.clone()),
            approval: Some(ApprovalArg::from_str(&self.approval, true).map_err(|_| unknown(&self.approval))?),
            sandbox: Some(SandboxArg::from_str(&self.sandbox, true).map_err(|_| unknown(&self.sandbox))?),
            pack: self.pack.clone(),
            ..PlaceArgs::default()
        };
        Setup::new(&place)?.with_journal(&place)
    }

    pub(crate) fn limits(&self) -> LimitArgs {
        LimitArgs {
            timeout: self.timeout_ms.map(std::time::Duration::from_millis),
            memory: self.memory,
            max_calls: self.max_calls,
            max_concurrent: self.max_concurrent,
            mode: Some(ModeArg::Enabled),
        }
    }

    pub(crate) fn facts(&self, setup: &Setup) -> Facts {
        Facts { args: self.args.clone(), session_id: self.session.clone(), ..setup.facts() }
    }
}
