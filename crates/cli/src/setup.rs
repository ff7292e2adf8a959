//! Sets up the workspace, the tools and the script harness from flags and configuration files.

use std::path::{Path, PathBuf};

use anyhow::Result;
use selvedge_agent::{ResumeError, SubAgents, resume_input};
use selvedge_config::{Config, Diagnostic, Project, SavedRules};
use selvedge_confine::UnixSocketAccess;
use selvedge_files::ProjectFiles;
use selvedge_journal::Journal;
use selvedge_memory::{Memory, MemoryAccess, get_turn_tool, search_memory_tool};
use selvedge_protocol::{
    LimitOverrides, Limits, SandboxPolicy, ScriptModeSettings, TokenScope, ToolSpec,
};
use selvedge_script::{Harness, ResumeInput, ScriptContext, ScriptStore};
use selvedge_toolbox::{
    CommandRules, CommandSettings, OtherWorkspaces, Toolbox, Workspace, WorkspacePaths,
    command_tasks, refused_ignore_files,
};
use selvedge_tools::{Approver, NoApprover, Orchestrator, Registry, TaskSet, ToolCache};
use std::sync::Arc;

use crate::args::{ScriptLimitArgs, WorkspaceArgs};
use crate::channels::is_channel_tool;
use crate::diagnostics::report_diagnostics;
use crate::instructions::{InstructionUse, instruction_files};
use crate::journal::{JournalNeed, begin_retention_if_due};
use crate::memory_setup::MemoryBounds;
use crate::problem::Problem;
use crate::programs::served_workspaces;
use crate::recall::RecallTool;
use crate::rule_store::RuleStore;
use crate::run_access::McpRunAccess;
use crate::secret_environment::{project_server_variables, variables_never_inherited};
use crate::session_runner::TurnPlace;
use crate::tool_packs::resolve_pack;

/// Everything that a command needs to run scripts.
pub(crate) struct CliSetup {
    pub(crate) config: Config,
    pub(crate) directory: PathBuf,
    pub(crate) home: Option<PathBuf>,
    /// The trusted files of the folder; `None` if it has none or is not trusted.
    pub(crate) project: Option<Project>,
    pub(crate) instruction_use: InstructionUse,
    /// Whether `--ephemeral` was passed.
    pub(crate) ephemeral: bool,
    pub(crate) toolbox: Toolbox,
    /// `None` with `--ephemeral`, or if there is no home folder.
    pub(crate) journal: Option<Arc<Journal>>,
    /// The memory of agents, for the tools that read it.
    pub(crate) memory: Option<Arc<Memory>>,
    /// What the session may read of the memory, if it is one of the agent server.
    pub(crate) memory_bounds: MemoryBounds,
    /// Lock of the journal that MCP servers inherit. While one of them runs, the runs of this
    /// process count as running.
    #[cfg(unix)]
    _server_lock: Option<Arc<std::os::fd::OwnedFd>>,
    /// Id of the session that scripts belong to; empty without a session.
    pub(crate) session: String,
    /// Sub-agents; `None` in commands without an agent.
    pub(crate) sub_agents: Option<SubAgents>,
    /// Which runs clients may use; `None` except in `mcp serve`.
    pub(crate) mcp_run_access: Option<McpRunAccess>,
    /// Background tasks; `None` unless the configuration enables them.
    pub(crate) tasks: Option<TaskSet>,
    /// The limits that the provider and the model of the agent change.
    pub(crate) model_limits: LimitOverrides,
    /// Packs that must contain a tool, besides the configured one.
    pub(crate) required_packs: Vec<String>,
    /// Names of the only tools that scripts can call. `None` if packs alone decide.
    pub(crate) allowed_tools: Option<Vec<String>>,
    /// Scopes of the token that pays for the turn. `None` if no token does.
    pub(crate) payer_scopes: Option<Vec<TokenScope>>,
    /// Runs the turns that scripts wait for.
    pub(crate) turn_place: TurnPlace,
    /// What the turns of a workspace share about tools; `None` in commands with one turn at a time.
    pub(crate) tool_cache: Option<Arc<ToolCache>>,
}

