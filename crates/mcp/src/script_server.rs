//! The MCP server that offers `script`, and `script_wait` for scripts that take long.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelledNotificationParam, ErrorData, Implementation,
    InitializeRequestParams, InitializeResult, InputRequest, InputRequiredResult, InputResponses,
    ListToolsResult, PaginatedRequestParams, ProtocolVersion, ServerCapabilities, ServerConfig,
};
use rmcp::service::{NotificationContext, PeerRequestOptions, RequestContext};
use rmcp::{RoleServer, ServerHandler};
use schemars::JsonSchema;
use selvedge_protocol::{ApprovalResponse, new_id};
use selvedge_script::{
    LiveRun, LiveRunReport, QuestionAnswer, RunOptions, RunQuestion, RunQuestionKind,
    ScriptContext, ScriptStore, TooManyRuns, named_run_to_resume, script_tool_description,
};
use selvedge_tools::{Approver, NoApprover, Registry};
use serde::Deserialize;
use serde_json::Value;

use crate::open_sessions::OpenSessionGuard;
use crate::question_elicitation::{self, OutgoingElicitation};
use crate::render;
use crate::script_server_config::{ClientApprovals, ResumeRequest, ScriptServerConfig};
use crate::serve_progress::ProgressNotifier;

/// How long `tools/list` waits for servers whose tools are not known yet.
const LIST_TOOLS_TIMEOUT: Duration = Duration::from_millis(2500);
/// How long a request waits for the script to end after it received notifications. Then it
/// returns them.
const NOTIFICATION_GRACE_PERIOD: Duration = Duration::from_millis(200);
/// How long a request waits for a cancelled script to end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(4);
/// Longest time that a request may wait for a script.
const MAX_WAIT_TIME: Duration = Duration::from_secs(30 * 60);

/// The session of one MCP client.
pub struct ScriptServerSession {
    config: Arc<ScriptServerConfig>,
    store: ScriptStore,
    session_id: String,
    /// Set by the handshake. Protocol versions without a handshake have no sessions: each request
    /// gets a new session id.
    open_session_guard: OnceLock<OpenSessionGuard>,
    /// Task that notifies the client of changed tools; aborted with the session.
    change_watcher: Mutex<Option<tokio::task::AbortHandle>>,
}

/// Arguments of `script`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScriptArgs {
    /// TypeScript program. "help" describes all tools.
    code: String,
    /// Time limit in milliseconds; default: the server's limit.
    timeout_ms: Option<u64>,
    /// Id of a run to resume: completed changes are reused, reads run again.
    resume: Option<String>,
    /// Return a handle after this time if the script still runs.
    yield_after_ms: Option<u64>,
}

/// Arguments of `script_wait`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScriptWaitArgs {
    /// Id of a running script.
    id: String,
    /// Cancel the script.
    terminate: Option<bool>,
    /// How long to wait, in milliseconds; default: the server's setting.
    timeout_ms: Option<u64>,
}

/// Description of the tool `script_wait`.
const SCRIPT_WAIT_DESCRIPTION: &str = "Waits for a script with status `running`. Returns its result, or the \
    same handle if it still runs. Waiting is free: prefer one long wait to frequent polling.";

impl ScriptServerSession {
    /// Creates a session with a new id.
    pub fn new(config: Arc<ScriptServerConfig>) -> Self {
        Self {
            store: ScriptStore::in_memory(&config.store_budget),
            config,
            session_id: new_id("ses"),
            open_session_guard: OnceLock::new(),
            change_watcher: Mutex::default(),
        }
    }

    /// Returns a live run that this session may use.
    fn find_run(&self, id: &str) -> Option<LiveRun> {
        let run = self.config.live_runs.find(id)?;
        let sessions = &self.config.open_sessions;
        sessions
            .session_may_use(&self.session_id, run.session())
            .then_some(run)
    }

    fn approver(&self) -> Arc<dyn Approver> {
        match &self.config.approvals {
            ClientApprovals::Asked => self.config.live_runs.approver(),
            ClientApprovals::Denied { reason } => Arc::new(NoApprover {
                reason: reason.clone(),
            }),
        }
    }

    fn registry(&self) -> Registry {
        self.config.servers.script_registry(&self.config.tools)
    }

