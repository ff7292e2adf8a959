//! [`SessionHost`]: what the server needs from the program that assembles agents.

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use selvedge_protocol::{ConversationItem, EventSink, SessionFolder};
use selvedge_tools::Approver;
use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use crate::client_tools::{ClientTool, SessionClientTools};
use crate::feed::EventFlush;
use crate::hosted_memory::{
    AddLesson, EditLesson, HostedGradient, HostedLesson, HostedReplay, HostedTopics,
    HostedTurnLevel, LessonReview, UserLessonReach,
};
use crate::turn_permits::TurnPermit;

/// Runs turns of sessions and calls of tools, with the configuration of their workspaces.
#[async_trait]
pub trait SessionHost: Send + Sync {
    /// Claims the oldest message of a session that is not answered, and runs its turn. If the
    /// future is dropped, the turn stays open and a later call continues it.
    async fn run_next(&self, session: &str, turn: HostedTurn) -> Result<HostedStep, HostError>;
    /// Returns whether this server runs the sessions of a folder. With a database that several
    /// servers share, others may run them instead.
    fn serves(&self, folder: &str) -> bool;
    /// Returns why this server accepts no token for a workspace; `None` if it does.
    fn refusal_of_workspace(&self, workspace: &str) -> Option<String>;
    /// Returns whether a path leads to a folder, without links.
    fn is_folder(&self, path: &str) -> bool;
    /// Fails if scripts of the agent of a folder use one of the names of these tools: for a tool, a
    /// namespace of tools or another global.
    async fn check_client_tools(&self, folder: &str, tools: &[ClientTool])
    -> Result<(), HostError>;
    /// Returns where a session of an environment works. `worktree` overrides the environment.
    async fn session_place(
        &self,
        workspace: &str,
        environment: Option<&str>,
        worktree: Option<bool>,
    ) -> Result<SessionPlace, HostError>;
    /// Returns the names of the environments of a workspace.
    async fn environments(&self, workspace: &str) -> Result<Vec<String>, HostError>;
    /// Requests that the turn of a session stops, which runs in another process, or its resumed
    /// scripts. Returns whether one runs.
    async fn request_stop(&self, session: &str) -> Result<bool, HostError>;
    /// Returns the sessions whose resumed scripts run here and that another server has taken over.
    async fn lost_scripts(&self) -> Result<Vec<String>, HostError>;
    /// Returns a unified diff of what a session changed in its worktree, or of what a turn changed.
    async fn session_diff(&self, session: &str, turn: Option<u32>)
    -> Result<HostedDiff, HostError>;
    /// Returns the turns of a session that changed files, as far as the changes are stored.
    async fn changed_turns(&self, session: &str) -> Result<Vec<HostedChangedTurn>, HostError>;
    /// Merges what a session changed in its worktree into its folder: all files or none. Returns
    /// the changed files.
    async fn apply_changes(&self, session: &str) -> Result<Vec<String>, HostError>;
    /// Deletes the worktree of a session with its changes.
    async fn discard_changes(&self, session: &str) -> Result<(), HostError>;
    /// Deletes a session between two turns, with everything recorded for it and its worktree.
    async fn delete_session(&self, session: &str) -> Result<(), HostError>;
    /// Restores the files that a turn changed, or the last turn that changed files: all files or
    /// none. Returns the number of the turn, and the restored files.
    async fn revert_turn(
        &self,
        session: &str,
        turn: Option<u32>,
    ) -> Result<(u32, Vec<String>), HostError>;
    /// Adds turns of another program to a session. Each begins with a message of the user.
    async fn add_history(
        &self,
        session: &str,
        history: Vec<ConversationItem>,
    ) -> Result<(), HostError>;
    /// Creates a session with the turns of another up to `up_to_turn`, or all. Returns its id.
    async fn fork(&self, session: &str, up_to_turn: Option<u32>) -> Result<String, HostError>;
    /// Returns up to `limit` items of a session after the first `after` ones.
    async fn items(
        &self,
        session: &str,
        after: u64,
        limit: usize,
    ) -> Result<HostedItems, HostError>;
    /// Runs one call of a tool in a workspace, through its policy and gate. A call that needs
    /// approval is denied.
    async fn call_tool(&self, workspace: &str, tool: &str, args: Value)
    -> Result<Value, HostError>;
    /// Returns globs of the files of a workspace that can be documents.
    async fn document_patterns(&self, workspace: &str) -> Result<Vec<String>, HostError>;
    /// Returns the file of a document as it is, with its front matter.
    async fn document_source(&self, workspace: &str, path: &str) -> Result<String, HostError>;
    /// Returns runs of some workspaces, the newest first; those before the run `after` if it names
    /// one.
    async fn runs(
        &self,
        workspaces: &[String],
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<HostedRun>, HostError>;
    /// Returns the remembered turns of sessions in some workspaces that match, the best first.
    async fn search_memory(
        &self,
        workspaces: &[String],
        query: &str,
        limit: usize,
    ) -> Result<Vec<HostedMemoryHit>, HostError>;
    /// Returns a run with its calls.
    async fn run(&self, id: &str) -> Result<HostedRun, HostError>;
    /// Replays a recorded run without its tools. `failed_call` is the id of a call that fails in
    /// the replay.
    async fn replay_run(
        &self,
        id: &str,
        failed_call: Option<&str>,
    ) -> Result<HostedReplay, HostError>;
    /// Returns the tools that scripts of a workspace can call.
    async fn script_tools(&self, workspace: &str) -> Result<Vec<HostedTool>, HostError>;
    /// Prepares a script that resumes a run of a session. Fails if the run has not ended.
    async fn resume_run(&self, resume: RunResume) -> Result<ResumedRun, HostError>;
    /// Returns how a prompt contains the turns of a session.
    async fn memory_gradient(&self, session: &str) -> Result<HostedGradient, HostError>;
    /// Returns a turn at all levels, the most detailed first.
    async fn memory_turn(
        &self,
        session: &str,
        turn: u32,
    ) -> Result<Vec<HostedTurnLevel>, HostError>;
    /// Returns the lessons that were learned only from sessions in these workspaces, those that a
    /// person wrote for their projects, and those of all projects that `user` reaches.
    async fn lessons(
        &self,
        workspaces: &[String],
        user: UserLessonReach,
    ) -> Result<Vec<HostedLesson>, HostError>;
    /// Stores a lesson that a person wrote, for the project of a workspace, and returns its id.
    async fn add_lesson(&self, workspace: &str, lesson: AddLesson) -> Result<String, HostError>;
    /// Decides about a lesson.
    async fn review_lesson(&self, lesson: &str, review: LessonReview) -> Result<(), HostError>;
    /// Changes the text of a lesson, or where it is used.
    async fn edit_lesson(&self, lesson: &str, edit: EditLesson) -> Result<(), HostError>;
    /// Returns the topics of sessions in these workspaces over time.
    async fn topics(&self, workspaces: &[String]) -> Result<HostedTopics, HostError>;
    /// Returns the MCP servers of a workspace, and starts none.
    async fn mcp_servers(&self, workspace: &str) -> Result<Vec<HostedMcpServer>, HostError>;
    /// Checks that the sandbox, commands, MCP servers and the model of a workspace work.
    async fn check_health(&self, workspace: &str) -> Result<Vec<HostedCheck>, HostError>;
    /// Checks the memory of a workspace.
    async fn check_memory(&self, workspace: &str) -> Result<HostedCheck, HostError>;
}

/// What a turn gets from the server.
pub struct HostedTurn {
    /// Receives the events of the turn.
    pub events: EventSink,
    /// Waits until these events are stored.
    pub flush: EventFlush,
    /// Decides about approvals of a turn that a person started.
    pub approver: Arc<dyn Approver>,
    /// Ends the turn as interrupted.
    pub cancel: CancellationToken,
    /// Lets the turn run. It is given back while the turn waits for the turn of another session.
    pub permit: TurnPermit,
    /// Tools of clients, which the agent can call besides its own.
    pub client_tools: SessionClientTools,
    /// Tells the server about messages that the turn queues for other sessions.
    pub waker: SessionWaker,
}

/// Tells the server that a message was queued for a session, so that its turn starts at once.
#[derive(Clone)]
pub struct SessionWaker(Arc<dyn Fn(&str) + Send + Sync>);

impl SessionWaker {
    pub(crate) fn new(wake: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }

