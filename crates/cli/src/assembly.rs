//! Builds an agent from flags and configuration, for `exec` and the chat.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use selvedge_agent::{
    AfterBlock, Agent, Agents, Allowance, Changes, Remembering, Session, Settings,
};
use selvedge_mcp::{AskPerson, Asked, Servers};
use selvedge_memory::Memory;
use selvedge_models::{Client, Model};
use selvedge_protocol::{ModeSettings, WireApi};
use selvedge_toolbox::{PatchFlavour, ToolsConfig, TurnDiff};
use selvedge_tools::{Approver, Registry};

use crate::args::{LimitArgs, ModelArgs, PlaceArgs, TurnArgs};
use crate::problem::Problem;
use crate::providers::{self, Choice};
use crate::remember::{remembering, small_model};
use crate::setup::Setup;
use crate::turns_model::TurnsModel;

/// Maximum number of requests to the model in a turn, without `--max-rounds`.
pub(crate) const DEFAULT_MAX_ROUNDS: u32 = 100;

/// Maximum size of the AGENTS.md files in the prompt.
const PROJECT_BYTES: usize = 32 << 10;

/// Options for building an agent.
pub(crate) struct Wanted<'a> {
    pub(crate) model: &'a ModelArgs,
    pub(crate) limits: &'a LimitArgs,
    pub(crate) turn: &'a TurnArgs,
    /// Decides about approvals; `None` denies every call that needs one.
    pub(crate) approver: Option<Arc<dyn Approver>>,
    /// Answers the elicitation requests of MCP servers; `None` declines them.
    pub(crate) person: Option<Arc<dyn AskPerson>>,
    /// Further instructions for the model.
    pub(crate) instructions: Option<String>,
    pub(crate) conversation: Conversation,
}

/// The session in which an agent works.
#[derive(Debug, Clone)]
pub(crate) enum Conversation {
    New,
    /// An existing session; `None` is the last one of the folder.
    Old(Option<String>),
}

/// Sets up the tools of a workspace, including those that start sub-agents.
pub(crate) fn setup(workspace: &PlaceArgs) -> Result<Setup> {
    let mut setup = Setup::new(workspace)?.with_journal(workspace)?;
    let agents = Agents::default();
    agents.store_results_in(setup.toolbox.cabinet.clone());
    setup.agents = Some(agents);
    Ok(setup)
}

/// An agent, its session, and the MCP servers whose tools it can call.
pub(crate) struct Assembled {
    pub(crate) agent: Agent,
    pub(crate) session: Session,
    /// Must be stopped when the work is done.
    pub(crate) servers: Servers,
}

/// The parts of an agent besides its tools.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) choice: Choice,
    /// Servers, whose catalogues may still be loading.
    pub(crate) servers: Servers,
    pub(crate) memory: Option<Remembering>,
}

/// Starts the MCP servers, and builds an agent and its session.
pub(crate) async fn agent(
    setup: &mut Setup,
    workspace: &PlaceArgs,
    options: Wanted<'_>,
) -> Result<Assembled> {
    let choice = providers::choose(&setup.config, options.model).await?;
    check_costs(setup, options.turn, &choice)?;
    let session = session(setup, &options.conversation).await?;
    let memory = match memory(setup)? {
        Some(memory) => {
            let small = small_model(&setup.config).await?;
            Some(remembering(&setup.config, memory, &choice.model, small))
        }
        None => None,
    };
    let servers = setup.servers(asked(setup, options.person.clone()))?;
    servers.prepare_all().await;
    let parts = Parts {
        choice,
        servers: servers.clone(),
        memory,
    };
    let agent = agent_of(setup, workspace, options, parts)?;
    Ok(Assembled {
        agent,
        session,
        servers,
    })
}

/// Returns the handlers for elicitation and sampling requests of MCP servers.
pub(crate) fn asked(setup: &Setup, person: Option<Arc<dyn AskPerson>>) -> Asked {
    let model = setup
        .agents
        .clone()
        .map(|agents| Arc::new(TurnsModel(agents)) as _);
    Asked { person, model }
}

/// Opens the session, and sets it in `setup`, so that `recall` finds its scripts.
pub(crate) async fn session(setup: &mut Setup, conversation: &Conversation) -> Result<Session> {
    let session = match conversation {
        Conversation::New => new_session(setup).await?,
        Conversation::Old(id) => old_session(setup, id.as_deref()).await?,
    };
    setup.session = session.id().to_owned();
    Ok(session)
}

/// Opens the memory for the agent, and sets it in `setup` for the tools that read it.
pub(crate) fn memory(setup: &mut Setup) -> Result<Option<Arc<Memory>>> {
    setup.memory = crate::remember::memory(setup)?;
    Ok(setup.memory.clone())
}

