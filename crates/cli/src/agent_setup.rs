//! Builds an agent from flags and configuration, for `exec` and the chat.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use selvedge_agent::{
    AfterBlock, Agent, AgentEnvironment, AgentMemory, AgentOptions, BackgroundWork, BudgetLimits,
    ChangeTracker, Session, SubAgents,
};
use selvedge_journal::Journal;
use selvedge_mcp::{ElicitationHandler, ServerRequestHandlers, Servers};
use selvedge_memory::Memory;
use selvedge_models::{Model, ModelClient, Provider};
use selvedge_protocol::{LimitSurface, ScriptModeSettings, TurnFileChanges, WireApi};
use selvedge_toolbox::{PatchFlavour, ToolsConfig, TurnDiffTracker};
use selvedge_tools::{Approver, Registry};

use crate::agent_models::ScriptModels;
use crate::args::{ModelChoiceArgs, ScriptLimitArgs, TurnLimitArgs, WorkspaceArgs};
use crate::instructions::{InstructionUse, ProjectInstructions, read_instructions};
use crate::journal::JournalNeed;
use crate::memory_setup::{memory_for_agent, small_model_if_possible};
use crate::problem::Problem;
use crate::providers::{self, ModelChoice};
use crate::sampling::TurnSampler;
use crate::servers::{wait_for_servers, warn_of_start_failures};
use crate::sessions_worktree::refuse_other_folder;
use crate::setup::CliSetup;
use crate::workspace_parts::WorkspaceParts;

/// How long the start of an agent waits until a server on this machine tells its context window.
const LOCAL_WINDOW_TIMEOUT: Duration = Duration::from_millis(100);

/// Maximum number of requests to the model in a turn, without `--max-rounds`.
pub(crate) const DEFAULT_MAX_ROUNDS: u32 = 100;

/// Options for building an agent.
pub(crate) struct AgentBuildOptions<'a> {
    pub(crate) model: &'a ModelChoiceArgs,
    pub(crate) script_limits: &'a ScriptLimitArgs,
    /// Where the scripts of the agent come from.
    pub(crate) surface: LimitSurface,
    pub(crate) turn_limits: &'a TurnLimitArgs,
    /// Decides about approvals; `None` denies every call that needs one.
    pub(crate) approver: Option<Arc<dyn Approver>>,
    /// Answers the elicitation requests of MCP servers; `None` declines them.
    pub(crate) elicitation_handler: Option<Arc<dyn ElicitationHandler>>,
    /// Further instructions for the model.
    pub(crate) instructions: Option<String>,
    pub(crate) session: SessionChoice,
}

/// The session in which an agent works.
#[derive(Debug, Clone)]
pub(crate) enum SessionChoice {
    New,
    /// An existing session; `None` is the last one of the folder.
    Existing(Option<String>),
}

/// Sets up the tools of a workspace, including those that start sub-agents.
pub(crate) fn setup_with_sub_agents(
    workspace: &WorkspaceArgs,
    journal: JournalNeed,
) -> Result<CliSetup> {
    let mut setup = CliSetup::new(workspace)?.with_journal(workspace, journal)?;
    for refusal in project_instructions(&setup).refused {
        eprint_line!("warning: {refusal}");
    }
    add_sub_agents(&mut setup);
    Ok(setup)
}

/// Adds the tools that start sub-agents.
pub(crate) fn add_sub_agents(setup: &mut CliSetup) {
    let agents = SubAgents::default();
    agents.store_results_in(setup.toolbox.cabinet.clone());
    if let Some(tasks) = &setup.tasks {
        agents.allow_in_tasks(tasks);
    }
    setup.sub_agents = Some(agents);
}

/// Reads the instructions of the project, unless the user declined to trust it.
fn project_instructions(setup: &CliSetup) -> ProjectInstructions {
    match setup.instruction_use {
        InstructionUse::Follow => read_instructions(&setup.project_files()),
        InstructionUse::Ignore => ProjectInstructions::default(),
    }
}

/// An agent, its session, and the MCP servers whose tools it can call.
pub(crate) struct AssembledAgent {
    pub(crate) agent: Agent,
    pub(crate) session: Session,
    /// Must be stopped when the work is done.
    pub(crate) servers: Servers,
}

