//! The connection to a running MCP server.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rmcp::model::{
    CancelledNotificationParam, ClientRequest, InputRequest, InputRequests, InputResponses,
    PaginatedRequestParams, PingRequest, RequestId,
};
use rmcp::service::{Peer, PeerRequestOptions, RunningService, ServiceError};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{ClientLifecycleMode, RoleClient, serve_client_with_lifecycle};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::catalogue::{Catalogue, MAX_TOOL_LIST_PAGES};
use crate::client_handler::{McpClientHandler, ServerRequestHandlers, ServerRequestOrigin};
use crate::configured_server::ConfiguredServer;
use crate::error::ServerError;
use crate::in_flight::{McpInFlightCall, McpInFlightCalls};
use crate::process::{
    LOG_TO_STDERR_HINT, MAX_MESSAGE_BYTES, ServerOutputLog, ServerProcess, oversized_error_data,
};
use crate::settings::{McpTransport, ServerSettings};

/// A connection to a server, and the process of a server that is a local program.
pub(crate) struct McpConnection {
    service: Mutex<Option<RunningService<RoleClient, McpClientHandler>>>,
    peer: Peer<RoleClient>,
    /// `None` for an HTTP server, and after the connection was closed.
    process: Mutex<Option<ServerProcess>>,
    pub(crate) in_flight: Arc<McpInFlightCalls>,
    handler: McpClientHandler,
    /// When the connection was established.
    pub(crate) connected_at: Instant,
    /// One of [`LISTING_IDLE`], [`LISTING_RUNNING`] and [`LISTING_RERUN`].
    listing_state: AtomicU8,
    /// Set if the connection was closed because the server did not respond to a ping.
    unresponsive: AtomicBool,
}

/// The tool list is not being fetched.
const LISTING_IDLE: u8 = 0;
/// The tool list is being fetched.
const LISTING_RUNNING: u8 = 1;
/// The tool list is being fetched and changed meanwhile: it has to be fetched again.
const LISTING_RERUN: u8 = 2;

impl McpConnection {
    /// Starts the program or connects to the URL, and completes the handshake. `output_log`
    /// receives what a program prints besides messages.
    pub(crate) async fn connect(
        settings: &ServerSettings,
        server: Weak<ConfiguredServer>,
        handlers: ServerRequestHandlers,
        folder: Option<&Path>,
        output_log: Arc<Mutex<ServerOutputLog>>,
    ) -> Result<Self, ServerError> {
        let calls = Arc::new(McpInFlightCalls::default());
        let handler = || McpClientHandler {
            server: server.clone(),
            server_name: settings.name.clone(),
            handlers: handlers.clone(),
            sampling: settings.sampling(),
            in_flight: calls.clone(),
            declined: AtomicUsize::new(0),
        };
        let failed = |failure: ServerStartFailure| ServerError::StartFailed {
            server: settings.name.clone(),
            reason: failure.reason,
            hint: failure.hint,
        };
        let not_started = |reason: String| failed(reason.into());
        let (service, process) = match &settings.transport {
            McpTransport::Stdio { command, cwd, .. } => {
                let found =
                    match &settings.program {
                        Some(finder) => Some(finder.find().await.map_err(|error| {
                            ServerError::Misconfigured {
                                server: settings.name.clone(),
                                reason: error.reason,
                                hint: Some(error.hint),
                            }
                        })?),
                        None => None,
                    };
                let started = ServerProcess::spawn(settings, found, output_log);
                let (mut process, read, write) = started.map_err(|error| {
                    let folder_exists = cwd.as_ref().is_none_or(|cwd| cwd.is_dir());
                    match error.kind() {
                        ErrorKind::NotFound | ErrorKind::NotADirectory if folder_exists => {
                            ServerError::CommandNotFound {
                                server: settings.name.clone(),
                                command: command.clone(),
                            }
                        }
                        _ => not_started(format!("cannot run `{command}`: {error}")),
                    }
                })?;
                let transport = AsyncRwTransport::new_client(read, write)
                    .with_max_line_length(MAX_MESSAGE_BYTES + 1);
                let mode = ClientLifecycleMode::Initialize;
                match serve_client_with_lifecycle(handler(), transport, mode).await {
                    Ok(service) => (service, Some(process)),
                    Err(error) => {
                        // The last lines of its standard error may not have been read yet.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        let mut reason = process.exit_reason();
                        if reason.is_empty() {
                            reason = shorten(&error.to_string());
                        }
                        let hint = match process.prints_non_messages() {
                            true => LOG_TO_STDERR_HINT.to_owned(),
                            false => format!(
                                "run `{}` to see its output, or correct [mcp_servers.{}] in \
                                 config.toml",
                                settings.transport.command_line().unwrap_or_default(),
                                settings.name
                            ),
                        };
                        return Err(failed(ServerStartFailure {
                            reason,
                            hint: Some(hint),
                        }));
                    }
                }
            }
            McpTransport::Http { .. } => {
                let service = crate::http_client::connect_http(handler, settings, folder).await;
                (service.map_err(failed)?, None)
            }
        };
        let peer = service.peer().clone();
        Ok(Self {
            service: Mutex::new(Some(service)),
            peer,
            process: Mutex::new(process),
            handler: handler(),
            in_flight: calls,
            connected_at: Instant::now(),
            listing_state: AtomicU8::new(LISTING_IDLE),
            unresponsive: AtomicBool::new(false),
        })
    }

