//! One server: started when it is first needed, started again when it has died, left alone for a while when it keeps dying.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, JsonObject, ServerResult,
};
use rmcp::service::{PeerRequestOptions, ServiceError};
use selvedge_tools::Call;
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::callbacks::Asked;
use crate::catalogue::Catalogue;
use crate::error::ServerError;
use crate::link::Link;
use crate::settings::ServerSettings;

/// The longest a call may take, whatever progress it tells of.
const MAX_CALL: Duration = Duration::from_secs(30 * 60);
/// Rounds of questions a server may ask before it answers a call.
const MAX_ROUNDS: usize = 10;
/// How long a server that missed its time may take to show that it lives.
const PULSE: Duration = Duration::from_secs(5);
/// A server that lived this long has recovered from whatever it died of before.
const RECOVERED: Duration = Duration::from_secs(60);

type Starting = Shared<BoxFuture<'static, Result<Arc<Link>, ServerError>>>;

/// What all servers of a process share.
pub(crate) struct Common {
    pub(crate) asked: Asked,
    /// Where catalogues are kept.
    pub(crate) cache: Option<std::path::PathBuf>,
    /// Counts what became different, so that nobody looks in vain.
    pub(crate) changes: AtomicU64,
    pub(crate) changed: tokio::sync::Notify,
}

impl Common {
    /// Under which name a server's catalogue is kept.
    fn kept_as(&self, settings: &ServerSettings) -> String {
        settings.fingerprint() + self.asked.mark(settings.options.sampling)
    }

    fn change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_waiters();
    }
}

/// One server.
pub(crate) struct Server {
    pub(crate) settings: ServerSettings,
    common: Arc<Common>,
    places: Semaphore,
    inner: Mutex<Inner>,
    me: Weak<Self>,
}

struct Inner {
    state: State,
    failures: u32,
    catalogue: Option<Arc<Catalogue>>,
    /// Why it is not used although it answers.
    barred: Option<ServerError>,
    start_ms: Option<f64>,
}

enum State {
    Idle,
    Starting(Starting),
    Ready(Arc<Link>),
    Resting { why: String, until: Instant },
}

/// How a server is doing, for people.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerStatus {
    /// Its name.
    pub name: String,
    /// Whether it can be used.
    pub state: ServerState,
    /// Why, where it failed.
    pub why: Option<String>,
    /// What it calls itself.
    pub identity: Option<String>,
    /// Its tools that scripts can call, by their own names.
    pub tools: Vec<String>,
    /// Time it took to start, in milliseconds.
    pub start_ms: Option<f64>,
    /// Time it takes to answer, in milliseconds.
    pub latency_ms: Option<f64>,
    /// What should be known about it.
    pub notes: Vec<String>,
}

/// Whether a server can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ServerState {
    /// No call has needed it yet.
    #[serde(rename = "not started")]
    NotStarted,
    /// It has been started and has not listed its tools yet.
    Starting,
    /// It answers calls.
    Ready,
    /// It cannot be started, or it ended.
    Failed,
    /// The configuration or a login that is missing rules it out.
    Disabled,
}

impl ServerState {
    /// The state as JSON spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotStarted => "not started",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::Disabled => "disabled",
        }
    }
}

