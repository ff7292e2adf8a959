//! Our one tool, offered to anybody's agent: `script`, and `script_wait` for those that take long.

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

/// How long a first list of tools waits for servers nobody knows yet.
const FIRST_LIST: Duration = Duration::from_millis(2500);
/// How long a script that said something may take to end, before what it said is passed on alone.
const MOMENT: Duration = Duration::from_millis(200);
/// How long a cancelled script is waited for.
const FAREWELL: Duration = Duration::from_secs(4);
/// Scripts of one session that run at the same time.
const PER_SESSION: usize = 8;
/// Longest wait a client may ask for.
const MAX_PATIENCE: Duration = Duration::from_secs(30 * 60);

/// Finds what a run recorded, by its id; or says why it cannot be resumed.
pub type FindEarlier =
    dyn Fn(String) -> BoxFuture<'static, Result<Resume, ServeError>> + Send + Sync;

/// What is served.
pub struct Offer {
    /// Runs the scripts; its own tools are replaced by `tools` and those of `servers`.
    pub harness: Harness,
    /// Tools that are always there.
    pub tools: Registry,
    /// Other people's.
    pub servers: Servers,
    /// The runs that go on. The harness's approver is replaced by theirs.
    pub live: LiveRuns,
    /// What scripts are told about where they run.
    pub facts: Facts,
    /// Kept with each run: what it takes to assemble all this again.
    pub setting: String,
    /// Finds an earlier run to go on from; the error is a line for the model.
    pub earlier: Box<FindEarlier>,
    /// How often a tool was called before.
    pub uses: Box<dyn Fn(&str) -> u64 + Send + Sync>,
    /// After how long a script that still runs is answered with a handle.
    pub patience: Duration,
    /// Tokens the description may cost.
    pub budget: usize,
}

/// One client's session.
pub struct ScriptServer {
    offer: Arc<Offer>,
    session: Session,
    session_id: String,
    /// Ends with the session what watches for it.
    watch: Mutex<Option<tokio::task::AbortHandle>>,
}

/// Arguments of `script`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScriptArgs {
    /// The program, in TypeScript. "help" describes everything.
    code: String,
    /// Time limit; 30000 by default.
    timeout_ms: Option<u64>,
    /// Id of a run to resume: completed changes are reused, reads run again.
    resume: Option<String>,
    /// Answer with a handle after this time if it still runs.
    yield_after_ms: Option<u64>,
}

/// Arguments of `script_wait`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WaitArgs {
    /// Id of a script that still runs.
    id: String,
    /// Stop it.
    terminate: Option<bool>,
    /// How long to wait; 45000 by default.
    timeout_ms: Option<u64>,
}

const WAIT_LESSON: &str = "Waits for a script that answered with status `running`: gives its result, or the same handle again. Waiting costs nothing; do not poll in a hurry.";

