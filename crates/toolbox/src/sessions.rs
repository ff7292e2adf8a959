//! The tools `sessions.create`, `sessions.list`, `sessions.get` and `sessions.send`: other
//! sessions, each with an agent of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use selvedge_protocol::{
    ApprovalPolicy, AuthorKind, BudgetAmounts, BudgetShare, CallReach, CallTimeout, InboxMessage,
    InboxState, MessageAuthor, NewInboxMessage, NewSession, Preview, PreviewContent,
    QueuedTurnRunner, ResultView, SandboxPolicy, SessionError, SessionFilter, SessionFolder,
    SessionInfo, SessionRunner, SessionState, SessionStore, SessionWait, ToolSpec, TurnBudgets,
    TurnPermissions, WorkspaceReach, new_id,
};
use selvedge_tools::{CallContext, CallFuture, Risk, Tool, ToolError, parse_args, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::built_in_spec;
use crate::worktree::{WorktreeError, is_in_repository};

/// Number of sessions that `sessions.list` returns if the call does not say.
const DEFAULT_LIST: u32 = 50;
/// Time limit of `sessions.send` with `wait`: a turn of an agent can take this long.
const WAIT_TIMEOUT: Duration = CallReach::Agent.default_timeout();

/// The sessions that the tools use, and what scripts may do with them.
#[derive(Clone)]
pub struct SessionAccess {
    /// Stores the sessions.
    pub store: Arc<dyn SessionStore>,
    /// Who sends the messages. `None` if each run is an author of its own.
    pub author: Option<MessageAuthor>,
    /// What turns that the messages start may do at most.
    pub permissions: TurnPermissions,
    /// The remaining budgets of turns. `None` outside of an agent.
    pub budgets: Option<Arc<dyn TurnBudgets>>,
    /// The configured environments, by name.
    pub environments: BTreeMap<String, SessionEnvironment>,
    /// Runs turns for calls that wait.
    pub runner: Arc<dyn SessionRunner>,
    /// Most messages that are not answered, of those that the same token pays for.
    pub max_open_messages: u32,
}

/// What an environment changes for its sessions. `None` keeps what the creating script has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionEnvironment {
    /// Folder to work in, as an absolute path.
    pub directory: Option<String>,
    /// What commands and tools may change.
    pub sandbox: Option<SandboxPolicy>,
    /// When a call needs approval.
    pub approval: Option<ApprovalPolicy>,
    /// Whether its sessions work in worktrees of their own.
    pub folder: SessionFolder,
}

/// The session to create.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SessionCreateArgs {
    /// Name of an environment in the configuration; without it, the session works like this one.
    env: Option<String>,
    /// Title, for people and for mentions in channels.
    title: Option<String>,
    /// First message, which starts the work.
    prompt: Option<String>,
    /// Whether it works in a git worktree of its own.
    worktree: Option<bool>,
}

/// A session that the script can send messages to.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SessionHandle {
    #[serde(flatten)]
    session: SessionInfo,
    /// Sends a message to the session, like `sessions.send`. Added in the sandbox.
    #[serde(skip_serializing_if = "is_added_by_guest")]
    #[schemars(schema_with = "send_schema")]
    send: (),
}

/// Always true: a function does not leave the sandbox.
fn is_added_by_guest((): &()) -> bool {
    true
}

fn send_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "tsType": "(message: string, options?: { wait?: boolean }) => Promise<{ answer?: string }>",
    })
}

/// Which sessions to list.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SessionListArgs {
    /// Only sessions whose title contains this text.
    title: Option<String>,
    /// Only sessions of this environment.
    env: Option<String>,
    /// Only sessions in this state.
    state: Option<SessionState>,
    /// Only sessions that this session created.
    #[serde(default)]
    created: bool,
    /// Maximum number of sessions.
    #[serde(default = "default_list")]
    #[schemars(range(min = 1, max = 500))]
    limit: u32,
}

fn default_list() -> u32 {
    DEFAULT_LIST
}

/// The session to describe.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SessionGetArgs {
    /// Id of the session.
    id: String,
}

/// The message to send.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SessionSendArgs {
    /// Id of the session.
    id: String,
    /// Text of the message.
    message: String,
    /// Whether to wait for the final answer.
    #[serde(default)]
    wait: bool,
}

/// What has happened with the message.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SessionSendOutput {
    /// Id of the session.
    id: String,
    /// Position in the queue of the session, counted from 1.
    number: u32,
    /// `queued`, or `answered` if the call waited.
    state: String,
    /// Final answer of the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
    /// Which process will run the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// The tool `sessions.create`.
