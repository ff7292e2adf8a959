//! The MCP server that offers `script`, and `script_wait` for scripts that take long.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelledNotificationParam, ErrorData, Implementation,
    InputRequest, InputRequiredResult, InputResponses, ListToolsResult, PaginatedRequestParams,
    ProtocolVersion, ServerCapabilities, ServerConfig,
};
use rmcp::service::{NotificationContext, PeerRequestOptions, RequestContext};
use rmcp::{RoleServer, ServerHandler};
use schemars::JsonSchema;
use selvedge_protocol::{ApprovalDecision, new_id};
use selvedge_script::{
    Facts, Harness, LiveRun, LiveRuns, Pragma, Question, QuestionKind, Reply, Report, Resume,
    RunOptions, Session, description,
};
use selvedge_tools::Registry;
use serde::Deserialize;
use serde_json::Value;

use crate::elicitation::{self, Form};
use crate::progress::Progress;
use crate::render;
use crate::serve_http::ServeError;
use crate::servers::Servers;

/// How long `tools/list` waits for servers whose tools are not known yet.
const FIRST_LIST: Duration = Duration::from_millis(2500);
/// How long a script may run on after it sent messages, before the request returns with them.
const MOMENT: Duration = Duration::from_millis(200);
/// How long a request waits for a cancelled script to end.
const FAREWELL: Duration = Duration::from_secs(4);
/// Most scripts of one session that run at the same time.
const PER_SESSION: usize = 8;
/// Longest time that a request may wait for a script.
const MAX_PATIENCE: Duration = Duration::from_secs(30 * 60);

/// Reads the recorded calls of a run by its id. Fails if the run cannot be resumed.
pub type FindEarlier =
    dyn Fn(String) -> BoxFuture<'static, Result<Resume, ServeError>> + Send + Sync;

/// What a [`ScriptServer`] serves, shared by the sessions of all clients.
pub struct Offer {
    /// Runs the scripts. Its tools are replaced by `tools` and those of `servers`.
    pub harness: Harness,
    /// The tools that are not from MCP servers.
    pub tools: Registry,
    /// The MCP servers whose tools scripts can call.
    pub servers: Servers,
    /// The runs in progress. Their approver replaces that of the harness.
    pub live: LiveRuns,
    /// The `context` of scripts.
    pub facts: Facts,
    /// Configuration that is stored with each run, to resume it in another process.
    pub setting: String,
    /// Finds a run to resume. Its error is shown to the model.
    pub earlier: Box<FindEarlier>,
    /// Returns how often a tool was called before. Tools that are used often are described first.
    pub uses: Box<dyn Fn(&str) -> u64 + Send + Sync>,
    /// How long a request waits for a script before it returns a handle, by default.
    pub patience: Duration,
    /// Most tokens of the description of `script`.
    pub budget: usize,
}

/// The session of one MCP client.
pub struct ScriptServer {
    offer: Arc<Offer>,
    session: Session,
    session_id: String,
    /// Task that notifies the client of changed tools; aborted with the session.
    watch: Mutex<Option<tokio::task::AbortHandle>>,
}

/// Arguments of `script`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScriptArgs {
    /// TypeScript program. "help" describes all tools.
    code: String,
    /// Time limit; default 30000.
    timeout_ms: Option<u64>,
    /// Id of a run to resume: completed changes are reused, reads run again.
    resume: Option<String>,
    /// Return a handle after this time if the script still runs.
    yield_after_ms: Option<u64>,
}

/// Arguments of `script_wait`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WaitArgs {
    /// Id of a running script.
    id: String,
    /// Stop the script.
    terminate: Option<bool>,
    /// How long to wait; default 45000.
    timeout_ms: Option<u64>,
}

/// Description of the tool `script_wait`.
const WAIT_LESSON: &str = "Waits for a script with status `running`. Returns its result, or the \
    same handle if it still runs. Waiting is free: prefer one long wait to frequent polling.";

impl ScriptServer {
    /// Creates a session with a new id.
    pub fn new(offer: Arc<Offer>) -> Self {
        Self {
            offer,
            session: Session::default(),
            session_id: new_id("ses"),
            watch: Mutex::default(),
        }
    }

    fn tools(&self) -> Registry {
        self.offer.servers.onto(&self.offer.tools)
    }