impl ScriptServer {
    /// A session of its own.
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
        // A script that asked something goes on where it was.
        if let Some(id) = &answers.run {
            let Some(run) = self.offer.live.find(id) else {
                // Started again it would do twice what it did.
                let id = render::short(id);
                return Ok(render::problem(&format!(
                    "the script `{id}` is over and forgotten"
                )));
            };
            let progress = Progress::of_live_run(&run, context);
            answers.give(&run);
            let patience = self.patience(&args, &run, began);
            return self
                .wait(&run, patience, Cancelled::StopIt, progress, context)
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
            () = context.ct.cancelled() => return Ok(render::problem("cancelled before it began")),
        }
        let tools = self.tools();
        if let Some(topic) = topic {
            return Ok(render::output(&render::help(&tools, topic), &[]));
        }
        let mine = self.running();
        if mine.len() >= PER_SESSION
            && let Some(oldest) = mine.first()
        {
            let why = format!(
                "{PER_SESSION} scripts of this session are running: wait for {oldest} first, or terminate it"
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
        let patience = self.patience(&args, &run, began);
        self.wait(&run, patience, Cancelled::StopIt, progress, context)
            .await
    }

    fn patience(&self, args: &ScriptArgs, run: &LiveRun, began: Instant) -> Duration {
        let wished = args.yield_after_ms.map(Duration::from_millis);
        let patience = wished.or(run.yield_after()).unwrap_or(self.offer.patience);
        patience.min(MAX_PATIENCE).saturating_sub(began.elapsed())
    }

    /// The ids of this session's scripts that run.
    fn running(&self) -> Vec<String> {
        let runs = self.offer.live.list().into_iter();
        let mine = runs.filter(|run| run.session == self.session_id);
        mine.map(|run| run.id).collect()
    }

    async fn script_wait(
        &self,
        args: WaitArgs,
        answers: Answers,
        context: &RequestContext<RoleServer>,
    ) -> Outcome {
        let Some(run) = self.offer.live.find(&args.id) else {
            let running = match self.running() {
                ids if ids.is_empty() => "none runs".to_owned(),
                ids => format!("these run: {}", ids.join(", ")),
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
        let patience = args.timeout_ms.map(Duration::from_millis);
        let patience = patience.unwrap_or(self.offer.patience).min(MAX_PATIENCE);
        // Cancelling the wait does not stop the script: `terminate` does that.
        self.wait(&run, patience, Cancelled::LeaveIt, progress, context)
            .await
    }

    /// Waits for a run within the client's patience, telling of its progress and putting its questions.
    async fn wait(
        &self,
        run: &LiveRun,
        patience: Duration,
        cancelled: Cancelled,
        mut progress: Progress,
        context: &RequestContext<RoleServer>,
    ) -> Outcome {
        let mut until = Instant::now() + patience;
        let mut said = Vec::new();
        loop {
            let report = tokio::select! {
                biased;
                () = context.ct.cancelled() => {
                    if cancelled == Cancelled::LeaveIt {
                        return Ok(render::handle(run, said));
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
                    return Ok(render::output(&output, &said));
                }
                Report::Says(words) => {
                    said.extend(words);
                    until = until.min(Instant::now() + MOMENT);
                }
                Report::Asks(question) => {
                    if let Some(asked) = self.put(run, *question, context).await {
                        return Ok(asked);
                    }
                }
                Report::Yields | Report::StillRunning => return Ok(render::handle(run, said)),
            }
        }
    }

    async fn farewell(&self, run: &LiveRun) -> CallToolResponse {
        match tokio::time::timeout(FAREWELL, run.ended()).await {
            Ok(output) => {
                let said = match run.report(Duration::ZERO).await {
                    Report::Says(words) => words,
                    _ => Vec::new(),
                };
                render::output(&output, &said)
            }
            Err(_) => render::handle(run, vec!["it was told to stop, and has not yet".to_owned()]),
        }
    }

    /// Puts a question to the person behind the client. Where the protocol wants it as an answer, that is returned.
    async fn put(
        &self,
        run: &LiveRun,
        question: Question,
        context: &RequestContext<RoleServer>,
    ) -> Option<CallToolResponse> {
        let capability = context
            .client_capabilities()
            .and_then(|has| has.elicitation);
        let form = capability
            .and_then(|can| elicitation::form(&question).filter(|form| form.can_be_shown(&can)));
        let Some(form) = form else {
            let because = "this client shows no questions to a person (it has no elicitation)";
            let reply = match question.kind {
                QuestionKind::Approval(_) => {
                    Reply::Approval(ApprovalDecision::Unavailable(because.to_owned()))
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
            // Until the answer comes, whoever else waits may be asked, too.
            run.give_back_later(&question.id);
            let wanted = InputRequiredResult::new(Some(requests), Some(run.id().to_owned()));
            return Some(CallToolResponse::InputRequired(wanted));
        }
        self.elicit(run, question, form, context).await;
        None
    }

    /// Asks now; the answer is taken whenever it comes, also when this request is over by then.
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
                    // Nobody needs the answer any more: the person need not be kept.
                    let why = "the question is settled".to_owned();
                    let _ = peer.notify_cancelled(CancelledNotificationParam::new(Some(id), Some(why))).await;
                    return;
                }
            };
            let answer = match answered {
                Ok(rmcp::model::ClientResult::ElicitResult(result)) => {
                    serde_json::to_value(result).ok()
                }
                Ok(_) | Err(rmcp::ServiceError::McpError(_)) => Some(elicitation::declined()),
                // The client went away; another may come.
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

/// What becomes of a script when the request that waits for it is cancelled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cancelled {
    StopIt,
    LeaveIt,
}

type Outcome = Result<CallToolResponse, ErrorData>;

/// Answers that come with a request that was answered with a question before.
struct Answers {
    run: Option<String>,
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

/// `help`, `help()`, `help("name")` in place of a script.
fn help_topic(code: &str) -> Option<&str> {
    let rest = code.trim().trim_end_matches(';').strip_prefix("help")?;
    let topic = rest.trim().trim_start_matches('(').trim_end_matches(')');
    let topic = topic.trim().trim_matches(['"', '\'', '`']);
    let plain = |c: char| c.is_alphanumeric() || "._-$ ".contains(c);
    let longer_word = rest.starts_with(|c: char| c.is_alphanumeric() || c == '.');
    (topic.chars().all(plain) && !longer_word).then_some(topic)
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
            "`script` runs a TypeScript program that calls many tools in one go and returns only what matters."
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
            let mut known = servers.generation();
            let learning = servers.clone();
            tokio::spawn(async move { learning.prepare_all().await });
            loop {
                servers.changed_since(known).await;
                // Several changes at once are one piece of news.
                tokio::time::sleep(Duration::from_millis(100)).await;
                known = servers.generation();
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
        // Those that take longer are told of when they come.
        let _ = tokio::time::timeout(FIRST_LIST, self.offer.servers.prepare_all()).await;
        let lesson = description(&self.tools(), self.offer.budget, |tool| {
            (self.offer.uses)(tool)
        });
        let script = render::tool::<ScriptArgs>("script", lesson);
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
                let message =
                    format!("there is no tool `{other}`: there are script and script_wait");
                Err(ErrorData::invalid_params(message, None))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_told_from_a_script() {
        assert_eq!(help_topic("help"), Some(""));
        assert_eq!(help_topic(" help() ;"), Some(""));
        assert_eq!(help_topic("help(\"mcp.git\")"), Some("mcp.git"));
        assert_eq!(help_topic("help mcp.git"), Some("mcp.git"));
        assert_eq!(help_topic("helpful()"), None);
        assert_eq!(help_topic("help(); return 1"), None);
        assert_eq!(help_topic("return help()"), None);
    }
}