/// The configuration, and the folder that it applies to.
pub(crate) struct LoadedConfiguration {
    pub(crate) config: Config,
    pub(crate) directory: PathBuf,
    /// The trusted files of the folder.
    pub(crate) project: Option<Project>,
    pub(crate) instruction_use: InstructionUse,
}

/// Reads the user's configuration, and the project's if it is trusted. Prints warnings, and fails
/// if a file has errors.
pub(crate) fn load_configuration(workspace: &WorkspaceArgs) -> Result<LoadedConfiguration> {
    let (configuration, diagnostics) = load_configuration_with_diagnostics(workspace)?;
    report_diagnostics(&diagnostics)?;
    Ok(configuration)
}

/// Reads the same configuration, but ignores files with errors. Also returns the diagnostics of all
/// files.
pub(crate) fn load_configuration_with_diagnostics(
    workspace: &WorkspaceArgs,
) -> Result<(LoadedConfiguration, Vec<Diagnostic>)> {
    let directory = working_directory(workspace.directory.as_deref())?;
    let home = selvedge_config::home();
    // The files of the project are read before the configuration that they may be part of.
    let opened = Workspace::open(&directory, SandboxPolicy::ReadOnly, &private_folders())
        .map_err(|error| cannot_open_workspace(&directory, &error))?;
    let files = ProjectFiles::of_folder(&directory, opened.credential_files());
    let (project, mut refused) = Project::read(&files, home.as_deref());
    refused.extend(refused_ignore_files(&opened));
    let decision = crate::trust::decide_trust(
        project,
        &instruction_files(&files),
        home.as_deref(),
        workspace,
    )?;
    let project = decision.project.as_ref();
    let (config, mut diagnostics) = match &workspace.user_file {
        Some(user) => selvedge_config::load_with(user, project),
        None => selvedge_config::load(home.as_deref(), project),
    };
    diagnostics.extend(refused.into_iter().map(Diagnostic::from));
    let configuration = LoadedConfiguration {
        config,
        directory,
        project: decision.project,
        instruction_use: decision.instructions,
    };
    Ok((configuration, diagnostics))
}

/// Reads only the user's configuration, for commands about all folders.
pub(crate) fn load_user_configuration(home: Option<&Path>) -> Result<Config> {
    let (config, diagnostics) = selvedge_config::load(home, None);
    report_diagnostics(&diagnostics)?;
    Ok(config)
}

/// Returns the rules for paths of a configuration.
pub(crate) fn workspace_paths(config: &Config) -> WorkspacePaths {
    WorkspacePaths {
        private: private_folders(),
        writable: config.sandbox_workspace_write.writable_roots.clone(),
        protected: config.sandbox.protected_paths.clone(),
        other_workspaces: OtherWorkspaces::listed_by(served_workspaces),
        unprotected: config.sandbox.unprotected_paths.clone(),
        hidden: config.sandbox.hidden_paths.clone(),
        visible: config.sandbox.visible_paths.clone(),
    }
}

impl CliSetup {
    /// Sets up the workspace that the flags and the configuration files describe.
    pub(crate) fn new(workspace: &WorkspaceArgs) -> Result<Self> {
        Self::from_config_and_flags(load_configuration(workspace)?, workspace)
    }

