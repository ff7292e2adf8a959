//! The connection to a running MCP server.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
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

use crate::callbacks::{Asked, Asker, Callbacks};
use crate::calls::{Calls, InHand};
use crate::catalogue::{Catalogue, MAX_PAGES};
use crate::error::ServerError;
use crate::program::{MAX_MESSAGE, Program, too_large};
use crate::server::Server;
use crate::settings::{Reach, ServerSettings};

/// A connection to a server, and the process of a server that is a local program.
pub(crate) struct Link {
    service: Mutex<Option<RunningService<RoleClient, Callbacks>>>,
    peer: Peer<RoleClient>,
    /// `None` for an HTTP server, and after the connection was closed.
    program: Mutex<Option<Program>>,
    pub(crate) calls: Arc<Calls>,
    callbacks: Callbacks,
    /// When the connection was established.
    pub(crate) since: Instant,
    /// One of [`QUIET`], [`LISTING`] and [`LISTING_AND_MORE`].
    listing: AtomicU8,
    /// Set if the connection was closed because the server did not respond to a ping.
    given_up: AtomicBool,
}

/// The tool list is not being fetched.
const QUIET: u8 = 0;
/// The tool list is being fetched.
const LISTING: u8 = 1;
/// The tool list is being fetched and changed meanwhile: it has to be fetched again.
const LISTING_AND_MORE: u8 = 2;

impl Link {
    /// Starts the program or connects to the URL, and completes the handshake.
    pub(crate) async fn connect(
        settings: &ServerSettings,
        server: Weak<Server>,
        asked: Asked,
        folder: Option<&Path>,
    ) -> Result<Self, ServerError> {
        let calls = Arc::new(Calls::default());
        let callbacks = || Callbacks {
            server: server.clone(),
            name: settings.name.clone(),
            asked: asked.clone(),
            sampling: settings.options.sampling,
            calls: calls.clone(),
        };
        let not_started = |why: String| ServerError::NotStarted {
            server: settings.name.clone(),
            why,
        };
        let (service, program) = match &settings.reach {
            Reach::Program { command, .. } => {
                let started = Program::start(&settings.reach);
                let (mut program, read, write) = started
                    .map_err(|error| not_started(format!("cannot run `{command}`: {error}")))?;
                let transport =
                    AsyncRwTransport::new_client(read, write).with_max_line_length(MAX_MESSAGE + 1);
                let mode = ClientLifecycleMode::Initialize;
                match serve_client_with_lifecycle(callbacks(), transport, mode).await {
                    Ok(service) => (service, Some(program)),
                    Err(error) => {
                        // The last lines of its standard error may not have been read yet.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        let mut why = program.last_words();
                        if why.is_empty() {
                            why = short(&error.to_string());
                        }
                        return Err(not_started(why));
                    }
                }
            }
            Reach::Http { .. } => {
                let service = crate::http::greet(callbacks, settings, folder).await;
                (service.map_err(not_started)?, None)
            }
        };
        let peer = service.peer().clone();
        Ok(Self {
            service: Mutex::new(Some(service)),
            peer,
            program: Mutex::new(program),
            callbacks: callbacks(),
            calls,
            since: Instant::now(),
            listing: AtomicU8::new(QUIET),
            given_up: AtomicBool::new(false),
        })
    }

    pub(crate) fn peer(&self) -> &Peer<RoleClient> {
        &self.peer
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.peer.is_transport_closed()
    }

    /// Fetches all pages of the server's tool list.
    pub(crate) async fn catalogue(&self) -> Result<Catalogue, ServiceError> {
        let info = self.peer.peer_info();
        let has = |capability: fn(&rmcp::model::ServerCapabilities) -> bool| {
            info.as_ref()
                .is_none_or(|info| capability(&info.capabilities))
        };
        let mut catalogue = Catalogue {
            identity: info
                .as_ref()
                .and_then(|info| info.server_info.as_ref())
                .map(|server| (short(&server.name), short(&server.version))),
            has_resources: has(|has| has.resources.is_some()),
            has_prompts: has(|has| has.prompts.is_some()),
            ..Catalogue::default()
        };
        if has(|has| has.tools.is_some()) {
            let mut cursor: Option<String> = None;
            for _ in 0..MAX_PAGES {
                let mut params = PaginatedRequestParams::default();
                params.cursor = cursor.clone();
                let page = self.peer.list_tools(Some(params)).await?;
                let room = catalogue.add(page.tools);
                if !room || page.next_cursor.is_none() || page.next_cursor == cursor {
                    break;
                }
                cursor = page.next_cursor;
            }
        }
        Ok(catalogue.finish())
    }