    async fn handle_script(
        &self,
        args: ScriptArgs,
        answers: ElicitationAnswers,
        context: &RequestContext<RoleServer>,
    ) -> CallToolHandlerResult {
        let started = Instant::now();
        // The request carries answers for a running script.
        if let Some(id) = &answers.run_id {
            let Some(run) = self.find_run(id) else {
                // Starting it again would repeat its calls.
                let id = render::shorten_client_text(id);
                return Ok(render::error_response(&format!(
                    "there is no script `{id}`: it has ended, and its result was discarded"
                )));
            };
            let progress = ProgressNotifier::for_live_run(&run, context);
            answers.deliver(&run);
            let yield_after = self.remaining_wait(&args, &run, started);
            return self
                .wait_for_run(
                    &run,
                    yield_after,
                    OnRequestCancel::CancelRun,
                    progress,
                    context,
                )
                .await;
        }
        let resume = match named_run_to_resume(args.resume.clone(), &args.code) {
            Some(run) => {
                let session = self.session_id.clone();
                match (self.config.resume_input)(ResumeRequest { run, session }).await {
                    Ok(resume) => Some(resume),
                    Err(error) => return Ok(render::error_response(&error.to_string())),
                }
            }
            None => None,
        };
        let topic = render::help_topic(&args.code);
        let preparing = async {
            match topic {
                Some(_) => self.config.servers.ensure_all_catalogues().await,
                None => {
                    let source = args.code.as_bytes();
                    let servers = &self.config.servers;
                    servers
                        .ensure_catalogues_for_script(&self.config.harness, source)
                        .await;
                }
            }
        };
        tokio::select! {
            () = preparing => {}
            () = context.ct.cancelled() => {
                return Ok(render::error_response("cancelled before the script started"));
            }
        }
        let tools = self.registry();
        if let Some(topic) = topic {
            return Ok(render::run_response(
                &render::help_output(&tools, topic, self.config.harness.limits()),
                &[],
            ));
        }
        let harness = self.config.harness.clone().with_tools(tools);
        let harness = harness.with_approver(self.approver());
        // Subscribed before the script starts: its first events are not missed.
        let (progress, events) = ProgressNotifier::for_new_run(context);
        let options = RunOptions {
            events,
            timeout: args.timeout_ms.map(Duration::from_millis),
            resume,
            store: self.store.clone(),
            context: ScriptContext {
                session_id: self.session_id.clone(),
                ..self.config.context.clone()
            },
            saved_config: self.config.saved_config.clone(),
            ..RunOptions::default()
        };
        let mut lines = args.code.lines().map(str::trim);
        let name = lines.find(|line| !line.is_empty());
        let name = name.map(|line| line.chars().take(60).collect());
        let code = args.code.clone().into_bytes();
        let run = match self.config.live_runs.start(&harness, code, options, name) {
            Ok(run) => run,
            // The error names the oldest run, which may belong to another session.
            Err(TooManyRuns {
                running, queued, ..
            }) => {
                let advice = match self.running_ids().first() {
                    Some(own) => format!("wait for {own} with script_wait, or terminate it"),
                    None => "try again later".to_owned(),
                };
                return Ok(render::error_response(&format!(
                    "{running} scripts are running and {queued} are queued, which is the limit \
                     of this server: {advice}"
                )));
            }
        };
        let yield_after = self.remaining_wait(&args, &run, started);
        self.wait_for_run(
            &run,
            yield_after,
            OnRequestCancel::CancelRun,
            progress,
            context,
        )
        .await
    }

    fn remaining_wait(&self, args: &ScriptArgs, run: &LiveRun, started: Instant) -> Duration {
        let requested = args.yield_after_ms.map(Duration::from_millis);
        let yield_after = requested.or(run.yield_after());
        let yield_after = yield_after.unwrap_or(self.config.default_yield_after);
        yield_after
            .min(MAX_WAIT_TIME)
            .saturating_sub(started.elapsed())
    }

    /// Returns the ids of this session's running scripts, oldest first.
    fn running_ids(&self) -> Vec<String> {
        let runs = self.config.live_runs.summaries().into_iter();
        let runs = runs.filter(|run| run.session == self.session_id);
        runs.map(|run| run.id).collect()
    }

    async fn handle_script_wait(
        &self,
        args: ScriptWaitArgs,
        answers: ElicitationAnswers,
        context: &RequestContext<RoleServer>,
    ) -> CallToolHandlerResult {
        let Some(run) = self.find_run(&args.id) else {
            let running = match self.running_ids() {
                ids if ids.is_empty() => "no script is running".to_owned(),
                ids => format!("running scripts: {}", ids.join(", ")),
            };
            let id = render::shorten_client_text(&args.id);
            let reason = format!("there is no script `{id}`: {running}");
            return Ok(render::error_response(&reason));
        };
        let progress = ProgressNotifier::for_live_run(&run, context);
        answers.deliver(&run);
        if args.terminate == Some(true) {
            run.cancel();
            return Ok(self.wait_for_cancelled_run(&run).await);
        }
        let yield_after = args.timeout_ms.map(Duration::from_millis);
        let yield_after = yield_after
            .unwrap_or(self.config.default_yield_after)
            .min(MAX_WAIT_TIME);
        // Cancelling this request does not stop the script: `terminate` does that.
        self.wait_for_run(
            &run,
            yield_after,
            OnRequestCancel::KeepRunning,
            progress,
            context,
        )
        .await
    }

