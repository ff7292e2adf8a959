//! From flags and files to a harness.

use std::path::{Path, PathBuf};

use anyhow::Result;
use selvedge_config::Config;
use selvedge_protocol::ModeSettings;
use selvedge_script::{Facts, Harness};
use selvedge_toolbox::{Plan, Workspace};
use selvedge_tools::{NobodyToAsk, Orchestrator, Registry};
use std::sync::Arc;

use crate::args::{LimitArgs, PlaceArgs};
use crate::problem::Problem;

/// Everything a command needs.
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) directory: PathBuf,
    pub(crate) home: Option<PathBuf>,
}

impl Setup {
    pub(crate) fn new(place: &PlaceArgs) -> Result<Self> {
        let directory = working_directory(place.directory.as_deref())?;
        let home = selvedge_config::home();
        let project = trusted_project(&directory, home.as_deref(), place.trust)?;
        let mut config = selvedge_config::load(home.as_deref(), project.as_deref())
            .map_err(|error| Problem::new(error.to_string()).hint("docs/configuration.md lists every key"))?;
        if let Some(policy) = place.approval {
            config.approval_policy = policy.into();
        }
        if let Some(policy) = place.sandbox {
            config.sandbox_mode = policy.into();
        }
        Ok(Self { config, directory, home })
    }

    /// The tools there are, as far as the configuration exposes them.
    pub(crate) fn registry(&self) -> Result<Registry> {
        let private: Vec<PathBuf> = self.home.iter().cloned().collect();
        let workspace = Workspace::open(&self.directory, self.config.sandbox_mode, &private).map_err(|error| {
            Problem::new(format!("cannot open {}: {error}", self.directory.display()))
                .hint("-C takes the folder to work in")
        })?;
        let mut all = Registry::new();
        selvedge_toolbox::register(&mut all, &workspace, &Plan::default())?;
        Ok(match &self.config.script_harness.expose.tools {
            None => all,
            Some(names) => all.filtered(|spec| names.iter().any(|name| *name == spec.name || *name == spec.js_name)),
        })
    }

    pub(crate) fn harness(&self, args: &LimitArgs) -> Result<Harness> {
        let mut limits = self.config.script_harness.limits.clone();
        if let Some(timeout) = args.timeout {
            limits.timeout_ms = timeout.as_millis() as u64;
            limits.max_timeout_ms = limits.max_timeout_ms.max(limits.timeout_ms);
        }
        if let Some(memory) = args.memory {
            limits.memory_mb = memory;
        }
        if let Some(calls) = args.max_calls {
            limits.max_tool_calls = calls;
        }
        if let Some(concurrent) = args.max_concurrent {
            limits.max_concurrent_tool_calls = concurrent;
        }
        let modes = ModeSettings {
            turn: args.mode.map(Into::into),
            provider: None,
            global: Some(self.config.script_harness.mode),
        };
        let approver = NobodyToAsk { because: "this command asks nobody".to_owned() };
        let orchestrator = Orchestrator::new(self.registry()?)
            .with_policy(self.config.approval_policy)
            .with_approver(Arc::new(approver));
        let harness = Harness::new(orchestrator).map_err(|error| {
            Problem::new(format!("cannot start the sandbox: {error}"))
                .hint("run `selvedge doctor` to see what this machine lacks")
        })?;
        Ok(harness
            .with_limits(limits)
            .with_mode(modes.effective())
            .allow_detached_promises(self.config.script_harness.allow_detached_promises))
    }

    pub(crate) fn facts(&self) -> Facts {
        Facts { working_directory: self.directory.display().to_string(), ..Facts::default() }
    }
}

fn working_directory(asked: Option<&Path>) -> Result<PathBuf> {
    let directory = match asked {
        Some(directory) => directory.to_owned(),
        None => std::env::current_dir().map_err(|error| {
            Problem::new(format!("there is no current folder: {error}")).hint("name one with -C DIR")
        })?,
    };
    let canonical = directory.canonicalize().ok().filter(|path| path.is_dir());
    Ok(canonical.ok_or_else(|| {
        Problem::new(format!("{} is not a folder", directory.display())).hint("-C takes the folder to work in")
    })?)
}

/// The project's folder, if its own configuration may be followed.
fn trusted_project(directory: &Path, home: Option<&Path>, trust_now: bool) -> Result<Option<PathBuf>> {
    if !directory.join(".selvedge/config.toml").exists() {
        return Ok(None);
    }
    let by_environment = std::env::var("SELVEDGE_TRUST").is_ok_and(|value| value == "1");
    let before = home.is_some_and(|home| selvedge_config::is_trusted(home, directory));
    if let (true, Some(home)) = (trust_now, home) {
        selvedge_config::trust(home, directory).map_err(|error| {
            Problem::new(format!("cannot remember that {} is trusted: {error}", directory.display()))
                .hint("check $SELVEDGE_HOME")
        })?;
    }
    if trust_now || by_environment || before {
        return Ok(Some(directory.to_owned()));
    }
    eprintln!(
        "note: {} is not followed: this folder is not trusted (--trust)",
        directory.join(".selvedge/config.toml").display()
    );
    Ok(None)
}
