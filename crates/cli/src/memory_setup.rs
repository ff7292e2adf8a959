//! Opens the memory, and configures how agents use it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use selvedge_agent::{
    AgentMemory, AgentMemoryOptions, AgentProject, BackgroundWork, HistoryStrategyKind,
    RemoteEncoder, SmallModelClient,
};
use selvedge_config::{Config, JournalSettings, MemoryBatch, MemoryStrategy, ModelProvider};
use selvedge_journal::{Journal, JournalError, Redactor};
use selvedge_memory::{
    GradientOptions, MAX_BRIEF_TOKENS, Memory, MemoryError, ProjectPlace, SmallModel,
    get_turn_spec, search_memory_spec,
};
use selvedge_models::ModelClient;
use selvedge_protocol::ToolSpec;

use crate::args::ModelChoiceArgs;
use crate::problem::Problem;
use crate::providers::{self, ModelChoice};
use crate::setup::CliSetup;

/// The part of a model's context that the brief of a project may take: one of so many.
const BRIEF_WINDOW_PARTS: u64 = 16;

/// Where the memory of a session ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryBounds {
    /// The folder of the session, if it works in another, such as a worktree.
    pub(crate) directory: Option<PathBuf>,
    /// Whether it is a session of the agent server, whose memory ends at its workspace.
    pub(crate) is_served: bool,
}

impl MemoryBounds {
    /// Returns the folders whose sessions may be read; `None` for no restriction. `working` is the
    /// folder in which the session works.
    pub(crate) fn folders(&self, working: &Path) -> Option<Vec<String>> {
        let directory = self.directory.as_deref().unwrap_or(working);
        self.is_served
            .then(|| vec![directory.display().to_string()])
    }
}

/// Returns a folder and what identifies its project.
pub(crate) fn project_place(directory: &Path) -> ProjectPlace {
    ProjectPlace {
        directory: directory.display().to_string(),
        root: selvedge_toolbox::project_root(directory)
            .display()
            .to_string(),
    }
}

/// Assigns sessions from before there were projects to the projects of their folders.
pub(crate) fn adopt_sessions(memory: &Memory, journal: &Journal) -> Result<(), MemoryError> {
    let place_of = |session: &str| {
        let found = journal.session(session).ok();
        let found = found.filter(|found| found.id == session)?;
        Some(project_place(Path::new(&found.directory)))
    };
    memory.adopt_sessions(place_of).map(drop)
}

/// Open memories of workspaces. Each has several open files.
const MAX_SHARED_MEMORIES: usize = 8;

/// The memories of the workspaces of a process. Workspaces with the same settings share one, which
/// is opened once.
#[derive(Default)]
pub(crate) struct SharedMemory(Mutex<Vec<(SharedMemoryKey, Arc<Memory>)>>);

/// The settings of an open memory.
#[derive(PartialEq)]
struct SharedMemoryKey {
    journal: JournalSettings,
    encoder: Option<String>,
    /// The providers, one of which may serve the encoder.
    providers: BTreeMap<String, ModelProvider>,
}

impl SharedMemoryKey {
    fn new(config: &Config) -> Self {
        let encoder = config.memory.encoder.clone();
        let is_remote = encoder.as_deref().is_some_and(|name| name != "none");
        let providers = is_remote.then(|| config.model_providers.clone());
        Self {
            journal: config.journal.clone(),
            encoder,
            providers: providers.unwrap_or_default(),
        }
    }
}

/// Returns whether the memories of two configurations would use the same encoder.
pub(crate) fn has_same_encoder(one: &Config, other: &Config) -> bool {
    let (one, other) = (SharedMemoryKey::new(one), SharedMemoryKey::new(other));
    (one.encoder, one.providers) == (other.encoder, other.providers)
}

impl SharedMemory {
    /// Returns the memory in a folder; the first call opens it. Other settings or another encoder,
    /// which a project may have, get a memory of their own.
    pub(crate) fn get(
        &self,
        home: &Path,
        config: &Config,
        journal: &Journal,
    ) -> Result<Arc<Memory>> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = SharedMemoryKey::new(config);
        if let Some((_, memory)) = shared.iter().find(|(known, _)| *known == key) {
            return Ok(memory.clone());
        }
        let memory = Arc::new(open_memory_in(home, config)?);
        adopt_sessions(&memory, journal)?;
        if shared.len() == MAX_SHARED_MEMORIES {
            shared.remove(0);
        }
        shared.push((key, memory.clone()));
        Ok(memory)
    }
}

/// Opens the memory in Selvedge's folder; `None` without a journal.
pub(crate) fn open_configured_memory(setup: &CliSetup) -> Result<Option<Arc<Memory>>> {
    let (Some(home), Some(journal)) = (&setup.home, &setup.journal) else {
        return Ok(None);
    };
    let memory = open_memory_in(home, &setup.config)?;
    adopt_sessions(&memory, journal)?;
    Ok(Some(Arc::new(memory)))
}

/// Opens the memory in a folder. It is encrypted if the journal is, or if it already was.
pub(crate) fn open_memory_in(home: &Path, config: &Config) -> Result<Memory> {
    let redactor = || Redactor::new(config.journal.secret_names.clone());
    let location = crate::journal::journal_location(home, &config.journal)?;
    let opened = match config.journal.encrypt {
        false => Memory::open(&location, redactor()),
        // Encrypted memory is opened below, also if only the stored data is encrypted.
        true => Err(JournalError::WrongKey.into()),
    };
    let opened = match opened {
        Err(MemoryError::Journal(JournalError::WrongKey)) => {
            Memory::open_encrypted(&location, redactor(), &crate::keyring::journal_key()?)
        }
        opened => opened,
    };
    let memory = opened.map_err(|error| crate::memory::memory_problem(&error))?;
    Ok(match config.memory.encoder.as_deref() {
        None => memory.with_built_in_encoder(),
        Some("none") => memory,
        Some(name) => memory.with_encoder(Arc::new(remote_encoder(config, name)?)),
    })
}

