//! From flags and files to a harness.

use std::path::{Path, PathBuf};

use anyhow::Result;
use selvedge_agent::{Agents, ResumeTarget, resume_target, task_outcome};
use selvedge_config::{Config, Diagnostic, McpServer, Project, SavedRules, Severity};
use selvedge_confine::NamedSockets;
use selvedge_journal::{Journal, JournalError};
use selvedge_memory::Memory;
use selvedge_protocol::{Limits, ModeSettings, ToolSpec};
use selvedge_script::{Facts, Harness, Resume, Session};
use selvedge_toolbox::{
    CommandSettings, PackError, Packs, Rules, Toolbox, Workspace, command_tasks,
};
use selvedge_tools::{Approver, NobodyToAsk, Orchestrator, Registry, Tasks};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::args::{LimitArgs, PlaceArgs};
use crate::problem::Problem;
use crate::providers::secret_variables;
use crate::recall::{Ours, recall};

/// Everything a command needs.
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) directory: PathBuf,
    pub(crate) home: Option<PathBuf>,
    /// The folder's own files may be followed.
    pub(crate) project: Option<Project>,
    /// Nothing is written down.
    pub(crate) ephemeral: bool,
    pub(crate) toolbox: Toolbox,
    /// `None` writes nothing down.
    pub(crate) journal: Option<Arc<Journal>>,
    /// What agents remember of a session.
    pub(crate) memory: Option<Arc<Memory>>,
    /// Shows, as long as anybody has it open, that something we started may still be at work.
    #[cfg(unix)]
    _held_by_servers: Option<Arc<std::os::fd::OwnedFd>>,
    /// The session scripts belong to; empty where none was named.
    pub(crate) session: String,
    /// The tools that launch agents, where there is one to launch them.
    pub(crate) agents: Option<Agents>,
    /// Work in the background, where the configuration allows any.
    pub(crate) tasks: Option<Tasks>,
}

/// What the files say, and for which folder.
pub(crate) struct Configuration {
    pub(crate) config: Config,
    pub(crate) directory: PathBuf,
    /// The folder whose own files may be followed.
    pub(crate) project: Option<Project>,
}

/// Reads the user's configuration, and the project's if it is trusted. Prints warnings; the first error ends it.
pub(crate) fn configuration(place: &PlaceArgs) -> Result<Configuration> {
    let (configuration, found) = lenient_configuration(place)?;
    refuse_errors(&found)?;
    Ok(configuration)
}

/// The same without the files that have an error, and everything that is wrong with the files.
pub(crate) fn lenient_configuration(place: &PlaceArgs) -> Result<(Configuration, Vec<Diagnostic>)> {
    let directory = working_directory(place.directory.as_deref())?;
    let home = selvedge_config::home();
    let (project, unreadable) = match Project::read(&directory) {
        Ok(project) => (
            crate::trust::project(project, home.as_deref(), place.trust)?,
            None,
        ),
        Err(error) => (None, Some(Diagnostic::from(error))),
    };
    let (config, mut found) = selvedge_config::load(home.as_deref(), project.as_ref());
    found.extend(unreadable);
    let configuration = Configuration {
        config,
        directory,
        project,
    };
    Ok((configuration, found))
}

/// The user's configuration alone, for commands about all folders.
pub(crate) fn user_configuration(home: Option<&Path>) -> Result<Config> {
    let (config, found) = selvedge_config::load(home, None);
    refuse_errors(&found)?;
    Ok(config)
}

/// Prints each warning once per process, and all errors but the last, which is returned.
fn refuse_errors(found: &[Diagnostic]) -> Result<(), Problem> {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let warned = WARNED.swap(true, Ordering::Relaxed);
    let mut last: Option<Problem> = None;
    for one in found {
        match one.severity {
            Severity::Warning if warned => {}
            Severity::Warning => tell!("warning: {one}"),
            Severity::Error => {
                last.iter().for_each(Problem::print);
                last = Some(Problem::new(one.to_string()));
            }
        }
    }
    match last {
        Some(problem) => {
            Err(problem.hint("run `selvedge config schema` to see every key and its type"))
        }
        None => Ok(()),
    }
}

impl Setup {
    pub(crate) fn new(place: &PlaceArgs) -> Result<Self> {
        Self::of(configuration(place)?, place)
    }

    /// Everything, with this configuration as the flags change it.
    pub(crate) fn of(configuration: Configuration, place: &PlaceArgs) -> Result<Self> {
        let Configuration {
            mut config,
            directory,
            project,
        } = configuration;
        if let Some(policy) = place.approval {
            config.approval_policy = policy;
        }
        if let Some(policy) = place.sandbox {
            config.sandbox_mode = policy;
        }
        if let Some(pack) = &place.pack {
            config.tool_pack = Some(pack.clone());
        }
        Ok(Self {
            ephemeral: place.ephemeral,
            ..Self::under(config, directory, project)?
        })
    }