    /// Sets up the workspace with a configuration that was already read.
    pub(crate) fn from_config_and_flags(
        configuration: LoadedConfiguration,
        workspace: &WorkspaceArgs,
    ) -> Result<Self> {
        let LoadedConfiguration {
            mut config,
            directory,
            project,
            instruction_use,
        } = configuration;
        if let Some(policy) = workspace.approval {
            config.approval_policy = policy;
        }
        if let Some(policy) = workspace.sandbox {
            config.sandbox_mode = policy;
        }
        if let Some(pack) = &workspace.pack {
            config.tool_pack = Some(pack.clone());
        }
        let setup = Self {
            ephemeral: workspace.ephemeral,
            instruction_use,
            ..Self::from_config(config, directory, project)?
        };
        crate::tool_names::warn_of_unknown_tools(&setup)?;
        Ok(setup)
    }

    /// Sets up a workspace without flags. `project` holds the trusted files of the folder.
    pub(crate) fn from_config(
        config: Config,
        directory: PathBuf,
        project: Option<Project>,
    ) -> Result<Self> {
        let home = selvedge_config::home();
        // Created now, so that no command can create it with its own configuration. If this fails,
        // a command cannot create it either.
        let _ = home.as_deref().map(selvedge_files::create_private_folder);
        let paths = workspace_paths(&config);
        let workspace = Workspace::open_with_paths(&directory, config.sandbox_mode, &paths)
            .map_err(|error| cannot_open_workspace(&directory, &error))?;
        let rules = RuleStore::new(home.as_deref(), workspace.root());
        let saved = saved_rules(home.as_deref())?.in_folder(workspace.root());
        let mut settings = command_settings(&config, &saved, rules.clone());
        settings.never_inherit.extend(
            project
                .as_ref()
                .map(project_server_variables)
                .unwrap_or_default(),
        );
        let mut toolbox = Toolbox::with_command_settings(workspace, settings);
        toolbox.web = crate::web::configure_web(&config, &saved, rules);
        toolbox.offer_http = config.script_harness.expose.enable_http;
        toolbox.documents = crate::documents::configure_documents(&config, &toolbox.workspace)?;
        let tasks = config
            .script_harness
            .expose
            .enable_spawn
            .then(command_tasks);
        Ok(Self {
            config,
            directory,
            home,
            project,
            instruction_use: InstructionUse::default(),
            ephemeral: false,
            toolbox,
            journal: None,
            memory: None,
            memory_bounds: MemoryBounds::default(),
            session: String::new(),
            #[cfg(unix)]
            _server_lock: None,
            sub_agents: None,
            mcp_run_access: None,
            tasks,
            model_limits: LimitOverrides::default(),
            required_packs: Vec::new(),
            allowed_tools: None,
            payer_scopes: None,
            turn_place: TurnPlace::Thread,
            tool_cache: None,
        })
    }

    /// Excludes one more variable from the environment of commands.
    pub(crate) fn exclude_variable_from_commands(self, name: &str) -> Result<Self> {
        let mut config = self.config;
        config
            .shell_environment_policy
            .exclude
            .push(name.to_owned());
        Ok(Self {
            ephemeral: self.ephemeral,
            instruction_use: self.instruction_use,
            ..Self::from_config(config, self.directory, self.project)?
        })
    }

    /// Returns all built-in tools. `Servers::script_registry` adds the tools of MCP servers and
    /// removes the tools that [`Self::tool_filter`] excludes.
    pub(crate) fn built_in_tools(&self) -> Result<Registry> {
        let mut all = match &self.tool_cache {
            Some(cache) => Registry::with_cache(cache),
            None => Registry::new(),
        };
        let mut toolbox = self.toolbox.clone();
        toolbox.channels = self.channel_access();
        toolbox.sessions = self.session_access();
        toolbox.register(&mut all)?;
        if let Some(journal) = &self.journal {
            all.register(RecallTool(journal.clone(), self.run_access()))?;
        }
        if let Some(agents) = &self.sub_agents {
            agents.register(&mut all)?;
        }
        if let Some(memory) = &self.memory {
            let access = MemoryAccess {
                scope: self.config.memory.scope,
                folders: self.memory_bounds.folders(&self.directory),
                ..MemoryAccess::new(&self.session)
            };
            all.register(get_turn_tool(memory.clone(), access.clone()))?;
            all.register(search_memory_tool(memory.clone(), access))?;
        }
        if let Some(tasks) = &self.tasks {
            self.set_task_access(tasks);
            tasks.register(&mut all)?;
        }
        Ok(all)
    }