    /// Makes the server look at the queue of a session.
    pub fn wake(&self, session: &str) {
        (self.0)(session);
    }
}

/// What [`SessionHost::run_next`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostedStep {
    /// No message waits.
    Idle,
    /// Another process uses the session.
    Busy,
    /// Another server runs the session, or has to: this one does not serve its folder. The session
    /// is found again when it is free.
    OtherServer,
    /// The turn of a message has ended.
    Ended,
}

/// Items of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct HostedItems {
    /// Items with the numbers of their turns.
    pub items: Vec<(u32, Value)>,
    /// Number of all items of the session.
    pub total: u64,
}

/// A remembered turn.
#[derive(Debug, Clone, PartialEq)]
pub struct HostedMemoryHit {
    /// Name of the session: its id, or the name of an imported conversation.
    pub session: String,
    /// Number of the turn.
    pub turn: u32,
    /// Relevance, comparable within one search only.
    pub score: f64,
    /// Short form of the turn.
    pub text: String,
}

/// What a session or a turn of it changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct HostedDiff {
    /// A unified diff. Empty if nothing changed.
    pub diff: String,
    /// Number of the turn that made the changes. Missing if it is the diff of a worktree.
    pub turn: Option<u32>,
    /// Whether the files are as they were before the turn, because it was undone.
    pub undone: bool,
}