    /// Everything, under these rules; the project is the folder whose own files may be followed.
    pub(crate) fn under(
        config: Config,
        directory: PathBuf,
        project: Option<Project>,
    ) -> Result<Self> {
        let home = selvedge_config::home();
        // The usual folder as well: what was written down there stays private, wherever it is written now.
        let usual = std::env::home_dir().map(|home| home.join(".selvedge"));
        let private: Vec<PathBuf> = home.iter().cloned().chain(usual).collect();
        // There from the start, so that no command can make it: what stands in it is obeyed. Where it cannot be made
        // here, a command cannot make it either.
        let _ = home.as_ref().map(std::fs::create_dir_all);
        let more = &config.sandbox_workspace_write.writable_roots;
        let workspace = Workspace::open_with(&directory, config.sandbox_mode, &private, more)
            .map_err(|error| {
                Problem::new(format!("cannot open {}: {error}", directory.display()))
                    .hint("-C takes the folder to work in")
            })?;
        let saved = saved_rules(home.as_deref())?;
        let mut settings = command_settings(&config, &saved, home.as_deref());
        settings
            .never_inherit
            .extend(project.as_ref().map(keys_of_project).unwrap_or_default());
        let mut toolbox = Toolbox::with_commands(workspace, settings);
        toolbox.web = crate::web::web(&config, &saved, home.as_deref());
        toolbox.offer_http = config.script_harness.expose.enable_http;
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
            ephemeral: false,
            toolbox,
            journal: None,
            memory: None,
            session: String::new(),
            #[cfg(unix)]
            _held_by_servers: None,
            agents: None,
            tasks,
        })
    }

    /// The same, with one more variable that no command gets.
    pub(crate) fn without_variable(self, name: &str) -> Result<Self> {
        let mut config = self.config;
        config
            .shell_environment_policy
            .exclude
            .push(name.to_owned());
        Ok(Self {
            ephemeral: self.ephemeral,
            ..Self::under(config, self.directory, self.project)?
        })
    }

    /// The built-in tools, all of them; [`Self::servers`] adds those of MCP servers and leaves out what
    /// [`Self::offers`] denies.
    pub(crate) fn all_tools(&self) -> Result<Registry> {
        let mut all = Registry::new();
        self.toolbox.register(&mut all)?;
        if let Some(journal) = &self.journal {
            let ours = Ours {
                directory: self.directory.display().to_string(),
                session: self.session.clone(),
            };
            all.register(recall(journal, ours))?;
        }
        if let Some(agents) = &self.agents {
            agents.register(&mut all)?;
        }
        if let Some(memory) = &self.memory {
            all.register(selvedge_memory::get_turn(memory.clone(), &self.session))?;
        }
        if let Some(tasks) = &self.tasks {
            if let Some(journal) = self.journal.clone() {
                let here = self.directory.display().to_string();
                tasks.recall_from(move |id| {
                    let here = here.clone();
                    let read = move |journal: &Journal| {
                        Ok::<_, JournalError>(task_outcome(journal, &id, &here))
                    };
                    let read = journal.spawn_blocking(read);
                    async { read.await.ok().flatten() }
                });
            }
            tasks.register(&mut all)?;
        }
        Ok(all)
    }

    /// Decides which tools are offered: those that the tool pack and the configuration have. Applied in
    /// one place, [`Servers::onto`](selvedge_mcp::Servers::onto), through which every command gets its
    /// tools.
    pub(crate) fn offers(&self) -> Result<impl Fn(&ToolSpec) -> bool + Send + Sync + use<>> {
        let packs = self.packs();
        let pack = match &self.config.tool_pack {
            None => None,
            Some(name) => Some(packs.open(name).map_err(|error| {
                let hint = match &error {
                    PackError::Unknown { near, .. } if !near.is_empty() => {
                        format!("did you mean {}?", near.join(" or "))
                    }
                    _ => {
                        let names: Vec<&str> = packs.names().into_iter().collect();
                        format!("there are {}", names.join(", "))
                    }
                };
                Problem::new(error.to_string()).hint(hint)
            })?),
        };
        let exposed = self.config.script_harness.expose.tools.clone();
        Ok(move |spec: &ToolSpec| {
            let named = |names: &Vec<String>| {
                names
                    .iter()
                    .any(|name| *name == spec.name || *name == spec.js_name)
            };
            pack.as_ref().is_none_or(|pack| pack.has(spec)) && exposed.as_ref().is_none_or(named)
        })
    }

    /// The same, with what was written down at hand where it can be: for commands that run nothing.
    pub(crate) fn with_journal_if_possible(self, place: &PlaceArgs) -> Self {
        let journal = match &self.home {
            Some(home) if !place.ephemeral => crate::journal::open(home, &self.config.journal).ok(),
            _ => None,
        };
        Self { journal, ..self }
    }

    /// The same, with everything written down unless somebody does not want that.
    pub(crate) fn with_journal(mut self, place: &PlaceArgs) -> Result<Self> {
        let journal = match &self.home {
            Some(home) if !place.ephemeral => {
                Some(crate::journal::open(home, &self.config.journal)?)
            }
            _ => None,
        };
        if let Some(Ok(lock)) = journal.as_ref().map(|journal| journal.hold()) {
            // The programs of MCP servers are started with whatever is open: a copy that is not closed for them.
            #[cfg(unix)]
            {
                self._held_by_servers = rustix::io::dup(&lock).ok().map(Arc::new);
            }
            self.toolbox.commands.hold_while_any_runs(lock);
        }
        if let Some(journal) = &journal {
            self.toolbox.cabinet = journal.clone();
        }
        self.journal = journal;
        Ok(self)
    }

    /// Takes secrets out of what people see.
    pub(crate) fn redactor(&self) -> selvedge_journal::Redactor {
        selvedge_journal::Redactor::new(self.config.journal.secret_names.iter().cloned())
    }

    /// Waits for writes that are not made yet. Once a day, forgets what is too old or too much; where that fails, the
    /// next time will do.
    pub(crate) fn close_journal(&self) -> Result<(), Problem> {
        const A_DAY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
        let (Some(journal), Some(home)) = (&self.journal, &self.home) else {
            return Ok(());
        };
        journal
            .flush()
            .map_err(|error| crate::runs::problem(&error))?;
        let mark = home.join("tidied");
        let fresh = |path: &Path| {
            Some(
                path.metadata()
                    .ok()?
                    .modified()
                    .ok()?
                    .elapsed()
                    .unwrap_or_default()
                    < A_DAY,
            )
        };
        if fresh(&mark) != Some(true) && std::fs::write(&mark, "").is_ok() {
            let _ = journal.tidy(&self.config.journal.retention);
        }
        Ok(())
    }

    /// What an earlier run recorded; the beginning of its id is enough.
    pub(crate) fn resume(&self, run: &str) -> Result<Resume> {
        let earlier = self
            .kept()?
            .run(run)
            .map_err(|error| crate::runs::problem(&error))?
            .summary;
        if earlier.directory != self.directory.display().to_string() {
            return Err(
                Problem::new(format!("{} ran in another folder", earlier.id))
                    .hint(format!("resume it there: pass -C {}", earlier.directory))
                    .into(),
            );
        }
        self.resume_whole(&earlier.id)
    }

    /// The same for a complete id.
    pub(crate) fn resume_whole(&self, run: &str) -> Result<Resume> {
        let here = self.directory.display().to_string();
        let target = resume_target(self.kept()?, run, &here)
            .map_err(|error| crate::runs::problem(&error))?;
        let problem = match target {
            ResumeTarget::Ready(resume) => return Ok(resume),
            ResumeTarget::Running(id) => Problem::new(format!("{id} is still running"))
                .hint(format!("stop it with `selvedge runs cancel {id}`")),
            ResumeTarget::Suspended(id) => Problem::new(format!("{id} waits for an answer")).hint(
                format!("`selvedge runs answer {id} --approve`, or `--deny`"),
            ),
        };
        Err(problem.into())
    }

    fn kept(&self) -> Result<&Journal, Problem> {
        self.journal.as_deref().ok_or_else(|| {
            Problem::new("`--resume` needs the journal, which `--ephemeral` turns off")
                .hint("leave out --ephemeral")
        })
    }

    /// The same for a script of this session.
    pub(crate) fn with_session(mut self, id: &str) -> Self {
        self.session = id.to_owned();
        self
    }

    /// What scripts of the session keep for each other; nothing outlives the process where none is named.
    pub(crate) fn kept_in_session(&self) -> Session {
        match &self.journal {
            Some(journal) if !self.session.is_empty() => {
                Session::on(Arc::new(journal.shelf(&self.session)))
            }
            _ => Session::default(),
        }
    }

    fn packs(&self) -> Packs {
        Packs::with(self.config.tool_packs.clone())
    }

    /// How far scripts may go.
    pub(crate) fn limits(&self, args: &LimitArgs) -> Limits {
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
        limits
    }

    /// A harness without tools that asks this approver; `None` asks nobody.
    pub(crate) fn harness(&self, args: &LimitArgs, approver: Option<Arc<dyn Approver>>) -> Harness {
        let limits = self.limits(args);
        let modes = ModeSettings {
            turn: args.mode,
            provider: None,
            global: Some(self.config.script_harness.mode),
        };
        let nobody = || {
            Arc::new(NobodyToAsk {
                because: "there is no terminal to ask at".to_owned(),
            }) as _
        };
        let orchestrator = Orchestrator::new(Registry::new())
            .with_policy(self.config.approval_policy)
            .with_approver(approver.unwrap_or_else(nobody));
        let orchestrator = match &self.journal {
            Some(journal) => orchestrator.with_ledger(journal.clone()),
            None => orchestrator,
        };
        let harness = Harness::on_first_use(orchestrator)
            .with_limits(limits)
            .with_mode(modes.effective())
            .allow_detached_promises(self.config.script_harness.allow_detached_promises);
        match &self.tasks {
            Some(tasks) => harness.with_tasks(tasks),
            None => harness,
        }
    }

    pub(crate) fn facts(&self) -> Facts {
        Facts {
            working_directory: self.directory.display().to_string(),
            session_id: self.session.clone(),
            ..Facts::default()
        }
    }
}

