//! One configured MCP server: connects on first use, reconnects after a failure with backoff, and
//! sends calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, JsonObject, ServerResult,
};
use rmcp::service::{PeerRequestOptions, ServiceError};
use selvedge_tools::CallContext;
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::catalogue::Catalogue;
use crate::client_handler::ServerRequestHandlers;
use crate::connection::{McpConnection, lock};
use crate::error::ServerError;
use crate::process::{LOG_TO_STDERR_HINT, ServerOutputLog};
use crate::server_status::{ServerState, ServerStatus};
use crate::settings::ServerSettings;

/// Longest duration of a call, even if the server reports progress.
pub(crate) const MAX_CALL_DURATION: Duration = Duration::from_secs(30 * 60);
/// How often a server may request input before it returns the result of a call.
const MAX_INPUT_ROUNDS: usize = 10;
/// How long a server may take to respond to a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Lifetime of a connection after which earlier failures are forgotten.
const FAILURE_RESET_AFTER: Duration = Duration::from_secs(60);

/// A start in progress, which all callers that need the server await.
type SharedStart = Shared<BoxFuture<'static, Result<Arc<McpConnection>, ServerError>>>;

/// State that all servers of a [`Servers`](crate::Servers) share.
pub(crate) struct McpSharedState {
    pub(crate) handlers: ServerRequestHandlers,
    /// Folder of cached catalogues and stored logins; `None` turns both off.
    pub(crate) storage_dir: Option<std::path::PathBuf>,
    /// Number of changes of any server's catalogue or availability.
    pub(crate) generation: AtomicU64,
    /// Notified after each change.
    pub(crate) change_notify: tokio::sync::Notify,
}

impl McpSharedState {
    /// Returns the cache key of a server's catalogue.
    fn cache_key(&self, settings: &ServerSettings) -> String {
        settings.fingerprint() + self.handlers.cache_key_suffix(settings.sampling())
    }

    /// Counts a change and wakes all waiters.
    fn notify_change(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.change_notify.notify_waiters();
    }
}

/// A configured MCP server.
pub(crate) struct ConfiguredServer {
    pub(crate) settings: ServerSettings,
    shared: Arc<McpSharedState>,
    /// Limits the number of concurrent calls.
    call_permits: Semaphore,
    inner: Mutex<ConfiguredServerInner>,
    weak_self: Weak<Self>,
}

struct ConfiguredServerInner {
    state: McpConnectionState,
    /// Number of failures since the last long-lived connection.
    failures: u32,
    catalogue: Option<Arc<Catalogue>>,
    /// Reason why the server must not be used, even if it could be started.
    blocked: Option<ServerError>,
    start_ms: Option<f64>,
}

enum McpConnectionState {
    Idle,
    Starting(SharedStart),
    Ready(Arc<McpConnection>),
    BackingOff {
        reason: String,
        /// What the user can do about the failure.
        hint: Option<String>,
        until: Instant,
        /// The error of the failed start, which the first call reports.
        unreported: Option<ServerError>,
    },
}

impl ConfiguredServer {
    pub(crate) fn new(settings: ServerSettings, shared: Arc<McpSharedState>) -> Arc<Self> {
        let folder = shared.storage_dir.as_ref();
        let cached =
            folder.and_then(|folder| Catalogue::load(folder, &shared.cache_key(&settings)));
        Arc::new_cyclic(|me| Self {
            call_permits: Semaphore::new(settings.options.max_concurrent.max(1)),
            inner: Mutex::new(ConfiguredServerInner {
                state: McpConnectionState::Idle,
                failures: 0,
                catalogue: cached.map(Arc::new),
                blocked: settings
                    .config_error
                    .clone()
                    .map(|error| ServerError::Misconfigured {
                        server: settings.name.clone(),
                        reason: error.reason,
                        hint: Some(error.hint),
                    }),
                start_ms: None,
            }),
            settings,
            shared,
            weak_self: me.clone(),
        })
    }

    fn lock_inner(&self) -> MutexGuard<'_, ConfiguredServerInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the catalogue of the running server or from the cache; `None` if it is unknown or
    /// the server is not usable.
    pub(crate) fn catalogue(&self) -> Option<Arc<Catalogue>> {
        let inner = self.lock_inner();
        let usable = self.settings.options.enabled && inner.blocked.is_none();
        inner.catalogue.clone().filter(|_| usable)
    }