/// The model, the MCP servers and the memory of an agent.
#[derive(Clone)]
pub(crate) struct AgentParts {
    pub(crate) choice: ModelChoice,
    /// Client of the chosen provider.
    pub(crate) client: ModelClient,
    /// Servers, whose catalogues may still be loading.
    pub(crate) servers: Servers,
    pub(crate) memory: Option<AgentMemory>,
}

/// Starts the MCP servers, and builds an agent and its session.
pub(crate) async fn assemble_agent(
    setup: &mut CliSetup,
    workspace: &WorkspaceArgs,
    options: AgentBuildOptions<'_>,
) -> Result<AssembledAgent> {
    let choice = providers::choose_model(&setup.config, options.model).await?;
    check_cost_limits(setup, options.turn_limits, &choice)?;
    let session = open_session(setup, &options.session).await?;
    let client = choice.client()?;
    let memory = match open_memory(setup)? {
        Some(memory) => {
            let small = small_model_if_possible(&setup.config, &choice.provider.name).await;
            let window = context_window(&client, &choice).await;
            // The process ends with the turn.
            let work = BackgroundWork::NextProcess;
            Some(memory_for_agent(setup, memory, window, small, work))
        }
        None => None,
    };
    let servers = setup.servers(mcp_request_handlers(
        setup,
        options.elicitation_handler.clone(),
    ))?;
    let parts = AgentParts {
        choice,
        client,
        servers,
        memory,
    };
    assemble(setup, workspace, options, parts, session).await
}

/// Builds an agent for a session that is already open, from what the turns of its workspace share.
/// Asks nothing.
pub(crate) async fn assemble_in_session(
    setup: &mut CliSetup,
    shared: &WorkspaceParts,
    options: AgentBuildOptions<'_>,
    session: Session,
) -> Result<AssembledAgent> {
    let connections = shared.connections().await?;
    check_cost_limits(setup, options.turn_limits, &connections.choice)?;
    setup.session = session.id().to_owned();
    setup.memory = shared.memory()?;
    let memory = setup.memory.clone().map(|memory| {
        let small = connections.small_model.clone();
        let work = BackgroundWork::InProcess;
        memory_for_agent(setup, memory, connections.context_window, small, work)
    });
    let parts = AgentParts {
        choice: connections.choice.clone(),
        client: connections.client.clone(),
        servers: connections
            .servers
            .clone()
            .with_filter(setup.tool_filter()?),
        memory,
    };
    assemble(setup, &WorkspaceArgs::default(), options, parts, session).await
}

/// Starts the MCP servers without a catalogue, and builds an agent.
async fn assemble(
    setup: &mut CliSetup,
    workspace: &WorkspaceArgs,
    options: AgentBuildOptions<'_>,
    parts: AgentParts,
    session: Session,
) -> Result<AssembledAgent> {
    let servers = parts.servers.clone();
    wait_for_servers(&servers, servers.ensure_all_catalogues()).await;
    warn_of_start_failures(&servers.start_failures());
    let agent = build_agent(setup, workspace, options, parts)?;
    Ok(AssembledAgent {
        agent,
        session,
        servers,
    })
}

/// Returns the handlers for elicitation and sampling requests of MCP servers.
pub(crate) fn mcp_request_handlers(
    setup: &CliSetup,
    person: Option<Arc<dyn ElicitationHandler>>,
) -> ServerRequestHandlers {
    let model = setup
        .sub_agents
        .clone()
        .map(|agents| Arc::new(TurnSampler(agents)) as _);
    ServerRequestHandlers {
        elicitation: person,
        sampling: model,
    }
}

/// Opens the session, and sets it in `setup`, so that `recall` finds its scripts.
pub(crate) async fn open_session(setup: &mut CliSetup, choice: &SessionChoice) -> Result<Session> {
    let session = match choice {
        SessionChoice::New => create_session(setup).await?,
        SessionChoice::Existing(id) => open_existing_session(setup, id.as_deref()).await?,
    };
    setup.session = session.id().to_owned();
    Ok(session)
}

/// Opens the memory for the agent, and sets it in `setup` for the tools that read it.
pub(crate) fn open_memory(setup: &mut CliSetup) -> Result<Option<Arc<Memory>>> {
    setup.memory = crate::memory_setup::open_configured_memory(setup)?;
    Ok(setup.memory.clone())
}