    /// Fetches the tool list again.
    ///
    /// If another task is already fetching it, returns `None` and lets that task fetch it once
    /// more.
    pub(crate) async fn list_again(&self) -> Option<Result<Catalogue, ServiceError>> {
        let change = |from, to| {
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            self.listing.compare_exchange(from, to, success, failure)
        };
        if change(QUIET, LISTING).is_err() {
            self.listing.store(LISTING_AND_MORE, Ordering::Release);
            return None;
        }
        loop {
            let limit = Duration::from_secs(20);
            let listed = tokio::time::timeout(limit, self.catalogue()).await;
            if change(LISTING, QUIET).is_ok() {
                let timed_out = Err(ServiceError::Timeout { timeout: limit });
                return Some(listed.unwrap_or(timed_out));
            }
            self.listing.store(LISTING, Ordering::Release);
        }
    }

    /// Whether the server is Selvedge.
    pub(crate) fn is_one_of_us(&self) -> bool {
        self.peer.peer_info().is_some_and(|info| {
            info.server_info
                .as_ref()
                .is_some_and(|server| server.name == crate::NAME)
        })
    }

    /// Sends the server a notification that the request was cancelled.
    pub(crate) async fn cancel(&self, id: RequestId) -> Result<(), ServiceError> {
        let why = "the call was cancelled".to_owned();
        let params = CancelledNotificationParam::new(Some(id), Some(why));
        self.peer.notify_cancelled(params).await
    }

    /// Answers the input requests that a server returned instead of a result of this call.
    pub(crate) async fn answer(
        &self,
        requests: InputRequests,
        call: &Arc<InHand>,
    ) -> InputResponses {
        let mut responses = InputResponses::new();
        let (callbacks, origin) = (&self.callbacks, Asker::Of(call));
        // Such a request cannot be cancelled by itself, only with its call.
        let never = CancellationToken::new();
        for (key, request) in requests {
            let response = match request {
                InputRequest::Elicitation(request) => {
                    serde_json::to_value(callbacks.elicit(request.params, origin, &never).await)
                }
                InputRequest::CreateMessage(request) => {
                    match callbacks.sample(request.params, origin, &never).await {
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
    pub(crate) fn told(&self, server: &str, error: &ServiceError, limit: Duration) -> ServerError {
        let server = server.to_owned();
        match error {
            ServiceError::McpError(error) => {
                let message: String = error.message.chars().take(2048).collect();
                let (code, why) = (error.code.0, message.clone());
                match error.data == Some(too_large()) {
                    true => ServerError::Nonsense { server, why },
                    false => ServerError::Refused {
                        server,
                        message,
                        code,
                    },
                }
            }
            ServiceError::Timeout { .. } => ServerError::Silent {
                server,
                after: limit,
            },
            ServiceError::UnexpectedResponse => {
                let why = "its type does not match the request".to_owned();
                ServerError::Nonsense { server, why }
            }
            ServiceError::TransportSend(error) => {
                let why = short(&error.to_string());
                ServerError::Gone { server, why }
            }
            _ => {
                let why = self.last_words();
                ServerError::Gone { server, why }
            }
        }
    }

    /// Returns the reason why the connection ended, in one line; empty if it is unknown.
    pub(crate) fn last_words(&self) -> String {
        if self.given_up.load(Ordering::Acquire) {
            return "it did not respond to a ping".to_owned();
        }
        let mut program = lock(&self.program);
        program
            .as_mut()
            .map_or_else(String::new, Program::last_words)
    }

    /// Returns protocol violations of the server, for `mcp list`.
    pub(crate) fn notes(&self) -> Vec<String> {
        lock(&self.program)
            .as_ref()
            .map_or_else(Vec::new, Program::notes)
    }

    /// Pings the server and returns the round-trip time; `None` if it does not respond.
    pub(crate) async fn round_trip(&self, limit: Duration) -> Option<Duration> {
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
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        if let Some(service) = lock(&self.service).take() {
            service.cancellation_token().cancel();
        }
        drop(lock(&self.program).take());
    }

    /// Closes the connection and ends the process, each within a time limit.
    pub(crate) async fn stop(&self) {
        let service = lock(&self.service).take();
        if let Some(mut service) = service {
            let _ = service.close_with_timeout(Duration::from_secs(1)).await;
        }
        let program = lock(&self.program).take();
        if let Some(program) = program {
            program.stop().await;
        }
    }
}

pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shortens a text of a server to one line of at most 300 characters.
pub(crate) fn short(text: &str) -> String {
    selvedge_text::one_line(text, 300)
}
