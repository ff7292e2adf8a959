//! From flags and files to an agent: what `exec` and the chat have in common.

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

/// What an agent is told of a project, at most.
const PROJECT_BYTES: usize = 32 << 10;

pub(crate) struct Wanted<'a> {
    pub(crate) model: &'a ModelArgs,
    pub(crate) limits: &'a LimitArgs,
    pub(crate) turn: &'a TurnArgs,
    /// `None` asks nobody.
    pub(crate) approver: Option<Arc<dyn Approver>>,
    /// Who fills in the forms of servers that are started with the agent.
    pub(crate) person: Option<Arc<dyn AskPerson>>,
    /// What the model is told besides.
    pub(crate) instructions: Option<String>,
    pub(crate) conversation: Conversation,
}

/// What an agent is to go on with.
#[derive(Debug, Clone)]
pub(crate) enum Conversation {
    New,
    /// The last one of this folder where none is named.
    Old(Option<String>),
}

/// The tools of a place, with those that launch agents among them.
pub(crate) fn setup(place: &PlaceArgs) -> Result<Setup> {
    let mut setup = Setup::new(place)?.with_journal(place)?;
    let agents = Agents::default();
    agents.store_results_in(setup.toolbox.cabinet.clone());
    setup.agents = Some(agents);
    Ok(setup)
}

/// An agent, its conversation, and the servers whose tools it has.
pub(crate) struct Assembled {
    pub(crate) agent: Agent,
    pub(crate) session: Session,
    /// To be stopped at the end.
    pub(crate) servers: Servers,
}

/// What an agent is made of besides its tools.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) choice: Choice,
    /// As far as it is known what they have.
    pub(crate) servers: Servers,
    pub(crate) memory: Option<Remembering>,
}

/// An agent over the tools of a place, and its conversation.
pub(crate) async fn agent(
    setup: &mut Setup,
    place: &PlaceArgs,
    wanted: Wanted<'_>,
) -> Result<Assembled> {
    let choice = providers::choose(&setup.config, wanted.model).await?;
    check_costs(setup, wanted.turn, &choice)?;
    let session = session(setup, &wanted.conversation).await?;
    let memory = match memory(setup)? {
        Some(memory) => {
            let small = small_model(&setup.config).await?;
            Some(remembering(&setup.config, memory, &choice.model, small))
        }
        None => None,
    };
    let servers = setup.servers(asked(setup, wanted.person.clone()))?;
    servers.prepare_all().await;
    let parts = Parts {
        choice,
        servers: servers.clone(),
        memory,
    };
    let agent = agent_of(setup, place, wanted, parts)?;
    Ok(Assembled {
        agent,
        session,
        servers,
    })
}

/// Whom servers can turn to where an agent runs.
pub(crate) fn asked(setup: &Setup, person: Option<Arc<dyn AskPerson>>) -> Asked {
    let model = setup
        .agents
        .clone()
        .map(|agents| Arc::new(TurnsModel(agents)) as _);
    Asked { person, model }
}

/// The conversation that is wanted, of which the tools know from now on: what its scripts did can be recalled.
pub(crate) async fn session(setup: &mut Setup, conversation: &Conversation) -> Result<Session> {
    let session = match conversation {
        Conversation::New => new_session(setup).await?,
        Conversation::Old(id) => old_session(setup, id.as_deref()).await?,
    };
    setup.session = session.id().to_owned();
    Ok(session)
}

/// The memory, for the agent and for the tools that look into it.
pub(crate) fn memory(setup: &mut Setup) -> Result<Option<Arc<Memory>>> {
    setup.memory = crate::remember::memory(setup)?;
    Ok(setup.memory.clone())
}

pub(crate) fn agent_of(
    setup: &mut Setup,
    place: &PlaceArgs,
    wanted: Wanted<'_>,
    parts: Parts,
) -> Result<Agent> {
    check_costs(setup, wanted.turn, &parts.choice)?;
    let Parts {
        choice: Choice {
            provider,
            model,
            effort,
        },
        servers,
        memory,
    } = parts;
    if place.pack.is_none()
        && let Some(pack) = model
            .tool_pack
            .clone()
            .or_else(|| provider.tool_pack.clone())
    {
        setup.config.tool_pack = Some(pack);
    }
    let modes = ModeSettings {
        turn: wanted.limits.mode,
        provider: model.script_mode.or(provider.script_mode),
        global: Some(setup.config.script_harness.mode),
    };
    let settings = Settings {
        directory: setup.directory.display().to_string(),
        mode: modes.effective(),
        turn_limits: Allowance {
            rounds: Some(wanted.turn.max_rounds.unwrap_or(100)),
            tokens: wanted.turn.max_tokens,
            cost: wanted.turn.max_cost,
            time: wanted.turn.max_time,
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
        instructions: wanted.instructions,
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
    let harness = setup.harness(wanted.limits, wanted.approver);
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

/// A limit of money needs to know what things cost.
fn check_costs(setup: &Setup, turn: &TurnArgs, choice: &Choice) -> Result<()> {
    let session = setup.config.agent.session_max_cost;
    if session.is_some_and(|most| !most.is_finite() || most <= 0.0) {
        let problem = Problem::new("agent.session_max_cost is not an amount of money");
        return Err(problem.hint("write 0.50 or 2").into());
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
    Err(Problem::new(format!("{limit} cannot be kept: what {name} costs is not known"))
        .hint(format!(
            "say it in config.toml, under [models.{name:?}]: prices = {{ input = 3.0, output = 15.0 }}, per million tokens"
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

/// A new conversation, kept unless somebody does not want that.
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
        return Err(problem.hint("leave out --ephemeral").into());
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
                Problem::new("there is no session of this folder")
                    .hint("`selvedge sessions list` shows all")
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

/// What the project says to agents: every AGENTS.md from its root down to this folder.
fn project(directory: &Path) -> Option<String> {
    let mut folders: Vec<&Path> = directory.ancestors().collect();
    // Without a repository, only the folder itself.
    let root = folders
        .iter()
        .position(|folder| folder.join(".git").exists());
    folders.truncate(root.unwrap_or(0) + 1);
    let read = |folder: &&Path| std::fs::read_to_string(folder.join("AGENTS.md")).ok();
    let texts = folders.iter().rev().filter_map(read);
    let mut text = texts.collect::<Vec<_>>().join("\n\n");
    if text.len() > PROJECT_BYTES {
        text.truncate(text.floor_char_boundary(PROJECT_BYTES));
        text.push_str("\n[the rest was left out]");
    }
    (!text.trim().is_empty()).then_some(text)
}