    /// Returns the reason why the server cannot be used now; `None` if it is running or may be
    /// started.
    pub(crate) fn unavailable_reason(&self) -> Option<ServerError> {
        let inner = self.lock_inner();
        match (&inner.blocked, &inner.state) {
            _ if !self.settings.options.enabled => {
                Some(ServerError::Disabled(self.settings.name.clone()))
            }
            (Some(blocked), _) => Some(blocked.clone()),
            // After the delay it may be started again.
            (
                None,
                McpConnectionState::BackingOff {
                    reason,
                    hint,
                    until,
                    ..
                },
            ) if *until > Instant::now() => Some(self.backing_off_error(reason, hint, *until)),
            _ => None,
        }
    }

    /// Returns why the tools of the server are unknown: it did not start, or its configuration is
    /// invalid. `None` if they are known, or if the server has not been started or is not used.
    pub(crate) fn start_failure(&self) -> Option<ServerError> {
        let inner = self.lock_inner();
        if !self.settings.options.enabled || inner.catalogue.is_some() {
            return None;
        }
        match (&inner.blocked, &inner.state) {
            (Some(error @ ServerError::Misconfigured { .. }), _) => Some(error.clone()),
            (None, McpConnectionState::BackingOff { reason, hint, .. }) => {
                Some(self.start_error(reason.clone(), hint.clone()))
            }
            _ => None,
        }
    }

    /// Returns what the user can do about the last failure of the server.
    fn failure_hint(&self) -> Option<String> {
        let inner = self.lock_inner();
        match (&inner.blocked, &inner.state) {
            (Some(error), _) => error.hint(),
            (None, McpConnectionState::BackingOff { hint, .. }) => hint.clone(),
            _ => None,
        }
    }

    /// Whether the server was started and has not listed its tools yet.
    pub(crate) fn is_starting(&self) -> bool {
        matches!(self.lock_inner().state, McpConnectionState::Starting(_))
    }

    /// Returns the connection, and starts the server if there is none.
    ///
    /// Cancelling this future does not cancel the start, because other callers may await it.
    pub(crate) async fn connect(&self) -> Result<Arc<McpConnection>, ServerError> {
        if !self.settings.options.enabled {
            return Err(ServerError::Disabled(self.settings.name.clone()));
        }
        let starting = {
            let mut inner = self.lock_inner();
            if let Some(blocked) = &inner.blocked {
                return Err(blocked.clone());
            }
            match &mut inner.state {
                McpConnectionState::Ready(connection) if !connection.is_closed() => {
                    return Ok(connection.clone());
                }
                McpConnectionState::BackingOff {
                    reason,
                    hint,
                    until,
                    unreported,
                } if *until > Instant::now() => {
                    let repeated = || self.backing_off_error(reason, hint, *until);
                    return Err(unreported.take().unwrap_or_else(repeated));
                }
                McpConnectionState::Starting(starting) => starting.clone(),
                McpConnectionState::Ready(connection) => {
                    let (reason, lifetime) =
                        (connection.end_reason(), connection.connected_at.elapsed());
                    if let Some(error) = self.record_disconnect(&mut inner, &reason, lifetime) {
                        return Err(error);
                    }
                    self.spawn_start(&mut inner)
                }
                McpConnectionState::Idle | McpConnectionState::BackingOff { .. } => {
                    self.spawn_start(&mut inner)
                }
            }
        };
        starting.await
    }

    /// Records that the connection ended. Returns an error if the server has to wait before its
    /// next start; the first failure does not.
    fn record_disconnect(
        &self,
        inner: &mut ConfiguredServerInner,
        reason: &str,
        lifetime: Duration,
    ) -> Option<ServerError> {
        if lifetime >= FAILURE_RESET_AFTER {
            inner.failures = 0;
        }
        inner.failures += 1;
        if inner.failures <= 1 {
            return None;
        }
        let until = self.back_off(inner, reason, None);
        Some(self.backing_off_error(reason, &None, until))
    }