pub(crate) fn working_directory(asked: Option<&Path>) -> Result<PathBuf> {
    let directory = match asked {
        Some(directory) => directory.to_owned(),
        None => std::env::current_dir().map_err(|error| {
            Problem::new(format!("there is no current folder: {error}"))
                .hint("name one with -C DIR")
        })?,
    };
    let canonical = directory.canonicalize().ok().filter(|path| path.is_dir());
    Ok(canonical.ok_or_else(|| {
        Problem::new(format!("{} is not a folder", directory.display()))
            .hint("-C takes the folder to work in")
    })?)
}

/// Keys of other model providers people have: commands never get them either, whatever the configuration says.
const MORE_KEYS: [&str; 3] = ["GEMINI_API_KEY", "MISTRAL_API_KEY", "GROQ_API_KEY"];

/// What was allowed before.
fn saved_rules(home: Option<&Path>) -> Result<SavedRules> {
    match home {
        Some(home) => Ok(selvedge_config::saved_rules(home).map_err(|error| {
            Problem::new(error.to_string()).hint("mend the file, or remove it to be asked again")
        })?),
        None => Ok(SavedRules::default()),
    }
}

/// How commands run, as the configuration and what was allowed before have it.
fn command_settings(config: &Config, saved: &SavedRules, home: Option<&Path>) -> CommandSettings {
    let home = home.map(Path::to_owned);
    CommandSettings {
        environment: config.shell_environment_policy.clone(),
        never_inherit: never_handed_on(config),
        network: config.sandbox_workspace_write.network_access,
        named_sockets: match config.sandbox_workspace_write.unix_sockets {
            true => NamedSockets::On,
            false => NamedSockets::Off,
        },
        weaker_wall: config.weaker_wall,
        limits: config.command_limits.clone(),
        rules: Rules {
            confined: [config.allow_commands.clone(), saved.allow.clone()].concat(),
            unconfined: [
                config.allow_commands_unconfined.clone(),
                saved.allow_unconfined.clone(),
            ]
            .concat(),
        },
        save_rule: Some(Box::new(move |rule| {
            let saved = home
                .as_ref()
                .map(|home| selvedge_config::save_rule(home, &rule.prefix, rule.unconfined));
            if let Some(Err(error)) = saved {
                tell!("warning: the rule holds for this run only: {error}");
            }
        })),
        support: None,
    }
}