    async fn script(
        &self,
        args: ScriptArgs,
        answers: Answers,
        context: &RequestContext<RoleServer>,
    ) -> Outcome {
        let began = Instant::now();
        // The request carries answers for a running script.
        if let Some(id) = &answers.run {
            let Some(run) = self.offer.live.find(id) else {
                // Starting it again would repeat its calls.
                let id = render::short(id);
                return Ok(render::problem(&format!(
                    "there is no script `{id}`: it has ended, and its result was discarded"
                )));
            };
            let progress = Progress::of_live_run(&run, context);
            answers.give(&run);
            let max_wait = self.patience(&args, &run, began);
            return self
                .wait(&run, max_wait, Cancelled::StopIt, progress, context)
                .await;
        }
        let pragma = Pragma::read(&args.code).ok().flatten();
        let resume = args.resume.clone();
        let resume = resume.or_else(|| pragma?.resume);
        let resume = match resume {
            Some(run) => match (self.offer.earlier)(run).await {
                Ok(resume) => Some(resume),
                Err(error) => return Ok(render::problem(&error.to_string())),
            },
            None => None,
        };
        let topic = help_topic(&args.code);
        let preparing = async {
            match topic {
                Some(_) => self.offer.servers.prepare_all().await,
                None => {
                    let source = args.code.as_bytes();
                    let servers = &self.offer.servers;
                    servers.prepare_for(&self.offer.harness, source).await;
                }
            }
        };
        tokio::select! {
            () = preparing => {}
            () = context.ct.cancelled() => {
                return Ok(render::problem("cancelled before the script started"));
            }
        }
        let tools = self.tools();
        if let Some(topic) = topic {
            return Ok(render::output(&render::help(&tools, topic), &[]));
        }
        let running = self.running();
        if running.len() >= PER_SESSION
            && let Some(oldest) = running.first()
        {
            let why = format!(
                "{PER_SESSION} scripts of this session are already running: \
                wait for {oldest} with script_wait, or terminate it"
            );
            return Ok(render::problem(&why));
        }
        let harness = self.offer.harness.clone().with_tools(tools);
        let harness = harness.with_approver(self.offer.live.approver());
        // Subscribed before the script starts: its first events are not missed.
        let (progress, events) = Progress::of_new_run(context);
        let options = RunOptions {
            events,
            timeout: args.timeout_ms.map(Duration::from_millis),
            resume,
            session: self.session.clone(),
            facts: Facts {
                session_id: self.session_id.clone(),
                ..self.offer.facts.clone()
            },
            setting: self.offer.setting.clone(),
            ..RunOptions::default()
        };
        let mut lines = args.code.lines().map(str::trim);
        let name = lines.find(|line| !line.is_empty());
        let name = name.map(|line| line.chars().take(60).collect());
        let code = args.code.clone().into_bytes();
        let run = match self.offer.live.start(&harness, code, options, name) {
            Ok(run) => run,
            Err(full) => {
                return Ok(render::problem(&format!(
                    "{full}: wait for it with script_wait, or terminate it"
                )));
            }
        };
        let max_wait = self.patience(&args, &run, began);
        self.wait(&run, max_wait, Cancelled::StopIt, progress, context)
            .await
    }

    fn patience(&self, args: &ScriptArgs, run: &LiveRun, began: Instant) -> Duration {
        let requested = args.yield_after_ms.map(Duration::from_millis);
        let max_wait = requested.or(run.yield_after());
        let max_wait = max_wait.unwrap_or(self.offer.patience);
        max_wait.min(MAX_PATIENCE).saturating_sub(began.elapsed())
    }

    /// Returns the ids of this session's running scripts, oldest first.
    fn running(&self) -> Vec<String> {
        let runs = self.offer.live.list().into_iter();
        let runs = runs.filter(|run| run.session == self.session_id);
        runs.map(|run| run.id).collect()
    }

    async fn script_wait(
        &self,
        args: WaitArgs,
        answers: Answers,
        context: &RequestContext<RoleServer>,
    ) -> Outcome {
        let Some(run) = self.offer.live.find(&args.id) else {
            let running = match self.running() {
                ids if ids.is_empty() => "no script is running".to_owned(),
                ids => format!("running scripts: {}", ids.join(", ")),
            };
            let id = render::short(&args.id);
            let why = format!("there is no script `{id}`: {running}");
            return Ok(render::problem(&why));
        };
        let progress = Progress::of_live_run(&run, context);
        answers.give(&run);
        if args.terminate == Some(true) {
            run.cancel();
            return Ok(self.farewell(&run).await);
        }
        let max_wait = args.timeout_ms.map(Duration::from_millis);
        let max_wait = max_wait.unwrap_or(self.offer.patience).min(MAX_PATIENCE);
        // Cancelling this request does not stop the script: `terminate` does that.
        self.wait(&run, max_wait, Cancelled::LeaveIt, progress, context)
            .await
    }