    /// Sets a delay before the next start, which doubles with each failure up to 60 s.
    fn back_off(
        &self,
        inner: &mut ConfiguredServerInner,
        reason: &str,
        unreported: Option<ServerError>,
    ) -> Instant {
        let wait = Duration::from_secs(1 << inner.failures.saturating_sub(1).min(6));
        let until = Instant::now() + wait.min(Duration::from_secs(60));
        inner.state = McpConnectionState::BackingOff {
            reason: reason.to_owned(),
            hint: unreported.as_ref().and_then(ServerError::hint),
            until,
            unreported,
        };
        until
    }

    fn backing_off_error(
        &self,
        reason: &str,
        hint: &Option<String>,
        until: Instant,
    ) -> ServerError {
        let delay = until.saturating_duration_since(Instant::now());
        ServerError::BackingOff {
            server: self.settings.name.clone(),
            reason: reason.to_owned(),
            retry_in_secs: delay.as_secs_f64().ceil() as u64,
            hint: hint.clone(),
        }
    }

    fn disconnected_error(&self, reason: &str) -> ServerError {
        ServerError::Disconnected {
            server: self.settings.name.clone(),
            reason: reason.to_owned(),
        }
    }

    fn start_error(&self, reason: String, hint: Option<String>) -> ServerError {
        ServerError::StartFailed {
            server: self.settings.name.clone(),
            reason,
            hint,
        }
    }

    fn invalid_response_error(&self, reason: String) -> ServerError {
        ServerError::InvalidResponse {
            server: self.settings.name.clone(),
            reason,
        }
    }

    /// Starts the server in a task of its own.
    fn spawn_start(&self, inner: &mut ConfiguredServerInner) -> SharedStart {
        let Some(me) = self.weak_self.upgrade() else {
            let gone = Err(self.disconnected_error(""));
            return std::future::ready(gone).boxed().shared();
        };
        let task = tokio::spawn(async move { me.connect_and_list().await });
        let failed = self.start_error("the task that starts it failed".to_owned(), None);
        let starting = async move { task.await.unwrap_or(Err(failed)) };
        let starting = starting.boxed().shared();
        inner.state = McpConnectionState::Starting(starting.clone());
        starting
    }

    /// Connects and lists the server's tools, within the startup timeout.
    async fn connect_and_list(self: Arc<Self>) -> Result<Arc<McpConnection>, ServerError> {
        let began = Instant::now();
        let limit = self.settings.startup_timeout();
        let output_log = Arc::new(Mutex::new(ServerOutputLog::default()));
        let connecting = async {
            let (handlers, folder) = (
                self.shared.handlers.clone(),
                self.shared.storage_dir.as_deref(),
            );
            let (me, log) = (Arc::downgrade(&self), output_log.clone());
            let connection =
                McpConnection::connect(&self.settings, me, handlers, folder, log).await?;
            match connection.fetch_catalogue().await {
                Ok(catalogue) => Ok((connection, catalogue)),
                Err(error) => Err(connection.to_server_error(&self.settings.name, &error, limit)),
            }
        };
        let connected = tokio::time::timeout(limit, connecting).await;
        let connected = connected.unwrap_or_else(|_| {
            let non_messages = lock(&output_log).describe_non_messages();
            Err(match non_messages {
                Some(reason) => self.start_error(reason, Some(LOG_TO_STDERR_HINT.to_owned())),
                None => {
                    let reason = format!("it did not answer within {} s", limit.as_secs_f64());
                    self.start_error(reason, Some(self.settings.slow_start_hint()))
                }
            })
        });
        let mut inner = self.lock_inner();
        match connected {
            Ok((connection, catalogue)) => {
                inner.start_ms = Some(began.elapsed().as_secs_f64() * 1000.0);
                if connection.is_selvedge() {
                    let blocked = ServerError::IsSelvedge(self.settings.name.clone());
                    inner.blocked = Some(blocked.clone());
                    inner.state = McpConnectionState::Idle;
                    drop(inner);
                    self.shared.notify_change();
                    return Err(blocked);
                }
                let connection = Arc::new(connection);
                inner.state = McpConnectionState::Ready(connection.clone());
                drop(inner);
                self.update_catalogue(catalogue);
                Ok(connection)
            }
            Err(error) => {
                let reason = match &error {
                    ServerError::StartFailed { reason, .. }
                    | ServerError::Disconnected { reason, .. } => reason.clone(),
                    ServerError::CommandNotFound { command, .. } => {
                        format!("`{command}` was not found")
                    }
                    other => other.to_string(),
                };
                let error = match error {
                    not_found @ ServerError::CommandNotFound { .. } => not_found,
                    other => self.start_error(reason.clone(), other.hint()),
                };
                inner.failures += 1;
                self.back_off(&mut inner, &reason, Some(error.clone()));
                drop(inner);
                self.shared.notify_change();
                Err(error)
            }
        }
    }