impl Server {
    pub(crate) fn new(settings: ServerSettings, common: Arc<Common>) -> Arc<Self> {
        let folder = common.cache.as_ref();
        let kept = folder.and_then(|folder| Catalogue::load(folder, &common.kept_as(&settings)));
        Arc::new_cyclic(|me| Self {
            places: Semaphore::new(settings.options.max_concurrent.max(1)),
            inner: Mutex::new(Inner {
                state: State::Idle,
                failures: 0,
                catalogue: kept.map(Arc::new),
                barred: settings.fault.clone().map(|why| {
                    let server = settings.name.clone();
                    ServerError::Misconfigured { server, why }
                }),
                start_ms: None,
            }),
            settings,
            common,
            me: me.clone(),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has, as far as anybody knows without asking it.
    pub(crate) fn catalogue(&self) -> Option<Arc<Catalogue>> {
        let inner = self.inner();
        let usable = self.settings.options.enabled && inner.barred.is_none();
        inner.catalogue.clone().filter(|_| usable)
    }

    /// Why it has nothing to offer right now, where that is so.
    pub(crate) fn trouble(&self) -> Option<ServerError> {
        let inner = self.inner();
        match (&inner.barred, &inner.state) {
            _ if !self.settings.options.enabled => {
                Some(ServerError::Disabled(self.settings.name.clone()))
            }
            (Some(barred), _) => Some(barred.clone()),
            // Once it has rested it is tried again.
            (None, State::Resting { why, until }) if *until > Instant::now() => {
                Some(self.resting(why, *until))
            }
            _ => None,
        }
    }

    /// The connection, made where there is none. Whoever gives up waiting does not stop the others' start.
    pub(crate) async fn link(&self) -> Result<Arc<Link>, ServerError> {
        if !self.settings.options.enabled {
            return Err(ServerError::Disabled(self.settings.name.clone()));
        }
        let starting = {
            let mut inner = self.inner();
            if let Some(barred) = &inner.barred {
                return Err(barred.clone());
            }
            match &inner.state {
                State::Ready(link) if !link.is_closed() => return Ok(link.clone()),
                State::Resting { why, until } if *until > Instant::now() => {
                    return Err(self.resting(why, *until));
                }
                State::Starting(starting) => starting.clone(),
                State::Ready(link) => {
                    let (why, lived) = (link.last_words(), link.since.elapsed());
                    if let Some(error) = self.died(&mut inner, &why, lived) {
                        return Err(error);
                    }
                    self.start(&mut inner)
                }
                State::Idle | State::Resting { .. } => self.start(&mut inner),
            }
        };
        starting.await
    }

    /// Takes note of a death; the error where it should rest now.
    fn died(&self, inner: &mut Inner, why: &str, lived: Duration) -> Option<ServerError> {
        if lived >= RECOVERED {
            inner.failures = 0;
        }
        inner.failures += 1;
        // Once it is started again at once: it may have been an accident.
        if inner.failures <= 1 {
            return None;
        }
        let until = self.rest(inner, why);
        Some(self.resting(why, until))
    }

    fn rest(&self, inner: &mut Inner, why: &str) -> Instant {
        let wait = Duration::from_secs(1 << inner.failures.saturating_sub(1).min(6));
        let until = Instant::now() + wait.min(Duration::from_secs(60));
        inner.state = State::Resting {
            why: why.to_owned(),
            until,
        };
        until
    }

    fn resting(&self, why: &str, until: Instant) -> ServerError {
        let rest = until.saturating_duration_since(Instant::now());
        ServerError::Resting {
            server: self.settings.name.clone(),
            why: why.to_owned(),
            seconds: rest.as_secs_f64().ceil() as u64,
        }
    }

    fn gone(&self, why: &str) -> ServerError {
        ServerError::Gone {
            server: self.settings.name.clone(),
            why: why.to_owned(),
        }
    }

    fn not_started(&self, why: String) -> ServerError {
        ServerError::NotStarted {
            server: self.settings.name.clone(),
            why,
        }
    }

    fn nonsense(&self, why: String) -> ServerError {
        ServerError::Nonsense {
            server: self.settings.name.clone(),
            why,
        }
    }

    fn start(&self, inner: &mut Inner) -> Starting {
        let Some(me) = self.me.upgrade() else {
            let gone = Err(self.gone(""));
            return std::future::ready(gone).boxed().shared();
        };
        let task = tokio::spawn(async move { me.start_now().await });
        let broke = self.not_started("its start broke".to_owned());
        let starting = async move { task.await.unwrap_or(Err(broke)) };
        let starting = starting.boxed().shared();
        inner.state = State::Starting(starting.clone());
        starting
    }

    async fn start_now(self: Arc<Self>) -> Result<Arc<Link>, ServerError> {
        let began = Instant::now();
        let limit = self.settings.startup_timeout();
        let connecting = async {
            let (asked, folder) = (self.common.asked.clone(), self.common.cache.as_deref());
            let link = Link::connect(&self.settings, Arc::downgrade(&self), asked, folder).await?;
            match link.catalogue().await {
                Ok(catalogue) => Ok((link, catalogue)),
                Err(error) => Err(link.told(&self.settings.name, &error, limit)),
            }
        };
        let connected = tokio::time::timeout(limit, connecting).await;
        let connected = connected.unwrap_or_else(|_| {
            let seconds = limit.as_secs_f64();
            Err(self.not_started(format!("it did not answer within {seconds} s")))
        });
        let mut inner = self.inner();
        match connected {
            Ok((link, catalogue)) => {
                inner.start_ms = Some(began.elapsed().as_secs_f64() * 1000.0);
                if link.is_one_of_us() {
                    let barred = ServerError::Ourselves(self.settings.name.clone());
                    inner.barred = Some(barred.clone());
                    inner.state = State::Idle;
                    drop(inner);
                    self.common.change();
                    return Err(barred);
                }
                let link = Arc::new(link);
                inner.state = State::Ready(link.clone());
                drop(inner);
                self.learn(catalogue);
                Ok(link)
            }
            Err(error) => {
                let why = match &error {
                    ServerError::NotStarted { why, .. } | ServerError::Gone { why, .. } => {
                        why.clone()
                    }
                    other => other.to_string(),
                };
                inner.failures += 1;
                self.rest(&mut inner, &why);
                drop(inner);
                self.common.change();
                Err(self.not_started(why))
            }
        }
    }

    /// Takes in what the server has now.
    fn learn(&self, catalogue: Catalogue) {
        let mut inner = self.inner();
        if inner.catalogue.as_deref() == Some(&catalogue) {
            return;
        }
        if let Some(folder) = &self.common.cache {
            catalogue.save(folder, &self.common.kept_as(&self.settings));
        }
        inner.catalogue = Some(Arc::new(catalogue));
        drop(inner);
        self.common.change();
    }

    /// The server said that its tools are others now.
    pub(crate) fn tools_changed(&self) {
        let link = match &self.inner().state {
            State::Ready(link) => link.clone(),
            _ => return,
        };
        let me = self.me.clone();
        tokio::spawn(async move {
            // One listing at a time; news that come meanwhile lead to one more.
            let Some(listed) = link.list_again().await else {
                return;
            };
            if let (Some(me), Ok(catalogue)) = (me.upgrade(), listed) {
                me.learn(catalogue);
            }
        });
    }

    /// A place among the calls it takes at once, and the connection.
    async fn enter(&self) -> Result<(SemaphorePermit<'_>, Arc<Link>), ServerError> {
        let place = self.places.acquire().await;
        Ok((place.map_err(|_| self.gone(""))?, self.link().await?))
    }

    /// Calls a tool. The answer is a `CallToolResult` as JSON.
    pub(crate) async fn call(
        &self,
        tool: &str,
        args: JsonObject,
        call: &Call,
    ) -> Result<Value, ServerError> {
        let stopped = || self.gone("the call was stopped");
        let (_place, link) = tokio::select! {
            biased;
            () = call.cancel.cancelled() => return Err(stopped()),
            entered = self.enter() => entered?,
        };
        let entered = link.calls.enter(call);
        let mut params = CallToolRequestParams::new(tool.to_owned()).with_arguments(args);
        for _ in 0..MAX_ROUNDS {
            let request = ClientRequest::CallToolRequest(CallToolRequest::new(params.clone()));
            let mut meta = rmcp::model::RequestMetaObject::default();
            let key = Value::from(call.idempotency_key.clone());
            meta.insert("selvedge/idempotencyKey".to_owned(), key);
            let options = PeerRequestOptions::no_options().with_meta(meta);
            let sent = link.peer().send_request_with_option(request, options).await;
            let handle = sent.map_err(|error| self.explain(&link, error))?;
            entered.sent(handle.progress_token.clone());
            let (id, timeout) = (handle.id.clone(), self.settings.tool_timeout());
            let let_go = async |id| {
                _ = tokio::time::timeout(Duration::from_millis(100), link.cancel(id)).await
            };
            let answer = tokio::select! {
                biased;
                answer = handle.await_response() => answer,
                () = call.cancel.cancelled() => {
                    let_go(id).await;
                    return Err(stopped());
                }
                () = entered.in_hand.silence(timeout, MAX_CALL) => {
                    let_go(id).await;
                    Err(ServiceError::Timeout { timeout })
                }
            };
            let result = answer.map_err(|error| self.explain(&link, error))?;
            match result {
                ServerResult::InputRequiredResult(wanted) => {
                    let requests = wanted.input_requests.unwrap_or_default();
                    params.input_responses = Some(link.answer(requests, &entered.in_hand).await);
                    if call.cancel.is_cancelled() {
                        return Err(stopped());
                    }
                    params.request_state = wanted.request_state;
                }
                ServerResult::CallToolResult(result) => {
                    let written = serde_json::to_value(result);
                    return written.map_err(|error| self.nonsense(error.to_string()));
                }
                // A content block of a kind nobody knows yet: the script may.
                ServerResult::CustomResult(result) if result.0.get("content").is_some() => {
                    return Ok(result.0);
                }
                _ => return Err(self.nonsense("it is no result of a tool".to_owned())),
            }
        }
        Err(self.nonsense(format!("it asked for more input {MAX_ROUNDS} times")))
    }

    /// Waits for an answer as long as one may take.
    pub(crate) async fn within<T>(
        &self,
        link: &Arc<Link>,
        asked: impl Future<Output = Result<T, ServiceError>>,
    ) -> Result<T, ServerError> {
        let timeout = self.settings.tool_timeout();
        let answer = tokio::time::timeout(timeout, asked)
            .await
            .unwrap_or(Err(ServiceError::Timeout { timeout }));
        answer.map_err(|error| self.explain(link, error))
    }

    /// An error of the wire in words, and what it means for the connection.
    pub(crate) fn explain(&self, link: &Arc<Link>, error: ServiceError) -> ServerError {
        if let ServiceError::Timeout { .. } = error {
            // Slow, or dead? A server that lives answers a ping.
            let link = link.clone();
            tokio::spawn(async move {
                if link.round_trip(PULSE).await.is_none() {
                    link.give_up();
                }
            });
        }
        link.told(&self.settings.name, &error, self.settings.tool_timeout())
    }

    pub(crate) async fn status(&self) -> ServerStatus {
        let (state, why, link) = {
            let inner = self.inner();
            match (&inner.barred, &inner.state) {
                _ if !self.settings.options.enabled => (ServerState::Disabled, None, None),
                (Some(ServerError::Misconfigured { why, .. }), _)
                | (None, State::Resting { why, .. }) => {
                    (ServerState::Failed, Some(why.clone()), None)
                }
                (Some(barred), _) => (ServerState::Disabled, Some(barred.to_string()), None),
                (None, State::Idle) => (ServerState::NotStarted, None, None),
                (None, State::Starting(_)) => (ServerState::Starting, None, None),
                (None, State::Ready(link)) if link.is_closed() => {
                    (ServerState::Failed, Some(link.last_words()), None)
                }
                (None, State::Ready(link)) => (ServerState::Ready, None, Some(link.clone())),
            }
        };
        let (mut latency, mut notes) = (None, Vec::new());
        if let Some(link) = link {
            latency = link.round_trip(PULSE).await;
            notes = link.notes();
        }
        let catalogue = self.catalogue();
        let known = catalogue.as_deref();
        let tools = known.iter().flat_map(|catalogue| &catalogue.tools);
        let tools = tools.filter(|tool| self.settings.has(&tool.name));
        let tools = tools.map(|tool| tool.name.clone()).collect();
        if known.is_some_and(crate::recursion::runs_code) {
            notes.push(
                "it runs code that calls tools, too: call the servers behind it directly where you can".to_owned(),
            );
        }
        let identity = known.and_then(|catalogue| catalogue.identity.as_ref());
        ServerStatus {
            name: self.settings.name.clone(),
            state,
            why,
            identity: identity.map(|(name, version)| format!("{name} {version}")),
            tools,
            start_ms: self.inner().start_ms,
            latency_ms: latency.map(|time| time.as_secs_f64() * 1000.0),
            notes,
        }
    }

    /// Ends it.
    pub(crate) async fn stop(&self) {
        let state = std::mem::replace(&mut self.inner().state, State::Idle);
        if let State::Ready(link) = state {
            link.stop().await;
        }
    }
}