    /// Returns a predicate for the tools that the tool pack and the configuration include. It is
    /// applied in [`Servers::script_registry`](selvedge_mcp::Servers::script_registry), through
    /// which every command gets its tools.
    pub(crate) fn tool_filter(&self) -> Result<impl Fn(&ToolSpec) -> bool + Send + Sync + use<>> {
        let packs = self.config.tool_pack.iter().chain(&self.required_packs);
        let packs = packs.map(|name| resolve_pack(&self.config, name));
        let packs: Vec<_> = packs.collect::<Result<_, _>>()?;
        let exposed = self.config.script_harness.expose.tools.clone();
        let allowed = self.allowed_tools.clone();
        let offers_channels = self.offers_channels();
        Ok(move |spec: &ToolSpec| {
            let named = |names: &Vec<String>| {
                names
                    .iter()
                    .any(|name| *name == spec.name || *name == spec.js_name)
            };
            packs.iter().all(|pack| pack.contains(spec))
                && allowed.as_ref().is_none_or(named)
                && (offers_channels || !is_channel_tool(spec))
                && exposed.as_ref().is_none_or(named)
        })
    }

    /// Opens the journal if that is possible, for commands that run no script.
    pub(crate) fn with_journal_if_possible(self, workspace: &WorkspaceArgs) -> Self {
        let journal = match &self.home {
            Some(home) if !workspace.ephemeral => {
                crate::journal::open_journal(home, &self.config.journal).ok()
            }
            _ => None,
        };
        Self { journal, ..self }
    }

    /// Opens the journal, unless `--ephemeral` was passed or there is no home folder.
    pub(crate) fn with_journal(self, workspace: &WorkspaceArgs, need: JournalNeed) -> Result<Self> {
        let journal = match &self.home {
            Some(home) if !workspace.ephemeral => Some(crate::journal::open_journal_for_run(
                home,
                &self.config.journal,
                need,
            )?),
            _ => None,
        };
        Ok(self.with_open_journal(journal))
    }

    /// Uses a journal that is already open.
    pub(crate) fn with_open_journal(mut self, journal: Option<Arc<Journal>>) -> Self {
        if let Some(Ok(lock)) = journal.as_ref().map(|journal| journal.owner_lock_fd()) {
            // MCP servers inherit this copy of the lock, which is not closed on exec.
            #[cfg(unix)]
            {
                self._server_lock = rustix::io::dup(&lock).ok().map(Arc::new);
            }
            self.toolbox.commands.keep_open_while_running(lock);
        }
        if let Some(journal) = &journal {
            if let Some(lease) = crate::journal::command_lease(journal) {
                self.toolbox.commands.kill_at_end_of(lease);
            }
            let folder = self.directory.display().to_string();
            self.toolbox.cabinet = journal.user_documents_in(&folder);
        }
        self.journal = journal;
        self
    }

    /// Returns the redactor with the configured secret names.
    pub(crate) fn redactor(&self) -> selvedge_journal::Redactor {
        selvedge_journal::Redactor::new(self.config.journal.secret_names.iter().cloned())
    }

    /// Waits for pending writes to the journal. Once a day, also removes expired documents and runs
    /// beyond the retention limits. A failure of that is ignored; the next attempt is a day later.
    pub(crate) fn flush_journal_and_apply_retention(&self) -> Result<(), Problem> {
        let (Some(journal), Some(home)) = (&self.journal, &self.home) else {
            return Ok(());
        };
        journal
            .flush()
            .map_err(|error| crate::runs::journal_error_problem(&error))?;
        if begin_retention_if_due(home) {
            let _ = journal.apply_retention(&self.config.journal.retention);
        }
        Ok(())
    }