/// Variables that no command gets, whatever its policy says.
fn never_handed_on(config: &Config) -> Vec<String> {
    let more = MORE_KEYS.map(str::to_owned).to_vec();
    [
        secret_variables(config),
        more,
        web_keys(config).to_vec(),
        server_keys(config),
    ]
    .concat()
}

/// Variables that hold what MCP servers are told of who we are.
fn server_keys(config: &Config) -> Vec<String> {
    let of_server = |server: &McpServer| {
        let headers = server.env_http_headers.values().cloned();
        server
            .bearer_token_env_var
            .iter()
            .cloned()
            .chain(headers)
            .collect::<Vec<_>>()
    };
    config.mcp_servers.values().flat_map(of_server).collect()
}

/// The same for the servers of a project's `.mcp.json`: what it puts into headers.
fn keys_of_project(project: &Project) -> Vec<String> {
    // Whether the file can be read is told where the servers are started.
    let servers = selvedge_config::project_servers(project, |name| Some(format!("${{{name}}}")))
        .unwrap_or_default();
    let headers = servers
        .values()
        .flat_map(|server| server.http_headers.values());
    let names = |value: &String| {
        let parts = value
            .split("${")
            .skip(1)
            .filter_map(|rest| rest.split_once('}'));
        parts.map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
    };
    headers.flat_map(names).collect()
}

/// Variables that hold keys for the web, as the configuration names them.
fn web_keys(config: &Config) -> [String; 2] {
    [
        config.web.perplexity_env_key.clone(),
        config.web.firecrawl_env_key.clone(),
    ]
}
