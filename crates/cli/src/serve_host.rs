//! Runs turns and tools for the agent server, from the journal and the configuration of each
//! workspace.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use selvedge_agent::{AgentError, Session, TurnActivity, TurnOptions};
use selvedge_config::{Config, UserFile};
use selvedge_journal::{Journal, JournalError, Redactor};
use selvedge_memory::Memory;
use selvedge_protocol::{
    ClaimedMessage, ConversationItem, InboxState, RuntimeEvent, SessionFolder, SessionStore,
    TurnChangeStore,
};
use selvedge_script::is_script_name;
use selvedge_server::{
    AddLesson, ClientTool, EditLesson, HostError, HostErrorKind, HostedChangedTurn, HostedCheck,
    HostedDiff, HostedGradient, HostedItems, HostedLesson, HostedMcpServer, HostedMemoryHit,
    HostedReplay, HostedRun, HostedStep, HostedTool, HostedTopics, HostedTurn, HostedTurnLevel,
    LessonReview, ResumedRun, RunResume, SessionHost, SessionPlace, UserLessonReach,
};
use selvedge_tools::camel_case;
use serde_json::Value;

use crate::agent_setup::add_sub_agents;
use crate::memory::delete_session;
use crate::problem::Problem;
use crate::programs::{add_served_workspace, refresh_served_workspaces};
use crate::serve::path_folder_in;
use crate::serve_documents::{call_in_workspace, document_patterns, document_source};
use crate::serve_errors::{
    agent_failure, check_environment, failed, invalid, journal_failure, not_served, shown_problem,
};
use crate::serve_failed_turn::fail_turn;
use crate::serve_health::{check_folder, memory_check, memory_state};
use crate::serve_items::ItemPages;
use crate::serve_kept_sessions::KeptSessions;
use crate::serve_leases::{is_declared, is_lost, is_unfinished};
use crate::serve_mcp_status::mcp_servers;
use crate::serve_memory_views::{
    add_lesson, edit_lesson, gradient, lessons_of, review_lesson, search, topics_of, turn_levels,
};
use crate::serve_recovery::{continue_item_ids, reconcile_events};
use crate::serve_resume::{ScriptClaims, resume_run, script_tools, turn_is_running};
use crate::serve_runs::{list_runs, replay_run, show_run};
use crate::serve_stop::stop_other_process;
use crate::served_runner::ServedTurn;
use crate::session_configuration::SessionConfiguration;
use crate::session_runner::{TurnPlace, TurnSurroundings, describe_end, run_message};
use crate::sessions_stop::{RevertDecider, revert_turn};
use crate::sessions_worktree::{apply_changes, claim_for_changes, discard_changes, session_diff};
use crate::setup::load_user_configuration;
use crate::workspace_folders::{check_recorded, is_recorded_folder};
use crate::workspace_parts::WorkspaceCache;

/// How often what no turn uses is looked for.
const UNUSED_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Assembles agents for sessions of one journal.
pub(crate) struct JournalHost {
    /// Runs turns. Its writes wait while the disk is full.
    journal: Arc<Journal>,
    /// Serves requests. Its writes fail if the disk is full.
    requests: Arc<Journal>,
    /// Reads sessions. Its handle has no claims, so that reading a session does not release the
    /// claim of its running turn.
    reader: Arc<Journal>,
    /// What the turns of each workspace share.
    workspaces: WorkspaceCache,
    script_claims: ScriptClaims,
    kept_sessions: KeptSessions,
    item_pages: ItemPages,
    /// The user's configuration, as it was when it had no errors.
    user_config: Mutex<Config>,
}

impl JournalHost {
    pub(crate) fn new(
        journal: Arc<Journal>,
        requests: Arc<Journal>,
        reader: Arc<Journal>,
        user_file: UserFile,
        user_config: Config,
    ) -> Self {
        Self {
            workspaces: WorkspaceCache::for_server(journal.clone(), user_file),
            journal,
            requests,
            reader,
            script_claims: ScriptClaims::default(),
            kept_sessions: KeptSessions::default(),
            item_pages: ItemPages::default(),
            user_config: Mutex::new(user_config),
        }
    }