    /// Waits for a run, at most `max_wait`. Sends its progress and its questions to the client.
    async fn wait(
        &self,
        run: &LiveRun,
        max_wait: Duration,
        cancelled: Cancelled,
        mut progress: Progress,
        context: &RequestContext<RoleServer>,
    ) -> Outcome {
        let mut until = Instant::now() + max_wait;
        let mut messages = Vec::new();
        loop {
            let report = tokio::select! {
                biased;
                () = context.ct.cancelled() => {
                    if cancelled == Cancelled::LeaveIt {
                        return Ok(render::handle(run, messages));
                    }
                    run.cancel();
                    return Ok(self.farewell(run).await);
                }
                report = run.report(until.saturating_duration_since(Instant::now())) => report,
                event = progress.next() => {
                    // Outside of `select!`: a notification that is cancelled half way is overtaken
                    // by the next one.
                    progress.notify(&event, context).await;
                    continue;
                }
            };
            match report {
                Report::Ended(output) => {
                    progress.flush(context).await;
                    return Ok(render::output(&output, &messages));
                }
                Report::Says(new) => {
                    messages.extend(new);
                    until = until.min(Instant::now() + MOMENT);
                }
                Report::Asks(question) => {
                    if let Some(asked) = self.put(run, *question, context).await {
                        return Ok(asked);
                    }
                }
                Report::Yields | Report::StillRunning => return Ok(render::handle(run, messages)),
            }
        }
    }

    /// Waits for a cancelled run to end; returns its handle if it takes too long.
    async fn farewell(&self, run: &LiveRun) -> CallToolResponse {
        match tokio::time::timeout(FAREWELL, run.ended()).await {
            Ok(output) => {
                let messages = match run.report(Duration::ZERO).await {
                    Report::Says(messages) => messages,
                    _ => Vec::new(),
                };
                render::output(&output, &messages)
            }
            Err(_) => {
                let message = "the script was cancelled and has not stopped yet".to_owned();
                render::handle(run, vec![message])
            }
        }
    }