/// A turn that changed files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct HostedChangedTurn {
    /// Number of the turn.
    pub turn: u32,
    /// Number of the files that it changed.
    pub files: u32,
}

/// A run, as the journal has it.
#[derive(Debug, Clone, PartialEq)]
pub struct HostedRun {
    /// Folder in which it ran; that of its session if it ran in the worktree of the session.
    pub directory: String,
    /// The run as `selvedge runs --json` prints it, with secrets redacted.
    pub body: Value,
}

/// A tool that scripts can call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct HostedTool {
    /// How scripts call it, such as `tools.readFile`.
    pub name: String,
    /// Its types on one line.
    pub signature: String,
    /// What it does, in one sentence.
    pub about: String,
    /// The fields of its arguments.
    pub fields: Vec<HostedToolField>,
}

/// A field of the arguments of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct HostedToolField {
    /// Name of the field.
    pub name: String,
    /// Whether a call must have it.
    pub required: bool,
    /// What it means.
    pub about: Option<String>,
}

/// A script that resumes a run.
pub struct RunResume {
    /// Id of the run.
    pub run: String,
    /// Id of its session.
    pub session: String,
    /// The script, which may differ from that of the run.
    pub source: String,
    /// Decides about approvals.
    pub approver: Arc<dyn Approver>,
    /// Cancels the script.
    pub cancel: CancellationToken,
}

/// A script that is ready to resume a run.
pub struct ResumedRun {
    /// Id of the new run. The journal has it from its first call on, or when it has ended.
    pub id: String,
    /// Runs the script to its end.
    pub work: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Result of one check of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostedCheck {
    /// What was checked, such as `sandbox`.
    pub what: String,
    /// How it is.
    pub state: HostedCheckState,
    /// What was found, in one line.
    pub details: String,
}

/// How something that was checked is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostedCheckState {
    /// It works without a restriction.
    Passed,
    /// It was not checked, because that would start programs.
    NotChecked,
    /// It works with a restriction.
    Warning,
    /// It does not work.
    Failed,
}

/// An MCP server of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct HostedMcpServer {
    /// Its name in the configuration.
    pub name: String,
    /// `not started`, `starting`, `ready`, `failed` or `disabled`.
    #[schema(example = "ready")]
    pub state: String,
    /// Number of its tools, as far as they are known.
    pub tools: u64,
    /// Why it failed or is disabled.
    pub error: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

/// Where a session works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPlace {
    /// Its folder, without links.
    pub directory: String,
    /// Where it changes files.
    pub folder: SessionFolder,
}

/// Why the host could not do what was requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostError {
    /// Who has to act.
    pub kind: HostErrorKind,
    /// One line that says what failed.
    pub message: String,
    /// What to do instead.
    pub hint: Option<String>,
}

/// Kind of a [`HostError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostErrorKind {
    /// There is no such thing.
    NotFound,
    /// The request is wrong.
    Invalid,
    /// The policy does not allow it.
    Denied,
    /// A turn of the session runs.
    Busy,
    /// Another server serves the folder.
    OtherServer,
    /// The server failed.
    Failed,
}

impl HostError {
    /// The server failed, for a reason of one line.
    pub fn failed(message: impl std::fmt::Display) -> Self {
        Self {
            kind: HostErrorKind::Failed,
            message: message.to_string(),
            hint: None,
        }
    }
}

impl std::fmt::Display for HostError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for HostError {}
