//! [`WorkspaceParts`]: what the turns of a workspace share, and [`WorkspaceCache`], which keeps it
//! between turns.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use selvedge_config::{Config, EnvironmentSettings, UserFile};
use selvedge_http::open_file_limit;
use selvedge_journal::Journal;
use selvedge_mcp::{ServerRequestHandlers, Servers};
use selvedge_memory::{Memory, SmallModel};
use selvedge_models::ModelClient;
use selvedge_toolbox::WorkspaceDocuments;
use selvedge_tools::ToolCache;
use tokio::sync::OnceCell;

use crate::agent_setup::context_window;
use crate::args::{ModelChoiceArgs, WorkspaceArgs};
use crate::memory_setup::{SharedMemory, small_model_if_possible};
use crate::problem::Problem;
use crate::providers::{self, ModelChoice};
use crate::sampling::RunningTurns;
use crate::session_configuration::{SessionConfiguration, no_environment};
use crate::setup::{CliSetup, load_configuration};
use crate::trust::TrustQuestion;

/// How long the parts of a workspace are kept without a turn that uses them.
const MAX_IDLE_TIME: Duration = Duration::from_secs(600);

/// Most folders whose parts are kept. Clients of the agent server choose the folders.
const MAX_WORKSPACES: usize = 32;
/// Part of the files that the process may open which the parts of folders may use: one of this
/// number. The others are for connections, journals and the commands of turns.
const FILE_SHARE: usize = 8;
/// Number of open files that the parts of a folder have, about.
const FILES_PER_WORKSPACE: usize = 4;

/// What the turns of one folder and environment share: the configuration, the index of documents,
/// the memory, the clients of the model and of MCP servers, and what is derived from the specs of
/// tools. Each turn has its own tools, permissions, budget and approver.
pub(crate) struct WorkspaceParts {
    /// The tools of the folder without a session, with the settings of the environment. They read
    /// documents of the folder only.
    pub(crate) setup: CliSetup,
    /// The documents for the tools of a session.
    pub(crate) documents: WorkspaceDocuments,
    /// The model that the environment names.
    pub(crate) model: ModelChoiceArgs,
    /// The turns that may be asked to answer a request of an MCP server.
    pub(crate) running_turns: Arc<RunningTurns>,
    folder: FolderIdentity,
    shared_memory: Arc<SharedMemory>,
    connections: OnceCell<WorkspaceConnections>,
    last_used: Mutex<Instant>,
}

/// The clients of a workspace, made by its first turn.
pub(crate) struct WorkspaceConnections {
    pub(crate) choice: ModelChoice,
    pub(crate) client: ModelClient,
    /// Size of the model's context in tokens.
    pub(crate) context_window: u64,
    pub(crate) small_model: Option<Arc<dyn SmallModel>>,
    pub(crate) servers: Servers,
}

/// Tells a folder from another one that has replaced it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FolderIdentity(Option<(u64, u64)>);

impl FolderIdentity {
    #[cfg(unix)]
    fn of(folder: &Path) -> Self {
        use std::os::unix::fs::MetadataExt;
        let metadata = folder.metadata().ok();
        Self(metadata.map(|metadata| (metadata.dev(), metadata.ino())))
    }

    #[cfg(not(unix))]
    fn of(_: &Path) -> Self {
        Self(None)
    }
}

impl WorkspaceParts {
    fn new(
        mut loaded: SessionConfiguration,
        environment: Option<&str>,
        journal: &Arc<Journal>,
        shared_memory: Arc<SharedMemory>,
    ) -> Result<Self> {
        let folder = FolderIdentity::of(&loaded.directory);
        let mut model = ModelChoiceArgs::default();
        if let Some(name) = environment {
            let environment = loaded.config.environments.get(name).cloned();
            let environment = environment.ok_or_else(|| no_environment(name))?;
            apply_environment(&mut loaded.config, &environment);
            model.model = environment.model;
            model.provider = environment.model_provider;
        }
        let mut setup = loaded
            .into_setup()?
            .with_open_journal(Some(journal.clone()));
        setup.tool_cache = Some(Arc::<ToolCache>::default());
        let documents = setup.toolbox.documents.clone();
        setup.toolbox.documents = documents.clone().confined();
        Ok(Self {
            setup,
            documents,
            model,
            running_turns: Arc::default(),
            folder,
            shared_memory,
            connections: OnceCell::new(),
            last_used: Mutex::new(Instant::now()),
        })
    }