    /// Stores a catalogue that differs from the known one.
    fn update_catalogue(&self, catalogue: Catalogue) {
        let mut inner = self.lock_inner();
        if inner.catalogue.as_deref() == Some(&catalogue) {
            return;
        }
        if let Some(folder) = &self.shared.storage_dir {
            catalogue.save(folder, &self.shared.cache_key(&self.settings));
        }
        inner.catalogue = Some(Arc::new(catalogue));
        drop(inner);
        self.shared.notify_change();
    }

    /// Fetches the tool list again after the server reported a change.
    pub(crate) fn spawn_catalogue_refresh(&self) {
        let connection = match &self.lock_inner().state {
            McpConnectionState::Ready(connection) => connection.clone(),
            _ => return,
        };
        let me = self.weak_self.clone();
        tokio::spawn(async move {
            // `None` if another task is fetching it: that task fetches it once more.
            let Some(listed) = connection.refresh_catalogue().await else {
                return;
            };
            if let (Some(me), Ok(catalogue)) = (me.upgrade(), listed) {
                me.update_catalogue(catalogue);
            }
        });
    }

    /// Waits for a permit among the concurrent calls, and connects.
    async fn acquire_connection(
        &self,
    ) -> Result<(SemaphorePermit<'_>, Arc<McpConnection>), ServerError> {
        let permit = self.call_permits.acquire().await;
        Ok((
            permit.map_err(|_| self.disconnected_error(""))?,
            self.connect().await?,
        ))
    }

    /// Calls a tool and returns its `CallToolResult` as JSON.
    pub(crate) async fn call_tool(
        &self,
        tool: &str,
        args: JsonObject,
        call: &CallContext,
    ) -> Result<Value, ServerError> {
        let cancelled = || self.disconnected_error("the call was cancelled");
        let (_permit, connection) = tokio::select! {
            biased;
            () = call.cancel.cancelled() => return Err(cancelled()),
            acquired = self.acquire_connection() => acquired?,
        };
        let in_flight = connection.in_flight.register(call);
        let mut params = CallToolRequestParams::new(tool.to_owned()).with_arguments(args);
        for _ in 0..MAX_INPUT_ROUNDS {
            let request = ClientRequest::CallToolRequest(CallToolRequest::new(params.clone()));
            let mut meta = rmcp::model::RequestMetaObject::default();
            let key = Value::from(call.idempotency_key.clone());
            meta.insert("selvedge/idempotencyKey".to_owned(), key);
            let options = PeerRequestOptions::no_options().with_meta(meta);
            let sent = connection
                .peer()
                .send_request_with_option(request, options)
                .await;
            let handle = sent.map_err(|error| self.handle_service_error(&connection, error))?;
            in_flight.set_progress_token(handle.progress_token.clone());
            let (id, timeout) = (handle.id.clone(), self.settings.tool_timeout());
            let cancel_request = async |id| {
                _ = tokio::time::timeout(Duration::from_millis(100), connection.cancel_request(id))
                    .await
            };
            let response = tokio::select! {
                biased;
                response = handle.await_response() => response,
                () = call.cancel.cancelled() => {
                    cancel_request(id).await;
                    return Err(cancelled());
                }
                () = in_flight.call.wait_for_timeout(timeout, MAX_CALL_DURATION) => {
                    cancel_request(id).await;
                    Err(ServiceError::Timeout { timeout })
                }
            };
            let result = response.map_err(|error| self.handle_service_error(&connection, error))?;
            match result {
                ServerResult::InputRequiredResult(required) => {
                    let requests = required.input_requests.unwrap_or_default();
                    params.input_responses = Some(
                        connection
                            .answer_input_requests(requests, &in_flight.call)
                            .await,
                    );
                    if call.cancel.is_cancelled() {
                        return Err(cancelled());
                    }
                    params.request_state = required.request_state;
                }
                ServerResult::CallToolResult(result) => {
                    let json = serde_json::to_value(result);
                    return json.map_err(|error| self.invalid_response_error(error.to_string()));
                }
                // Has a content block of a type that rmcp does not know; the script may know it.
                ServerResult::CustomResult(result) if result.0.get("content").is_some() => {
                    return Ok(result.0);
                }
                _ => return Err(self.invalid_response_error("it is not a tool result".to_owned())),
            }
        }
        let reason = format!("it requested input more than {MAX_INPUT_ROUNDS} times");
        Err(self.invalid_response_error(reason))
    }