    pub(crate) fn peer(&self) -> &Peer<RoleClient> {
        &self.peer
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.peer.is_transport_closed()
    }

    /// Fetches all pages of the server's tool list.
    pub(crate) async fn fetch_catalogue(&self) -> Result<Catalogue, ServiceError> {
        let info = self.peer.peer_info();
        let has = |capability: fn(&rmcp::model::ServerCapabilities) -> bool| {
            info.as_ref()
                .is_none_or(|info| capability(&info.capabilities))
        };
        let mut catalogue = Catalogue {
            identity: info
                .as_ref()
                .and_then(|info| info.server_info.as_ref())
                .map(|server| (shorten(&server.name), shorten(&server.version))),
            has_resources: has(|has| has.resources.is_some()),
            has_prompts: has(|has| has.prompts.is_some()),
            ..Catalogue::default()
        };
        if has(|has| has.tools.is_some()) {
            let mut cursor: Option<String> = None;
            for _ in 0..MAX_TOOL_LIST_PAGES {
                let mut params = PaginatedRequestParams::default();
                params.cursor = cursor.clone();
                let page = self.peer.list_tools(Some(params)).await?;
                let room = catalogue.add_page(page.tools);
                if !room || page.next_cursor.is_none() || page.next_cursor == cursor {
                    break;
                }
                cursor = page.next_cursor;
            }
        }
        Ok(catalogue.without_duplicates())
    }

    /// Fetches the tool list again.
    ///
    /// If another task is already fetching it, returns `None` and lets that task fetch it once
    /// more.
    pub(crate) async fn refresh_catalogue(&self) -> Option<Result<Catalogue, ServiceError>> {
        let change = |from, to| {
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            self.listing_state
                .compare_exchange(from, to, success, failure)
        };
        if change(LISTING_IDLE, LISTING_RUNNING).is_err() {
            self.listing_state.store(LISTING_RERUN, Ordering::Release);
            return None;
        }
        loop {
            let limit = Duration::from_secs(20);
            let listed = tokio::time::timeout(limit, self.fetch_catalogue()).await;
            if change(LISTING_RUNNING, LISTING_IDLE).is_ok() {
                let timed_out = Err(ServiceError::Timeout { timeout: limit });
                return Some(listed.unwrap_or(timed_out));
            }
            self.listing_state.store(LISTING_RUNNING, Ordering::Release);
        }
    }

    /// Whether the server is Selvedge.
    pub(crate) fn is_selvedge(&self) -> bool {
        self.peer.peer_info().is_some_and(|info| {
            info.server_info
                .as_ref()
                .is_some_and(|server| server.name == crate::IMPLEMENTATION_NAME)
        })
    }

    /// Sends the server a notification that the request was cancelled.
    pub(crate) async fn cancel_request(&self, id: RequestId) -> Result<(), ServiceError> {
        let reason = "the call was cancelled".to_owned();
        let params = CancelledNotificationParam::new(Some(id), Some(reason));
        self.peer.notify_cancelled(params).await
    }

