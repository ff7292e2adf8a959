//! Runs the turns that queued messages of a session start: for the agent server, for `selvedge
//! sessions send --wait`, and for scripts that wait for another session.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use selvedge_agent::{
    AgentError, Session, SubAgents, TurnAuthor, TurnInput, TurnOptions, TurnOutcome,
};
use selvedge_config::Config;
use selvedge_journal::{Journal, JournalError};
use selvedge_protocol::{
    ClaimedMessage, InboxMessage, InboxState, LimitSurface, QueuedTurnFuture, QueuedTurnRunner,
    RequestGate, SandboxPolicy, SessionError, SessionFolder, SessionFuture, SessionInfo,
    SessionRunner, SessionStore, TurnBudgets, TurnEnd, TurnPermissions, Usage, WorkspaceReach,
};
use selvedge_server::ClientTool;
use selvedge_toolbox::{SessionAccess, SessionEnvironment};
use selvedge_tools::{Approver, NoApprover};
use tokio_util::sync::CancellationToken;

use crate::agent_setup::{self, AgentBuildOptions, AssembledAgent, SessionChoice};
use crate::args::{ScriptLimitArgs, TurnLimitArgs};
use crate::problem::Problem;
use crate::run::runtime;
use crate::served_runner::{ServedRunner, ServedTurn};
use crate::session_configuration::SessionConfiguration;
use crate::sessions_worktree::prepare_worktree;
use crate::setup::CliSetup;
use crate::turn_gate::TurnGate;
use crate::workspace_folders::check_recorded;
use crate::workspace_parts::{WorkspaceCache, WorkspaceParts};

/// How often a waiting call looks whether another process has answered its message.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Stack of the thread that runs turns for a script, in bytes: as large as that of the main thread.
const THREAD_STACK_BYTES: usize = 8 << 20;

/// A message with its answer, and what the turns that led to it used.
pub(crate) struct AnsweredMessage {
    pub(crate) message: InboxMessage,
    pub(crate) usage: Usage,
    pub(crate) cost: Option<f64>,
}

/// Runs turns for scripts, each on a thread of its own, so that a script that stops to wait does
/// not stop the turn.
pub(crate) struct ThreadRunner {
    configuration: SessionConfiguration,
    place: TurnPlace,
    /// Sub-agents of the turn whose budget pays; `None` outside of a turn.
    agents: Option<SubAgents>,
}

impl SessionRunner for ThreadRunner {
    fn run_until_answered(&self, session: String, number: u32, run: String) -> SessionFuture<'_> {
        let (configuration, place) = (self.configuration.clone(), self.place.clone());
        let (sender, answered) = tokio::sync::oneshot::channel();
        let running = RunningSession::begin();
        let work = move || {
            let run = async {
                let options = TurnOptions::default();
                run_queue(&configuration, &session, number, &options, place, || ()).await
            };
            let done = runtime().and_then(|runtime| runtime.block_on(run));
            drop(running);
            // A caller that has gone finds the answer in the journal.
            let _ = sender.send(done);
        };
        let thread = std::thread::Builder::new()
            .name("selvedge-session".to_owned())
            .stack_size(THREAD_STACK_BYTES)
            .spawn(work);
        Box::pin(async move {
            let not_run = |why: String| SessionError::NotRun(why);
            thread.map_err(|error| not_run(error.to_string()))?;
            let answered = answered
                .await
                .map_err(|_| not_run("it failed with an internal error".to_owned()))?;
            let answered =
                answered.map_err(|error| not_run(Problem::from_error(&error).to_string()))?;
            if let Some(agents) = &self.agents {
                agents.add_usage(&run, answered.usage, answered.cost);
            }
            Ok(answered.message)
        })
    }

    fn message_queued(&self, _: String) -> QueuedTurnFuture<'_> {
        Box::pin(std::future::ready(QueuedTurnRunner::NextProcess))
    }
}

/// Number of threads that run turns for scripts.
static RUNNING_SESSIONS: AtomicUsize = AtomicUsize::new(0);