/// Builds an agent from its parts.
pub(crate) fn build_agent(
    setup: &mut CliSetup,
    workspace: &WorkspaceArgs,
    options: AgentBuildOptions<'_>,
    parts: AgentParts,
) -> Result<Agent> {
    check_cost_limits(setup, options.turn_limits, &parts.choice)?;
    setup.model_limits = {
        let ModelChoice {
            provider, model, ..
        } = &parts.choice;
        provider.script_limits.with(&model.script_limits)
    };
    let script_models = ScriptModels::new(&setup.config, options.script_limits, &parts.choice);
    let AgentParts {
        choice: ModelChoice {
            provider,
            model,
            effort,
        },
        client,
        servers,
        memory,
    } = parts;
    if workspace.pack.is_none()
        && let Some(pack) = model
            .tool_pack
            .clone()
            .or_else(|| provider.tool_pack.clone())
    {
        setup.config.tool_pack = Some(pack);
    }
    let modes = ScriptModeSettings {
        flag: options.script_limits.mode,
        model_or_provider: model.script_mode.or(provider.script_mode),
        global: Some(setup.config.script_harness.mode),
    };
    let settings = AgentOptions {
        directory: setup.directory.display().to_string(),
        environment: Some(environment(setup)),
        mode: modes.resolve(),
        turn_limits: BudgetLimits {
            max_rounds: Some(options.turn_limits.max_rounds.unwrap_or(DEFAULT_MAX_ROUNDS)),
            max_tokens: options.turn_limits.max_tokens,
            max_cost: options.turn_limits.max_cost,
            max_time: options.turn_limits.max_time,
        },
        session_limits: BudgetLimits {
            max_tokens: setup.config.agent.session_max_tokens,
            max_cost: setup.config.agent.session_max_cost,
            ..BudgetLimits::default()
        },
        after_block: match setup.config.agent.stop_after_block {
            true => AfterBlock::Stop,
            false => AfterBlock::Continue,
        },
        block_order: setup.config.script_harness.blocks,
        provider_web_search: setup.config.features.web_search,
        effort,
        // Files that are not used were reported when the setup was made.
        project_instructions: project_instructions(setup).text,
        extra_instructions: with_failed_servers(options.instructions, &servers),
        ..AgentOptions::default()
    };
    let offer = move |registry: &Registry, model: &Model, provider: &Provider| {
        let freeform = provider.wire_api == WireApi::Responses && model.freeform_tools;
        let patch = match model.patch {
            Some(PatchFlavour::Freeform) | None if freeform => PatchFlavour::Freeform,
            Some(PatchFlavour::Freeform) | None => PatchFlavour::Text,
            Some(chosen) => chosen,
        };
        let config = ToolsConfig {
            shell: model.shell,
            patch: Some(patch),
            view_image: model.images,
            strict: model.strict_schemas && provider.wire_api != WireApi::Messages,
        };
        config.offer(registry)
    };
    let harness = setup
        .harness(options.script_limits, options.approver)
        .with_surface(options.surface);
    let harness = harness.with_tools(servers.script_registry(&setup.built_in_tools()?));
    client.start_window_query(&model);
    let mut agent = Agent::new(client, model, harness, settings).with_offer(offer);
    agent = agent.with_change_tracker(Arc::new(WorkspaceChanges(setup.toolbox.turn_diff.clone())));
    agent = agent.with_model_lookup(move |own, name| script_models.find(own, name));
    if let Some(memory) = &memory {
        agent = agent.with_memory(memory);
    }
    Ok(match &setup.sub_agents {
        Some(agents) => agent.with_sub_agents(agents, setup.journal.clone()),
        None => agent,
    })
}

/// Adds the MCP servers that did not start to the instructions for the model.
fn with_failed_servers(instructions: Option<String>, servers: &Servers) -> Option<String> {
    let failures = servers.start_failures();
    if failures.is_empty() {
        return instructions;
    }
    let lines = failures.iter().map(|failure| format!("- {failure}"));
    let section = format!(
        "# MCP servers that are not available\n\n{}",
        lines.collect::<Vec<_>>().join("\n")
    );
    let sections = instructions.into_iter().chain([section]);
    Some(sections.collect::<Vec<_>>().join("\n\n"))
}