    /// Returns the input of a script that resumes a run. A prefix of the run's id is enough.
    pub(crate) fn resume_input_by_prefix(&self, run: &str) -> Result<ResumeInput> {
        let earlier = self
            .journal_for_resume()?
            .run(run)
            .map_err(|error| crate::runs::journal_error_problem(&error))?
            .summary;
        if earlier.directory != self.directory.display().to_string() {
            return Err(
                Problem::new(format!("{} ran in another folder", earlier.id))
                    .hint(format!("pass -C {}", earlier.directory))
                    .into(),
            );
        }
        self.resume_input_by_id(&earlier.id)
    }

    /// Returns the input of a script that resumes a run of this folder, by the complete id.
    pub(crate) fn resume_input_by_id(&self, run: &str) -> Result<ResumeInput> {
        let here = self.directory.display().to_string();
        let found = resume_input(self.journal_for_resume()?, run, &here);
        Ok(found.map_err(|error| {
            let hint = match &error {
                ResumeError::Journal(error) => return crate::runs::journal_error_problem(error),
                ResumeError::Running(run) => {
                    format!("run `selvedge runs cancel {}` to stop it", run.newest)
                }
                ResumeError::Suspended(run) => {
                    let id = &run.newest;
                    format!("run `selvedge runs answer {id} --approve`, or `--deny`")
                }
                _ => "run `selvedge runs list` to find the run of the script".to_owned(),
            };
            Problem::new(error.to_string()).hint(hint)
        })?)
    }

    /// Returns the journal, which a script that resumes a run needs.
    pub(crate) fn journal_for_resume(&self) -> Result<&Journal, Problem> {
        self.journal.as_deref().ok_or_else(|| match self.ephemeral {
            true => Problem::new(
                "a run can only be resumed with the journal, which `--ephemeral` turns off",
            )
            .hint("remove --ephemeral"),
            false => Problem::new(
                "a run can only be resumed with the journal, which needs a home folder",
            )
            .hint("set SELVEDGE_HOME to a folder"),
        })
    }

    /// Sets the session that scripts belong to.
    pub(crate) fn with_session(mut self, id: &str) -> Self {
        self.session = id.to_owned();
        self
    }

    /// Returns the values that the scripts of the session share. Without a session or a journal,
    /// they end with the process.
    pub(crate) fn script_store(&self) -> ScriptStore {
        match &self.journal {
            Some(journal) if !self.session.is_empty() => {
                ScriptStore::new(Arc::new(journal.script_values(&self.session)))
            }
            _ => ScriptStore::default(),
        }
    }

    /// Returns the limits of scripts: the configuration, with what the provider and the model
    /// change, and with the flags.
    pub(crate) fn limits(&self, args: &ScriptLimitArgs) -> Limits {
        Self::limits_of_model(&self.config, &self.model_limits, args)
    }

    /// Returns the limits of scripts with a model that changes these limits.
    pub(crate) fn limits_of_model(
        config: &Config,
        changed: &LimitOverrides,
        args: &ScriptLimitArgs,
    ) -> Limits {
        let mut limits = changed.apply(config.script_harness.limits.clone());
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
        if let Some(calls) = args.max_file_calls {
            limits.max_file_calls = calls;
        }
        if let Some(concurrent) = args.max_concurrent {
            limits.max_concurrent_tool_calls = concurrent;
        }
        limits
    }