    /// Returns the configuration of the folder, with the settings of the environment.
    pub(crate) fn configuration(&self) -> SessionConfiguration {
        SessionConfiguration {
            config: self.setup.config.clone(),
            directory: self.setup.directory.clone(),
            project: self.setup.project.clone(),
            instruction_use: self.setup.instruction_use,
        }
    }

    /// Returns the memory of all workspaces; `None` without a folder of Selvedge.
    pub(crate) fn memory(&self) -> Result<Option<Arc<Memory>>> {
        let home = self.setup.home.as_ref();
        let Some(journal) = &self.setup.journal else {
            return Ok(None);
        };
        let config = &self.setup.config;
        home.map(|home| self.shared_memory.get(home, config, journal))
            .transpose()
    }

    /// Returns the clients; the first call makes them, and starts no MCP server.
    pub(crate) async fn connections(&self) -> Result<&WorkspaceConnections> {
        let connect = async || {
            let config = &self.setup.config;
            let choice = providers::choose_model_without_asking(config, &self.model).await?;
            let client = choice.client()?;
            let handlers = ServerRequestHandlers {
                elicitation: None,
                sampling: Some(self.running_turns.clone()),
            };
            anyhow::Ok(WorkspaceConnections {
                context_window: context_window(&client, &choice).await,
                small_model: small_model_if_possible(config, &choice.provider.name).await,
                servers: self.setup.servers(handlers)?,
                choice,
                client,
            })
        };
        self.connections.get_or_try_init(connect).await
    }

    /// Returns the clients, if a turn has made them.
    pub(crate) fn open_connections(&self) -> Option<&WorkspaceConnections> {
        self.connections.get()
    }

    /// Ends the processes of MCP servers.
    pub(crate) async fn stop(&self) {
        if let Some(connections) = self.connections.get() {
            connections.servers.stop().await;
        }
    }
}

fn apply_environment(config: &mut Config, environment: &EnvironmentSettings) {
    config.sandbox_mode = environment.sandbox_mode.unwrap_or(config.sandbox_mode);
    config.approval_policy = environment
        .approval_policy
        .unwrap_or(config.approval_policy);
    if environment.tool_pack.is_some() {
        config.tool_pack.clone_from(&environment.tool_pack);
    }
    let limits = std::mem::take(&mut config.script_harness.limits);
    config.script_harness.limits = environment.limits.apply(limits);
}

/// Returns how many folders may have open parts in a process that may open this many files.
fn max_workspaces(open_files: Option<usize>) -> usize {
    let by_files = open_files.map(|files| files / FILE_SHARE / FILES_PER_WORKSPACE);
    by_files.unwrap_or(MAX_WORKSPACES).clamp(1, MAX_WORKSPACES)
}

/// The parts of workspaces by folder and environment, from their first use until the configuration
/// is reloaded, the folder is replaced, or no turn has used them for some time.
pub(crate) struct WorkspaceCache {
    journal: Arc<Journal>,
    /// A configuration that is used for its folder; those of other folders are read from files.
    given: Option<SessionConfiguration>,
    /// The user's file, as it was when it had no errors. `None` reads it for each folder.
    user_file: Mutex<Option<UserFile>>,
    workspaces: Mutex<CachedWorkspaces>,
    memory: Arc<SharedMemory>,
    /// Most folders whose parts are kept.
    max_workspaces: usize,
}