    /// Sends a question to the client as elicitation.
    ///
    /// Since protocol version 2026-07-28, the question is the response to the current request; it
    /// is then returned.
    async fn put(
        &self,
        run: &LiveRun,
        question: Question,
        context: &RequestContext<RoleServer>,
    ) -> Option<CallToolResponse> {
        let capability = context
            .client_capabilities()
            .and_then(|capabilities| capabilities.elicitation);
        let form = capability.and_then(|capability| {
            elicitation::form(&question).filter(|form| form.can_be_shown(&capability))
        });
        let Some(form) = form else {
            let reason = "this MCP client does not support elicitation";
            let reply = match question.kind {
                QuestionKind::Approval(_) => {
                    Reply::Approval(ApprovalDecision::Unavailable(reason.to_owned()))
                }
                _ => Reply::Form(elicitation::declined()),
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
            run.give_back_later(&question.id);
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
        question: Question,
        form: Form,
        context: &RequestContext<RoleServer>,
    ) {
        let request = rmcp::model::ServerRequest::ElicitRequest(form.request());
        let options = PeerRequestOptions::no_options();
        let sent = context.peer.send_request_with_option(request, options);
        let Ok(handle) = sent.await else {
            run.give_back(&question.id);
            return;
        };
        let (run, peer, id) = (run.clone(), context.peer.clone(), handle.id.clone());
        tokio::spawn(async move {
            let answered = tokio::select! {
                answered = handle.await_response() => answered,
                () = run.settled(&question.id) => {
                    // The answer is no longer needed: the client can close its form.
                    let why = Some("the question was already answered".to_owned());
                    let params = CancelledNotificationParam::new(Some(id), why);
                    let _ = peer.notify_cancelled(params).await;
                    return;
                }
            };
            let answer = match answered {
                Ok(rmcp::model::ClientResult::ElicitResult(result)) => {
                    serde_json::to_value(result).ok()
                }
                Ok(_) | Err(rmcp::ServiceError::McpError(_)) => Some(elicitation::declined()),
                // The client disconnected; another request may ask again.
                Err(_) => None,
            };
            match answer {
                Some(answer) => {
                    _ = run.answer(&question.id, elicitation::reply(&question, &answer))
                }
                None => run.give_back(&question.id),
            }
        });
    }
}

impl Drop for ScriptServer {
    fn drop(&mut self) {
        let watch = self.watch.get_mut();
        if let Some(watch) = watch.unwrap_or_else(PoisonError::into_inner).take() {
            watch.abort();
        }
    }
}

/// What happens to a script when the request that waits for it is cancelled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cancelled {
    StopIt,
    LeaveIt,
}

type Outcome = Result<CallToolResponse, ErrorData>;

/// Answers in a request that repeats one whose response was a question.
struct Answers {
    /// Id of the run that asked; `None` if the request is a new one.
    run: Option<String>,
    /// Answers by the id of their question.
    given: InputResponses,
}

impl Answers {
    fn give(&self, run: &LiveRun) {
        for question in run.questions() {
            if let Some(answer) = self.given.get(&question.id) {
                run.answer(&question.id, elicitation::reply(&question, answer));
            }
        }
    }
}

/// Returns the topic of a help request (`help`, `help()`, `help("name")`), empty if it has none;
/// `None` if the code is a script.
fn help_topic(code: &str) -> Option<&str> {
    let rest = code.trim().trim_end_matches(';').strip_prefix("help")?;
    let topic = rest.trim().trim_start_matches('(').trim_end_matches(')');
    let topic = topic.trim().trim_matches(['"', '\'', '`']);
    let is_name = |c: char| c.is_alphanumeric() || "._-$ ".contains(c);
    let longer_word = rest.starts_with(|c: char| c.is_alphanumeric() || c == '.');
    (topic.chars().all(is_name) && !longer_word).then_some(topic)
}

impl ServerHandler for ScriptServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .build();
        let mut info = ServerConfig::new(capabilities);
        info.server_info = Implementation::new(crate::NAME, env!("CARGO_PKG_VERSION"));
        info.instructions = Some(
            "`script` runs a TypeScript program that calls many tools in one go and returns only \
            what matters."
                .to_owned(),
        );
        info
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let servers = self.offer.servers.clone();
        if servers.is_empty() {
            return;
        }
        let watch = tokio::spawn(async move {
            let mut generation = servers.generation();
            let starting = servers.clone();
            tokio::spawn(async move { starting.prepare_all().await });
            loop {
                servers.changed_since(generation).await;
                // Changes in quick succession become one notification.
                tokio::time::sleep(Duration::from_millis(100)).await;
                generation = servers.generation();
                if context.peer.notify_tool_list_changed().await.is_err() {
                    return;
                }
            }
        });
        *self.watch.lock().unwrap_or_else(PoisonError::into_inner) = Some(watch.abort_handle());
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        // A server that takes longer causes `notifications/tools/list_changed` later.
        let _ = tokio::time::timeout(FIRST_LIST, self.offer.servers.prepare_all()).await;
        let description = description(&self.tools(), self.offer.budget, |tool| {
            (self.offer.uses)(tool)
        });
        let script = render::tool::<ScriptArgs>("script", description);
        let wait = render::tool::<WaitArgs>("script_wait", WAIT_LESSON.to_owned());
        Ok(ListToolsResult::with_all_items(vec![script, wait]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let args = Value::Object(request.arguments.unwrap_or_default());
        let answers = Answers {
            run: request.request_state,
            given: request.input_responses.unwrap_or_default(),
        };
        match request.name.as_ref() {
            "script" => match serde_json::from_value(args) {
                Ok(args) => self.script(args, answers, &context).await,
                Err(error) => Ok(render::problem(&format!("script: {error}"))),
            },
            "script_wait" => match serde_json::from_value(args) {
                Ok(args) => self.script_wait(args, answers, &context).await,
                Err(error) => Ok(render::problem(&format!("script_wait: {error}"))),
            },
            other => {
                let other = render::short(other);
                let message = format!("there is no tool `{other}`: use script or script_wait");
                Err(ErrorData::invalid_params(message, None))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_help_request_is_told_from_a_script() {
        assert_eq!(help_topic("help"), Some(""));
        assert_eq!(help_topic(" help() ;"), Some(""));
        assert_eq!(help_topic("help(\"mcp.git\")"), Some("mcp.git"));
        assert_eq!(help_topic("help mcp.git"), Some("mcp.git"));
        assert_eq!(help_topic("helpful()"), None);
        assert_eq!(help_topic("help(); return 1"), None);
        assert_eq!(help_topic("return help()"), None);
    }
}