    /// Returns a harness without tools. Without an approver, it denies every call that needs
    /// approval.
    pub(crate) fn harness(
        &self,
        args: &ScriptLimitArgs,
        approver: Option<Arc<dyn Approver>>,
    ) -> Harness {
        let limits = self.limits(args);
        let modes = ScriptModeSettings {
            flag: args.mode,
            model_or_provider: None,
            global: Some(self.config.script_harness.mode),
        };
        let no_approver = || {
            Arc::new(NoApprover {
                reason: "there is no terminal to ask on".to_owned(),
            }) as _
        };
        let orchestrator = Orchestrator::new(Registry::new())
            .with_policy(self.config.approval_policy)
            .with_approver(approver.unwrap_or_else(no_approver));
        let orchestrator = match &self.journal {
            Some(journal) => orchestrator.with_ledger(journal.clone()),
            None => orchestrator,
        };
        let harness = Harness::with_lazy_runtime(orchestrator)
            .with_limits(limits)
            .with_mode(modes.resolve())
            .allow_detached_promises(self.config.script_harness.allow_detached_promises);
        match &self.tasks {
            Some(tasks) => harness.with_tasks(tasks),
            None => harness,
        }
    }

    /// Returns a reader for the files of the project.
    pub(crate) fn project_files(&self) -> ProjectFiles {
        ProjectFiles::of_folder(&self.directory, self.toolbox.workspace.credential_files())
    }

    /// Returns what scripts see as `context`.
    pub(crate) fn script_context(&self) -> ScriptContext {
        ScriptContext {
            working_directory: self.directory.display().to_string(),
            session_id: self.session.clone(),
            ..ScriptContext::default()
        }
    }
}

/// Returns Selvedge's own folders. The default one stays private if SELVEDGE_HOME names another.
pub(crate) fn private_folders() -> Vec<PathBuf> {
    let default = std::env::home_dir().map(|home| home.join(".selvedge"));
    selvedge_config::home().into_iter().chain(default).collect()
}

pub(crate) fn cannot_open_workspace(directory: &Path, error: &std::io::Error) -> Problem {
    Problem::new(format!("cannot open {}: {error}", directory.display()))
        .hint("pass another folder with -C DIR")
}

/// Returns the canonical path of the folder to work in: that of `-C`, else the current one.
pub(crate) fn working_directory(named: Option<&Path>) -> Result<PathBuf> {
    let directory = match named {
        Some(directory) => directory.to_owned(),
        None => std::env::current_dir().map_err(|error| {
            Problem::new(format!("cannot find the current folder: {error}"))
                .hint("pass a folder with -C DIR")
        })?,
    };
    let canonical = directory.canonicalize().ok().filter(|path| path.is_dir());
    Ok(canonical.ok_or_else(|| {
        Problem::new(format!("{} is not a folder", directory.display()))
            .hint("pass an existing folder with -C DIR")
    })?)
}

/// Reads the approval rules that were saved with "always".
pub(crate) fn saved_rules(home: Option<&Path>) -> Result<SavedRules> {
    match home {
        Some(home) => Ok(selvedge_config::saved_rules(home).map_err(|error| {
            Problem::new(error.to_string()).hint("correct the file, or remove it to be asked again")
        })?),
        None => Ok(SavedRules::default()),
    }
}

/// Returns the settings of commands from the configuration and the saved rules.
fn command_settings(config: &Config, saved: &SavedRules, rules: RuleStore) -> CommandSettings {
    CommandSettings {
        environment: config.shell_environment_policy.clone(),
        never_inherit: variables_never_inherited(config),
        network: config.sandbox_workspace_write.network_access,
        unix_sockets: match config.sandbox_workspace_write.unix_sockets {
            true => UnixSocketAccess::On,
            false => UnixSocketAccess::Off,
        },
        accepted_weaker: config.weaker_confinement,
        limits: config.command_limits.clone(),
        rules: CommandRules {
            confined: [config.allow_commands.clone(), saved.allow.clone()].concat(),
            unconfined: [
                config.allow_commands_unconfined.clone(),
                saved.allow_unconfined.clone(),
            ]
            .concat(),
        },
        save_rule: Some(Box::new(move |rule, scope| {
            rules.save(scope, |home, folder| {
                selvedge_config::save_rule(home, folder, &rule.prefix, rule.unconfined)
            });
        })),
        support: None,
    }
}