#[derive(Default)]
struct CachedWorkspaces {
    current: HashMap<(PathBuf, Option<String>), Arc<WorkspaceParts>>,
    /// Parts that new turns do not get, and running ones may still use.
    retired: Vec<Arc<WorkspaceParts>>,
}

impl WorkspaceCache {
    pub(crate) fn new(journal: Arc<Journal>, given: Option<SessionConfiguration>) -> Self {
        Self {
            journal,
            given,
            user_file: Mutex::default(),
            workspaces: Mutex::default(),
            memory: Arc::default(),
            max_workspaces: max_workspaces(open_file_limit()),
        }
    }

    /// Creates the cache of an agent server, which reads the user's file once.
    pub(crate) fn for_server(journal: Arc<Journal>, user_file: UserFile) -> Self {
        Self {
            user_file: Mutex::new(Some(user_file)),
            ..Self::new(journal, None)
        }
    }

    /// Returns the memory of all workspaces, with the settings of a configuration.
    pub(crate) fn memory(&self, config: &Config) -> Result<Arc<Memory>> {
        let home = selvedge_config::home().unwrap_or_default();
        self.memory.get(&home, config, &self.journal)
    }

    /// Returns the parts of a folder and environment. Files of a project count if it is trusted.
    pub(crate) fn get(
        &self,
        directory: &Path,
        environment: Option<&str>,
    ) -> Result<Arc<WorkspaceParts>> {
        let key = (directory.to_owned(), environment.map(str::to_owned));
        // Locked while files are read, so that turns that begin at once get the same parts.
        let mut workspaces = self.lock();
        if let Some(known) = workspaces.current.get(&key) {
            if known.folder == FolderIdentity::of(&known.setup.directory) {
                *lock_time(known) = Instant::now();
                return Ok(known.clone());
            }
            let replaced = workspaces.current.remove(&key);
            workspaces.retired.extend(replaced);
        }
        let loaded = match &self.given {
            Some(given) if given.directory == directory => given.clone(),
            _ => load_configuration(&WorkspaceArgs {
                directory: Some(directory.to_owned()),
                trust_question: TrustQuestion::Never,
                user_file: lock(&self.user_file).clone(),
                ..WorkspaceArgs::default()
            })?
            .into(),
        };
        if loaded.directory != directory {
            let message = format!(
                "{} is not a folder, or has become a link",
                directory.display()
            );
            return Err(Problem::new(message).into());
        }
        let parts = Arc::new(WorkspaceParts::new(
            loaded,
            environment,
            &self.journal,
            self.memory.clone(),
        )?);
        workspaces.current.insert(key, parts.clone());
        workspaces.retire_oldest(self.max_workspaces);
        Ok(parts)
    }

    /// Returns the parts of a folder that turns have used, with any environment. They do not count
    /// as used because of this.
    pub(crate) fn in_use(&self, directory: &Path) -> Vec<Arc<WorkspaceParts>> {
        let workspaces = self.lock();
        let parts = workspaces.current.iter();
        let parts = parts.filter(|((folder, _), _)| folder == directory);
        parts.map(|(_, parts)| parts.clone()).collect()
    }

    /// Lets new turns get parts from the configuration as it is now.
    pub(crate) fn reload(&self, user_file: Option<UserFile>) {
        *lock(&self.user_file) = user_file;
        let mut workspaces = self.lock();
        let replaced: Vec<_> = workspaces.current.drain().map(|(_, parts)| parts).collect();
        workspaces.retired.extend(replaced);
    }