/// Builds an agent from its parts.
pub(crate) fn agent_of(
    setup: &mut Setup,
    workspace: &PlaceArgs,
    options: Wanted<'_>,
    parts: Parts,
) -> Result<Agent> {
    check_costs(setup, options.turn, &parts.choice)?;
    let Parts {
        choice: Choice {
            provider,
            model,
            effort,
        },
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
    let modes = ModeSettings {
        turn: options.limits.mode,
        provider: model.script_mode.or(provider.script_mode),
        global: Some(setup.config.script_harness.mode),
    };
    let settings = Settings {
        directory: setup.directory.display().to_string(),
        mode: modes.effective(),
        turn_limits: Allowance {
            rounds: Some(options.turn.max_rounds.unwrap_or(DEFAULT_MAX_ROUNDS)),
            tokens: options.turn.max_tokens,
            cost: options.turn.max_cost,
            time: options.turn.max_time,
        },
        session_limits: Allowance {
            tokens: setup.config.agent.session_max_tokens,
            cost: setup.config.agent.session_max_cost,
            ..Allowance::default()
        },
        after_block: match setup.config.agent.stop_after_block {
            true => AfterBlock::Stop,
            false => AfterBlock::Listen,
        },
        effort,
        project: project(&setup.directory),
        instructions: options.instructions,
        ..Settings::default()
    };
    let wire = provider.wire;
    let offer = move |registry: &Registry, model: &Model| {
        let freeform = wire == WireApi::Responses && model.freeform_tools;
        let config = ToolsConfig {
            patch: Some(match freeform {
                true => PatchFlavour::Freeform,
                false => PatchFlavour::Text,
            }),
            view_image: model.images,
            ..ToolsConfig::default()
        };
        config.offer(registry)
    };
    let harness = setup.harness(options.limits, options.approver);
    let harness = harness.with_tools(servers.onto(&setup.all_tools()?));
    let client = Client::new(provider).map_err(|error| Problem::new(error.to_string()))?;
    let mut agent = Agent::new(client, model, harness, settings).with_offer(offer);
    agent = agent.with_changes(Arc::new(InTheWorkspace(setup.toolbox.turn_diff.clone())));
    let config = setup.config.clone();
    agent = agent.with_models(move |name| providers::known(&config, name));
    if let Some(memory) = &memory {
        agent = agent.with_memory(memory);
    }
    Ok(match &setup.agents {
        Some(agents) => agent.with_agents(agents, setup.journal.clone()),
        None => agent,
    })
}

/// Returns an error if a cost limit is invalid or cannot be enforced without prices.
fn check_costs(setup: &Setup, turn: &TurnArgs, choice: &Choice) -> Result<()> {
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

struct InTheWorkspace(TurnDiff);

impl Changes for InTheWorkspace {
    fn begin(&self) {
        self.0.begin();
    }

    fn diff(&self) -> String {
        self.0.diff().text
    }
}

/// Creates a session, in memory only if there is no journal.
async fn new_session(setup: &Setup) -> Result<Session> {
    let here = setup.directory.display().to_string();
    Ok(match &setup.journal {
        Some(journal) => Session::begin(journal, &here).await?,
        None => Session::in_memory(),
    })
}

async fn old_session(setup: &Setup, id: Option<&str>) -> Result<Session> {
    let Some(journal) = &setup.journal else {
        let problem = Problem::new("a session needs the journal, which `--ephemeral` turns off");
        return Err(problem.hint("remove --ephemeral").into());
    };
    let id = match id {
        Some(id) => id.to_owned(),
        None => {
            let here = setup.directory.display().to_string();
            let all = journal
                .spawn_blocking(|journal| journal.sessions(1000))
                .await;
            let all = all.map_err(|error| crate::sessions::problem(&error))?;
            let last = all.into_iter().find(|session| session.directory == here);
            last.ok_or_else(|| {
                Problem::new("this folder has no session yet")
                    .hint("run `selvedge sessions list` to list the sessions of all folders")
            })?
            .id
        }
    };
    let session = Session::resume(journal, &id).await;
    session.map_err(|error| match error {
        selvedge_agent::AgentError::Journal(error) => crate::sessions::problem(&error).into(),
        other => anyhow::Error::from(other),
    })
}

/// Returns the text of every AGENTS.md from the root of the repository down to this folder.
fn project(directory: &Path) -> Option<String> {
    let mut folders: Vec<&Path> = directory.ancestors().collect();
    // Without a repository, only the folder itself is searched.
    let root = folders
        .iter()
        .position(|folder| folder.join(".git").exists());
    folders.truncate(root.unwrap_or(0) + 1);
    let read = |folder: &&Path| std::fs::read_to_string(folder.join("AGENTS.md")).ok();
    let texts = folders.iter().rev().filter_map(read);
    let mut text = texts.collect::<Vec<_>>().join("\n\n");
    if text.len() > PROJECT_BYTES {
        text.truncate(text.floor_char_boundary(PROJECT_BYTES));
        text.push_str("\n[truncated]");
    }
    (!text.trim().is_empty()).then_some(text)
}