    /// Answers the input requests that a server returned instead of a result of this call.
    pub(crate) async fn answer_input_requests(
        &self,
        requests: InputRequests,
        call: &Arc<McpInFlightCall>,
    ) -> InputResponses {
        let mut responses = InputResponses::new();
        let (handler, origin) = (&self.handler, ServerRequestOrigin::Call(call));
        // Such a request cannot be cancelled by itself, only with its call.
        let never = CancellationToken::new();
        for (key, request) in requests {
            let response = match request {
                InputRequest::Elicitation(request) => {
                    serde_json::to_value(handler.elicit(request.params, origin, &never).await)
                }
                InputRequest::CreateMessage(request) => {
                    match handler.sample(request.params, origin, &never).await {
                        Ok(response) => serde_json::to_value(response),
                        Err(_) => continue,
                    }
                }
                _ => Ok(serde_json::json!({"roots": []})),
            };
            responses.insert(key, response.unwrap_or(Value::Null));
        }
        responses
    }

    /// Converts an error of the MCP library. `limit` is the time limit that was in effect.
    pub(crate) fn to_server_error(
        &self,
        server: &str,
        error: &ServiceError,
        limit: Duration,
    ) -> ServerError {
        let server = server.to_owned();
        match error {
            ServiceError::McpError(error) => {
                let message: String = error.message.chars().take(2048).collect();
                let (code, reason) = (error.code.0, message.clone());
                match error.data == Some(oversized_error_data()) {
                    true => ServerError::InvalidResponse { server, reason },
                    false => ServerError::ErrorResponse {
                        server,
                        message,
                        code,
                    },
                }
            }
            ServiceError::Timeout { .. } => ServerError::TimedOut {
                server,
                timeout: limit,
            },
            ServiceError::UnexpectedResponse => {
                let reason = "its type does not match the request".to_owned();
                ServerError::InvalidResponse { server, reason }
            }
            ServiceError::TransportSend(error) => {
                let reason = shorten(&error.to_string());
                ServerError::Disconnected { server, reason }
            }
            _ => {
                let reason = self.end_reason();
                ServerError::Disconnected { server, reason }
            }
        }
    }

    /// Returns the reason why the connection ended, in one line; empty if it is unknown.
    pub(crate) fn end_reason(&self) -> String {
        if self.unresponsive.load(Ordering::Acquire) {
            return "it did not respond to a ping".to_owned();
        }
        let mut process = lock(&self.process);
        process
            .as_mut()
            .map_or_else(String::new, ServerProcess::exit_reason)
    }

    /// Returns protocol violations of the server, for `mcp list`.
    pub(crate) fn notes(&self) -> Vec<String> {
        lock(&self.process)
            .as_ref()
            .map_or_else(Vec::new, ServerProcess::notes)
    }

    /// Pings the server and returns the round-trip time; `None` if it does not respond.
    pub(crate) async fn ping(&self, limit: Duration) -> Option<Duration> {
        let began = Instant::now();
        let ping = ClientRequest::PingRequest(PingRequest::default());
        let options = PeerRequestOptions::with_timeout(limit);
        let sent = self.peer.send_request_with_option(ping, options).await;
        match sent.ok()?.await_response().await {
            // An error is a response, too: the server does not implement ping.
            Ok(_) | Err(ServiceError::McpError(_)) => Some(began.elapsed()),
            Err(_) => None,
        }
    }

    /// Closes the connection to a server that does not respond. The next call connects again.
    pub(crate) fn close_unresponsive(&self) {
        self.unresponsive.store(true, Ordering::Release);
        if let Some(service) = lock(&self.service).take() {
            service.cancellation_token().cancel();
        }
        drop(lock(&self.process).take());
    }

    /// Closes the connection and ends the process, each within a time limit.
    pub(crate) async fn close(&self) {
        let service = lock(&self.service).take();
        if let Some(mut service) = service {
            let _ = service.close_with_timeout(Duration::from_secs(1)).await;
        }
        let process = lock(&self.process).take();
        if let Some(process) = process {
            process.stop().await;
        }
    }
}

pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a server did not start, and what the user can do about it.
#[derive(Debug)]
pub(crate) struct ServerStartFailure {
    /// Reason, in one line.
    pub(crate) reason: String,
    pub(crate) hint: Option<String>,
}

impl From<String> for ServerStartFailure {
    fn from(reason: String) -> Self {
        Self { reason, hint: None }
    }
}

/// Shortens a text of a server to one line of at most 300 characters.
pub(crate) fn shorten(text: &str) -> String {
    selvedge_text::one_line(text, 300)
}