pub(crate) struct SessionCreate(pub(crate) Option<SessionAccess>);

impl Tool for SessionCreate {
    fn spec(&self) -> ToolSpec {
        let description = "Creates a session with an agent of its own, which survives this script.";
        let spec =
            built_in_spec::<SessionCreateArgs, SessionHandle>("sessions.create", &[], description);
        ToolSpec {
            result_view: ResultView::Session,
            ..spec.approval_by_arguments()
        }
    }

    fn risk(&self, args: &Value) -> Risk {
        let wider = parse_args::<SessionCreateArgs>(args.clone())
            .ok()
            .zip(self.0.as_ref())
            .and_then(|(args, access)| access.wider_than_script(&args));
        match wider {
            Some(reason) => Risk::NeedsApproval { reason },
            None => Risk::Harmless,
        }
    }

    fn granted_folder(&self, args: &Value) -> Option<String> {
        let args = parse_args::<SessionCreateArgs>(args.clone()).ok()?;
        self.0.as_ref()?.folder_beyond_script(&args)
    }

    fn preview(&self, args: &Value) -> Preview {
        let Ok(args) = parse_args::<SessionCreateArgs>(args.clone()) else {
            return Preview::default();
        };
        let text = format!(
            "session {:?} in the environment `{}`\n{}",
            args.title.unwrap_or_default(),
            args.env.unwrap_or_default(),
            args.prompt.unwrap_or_default()
        );
        Preview {
            view: Some(PreviewContent::Text(text)),
            rule: None,
        }
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let run = async move |args: SessionCreateArgs| {
            let access = require(&self.0)?;
            let environment = access.environment(args.env.as_deref())?;
            let share = match args.prompt {
                Some(_) => BudgetShare::Half,
                None => BudgetShare::Rest,
            };
            let mut permissions = access.permissions_of(&call, share);
            let directory = environment.directory.clone();
            permissions.workspace = directory.unwrap_or(permissions.workspace);
            permissions.sandbox = environment.sandbox.unwrap_or(permissions.sandbox);
            permissions.approval = environment.approval.unwrap_or(permissions.approval);
            let folder = match args.worktree {
                // A session that changes nothing needs no worktree.
                _ if permissions.sandbox == SandboxPolicy::ReadOnly => SessionFolder::Shared,
                Some(true) => SessionFolder::Worktree,
                Some(false) => SessionFolder::Shared,
                None => environment.folder,
            };
            let workspace = Path::new(&permissions.workspace);
            if folder == SessionFolder::Worktree && !is_in_repository(workspace) {
                let error = WorktreeError::NotARepository(workspace.to_owned());
                let hint = error.hint().unwrap_or_default();
                return Err(ToolError::new(error.to_string()).suggest(hint));
            }
            let budget = permissions.budget();
            let session = NewSession {
                title: args.title,
                environment: args.env,
                directory: permissions.workspace.clone(),
                folder,
                creator: access.author_of(&call),
                permissions: Some(permissions),
                prompt: args.prompt,
                idempotency_key: Some(call.idempotency_key.clone()),
                max_open_messages: Some(access.max_open_messages),
                max_client_sessions: None,
            };
            let has_prompt = session.prompt.is_some();
            let created = access.store.create(session).await;
            if created.is_err() && has_prompt {
                access.release(&call, budget);
            }
            let session = created.map_err(tool_error)?;
            if has_prompt {
                access.runner.message_queued(session.id.clone()).await;
            }
            Ok(SessionHandle { session, send: () })
        };
        typed_call(args, run, |output: &SessionHandle| {
            Some(format!("created {}", output.session.id))
        })
    }
}

/// The tool `sessions.list`.
pub(crate) struct SessionList(pub(crate) Option<SessionAccess>);

impl Tool for SessionList {
    fn spec(&self) -> ToolSpec {
        let spec = built_in_spec::<SessionListArgs, Vec<SessionHandle>>(
            "sessions.list",
            &[],
            "Lists the sessions of this workspace, last used first.",
        );
        ToolSpec {
            result_view: ResultView::Session,
            ..spec.as_read_only()
        }
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let run = async move |args: SessionListArgs| {
            let access = require(&self.0)?;
            let (workspaces, creator) = match args.created {
                true => (Vec::new(), Some(access.author_of(&call).id)),
                false => (vec![access.permissions.workspace.clone()], None),
            };
            let filter = SessionFilter {
                workspaces,
                include_subfolders: access.permissions.reach == WorkspaceReach::WithSubfolders,
                title: args.title,
                environment: args.env,
                creator,
                state: args.state,
                touched_before_ms: None,
                limit: args.limit,
            };
            let sessions = access.store.list(filter).await.map_err(tool_error)?;
            let handle = |session| SessionHandle { session, send: () };
            Ok(sessions.into_iter().map(handle).collect())
        };
        typed_call(args, run, |_: &Vec<SessionHandle>| None)
    }
}