/// Returns the context window of a model. Asks its server, but waits only for a server on this
/// machine, which answers at once.
pub(crate) async fn context_window(client: &ModelClient, choice: &ModelChoice) -> u64 {
    client.start_window_query(&choice.model);
    if choice.provider.is_local() {
        client
            .wait_for_window(&choice.model, LOCAL_WINDOW_TIMEOUT)
            .await;
    }
    client.context_window(&choice.model)
}

/// Returns what the system prompt says about the sandbox and the project.
fn environment(setup: &CliSetup) -> AgentEnvironment {
    let workspace = &setup.toolbox.workspace;
    let now = jiff::Timestamp::now().to_string();
    AgentEnvironment {
        sandbox: setup.config.sandbox_mode,
        network_access: setup.config.sandbox_workspace_write.network_access,
        protected_paths: workspace.protected_names(),
        approval: setup.config.approval_policy,
        date: now.split('T').next().unwrap_or_default().to_owned(),
        branch: workspace.git_branch(),
    }
}

/// Returns an error if a cost limit is invalid or cannot be enforced without prices.
fn check_cost_limits(setup: &CliSetup, turn: &TurnLimitArgs, choice: &ModelChoice) -> Result<()> {
    let session = setup.config.agent.session_max_cost;
    if session.is_some_and(|limit| !limit.is_finite() || limit <= 0.0) {
        let problem = Problem::new("agent.session_max_cost must be a positive amount");
        return Err(problem
            .hint("set `agent.session_max_cost = 2.0` in config.toml")
            .into());
    }
    let limit = match (turn.max_cost, session) {
        (Some(_), _) => "--max-cost",
        (None, Some(_)) => "agent.session_max_cost",
        (None, None) => return Ok(()),
    };
    if choice.model.prices.is_some() {
        return Ok(());
    }
    let name = &choice.model.name;
    let problem = Problem::new(format!("{limit} needs the prices of the model {name}"));
    Err(problem
        .hint(format!(
            "add to the top of config.toml, per million tokens: \
             models.{name:?}.prices = {{ input = 3.0, output = 15.0 }}"
        ))
        .into())
}

struct WorkspaceChanges(TurnDiffTracker);

impl ChangeTracker for WorkspaceChanges {
    fn begin_turn(&self) {
        self.0.begin_turn();
    }

    fn diff(&self) -> String {
        self.0.diff().text
    }

    fn changed_files(&self) -> TurnFileChanges {
        self.0.changed_files()
    }

    fn files_written_by_tools(&self) -> Vec<PathBuf> {
        self.0.files_written_by_tools()
    }
}

/// Creates a session, in memory only if there is no journal.
async fn create_session(setup: &CliSetup) -> Result<Session> {
    let here = setup.directory.display().to_string();
    Ok(match &setup.journal {
        Some(journal) => Session::begin(journal, &here).await?,
        None => Session::in_memory(),
    })
}

async fn open_existing_session(setup: &CliSetup, id: Option<&str>) -> Result<Session> {
    let Some(journal) = &setup.journal else {
        return Err(match setup.ephemeral {
            true => Problem::new(
                "an earlier session can only be continued with the journal, which `--ephemeral` \
                 turns off",
            )
            .hint("remove --ephemeral"),
            false => Problem::new(
                "an earlier session can only be continued with the journal, which needs a home \
                 folder",
            )
            .hint("set SELVEDGE_HOME to a folder"),
        }
        .into());
    };
    let id = match id {
        Some(id) => id.to_owned(),
        None => {
            let here = setup.directory.display().to_string();
            let all = journal
                .spawn_blocking(move |journal| journal.sessions_in(&here, "", 1000))
                .await;
            let all = all.map_err(|error| crate::sessions::session_problem(&error))?;
            let last = all.into_iter().find(|session| !session.worktree);
            last.ok_or_else(|| {
                Problem::new("this folder has no session yet")
                    .hint("run `selvedge sessions list` to list the sessions of all folders")
            })?
            .id
        }
    };
    let find = move |journal: &Journal| journal.session(&id);
    let summary = journal.spawn_blocking(find).await;
    let summary = summary.map_err(|error| crate::sessions::session_problem(&error))?;
    refuse_other_folder(&summary, &setup.directory)?;
    let session = Session::open(journal, &summary.id).await;
    session.map_err(|error| match error {
        selvedge_agent::AgentError::Journal(error) => {
            crate::sessions::session_problem(&error).into()
        }
        other => anyhow::Error::from(other),
    })
}