/// Returns the encoder that `memory.encoder` names.
fn remote_encoder(config: &Config, name: &str) -> Result<RemoteEncoder> {
    let ModelChoiceArgs { provider, model } = providers::split_model_name(config, name)?;
    let (Some(provider), Some(model)) = (provider, model) else {
        let problem = Problem::new(format!("memory.encoder `{name}` names no provider"));
        return Err(problem
            .hint("write it as provider/model, or `none`: selvedge models lists the providers")
            .into());
    };
    let provider = providers::find_provider(&providers::all_providers(config)?, &provider)?;
    RemoteEncoder::new(providers::load_key(provider)?, &model)
        .map_err(|error| Problem::new(error.to_string()).into())
}

/// Connects the memory to an agent whose model has this context window, as configured. `small` is
/// the small model, which writes summaries and distills lessons.
pub(crate) fn memory_for_agent(
    setup: &CliSetup,
    memory: Arc<Memory>,
    context_window: u64,
    small: Option<Arc<dyn SmallModel>>,
    background_work: BackgroundWork,
) -> AgentMemory {
    let keys = &setup.config.memory;
    let history = match keys.strategy {
        MemoryStrategy::Gradient => {
            // The other half is left to the current turn.
            let half = u32::try_from(context_window / 2).unwrap_or(u32::MAX);
            HistoryStrategyKind::Gradient(GradientOptions {
                budget: keys.history_tokens.min(half),
                band_shares: keys.level_shares,
            })
        }
        MemoryStrategy::Regular => HistoryStrategyKind::Regular,
        MemoryStrategy::OneShot => HistoryStrategyKind::OneShot,
    };
    let minutes = Duration::from_secs(60 * u64::from(keys.distill_idle_minutes));
    let settings = AgentMemoryOptions {
        history,
        recall_timeout: keys
            .recall
            .then(|| Duration::from_millis(keys.recall_timeout_ms)),
        max_recall_tokens: keys.recall_tokens,
        background_work,
        distill_idle_time: (!minutes.is_zero()).then_some(minutes),
        project: agent_project(setup, context_window),
    };
    AgentMemory::new(memory, settings, small)
}

/// Returns the project of the sessions of a setup, and what they may read of it.
fn agent_project(setup: &CliSetup, context_window: u64) -> AgentProject {
    let bounds = &setup.memory_bounds;
    let directory = bounds.directory.as_deref().unwrap_or(&setup.directory);
    let tokens = u32::try_from(context_window / BRIEF_WINDOW_PARTS).unwrap_or(u32::MAX);
    let mut place = project_place(directory);
    // Workspaces of a server do not lie in each other, so no two of them share a project.
    if bounds.is_served && !Path::new(&place.root).starts_with(directory) {
        place.root.clone_from(&place.directory);
    }
    AgentProject {
        place: Some(place),
        scope: setup.config.memory.scope,
        folders: bounds.folders(&setup.directory),
        max_brief_tokens: tokens.min(MAX_BRIEF_TOKENS),
    }
}

/// Returns the model that `memory.model` names, for a turn with this provider. If it cannot be
/// used, memory works without it, and a warning says so.
pub(crate) async fn small_model_if_possible(
    config: &Config,
    provider: &str,
) -> Option<Arc<dyn SmallModel>> {
    or_warn(small_model(config, Some(provider)).await)
}

/// Returns the model that `memory.model` names, for a command without a turn. If it cannot be used,
/// a warning says so.
pub(crate) async fn small_model_for_command(config: &Config) -> Option<Arc<dyn SmallModel>> {
    or_warn(small_model(config, None).await)
}

fn or_warn(small: Result<Option<Arc<dyn SmallModel>>>) -> Option<Arc<dyn SmallModel>> {
    small.unwrap_or_else(|error| {
        let problem = Problem::from_error(&error);
        eprint_line!("warning: memory works without its model: {problem}");
        tracing::warn!(target: "selvedge::memory", error = %problem, "memory has no model");
        None
    })
}

/// Returns the descriptions of the tools that read the memory.
pub(crate) fn memory_specs() -> [ToolSpec; 2] {
    [get_turn_spec(), search_memory_spec()]
}

/// Returns the model that `memory.model` names, if it is set. `provider` is the one of the turn,
/// which serves the model if the setting names no other.
pub(crate) async fn small_model(
    config: &Config,
    provider: Option<&str>,
) -> Result<Option<Arc<dyn SmallModel>>> {
    let Some(name) = &config.memory.model else {
        return Ok(None);
    };
    let mut args = providers::split_model_name(config, name)?;
    args.provider = args.provider.or(provider.map(str::to_owned));
    let ModelChoice {
        provider, model, ..
    } = providers::choose_model(config, &args).await?;
    let by_batches = match config.memory.batch {
        MemoryBatch::Auto => matches!(provider.name.as_str(), "openai" | "anthropic"),
        MemoryBatch::Always => true,
        MemoryBatch::Never => false,
    };
    let client = ModelClient::new(provider).map_err(|error| Problem::new(error.to_string()))?;
    let small = SmallModelClient::new(client, model);
    let small = if by_batches {
        small.with_batches()
    } else {
        small
    };
    Ok(Some(Arc::new(small)))
}