    /// Awaits a request within the tool timeout.
    pub(crate) async fn with_tool_timeout<T>(
        &self,
        connection: &Arc<McpConnection>,
        request: impl Future<Output = Result<T, ServiceError>>,
    ) -> Result<T, ServerError> {
        let timeout = self.settings.tool_timeout();
        let response = tokio::time::timeout(timeout, request)
            .await
            .unwrap_or(Err(ServiceError::Timeout { timeout }));
        response.map_err(|error| self.handle_service_error(connection, error))
    }

    /// Converts an error of the MCP library. After a timeout, it also checks that the server still
    /// responds, and closes the connection if it does not.
    pub(crate) fn handle_service_error(
        &self,
        connection: &Arc<McpConnection>,
        error: ServiceError,
    ) -> ServerError {
        if let ServiceError::Timeout { .. } = error {
            let connection = connection.clone();
            tokio::spawn(async move {
                if connection.ping(PING_TIMEOUT).await.is_none() {
                    connection.close_unresponsive();
                }
            });
        }
        connection.to_server_error(&self.settings.name, &error, self.settings.tool_timeout())
    }

    /// Returns the current status. It pings a server that is ready, and starts none.
    pub(crate) async fn status(&self) -> ServerStatus {
        let hint = self.failure_hint();
        let (state, reason, connection) = {
            let inner = self.lock_inner();
            match (&inner.blocked, &inner.state) {
                _ if !self.settings.options.enabled => (ServerState::Disabled, None, None),
                (Some(ServerError::Misconfigured { reason, .. }), _)
                | (None, McpConnectionState::BackingOff { reason, .. }) => {
                    (ServerState::Failed, Some(reason.clone()), None)
                }
                (Some(blocked), _) => (ServerState::Disabled, Some(blocked.to_string()), None),
                (None, McpConnectionState::Idle) => (ServerState::NotStarted, None, None),
                (None, McpConnectionState::Starting(_)) => (ServerState::Starting, None, None),
                (None, McpConnectionState::Ready(connection)) if connection.is_closed() => {
                    (ServerState::Failed, Some(connection.end_reason()), None)
                }
                (None, McpConnectionState::Ready(connection)) => {
                    (ServerState::Ready, None, Some(connection.clone()))
                }
            }
        };
        let (mut latency, mut notes) = (None, Vec::new());
        if let Some(connection) = connection {
            latency = connection.ping(PING_TIMEOUT).await;
            notes = connection.notes();
        }
        let catalogue = self.catalogue();
        let catalogue = catalogue.as_deref();
        let tools = catalogue.iter().flat_map(|catalogue| &catalogue.tools);
        let tools = tools.filter(|tool| self.settings.offers_tool(&tool.name));
        let tools = tools.map(|tool| tool.name.clone()).collect();
        if catalogue.is_some_and(crate::code_tools::has_code_tool) {
            notes.push(
                "this server runs code that calls tools: if you can, configure the servers behind \
                it instead"
                    .to_owned(),
            );
        }
        let identity = catalogue.and_then(|catalogue| catalogue.identity.as_ref());
        ServerStatus {
            name: self.settings.name.clone(),
            state,
            reason,
            hint,
            identity: identity.map(|(name, version)| format!("{name} {version}")),
            tools,
            start_ms: self.lock_inner().start_ms,
            latency_ms: latency.map(|time| time.as_secs_f64() * 1000.0),
            notes,
        }
    }

    /// Closes the connection and ends the server's process.
    pub(crate) async fn stop(&self) {
        let state = std::mem::replace(&mut self.lock_inner().state, McpConnectionState::Idle);
        if let McpConnectionState::Ready(connection) = state {
            connection.close().await;
        }
    }
}