    /// Waits for a run, at most `yield_after`. Sends its progress and its questions to the client.
    async fn wait_for_run(
        &self,
        run: &LiveRun,
        yield_after: Duration,
        cancelled: OnRequestCancel,
        mut progress: ProgressNotifier,
        context: &RequestContext<RoleServer>,
    ) -> CallToolHandlerResult {
        let mut until = Instant::now() + yield_after;
        let mut notifications = Vec::new();
        loop {
            let report = tokio::select! {
                biased;
                () = context.ct.cancelled() => {
                    if cancelled == OnRequestCancel::KeepRunning {
                        return Ok(render::running_response(run, notifications));
                    }
                    run.cancel();
                    return Ok(self.wait_for_cancelled_run(run).await);
                }
                report = run.wait_for_report(until.saturating_duration_since(Instant::now())) => report,
                event = progress.next() => {
                    // Sent here and not in `select!`, where it could be cancelled half way, so that
                    // notifications arrive in order.
                    progress.notify(&event, context).await;
                    continue;
                }
            };
            match report {
                LiveRunReport::Ended(output) => {
                    progress.flush(context).await;
                    return Ok(render::run_response(&output, &notifications));
                }
                LiveRunReport::Notified(new) => {
                    notifications.extend(new);
                    until = until.min(Instant::now() + NOTIFICATION_GRACE_PERIOD);
                }
                LiveRunReport::Question(question) => {
                    if let Some(asked) = self.send_question(run, *question, context).await {
                        return Ok(asked);
                    }
                }
                LiveRunReport::Yielded | LiveRunReport::StillRunning => {
                    return Ok(render::running_response(run, notifications));
                }
            }
        }
    }

    /// Waits for a cancelled run to end; returns its handle if it takes too long.
    async fn wait_for_cancelled_run(&self, run: &LiveRun) -> CallToolResponse {
        match tokio::time::timeout(CANCEL_TIMEOUT, run.wait_for_end()).await {
            Ok(output) => {
                let notifications = match run.wait_for_report(Duration::ZERO).await {
                    LiveRunReport::Notified(notifications) => notifications,
                    _ => Vec::new(),
                };
                render::run_response(&output, &notifications)
            }
            Err(_) => {
                let message = "the script was cancelled and has not stopped yet".to_owned();
                render::running_response(run, vec![message])
            }
        }
    }

    /// Sends a question to the client as elicitation.
    ///
    /// Since protocol version 2026-07-28, a server cannot send requests: the returned response asks
    /// the question. With older versions a request is sent, and `None` is returned.
    async fn send_question(
        &self,
        run: &LiveRun,
        question: RunQuestion,
        context: &RequestContext<RoleServer>,
    ) -> Option<CallToolResponse> {
        let capability = context
            .client_capabilities()
            .and_then(|capabilities| capabilities.elicitation);
        let form = capability.and_then(|capability| {
            question_elicitation::elicitation_for(&question)
                .filter(|form| form.is_supported_by(&capability))
        });
        let Some(form) = form else {
            let reason = "this MCP client does not support elicitation";
            let reply = match question.kind {
                RunQuestionKind::Approval(_) => {
                    QuestionAnswer::Approval(ApprovalResponse::Unavailable(reason.to_owned()))
                }
                _ => QuestionAnswer::Form(question_elicitation::decline_result()),
            };
            run.answer(&question.id, reply);
            return None;
        };
        let modern = context
            .protocol_version()
            .is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        if modern {
            let request = InputRequest::Elicitation(form.request());
            let requests = [(question.id.clone(), request)].into();
            // Another request that waits for the run may ask the question, too, until it is
            // answered.
            run.requeue_question_silently(&question.id);
            let required = InputRequiredResult::new(Some(requests), Some(run.id().to_owned()));
            return Some(CallToolResponse::InputRequired(required));
        }
        self.elicit(run, question, form, context).await;
        None
    }