    /// Changes files of a session between two turns, on a thread that may block. No turn of the
    /// session begins meanwhile.
    async fn change_files<T: Send + 'static>(
        &self,
        session: &str,
        work: impl FnOnce(&Arc<Journal>, &str) -> Result<T> + Send + 'static,
    ) -> Result<T, HostError> {
        let id = session.to_owned();
        let change = move || {
            // Its own handle, because the other one claims sessions for turns.
            let journal = crate::runs::open_user_journal().map_err(HostError::failed)?;
            let claimed = claim_for_changes(&journal, &id).map_err(HostError::failed)?;
            match claimed.map_err(HostError::failed)? {
                TurnActivity::Idle => {
                    let session = journal.session(&id);
                    let session = session.map_err(|error| journal_failure(&error))?;
                    work(&journal, &id).map_err(|error| invalid(&error, &session.directory))
                }
                TurnActivity::Running => Err(turn_is_running(&id)),
            }
        };
        let done = tokio::task::spawn_blocking(change).await;
        done.map_err(HostError::failed)?
    }

    /// Fails if this server does not serve the folder of a session, and must not use its files, or
    /// if another folder is in its place.
    async fn check_served(&self, session: &str) -> Result<(), HostError> {
        let folder = self.session_directory(session).await;
        let folder = folder.map_err(|error| failed(&error))?;
        if !self.serves(&folder) {
            return Err(not_served());
        }
        let checked = check_recorded(Path::new(&folder));
        checked.map_err(|problem| invalid(&problem.into(), &folder))
    }

    /// Lets new turns read the configuration again. Fails if the user's file has errors; then
    /// everything stays as it was.
    pub(crate) fn reload(&self) -> Result<()> {
        let home = selvedge_config::home().unwrap_or_default();
        let user_file = UserFile::read(&home)?;
        let user_config = load_user_configuration(Some(&home))?;
        *lock(&self.user_config) = user_config;
        self.workspaces.reload(Some(user_file));
        Ok(())
    }

    /// Drops what no turn of a workspace has used for some time, again and again.
    pub(crate) async fn drop_unused_workspaces(&self) {
        loop {
            tokio::time::sleep(UNUSED_CHECK_INTERVAL).await;
            self.workspaces.drop_unused().await;
            self.kept_sessions.drop_idle();
        }
    }

    /// Returns the folder that a session works in.
    pub(crate) async fn session_directory(&self, session: &str) -> Result<String> {
        Ok(SessionStore::get(&*self.journal, session).await?.directory)
    }

    /// Returns the configuration of the user.
    pub(crate) fn user_configuration(&self) -> Config {
        lock(&self.user_config).clone()
    }

    /// Returns the configuration of a folder. Files of a project count if it is trusted.
    pub(crate) fn configuration(&self, directory: &Path) -> Result<SessionConfiguration> {
        Ok(self.workspaces.get(directory, None)?.configuration())
    }

    /// Returns the configuration of a folder for a request. What is wrong with it is not for the
    /// client.
    fn requested_configuration(&self, folder: &str) -> Result<SessionConfiguration, HostError> {
        let configuration = self.configuration(Path::new(folder));
        configuration.map_err(|error| failed(&error))
    }

    /// Returns the memory of all sessions.
    pub(crate) fn memory(&self) -> Result<Arc<Memory>, HostError> {
        self.memory_for(&self.user_configuration())
    }

    /// Returns it with the encoder of a configuration.
    pub(crate) fn memory_for(&self, config: &Config) -> Result<Arc<Memory>, HostError> {
        self.workspaces
            .memory(config)
            .map_err(|error| failed(&error))
    }

    /// Returns the ids of the sessions of some workspaces. Imported conversations belong to none.
    async fn sessions_in(&self, workspaces: &[String]) -> Result<Vec<String>, HostError> {
        let sessions = self.journal.session_ids_in(workspaces.to_vec()).await;
        sessions.map_err(|error| journal_failure(&error))
    }

    /// Runs the turn of a claimed message, and stores how it ended.
    async fn run_claimed(
        &self,
        mut session: Session,
        claimed: &ClaimedMessage,
        turn: HostedTurn,
    ) -> Result<(), HostError> {
        let id = session.id().to_owned();
        let journal = self.journal.for_session(&id);
        let directory = self
            .session_directory(&id)
            .await
            .map_err(|error| failed(&error))?;
        let continued = continue_item_ids(&*journal, &mut session);
        continued.await.map_err(HostError::failed)?;
        if claimed.begun {
            let reconciled = reconcile_events(&*journal, &mut session, &turn.events);
            reconciled.await.map_err(HostError::failed)?;
        }
        if !claimed.begun && claimed.turn == 1 {
            turn.events.emit(RuntimeEvent::ThreadStarted {
                thread_id: id.clone(),
            });
        }
        let options = TurnOptions {
            cancel: turn.cancel,
            events: turn.events,
            ..TurnOptions::default()
        };
        let run = async {
            let surroundings = TurnSurroundings {
                approver: Some(turn.approver),
                place: TurnPlace::Server(ServedTurn {
                    permit: turn.permit,
                    waker: turn.waker,
                }),
                client_tools: turn.client_tools.of_message(claimed.message.number).await,
            };
            let run = run_message(
                &self.workspaces,
                &journal,
                session,
                claimed,
                &options,
                surroundings,
            );
            run.await
        };
        // The session stays claimed until its message is answered: another server that claims it
        // before would make the last writes of this turn fail.
        let (state, answer, session) = match run.await {
            Ok((session, outcome)) if is_unfinished(&journal, &session, outcome.as_ref()) => {
                return Err(HostError::failed(
                    describe_end(&session, outcome.as_ref()).1,
                ));
            }
            Ok((session, outcome)) => {
                let (state, answer) = describe_end(&session, outcome.as_ref());
                (state, answer, Some(session))
            }
            Err(error) if is_lost(&journal, &id).await? => {
                return Err(HostError::failed(format!("{error:#}")));
            }
            Err(error) => {
                let problem = Problem::from_error(&error);
                let problem = shown_problem(&problem, &id, claimed.turn, &directory);
                let failed = fail_turn(&journal, &id, claimed, &problem, &options.events);
                failed.await;
                (InboxState::Failed, problem.to_string(), None)
            }
        };
        // A message counts as answered only after the events of its turn are stored.
        if !turn.flush.wait().await {
            return Err(HostError::failed("the events of the turn cannot be stored"));
        }
        let finished = journal.finish_and_release(&claimed.message, state, answer);
        finished.await.map_err(HostError::failed)?;
        let kept = session.and_then(Session::close);
        self.kept_sessions.put(&id, kept);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl SessionHost for JournalHost {
    async fn run_next(&self, session: &str, turn: HostedTurn) -> Result<HostedStep, HostError> {
        let is_shared = self.journal.has_leases();
        let directory = self.session_directory(session).await;
        if !self.serves(&directory.map_err(|error| failed(&error))?) {
            return Ok(HostedStep::OtherServer);
        }
        let refreshed = refresh_served_workspaces().await;
        refreshed.map_err(HostError::failed)?;
        // The turns of several sessions use the database at the same time.
        let journal = self.journal.for_session(session);
        let kept = self.kept_sessions.take(session);
        let open = match Session::reopen(&journal, session, kept).await {
            Ok(open) => open,
            Err(AgentError::Journal(JournalError::SessionInUse(_))) if is_shared => {
                return Ok(HostedStep::OtherServer);
            }
            Err(AgentError::Journal(JournalError::SessionInUse(_))) => return Ok(HostedStep::Busy),
            Err(error) => return Err(agent_failure(&error)),
        };
        let claimed = journal.claim_next(session).await;
        let claimed = claimed.map_err(HostError::failed)?;
        let Some(claimed) = claimed else {
            self.kept_sessions.put(session, open.close());
            return Ok(HostedStep::Busy);
        };
        let ended = self.run_claimed(open, &claimed, turn).await;
        // Turns in many folders would otherwise keep the files of all of them open.
        self.workspaces.drop_unused().await;
        ended.map(|()| HostedStep::Ended)
    }

    fn serves(&self, folder: &str) -> bool {
        if path_folder_in(Path::new(folder)).is_some() {
            return false;
        }
        let declared = lock(&self.user_config).serve.workspaces.clone();
        !self.journal.has_leases() || is_declared(folder, &declared) && self.is_folder(folder)
    }

    fn refusal_of_workspace(&self, workspace: &str) -> Option<String> {
        add_served_workspace(Path::new(workspace));
        path_folder_in(Path::new(workspace))?;
        Some("PATH of the server has a folder of the workspace; start it with another PATH".into())
    }

    fn is_folder(&self, path: &str) -> bool {
        let path = Path::new(path);
        path.canonicalize()
            .is_ok_and(|real| real == path && real.is_dir())
            && is_recorded_folder(path)
    }

    async fn check_client_tools(
        &self,
        folder: &str,
        tools: &[ClientTool],
    ) -> Result<(), HostError> {
        let setup = self.requested_configuration(folder)?.into_setup();
        let mut setup = setup.map_err(|error| failed(&error))?;
        add_sub_agents(&mut setup);
        let mut registry = setup.built_in_tools().map_err(|error| failed(&error))?;
        for tool in tools {
            let name = tool.name();
            let in_scripts = camel_case(name);
            let is_taken = |name: &str| is_script_name(name, &registry);
            if is_taken(name) || is_taken(&in_scripts) {
                return Err(HostError {
                    kind: HostErrorKind::Invalid,
                    message: format!("a tool cannot have the name `{name}`: scripts use it"),
                    hint: Some("pass another name in `tools`".to_owned()),
                });
            }
            let registered = registry.register(tool.clone());
            registered.map_err(|error| invalid(&error.into(), folder))?;
        }
        Ok(())
    }

    async fn session_place(
        &self,
        workspace: &str,
        environment: Option<&str>,
        worktree: Option<bool>,
    ) -> Result<SessionPlace, HostError> {
        let configuration = self.requested_configuration(workspace)?;
        check_environment(&configuration, environment)?;
        let place = configuration.session_place(environment, worktree);
        let (directory, folder) = place.map_err(|error| invalid(&error, workspace))?;
        Ok(SessionPlace {
            directory: directory.display().to_string(),
            folder,
        })
    }

    async fn environments(&self, workspace: &str) -> Result<Vec<String>, HostError> {
        Ok(self.requested_configuration(workspace)?.environment_names())
    }

    async fn replay_run(
        &self,
        id: &str,
        failed_call: Option<&str>,
    ) -> Result<HostedReplay, HostError> {
        let redactor = Redactor::new(lock(&self.user_config).journal.secret_names.clone());
        replay_run(&self.journal, redactor, id, failed_call).await
    }

    async fn script_tools(&self, workspace: &str) -> Result<Vec<HostedTool>, HostError> {
        script_tools(&self.workspaces, workspace).map_err(|error| failed(&error))
    }

    async fn resume_run(&self, resume: RunResume) -> Result<ResumedRun, HostError> {
        self.check_served(&resume.session).await?;
        let folder = self.session_directory(&resume.session).await;
        let folder = folder.map_err(|error| failed(&error))?;
        let claim = self.script_claims.claim(&resume.session).await?;
        let resumed = resume_run(&self.workspaces, claim, resume).await;
        resumed.map_err(|error| invalid(&error, &folder))
    }

    async fn memory_gradient(&self, session: &str) -> Result<HostedGradient, HostError> {
        let directory = SessionStore::get(&*self.reader, session).await;
        let directory = directory.map_err(HostError::failed)?.directory;
        let configuration = self.requested_configuration(&directory)?;
        gradient(self.memory()?, session, &configuration.config.memory).await
    }

    async fn memory_turn(
        &self,
        session: &str,
        turn: u32,
    ) -> Result<Vec<HostedTurnLevel>, HostError> {
        turn_levels(self.memory()?, session, turn).await
    }

    async fn lessons(
        &self,
        workspaces: &[String],
        user: UserLessonReach,
    ) -> Result<Vec<HostedLesson>, HostError> {
        let sessions = self.sessions_in(workspaces).await?;
        lessons_of(self.memory()?, sessions, workspaces, user).await
    }

    async fn add_lesson(&self, workspace: &str, lesson: AddLesson) -> Result<String, HostError> {
        add_lesson(self.memory()?, workspace, lesson).await
    }

    async fn edit_lesson(&self, lesson: &str, edit: EditLesson) -> Result<(), HostError> {
        edit_lesson(self.memory()?, lesson, edit).await
    }

    async fn topics(&self, workspaces: &[String]) -> Result<HostedTopics, HostError> {
        topics_of(self.memory()?, self.sessions_in(workspaces).await?).await
    }

    async fn review_lesson(&self, lesson: &str, review: LessonReview) -> Result<(), HostError> {
        review_lesson(self.memory()?, lesson, review).await
    }

    async fn mcp_servers(&self, workspace: &str) -> Result<Vec<HostedMcpServer>, HostError> {
        let servers = mcp_servers(&self.workspaces, workspace).await;
        servers.map_err(|error| failed(&error))
    }

    async fn check_health(&self, workspace: &str) -> Result<Vec<HostedCheck>, HostError> {
        check_folder(self.requested_configuration(workspace)?, workspace).await
    }

    async fn check_memory(&self, workspace: &str) -> Result<HostedCheck, HostError> {
        let workspaces = [workspace.to_owned()];
        let state = async {
            let lessons = self.lessons(&workspaces, UserLessonReach::Workspaces);
            let sessions = self.sessions_in(&workspaces).await?;
            memory_state(self.memory()?, sessions, &lessons.await?).await
        };
        Ok(memory_check(state.await))
    }

    async fn add_history(
        &self,
        session: &str,
        history: Vec<ConversationItem>,
    ) -> Result<(), HostError> {
        let open = Session::open(&self.requests, session).await;
        let mut open = open.map_err(|error| agent_failure(&error))?;
        let added = open.add_past_turns(&history).await;
        added.map_err(|error| agent_failure(&error))
    }

    async fn request_stop(&self, session: &str) -> Result<bool, HostError> {
        stop_other_process(session).await
    }

    async fn lost_scripts(&self) -> Result<Vec<String>, HostError> {
        self.script_claims.lost().await
    }

    async fn session_diff(
        &self,
        session: &str,
        turn: Option<u32>,
    ) -> Result<HostedDiff, HostError> {
        let info = SessionStore::get(&*self.reader, session).await;
        let info = info.map_err(HostError::failed)?;
        // The changes of a turn are recorded, those of a worktree are read from its files.
        if info.folder == SessionFolder::Worktree && turn.is_none() {
            self.check_served(session).await?;
        }
        let folder = info.directory;
        let (reader, session) = (self.reader.clone(), session.to_owned());
        let diff = move || session_diff(&reader, &session, turn);
        let done = tokio::task::spawn_blocking(diff).await;
        done.map_err(HostError::failed)?
            .map_err(|error| invalid(&error, &folder))
    }

    async fn changed_turns(&self, session: &str) -> Result<Vec<HostedChangedTurn>, HostError> {
        let turns = self.reader.changed_turns(session).await;
        let turns = turns.map_err(HostError::failed)?.into_iter();
        Ok(turns
            .map(|(turn, files)| HostedChangedTurn { turn, files })
            .collect())
    }

    async fn apply_changes(&self, session: &str) -> Result<Vec<String>, HostError> {
        self.check_served(session).await?;
        self.change_files(session, apply_changes).await
    }

    async fn discard_changes(&self, session: &str) -> Result<(), HostError> {
        self.check_served(session).await?;
        self.change_files(session, discard_changes).await
    }

    async fn delete_session(&self, session: &str) -> Result<(), HostError> {
        let memory = self.memory()?;
        let delete = move |journal: &Arc<Journal>, id: &str| delete_session(&memory, journal, id);
        self.change_files(session, delete).await
    }

    async fn revert_turn(
        &self,
        session: &str,
        turn: Option<u32>,
    ) -> Result<(u32, Vec<String>), HostError> {
        let revert = move |journal: &Arc<Journal>, id: &str| {
            revert_turn(journal, id, turn, RevertDecider::Token)
        };
        self.check_served(session).await?;
        self.change_files(session, revert).await
    }

    async fn fork(&self, session: &str, up_to_turn: Option<u32>) -> Result<String, HostError> {
        let fork = Session::fork(&self.requests, session, up_to_turn).await;
        let fork = fork.map_err(|error| agent_failure(&error))?;
        Ok(fork.id().to_owned())
    }

    async fn items(
        &self,
        session: &str,
        after: u64,
        limit: usize,
    ) -> Result<HostedItems, HostError> {
        let pages = &self.item_pages;
        pages.read(&self.reader, session, after, limit).await
    }

    async fn call_tool(
        &self,
        workspace: &str,
        tool: &str,
        args: Value,
    ) -> Result<Value, HostError> {
        call_in_workspace(&self.workspaces, &self.requests, workspace, tool, args).await
    }

    async fn document_patterns(&self, workspace: &str) -> Result<Vec<String>, HostError> {
        let shared = self.workspaces.get(Path::new(workspace), None);
        let shared = shared.map_err(|error| failed(&error))?;
        Ok(document_patterns(&shared.setup))
    }

    async fn document_source(&self, workspace: &str, path: &str) -> Result<String, HostError> {
        let shared = self.workspaces.get(Path::new(workspace), None);
        let shared = shared.map_err(|error| failed(&error))?;
        document_source(shared, path).await
    }

    async fn runs(
        &self,
        workspaces: &[String],
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<HostedRun>, HostError> {
        let redactor = Redactor::new(lock(&self.user_config).journal.secret_names.clone());
        list_runs(&self.journal, redactor, workspaces, after, limit).await
    }

    async fn search_memory(
        &self,
        workspaces: &[String],
        query: &str,
        limit: usize,
    ) -> Result<Vec<HostedMemoryHit>, HostError> {
        let sessions = self.sessions_in(workspaces).await?;
        search(self.memory()?, sessions, query, limit).await
    }

    async fn run(&self, id: &str) -> Result<HostedRun, HostError> {
        let redactor = Redactor::new(lock(&self.user_config).journal.secret_names.clone());
        show_run(&self.journal, redactor, id).await
    }
}