/// Counts one thread until it is dropped.
struct RunningSession;

impl RunningSession {
    fn begin() -> Self {
        RUNNING_SESSIONS.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for RunningSession {
    fn drop(&mut self) {
        RUNNING_SESSIONS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for turns of other sessions that this process runs, at its end: a script that was
/// cancelled leaves them running. Returns at once when `cancel` is cancelled; another process then
/// continues them.
pub(crate) async fn finish_running_sessions(cancel: &CancellationToken) {
    let is_running = || RUNNING_SESSIONS.load(Ordering::SeqCst) > 0;
    if is_running() && !cancel.is_cancelled() {
        eprint_line!("note: waiting for sessions that this process runs; Ctrl-C stops them");
    }
    while is_running() && !cancel.is_cancelled() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Which process runs a turn. It decides where turns run that a script waits for, and whose stored
/// documents the turn reads.
#[derive(Clone)]
pub(crate) enum TurnPlace {
    /// A command of the user: on a thread of this process, with the documents of the user.
    Thread,
    /// The agent server, if it serves the folder of the session, else a thread; with the documents
    /// of the folder only.
    Server(ServedTurn),
}

/// What a turn of a message gets from the caller.
pub(crate) struct TurnSurroundings {
    /// Decides about approvals of a turn that a person started; `None` denies what needs one.
    pub(crate) approver: Option<Arc<dyn Approver>>,
    pub(crate) place: TurnPlace,
    /// Tools that the agent can call besides its own.
    pub(crate) client_tools: Vec<ClientTool>,
}

impl TurnSurroundings {
    /// Returns those of a turn that runs on a thread, without a client.
    fn thread(place: TurnPlace) -> Self {
        Self {
            approver: None,
            place,
            client_tools: Vec::new(),
        }
    }
}

/// Runs the queued messages of a session until the one with this number is answered, and returns
/// it. Waits while another process uses the session, after one call of `on_busy`.
pub(crate) async fn run_queue(
    configuration: &SessionConfiguration,
    session: &str,
    number: u32,
    options: &TurnOptions,
    place: TurnPlace,
    on_busy: impl FnOnce(),
) -> Result<AnsweredMessage> {
    let home =
        selvedge_config::home().ok_or_else(|| Problem::new("cannot find the home folder"))?;
    let settings = configuration.config.journal.clone();
    let journal = crate::journal::open_journal(&home, &settings)?;
    let workspaces = WorkspaceCache::new(journal.clone(), Some(configuration.clone()));
    let answered = answer_queue(
        &workspaces,
        &journal,
        session,
        number,
        options,
        &place,
        on_busy,
    );
    let answered = answered.await;
    workspaces.stop().await;
    answered
}

async fn answer_queue(
    workspaces: &WorkspaceCache,
    journal: &Arc<Journal>,
    session: &str,
    number: u32,
    options: &TurnOptions,
    place: &TurnPlace,
    on_busy: impl FnOnce(),
) -> Result<AnsweredMessage> {
    let (mut usage, mut cost) = (Usage::default(), None);
    let mut on_busy = Some(on_busy);
    loop {
        let message = journal.message(session, number).await?;
        if !message.state.is_open() {
            return Ok(AnsweredMessage {
                message,
                usage,
                cost,
            });
        }
        match Session::open(journal, session).await {
            Ok(open) => {
                let mut open = Some(open);
                while let Some(claimed) = journal.claim_next(session).await? {
                    let Some(session) = open.take() else { break };
                    let run = run_message(
                        workspaces,
                        journal,
                        session,
                        &claimed,
                        options,
                        TurnSurroundings::thread(place.clone()),
                    );
                    let (session, outcome) = run.await?;
                    if let Some(outcome) = &outcome {
                        usage += outcome.usage;
                        cost = cost.into_iter().chain(outcome.cost).reduce(|a, b| a + b);
                    }
                    let (state, answer) = describe_end(&session, outcome.as_ref());
                    journal.finish(&claimed.message, state, answer).await?;
                    if claimed.message.number >= number {
                        break;
                    }
                    if outcome.is_some_and(|outcome| outcome.end == Ok(TurnEnd::Interrupted)) {
                        return Err(stopped_problem(session.id()).into());
                    }
                    open = Some(session);
                }
            }
            Err(AgentError::Journal(JournalError::SessionInUse(_))) => {
                if let Some(on_busy) = on_busy.take() {
                    on_busy();
                }
            }
            Err(error) => return Err(error.into()),
        }
        if journal.message(session, number).await?.state.is_open() {
            tokio::select! {
                () = options.cancel.cancelled() => {
                    return Err(Problem::new("interrupted while the message waits").into());
                }
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }
}

fn stopped_problem(session: &str) -> Problem {
    Problem::new(format!(
        "session {session} was stopped; the message is still queued"
    ))
    .hint(format!("run `selvedge sessions send {session} --wait`"))
}

/// Runs the turn of a message. Returns the session, and the outcome; `None` if the turn had ended
/// before. Without an approver, and if a script sent the message, the turn never asks.
pub(crate) async fn run_message(
    workspaces: &WorkspaceCache,
    journal: &Arc<Journal>,
    session: Session,
    claimed: &ClaimedMessage,
    options: &TurnOptions,
    surroundings: TurnSurroundings,
) -> Result<(Session, Option<TurnOutcome>)> {
    if claimed.begun && !session.has_open_turn() {
        return Ok((session, None));
    }
    let info = SessionStore::get(&**journal, session.id()).await?;
    let permissions = [
        info.permissions.as_ref(),
        claimed.message.permissions.as_ref(),
    ];
    let permissions: Vec<&TurnPermissions> = permissions.into_iter().flatten().collect();
    let folder = Path::new(&info.directory);
    let worktree = session_worktree(&info).await?;
    let shared = workspaces.get(folder, info.environment.as_deref())?;
    let mut setup = setup_for_session(&shared, worktree, &permissions, journal)?;
    if let TurnPlace::Server(_) = surroundings.place {
        setup.toolbox.cabinet = journal.documents_of(&info.directory);
        setup.memory_bounds.is_served = true;
    }
    setup.memory_bounds.directory = Some(folder.to_owned());
    let payer = claimed.payer.as_ref();
    setup.payer_scopes = payer.map(|payer| payer.scopes.clone());
    let gate = Arc::new(TurnGate::new(journal, payer, &surroundings.place));
    let running = setup.sub_agents.as_ref();
    let _running = running.map(|agents| shared.running_turns.add(agents));
    setup.turn_place = surroundings.place;
    let least = |one: Option<f64>, two: Option<f64>| one.into_iter().chain(two).reduce(f64::min);
    let turn_limits = TurnLimitArgs {
        max_tokens: permissions.iter().filter_map(|one| one.max_tokens).min(),
        // The gate of the turn compares what other turns of the token spend meanwhile.
        max_cost: permissions
            .iter()
            .map(|one| one.max_cost)
            .fold(payer.and_then(|payer| payer.max_cost), least),
        ..TurnLimitArgs::default()
    };
    let never_asks = || {
        Arc::new(NoApprover {
            reason: "turns of queued messages never ask for approval".to_owned(),
        }) as _
    };
    let approver = surroundings.approver;
    let approver = approver.filter(|_| claimed.message.permissions.is_none());
    let build = AgentBuildOptions {
        model: &shared.model,
        script_limits: &ScriptLimitArgs::default(),
        surface: LimitSurface::Exec,
        turn_limits: &turn_limits,
        approver: Some(approver.unwrap_or_else(never_asks)),
        elicitation_handler: None,
        instructions: None,
        session: SessionChoice::New,
    };
    let assembled = agent_setup::assemble_in_session(&mut setup, &shared, build, session);
    let AssembledAgent {
        mut agent,
        mut session,
        ..
    } = assembled.await?;
    agent = agent.with_request_gate(gate.clone());
    if !surroundings.client_tools.is_empty() {
        let mut registry = agent.harness().orchestrator().registry().clone();
        for tool in surroundings.client_tools {
            registry.register(tool)?;
        }
        agent = agent.with_tools(registry);
    }
    let outcome = match claimed.begun {
        true => agent.run_open_turn(&mut session, options).await,
        false => {
            let input = input_of_message(&claimed.message);
            agent.run_turn(&mut session, input, options).await
        }
    };
    if let Some(agents) = &setup.sub_agents {
        agents.end().await;
    }
    if let Some(tasks) = &setup.tasks {
        tasks.end().await;
    }
    gate.settle().await;
    Ok((session, Some(outcome)))
}

/// Returns the prompt of the turn that a message starts.
pub(crate) fn input_of_message(message: &InboxMessage) -> TurnInput {
    TurnInput::from(message.text.clone()).by(match message.author.kind.is_person() {
        true => TurnAuthor::Person,
        false => TurnAuthor::Agent,
    })
}

/// Returns the state of a message whose turn has ended, and its final answer or the error. The
/// outcome is `None` if the turn had ended before.
pub(crate) fn describe_end(
    session: &Session,
    outcome: Option<&TurnOutcome>,
) -> (InboxState, String) {
    let end = outcome.map(|outcome| &outcome.end).or(session.turn_end());
    match end {
        None | Some(Ok(TurnEnd::Stop | TurnEnd::Length)) => (
            InboxState::Answered,
            session.last_message().unwrap_or_default(),
        ),
        Some(Ok(TurnEnd::Interrupted)) => (InboxState::Stopped, "the turn was stopped".to_owned()),
        Some(Ok(end)) => (
            InboxState::Failed,
            format!("the turn ended early: {}", end.as_str()),
        ),
        Some(Err(error)) => (InboxState::Failed, error.message.clone()),
    }
}

/// Returns the worktree of a session, which is created if it does not exist. `None` if the session
/// works in its folder. Fails if the folder was replaced by another one, or by a link to it.
pub(crate) async fn session_worktree(session: &SessionInfo) -> Result<Option<PathBuf>> {
    let (id, directory) = (session.id.clone(), PathBuf::from(&session.directory));
    let real = directory
        .canonicalize()
        .map_err(|error| Problem::new(format!("cannot open {}: {error}", directory.display())))?;
    check_folder(&directory, &real)?;
    check_recorded(&directory)?;
    match session.folder {
        SessionFolder::Shared => Ok(None),
        SessionFolder::Worktree => {
            let prepare = move || prepare_worktree(&id, &directory);
            Ok(Some(tokio::task::spawn_blocking(prepare).await??))
        }
    }
}

/// Sets up the tools of a turn with at most these permissions, from what the turns of its workspace
/// share. They work in the worktree of the session if it has one.
pub(crate) fn setup_for_session(
    shared: &WorkspaceParts,
    worktree: Option<PathBuf>,
    permissions: &[&TurnPermissions],
    journal: &Arc<Journal>,
) -> Result<CliSetup> {
    let mut loaded = shared.configuration();
    for permission in permissions {
        restrict_config(&mut loaded.config, permission);
    }
    let is_shared_folder = worktree.is_none();
    let directory = worktree.unwrap_or(loaded.directory);
    let mut setup = CliSetup::from_config(loaded.config, directory.clone(), loaded.project)?;
    check_folder(&directory, setup.toolbox.workspace.root())?;
    if is_shared_folder {
        setup.toolbox.documents = shared.documents.clone();
    }
    setup.tool_cache.clone_from(&shared.setup.tool_cache);
    setup.instruction_use = loaded.instruction_use;
    let packs = permissions.iter().flat_map(|one| &one.tool_packs);
    setup.required_packs = packs.cloned().collect();
    let tools = permissions.iter().filter_map(|one| one.tools.clone());
    setup.allowed_tools = tools.reduce(|mut all, other| {
        all.retain(|tool| other.contains(tool));
        all
    });
    let mut setup = setup.with_open_journal(Some(journal.clone()));
    agent_setup::add_sub_agents(&mut setup);
    Ok(setup)
}

/// Fails if the folder of a session is not `root`, the folder that the tools would work in: another
/// session may have replaced it with a link to a folder that this session must not change.
fn check_folder(stored: &Path, root: &Path) -> Result<(), Problem> {
    if stored == root {
        return Ok(());
    }
    let stored = stored.display();
    Err(Problem::new(format!(
        "the folder {stored} of the session now leads to another one"
    ))
    .hint("restore the folder, or create a session in the other one"))
}

fn restrict_config(config: &mut Config, permissions: &TurnPermissions) {
    config.sandbox_mode = config.sandbox_mode.stricter(permissions.sandbox);
    config.approval_policy = config.approval_policy.stricter(permissions.approval);
    config.sandbox_workspace_write.network_access &= permissions.network;
}

impl CliSetup {
    /// Returns the sessions for scripts; `None` without a journal, and for clients over HTTP.
    pub(crate) fn session_access(&self) -> Option<SessionAccess> {
        let mcp = self.mcp_run_access.as_ref();
        if mcp.is_some_and(|access| access.http_client_name.is_some()) {
            return None;
        }
        let store = self.journal.clone()?;
        let configuration = SessionConfiguration {
            config: self.config.clone(),
            directory: self.directory.clone(),
            project: self.project.clone(),
            instruction_use: self.instruction_use,
        };
        let environments = self.config.environments.iter();
        let environments = environments.map(|(name, environment)| {
            let directory = environment.workspace.as_ref().map(|workspace| {
                let path = self.directory.join(workspace);
                path.canonicalize().unwrap_or(path).display().to_string()
            });
            let environment = SessionEnvironment {
                directory,
                sandbox: environment.sandbox_mode,
                approval: environment.approval_policy,
                folder: match environment.worktree {
                    true => SessionFolder::Worktree,
                    false => SessionFolder::Shared,
                },
            };
            (name.clone(), environment)
        });
        let thread = ThreadRunner {
            configuration,
            place: self.turn_place.clone(),
            agents: self.sub_agents.clone(),
        };
        let runner: Arc<dyn SessionRunner> = match &self.turn_place {
            TurnPlace::Thread => Arc::new(thread),
            TurnPlace::Server(served) => Arc::new(ServedRunner {
                journal: store.clone(),
                served: served.clone(),
                agents: thread.agents,
            }),
        };
        Some(SessionAccess {
            store,
            author: self.message_author(),
            permissions: self.turn_permissions(),
            budgets: self.turn_budgets(),
            environments: environments.collect(),
            runner,
            max_open_messages: self.config.serve.max_queued_turns,
        })
    }

    /// Returns the remaining budgets of turns; `None` in commands without an agent.
    pub(crate) fn turn_budgets(&self) -> Option<Arc<dyn TurnBudgets>> {
        let agents = self.sub_agents.clone();
        agents.map(|agents| Arc::new(agents) as _)
    }

    /// Returns what turns that scripts start may do at most.
    pub(crate) fn turn_permissions(&self) -> TurnPermissions {
        let packs = self.config.tool_pack.iter().chain(&self.required_packs);
        TurnPermissions {
            sandbox: self.config.sandbox_mode,
            approval: self.config.approval_policy,
            network: self.config.sandbox_workspace_write.network_access
                || self.config.sandbox_mode == SandboxPolicy::DangerFullAccess,
            tool_packs: packs.cloned().collect(),
            tools: self.allowed_tools.clone(),
            workspace: self.directory.display().to_string(),
            reach: match self.turn_place {
                TurnPlace::Thread => WorkspaceReach::WithSubfolders,
                TurnPlace::Server(_) => WorkspaceReach::FolderOnly,
            },
            max_tokens: None,
            max_cost: None,
        }
    }
}