    /// Sends an elicitation request. A task waits for the answer, which may come after the current
    /// request has ended.
    async fn elicit(
        &self,
        run: &LiveRun,
        question: RunQuestion,
        form: OutgoingElicitation,
        context: &RequestContext<RoleServer>,
    ) {
        let request = rmcp::model::ServerRequest::ElicitRequest(form.request());
        let options = PeerRequestOptions::no_options();
        let sent = context.peer.send_request_with_option(request, options);
        let Ok(handle) = sent.await else {
            run.requeue_question(&question.id);
            return;
        };
        let (run, peer, id) = (run.clone(), context.peer.clone(), handle.id.clone());
        tokio::spawn(async move {
            let answered = tokio::select! {
                answered = handle.await_response() => answered,
                () = run.wait_until_closed(&question.id) => {
                    // The answer is no longer needed: the client can close its form.
                    let reason = Some("the question was already answered".to_owned());
                    let params = CancelledNotificationParam::new(Some(id), reason);
                    let _ = peer.notify_cancelled(params).await;
                    return;
                }
            };
            let answer = match answered {
                Ok(rmcp::model::ClientResult::ElicitResult(result)) => {
                    serde_json::to_value(result).ok()
                }
                Ok(_) | Err(rmcp::ServiceError::McpError(_)) => {
                    Some(question_elicitation::decline_result())
                }
                // The client disconnected; another request may ask again.
                Err(_) => None,
            };
            match answer {
                Some(answer) => {
                    _ = run.answer(
                        &question.id,
                        question_elicitation::parse_answer(&question, &answer),
                    )
                }
                None => run.requeue_question(&question.id),
            }
        });
    }
}

impl Drop for ScriptServerSession {
    fn drop(&mut self) {
        let watch = self.change_watcher.get_mut();
        if let Some(watch) = watch.unwrap_or_else(PoisonError::into_inner).take() {
            watch.abort();
        }
    }
}

/// What happens to a script when the request that waits for it is cancelled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnRequestCancel {
    CancelRun,
    KeepRunning,
}

type CallToolHandlerResult = Result<CallToolResponse, ErrorData>;

/// Answers to questions, in a request that a client sends again because the first response was a
/// question (protocol 2026-07-28).
struct ElicitationAnswers {
    /// Id of the run that asked; `None` if the request is a new one.
    run_id: Option<String>,
    /// Answers by the id of their question.
    responses: InputResponses,
}

impl ElicitationAnswers {
    fn deliver(&self, run: &LiveRun) {
        for question in run.open_questions() {
            if let Some(answer) = self.responses.get(&question.id) {
                run.answer(
                    &question.id,
                    question_elicitation::parse_answer(&question, answer),
                );
            }
        }
    }
}

impl ServerHandler for ScriptServerSession {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .build();
        let mut info = ServerConfig::new(capabilities);
        info.server_info =
            Implementation::new(crate::IMPLEMENTATION_NAME, env!("CARGO_PKG_VERSION"));
        info.instructions = Some(
            "`script` runs a TypeScript program that calls many tools in one go and returns only \
            what matters."
                .to_owned(),
        );
        info
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let sessions = &self.config.open_sessions;
        self.open_session_guard
            .get_or_init(|| sessions.add(&self.session_id));
        context.peer.set_peer_info(request.clone());
        self.negotiate_initialize(&request)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let servers = self.config.servers.clone();
        if servers.is_empty() {
            return;
        }
        let watch = tokio::spawn(async move {
            let mut generation = servers.generation();
            let starting = servers.clone();
            tokio::spawn(async move { starting.ensure_all_catalogues().await });
            loop {
                servers.wait_for_change(generation).await;
                // Changes in quick succession become one notification.
                tokio::time::sleep(Duration::from_millis(100)).await;
                generation = servers.generation();
                if context.peer.notify_tool_list_changed().await.is_err() {
                    return;
                }
            }
        });
        *self
            .change_watcher
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(watch.abort_handle());
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        // A server that takes longer causes `notifications/tools/list_changed` later.
        let _ = tokio::time::timeout(
            LIST_TOOLS_TIMEOUT,
            self.config.servers.ensure_all_catalogues(),
        )
        .await;
        let description =
            script_tool_description(&self.registry(), self.config.description_tokens, |tool| {
                (self.config.use_count)(tool)
            });
        let script = render::tool_definition::<ScriptArgs>("script", description);
        let wait = render::tool_definition::<ScriptWaitArgs>(
            "script_wait",
            SCRIPT_WAIT_DESCRIPTION.to_owned(),
        );
        Ok(ListToolsResult::with_all_items(vec![script, wait]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let args = Value::Object(request.arguments.unwrap_or_default());
        let answers = ElicitationAnswers {
            run_id: request.request_state,
            responses: request.input_responses.unwrap_or_default(),
        };
        match request.name.as_ref() {
            "script" => match serde_json::from_value(args) {
                Ok(args) => self.handle_script(args, answers, &context).await,
                Err(error) => Ok(render::error_response(&format!("script: {error}"))),
            },
            "script_wait" => match serde_json::from_value(args) {
                Ok(args) => self.handle_script_wait(args, answers, &context).await,
                Err(error) => Ok(render::error_response(&format!("script_wait: {error}"))),
            },
            other => {
                let other = render::shorten_client_text(other);
                let message = format!("there is no tool `{other}`: use script or script_wait");
                Err(ErrorData::invalid_params(message, None))
            }
        }
    }
}