/// The tool `sessions.get`.
pub(crate) struct SessionGet(pub(crate) Option<SessionAccess>);

impl Tool for SessionGet {
    fn spec(&self) -> ToolSpec {
        let spec = built_in_spec::<SessionGetArgs, SessionHandle>(
            "sessions.get",
            &["id"],
            "Returns a session of this workspace.",
        );
        ToolSpec {
            result_view: ResultView::Session,
            ..spec.as_read_only()
        }
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let run = async move |args: SessionGetArgs| {
            let access = require(&self.0)?;
            let session = access.visible_session(&args.id, &call).await?;
            Ok(SessionHandle { session, send: () })
        };
        typed_call(args, run, |_: &SessionHandle| None)
    }
}

/// The tool `sessions.send`.
pub(crate) struct SessionSend(pub(crate) Option<SessionAccess>);

impl Tool for SessionSend {
    fn spec(&self) -> ToolSpec {
        built_in_spec::<SessionSendArgs, SessionSendOutput>(
            "sessions.send",
            &["id", "message"],
            "Queues a message for a session. With `wait`, returns the final answer.",
        )
        .with_timeout(CallTimeout::new(WAIT_TIMEOUT))
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let run = async move |args: SessionSendArgs| {
            let access = require(&self.0)?;
            let session = access.visible_session(&args.id, &call).await?.id;
            let author = access.author_of(&call);
            let waiting = match (args.wait, author.kind) {
                (true, AuthorKind::Session) => {
                    let wait = WaitRecord::begin(&access.store, &author.id, &session);
                    Some(wait.await.map_err(tool_error)?)
                }
                _ => None,
            };
            // Calls that wait at the same time must not each get the whole rest.
            let permissions = access.permissions_of(&call, BudgetShare::Half);
            let budget = permissions.budget();
            let message = NewInboxMessage {
                session: session.clone(),
                author,
                text: args.message,
                permissions: Some(permissions),
                idempotency_key: Some(call.idempotency_key.clone()),
                max_open_messages: Some(access.max_open_messages),
            };
            let queued = access.store.send(message).await;
            if queued.is_err() {
                access.release(&call, budget);
            }
            let queued = queued.map_err(tool_error)?;
            if !args.wait {
                let runner = access.runner.message_queued(session).await;
                return Ok(SessionSendOutput::queued(&queued, runner));
            }
            let run = call.scope_id.clone();
            let answered = tokio::select! {
                biased;
                () = call.cancel.cancelled() => {
                    // The turn continues with what is reserved.
                    return Err(ToolError::new("the wait was cancelled").outcome_unknown());
                }
                answered = access.runner.run_until_answered(session, queued.number, run) => answered,
            };
            drop(waiting);
            if answered.is_ok() {
                // What it used counts in this turn by now.
                access.release(&call, budget);
            }
            SessionSendOutput::answered(answered.map_err(tool_error)?)
        };
        typed_call(args, run, |output: &SessionSendOutput| {
            output.answer.clone().or_else(|| output.note.clone())
        })
    }
}

impl SessionSendOutput {
    fn queued(message: &InboxMessage, runner: QueuedTurnRunner) -> Self {
        let id = &message.session;
        let note = match runner {
            QueuedTurnRunner::Server => "queued: this server runs it".to_owned(),
            QueuedTurnRunner::NextProcess => format!(
                "queued: runs with the next server or chat in this session, or \
                 `selvedge sessions send {id} --wait`"
            ),
        };
        Self {
            id: id.clone(),
            number: message.number,
            state: InboxState::Queued.as_str().to_owned(),
            answer: None,
            note: Some(note),
        }
    }

    fn answered(message: InboxMessage) -> Result<Self, ToolError> {
        let answer = message.answer.unwrap_or_default();
        let session = &message.session;
        match message.state {
            InboxState::Answered => {}
            InboxState::Stopped => {
                return Err(ToolError::new(format!("the turn of {session} was stopped")));
            }
            _ => {
                return Err(ToolError::new(format!(
                    "the turn of {session} failed: {answer}"
                )));
            }
        }
        Ok(Self {
            id: message.session,
            number: message.number,
            state: message.state.as_str().to_owned(),
            answer: Some(answer),
            note: None,
        })
    }
}