    /// Drops the parts that no turn uses and that new turns do not get or were idle for long.
    pub(crate) async fn drop_unused(&self) {
        let unused: Vec<_> = {
            let mut workspaces = self.lock();
            let CachedWorkspaces { current, retired } = &mut *workspaces;
            let is_unused = |parts: &Arc<WorkspaceParts>| Arc::strong_count(parts) == 1;
            let is_idle = |parts: &Arc<WorkspaceParts>| {
                is_unused(parts) && lock_time(parts).elapsed() > MAX_IDLE_TIME
            };
            let idle = current.extract_if(|_, parts| is_idle(parts));
            let idle: Vec<_> = idle.map(|(_, parts)| parts).collect();
            retired
                .extract_if(.., |parts| is_unused(parts))
                .chain(idle)
                .collect()
        };
        for parts in unused {
            parts.stop().await;
        }
    }

    /// Ends the processes of all MCP servers.
    pub(crate) async fn stop(&self) {
        self.reload(None);
        let retired = std::mem::take(&mut self.lock().retired);
        for parts in retired {
            parts.stop().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, CachedWorkspaces> {
        lock(&self.workspaces)
    }
}

impl CachedWorkspaces {
    /// Removes the parts that were used least recently, if there are too many.
    fn retire_oldest(&mut self, max_workspaces: usize) {
        while self.current.len() > max_workspaces {
            let oldest = self
                .current
                .iter()
                .min_by_key(|(_, parts)| *lock_time(parts));
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            let oldest = self.current.remove(&key);
            // Without connections there is nothing to stop.
            let has_connections = |parts: &Arc<WorkspaceParts>| parts.connections.initialized();
            self.retired.extend(oldest.filter(has_connections));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lock_time(parts: &WorkspaceParts) -> MutexGuard<'_, Instant> {
    lock(&parts.last_used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::InstructionUse;

    fn cache_of(folder: &Path, home: &Path) -> WorkspaceCache {
        let configuration = SessionConfiguration {
            config: Config::default(),
            directory: folder.to_owned(),
            project: None,
            instruction_use: InstructionUse::default(),
        };
        WorkspaceCache::new(Journal::open(home).unwrap(), Some(configuration))
    }

    #[tokio::test]
    async fn parts_are_shared_until_a_reload_or_until_the_folder_is_replaced() {
        let (work, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = work.path().canonicalize().unwrap().join("folder");
        std::fs::create_dir(&folder).unwrap();
        let cache = cache_of(&folder, home.path());
        let first = cache.get(&folder, None).unwrap();
        assert!(Arc::ptr_eq(&first, &cache.get(&folder, None).unwrap()));
        assert!(cache.get(&folder, Some("none")).is_err());
        cache.reload(None);
        let second = cache.get(&folder, None).unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        std::fs::rename(&folder, folder.with_file_name("old")).unwrap();
        std::fs::create_dir(&folder).unwrap();
        let third = cache.get(&folder, None).unwrap();
        assert!(!Arc::ptr_eq(&second, &third));
        // Parts that a turn uses stay; the others are dropped.
        let unused = Arc::downgrade(&second);
        drop(second);
        cache.drop_unused().await;
        assert!(unused.upgrade().is_none());
        assert_eq!(Arc::strong_count(&first), 2);
        assert!(Arc::ptr_eq(&third, &cache.get(&folder, None).unwrap()));
        *lock_time(&third) = Instant::now()
            .checked_sub(MAX_IDLE_TIME * 2)
            .unwrap_or_else(Instant::now);
        let idle = Arc::downgrade(&third);
        drop(third);
        cache.drop_unused().await;
        assert!(idle.upgrade().is_none());
    }

    #[test]
    fn parts_of_many_folders_are_not_kept() {
        let (work, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = work.path().canonicalize().unwrap();
        let cache = cache_of(&folder, home.path());
        let first = Arc::downgrade(&cache.get(&folder, None).unwrap());
        for number in 0..MAX_WORKSPACES {
            let folder = folder.join(number.to_string());
            std::fs::create_dir(&folder).unwrap();
            cache.get(&folder, None).unwrap();
        }
        assert!(first.upgrade().is_none());
        assert_eq!(cache.lock().current.len(), MAX_WORKSPACES);
    }
}