impl SessionAccess {
    /// Returns who sends a message in this call.
    fn author_of(&self, call: &CallContext) -> MessageAuthor {
        self.author.clone().unwrap_or_else(|| MessageAuthor {
            kind: AuthorKind::Run,
            id: call.scope_id.clone(),
        })
    }

    /// Returns the permissions of scripts, with a share of the remaining budget of this turn.
    fn permissions_of(&self, call: &CallContext, share: BudgetShare) -> TurnPermissions {
        let budgets = self.budgets.as_deref();
        self.permissions.of_turn(&call.scope_id, budgets, share)
    }

    fn release(&self, call: &CallContext, budget: BudgetAmounts) {
        if let Some(budgets) = &self.budgets {
            budgets.release(&call.scope_id, budget);
        }
    }

    fn environment(&self, name: Option<&str>) -> Result<SessionEnvironment, ToolError> {
        let Some(name) = name else {
            return Ok(SessionEnvironment::default());
        };
        self.environments.get(name).cloned().ok_or_else(|| {
            let known: Vec<&str> = self.environments.keys().map(String::as_str).collect();
            let error = ToolError::new(format!("there is no environment `{name}`"));
            match known.is_empty() {
                true => error.suggest(format!("add `[environments.{name}]` to config.toml")),
                false => error.suggest(format!("use one of {}", known.join(", "))),
            }
        })
    }

    /// Returns the folder outside of the workspace of scripts that a session would work in.
    fn folder_beyond_script(&self, args: &SessionCreateArgs) -> Option<String> {
        let environment = self.environments.get(args.env.as_deref()?)?;
        let directory = environment.directory.as_ref()?;
        let is_beyond = !self.permissions.allows_workspace(directory);
        is_beyond.then(|| directory.clone())
    }

    /// Returns what a session would be allowed beyond this script; `None` if nothing.
    fn wider_than_script(&self, args: &SessionCreateArgs) -> Option<String> {
        let name = args.env.as_deref()?;
        let environment = self.environments.get(name)?;
        let mut more = Vec::new();
        if let Some(directory) = self.folder_beyond_script(args) {
            more.push(format!("the folder {directory}"));
        }
        let sandbox = environment.sandbox;
        if sandbox.is_some_and(|policy| policy.stricter(self.permissions.sandbox) != policy) {
            more.push("a wider sandbox".to_owned());
        }
        let approval = environment.approval;
        if approval.is_some_and(|policy| policy.stricter(self.permissions.approval) != policy) {
            more.push("more calls without approval".to_owned());
        }
        (!more.is_empty()).then(|| {
            format!(
                "the environment `{name}` allows more than this script: {}",
                more.join(", ")
            )
        })
    }

    /// Returns a session that scripts can see: of the same workspace, or created by them.
    async fn visible_session(
        &self,
        id: &str,
        call: &CallContext,
    ) -> Result<SessionInfo, ToolError> {
        let session = self.store.get(id).await.map_err(tool_error)?;
        let is_visible = self.permissions.allows_workspace(&session.directory)
            || session.creator == Some(self.author_of(call).id);
        match is_visible {
            true => Ok(session),
            false => Err(tool_error(SessionError::NotFound(id.to_owned()))),
        }
    }
}

/// The record that one session waits for another. Removed when it is dropped.
struct WaitRecord {
    store: Arc<dyn SessionStore>,
    id: String,
}

impl WaitRecord {
    async fn begin(
        store: &Arc<dyn SessionStore>,
        waiter: &str,
        target: &str,
    ) -> Result<Self, SessionError> {
        let wait = SessionWait {
            id: new_id("wai"),
            waiter: waiter.to_owned(),
            target: target.to_owned(),
        };
        // Exists before the wait is stored, so that it is also removed if this future is dropped.
        let record = Self {
            store: store.clone(),
            id: wait.id.clone(),
        };
        store.begin_wait(wait).await?;
        Ok(record)
    }
}

impl Drop for WaitRecord {
    fn drop(&mut self) {
        // Outside of a runtime, the record ends with the process.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (store, id) = (self.store.clone(), self.id.clone());
            runtime.spawn(async move { store.end_wait(&id).await });
        }
    }
}

fn require(access: &Option<SessionAccess>) -> Result<&SessionAccess, ToolError> {
    access.as_ref().ok_or_else(|| {
        ToolError::new("other sessions cannot be used here")
            .suggest("run the script with a journal: without --ephemeral, and not over HTTP")
    })
}

fn tool_error(error: SessionError) -> ToolError {
    let failure = ToolError::new(error.to_string());
    match error.hint() {
        Some(hint) => failure.suggest(hint),
        None => failure,
    }
}
