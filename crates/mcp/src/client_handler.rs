//! Handles what a server sends during calls: elicitation and sampling requests, progress, and
//! changes of its tool list.

// Newer protocol versions deprecate sampling; servers of older versions still use it.
#![expect(deprecated)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use futures_util::future::BoxFuture;
use rmcp::model::{
    ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult,
    ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationCapability, ErrorData,
    FormElicitationCapability, Implementation, ProgressNotificationParam, ProtocolVersion,
    UrlElicitationCapability,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{ClientHandler, RoleClient};
use selvedge_protocol::{LogLevel, McpSampling, RuntimeEvent};
use selvedge_tools::CallContext;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::ServerRequestError;
use crate::configured_server::ConfiguredServer;
use crate::connection::shorten;
use crate::in_flight::{McpInFlightCall, McpInFlightCalls, PendingServerRequest};
use crate::sampling::{McpSamplingRequest, McpSamplingResponse, SAMPLING_TIMEOUT};
use crate::server_form::{ServerForm, fill_in_defaults};

/// Handlers of the requests that servers send to their client.
///
/// A capability without a handler is not announced to servers, and a request for it is declined.
#[derive(Clone, Default)]
pub struct ServerRequestHandlers {
    /// Handles elicitation requests.
    pub elicitation: Option<Arc<dyn ElicitationHandler>>,
    /// Handles sampling requests.
    pub sampling: Option<Arc<dyn SamplingHandler>>,
}

impl ServerRequestHandlers {
    /// Returns the sampling handler, unless the server's configuration turns sampling off.
    fn sampling_for(&self, sampling: McpSampling) -> Option<&Arc<dyn SamplingHandler>> {
        let handler = self.sampling.as_ref();
        handler.filter(|_| sampling != McpSampling::Never)
    }

    /// Returns the part of a catalogue's cache key that stands for the announced capabilities.
    ///
    /// A server may list other tools to a client with other capabilities.
    pub(crate) fn cache_key_suffix(&self, sampling: McpSampling) -> &'static str {
        match (&self.elicitation, self.sampling_for(sampling)) {
            (None, None) => "",
            (Some(_), None) => "-elicitation",
            (None, Some(_)) => "-sampling",
            (Some(_), Some(_)) => "-elicitation-sampling",
        }
    }
}

/// Shows a server's form to a person.
pub trait ElicitationHandler: Send + Sync {
    /// Resolves to the person's answer, or to the reason why no person was asked.
    ///
    /// The future is dropped when the answer is no longer needed.
    fn elicit<'a>(
        &'a self,
        request: &'a ElicitationRequest,
    ) -> BoxFuture<'a, Result<ElicitationResponse, ServerRequestError>>;

    /// Returns the elicitation modes that this handler supports.
    fn supported_modes(&self) -> ElicitationModes {
        ElicitationModes::FormOnly
    }
}

/// Elicitation modes that a handler supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElicitationModes {
    /// Forms with fields.
    FormOnly,
    /// Forms with fields, and URLs that the person opens.
    FormAndUrl,
}

/// An elicitation request of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct ElicitationRequest {
    /// Name of the server that sent the request.
    pub server: String,
    /// Id of the run or turn whose call caused the request. `None` if calls of several runs are
    /// in flight.
    pub scope_id: Option<String>,
    /// The `params` of the `elicitation/create` request.
    pub request: Value,
}

/// Sends a server's sampling request to a model. It is called after the request was approved.
pub trait SamplingHandler: Send + Sync {
    /// Resolves to the model's answer, or to the reason why there is none.
    ///
    /// The future is dropped when the answer is no longer needed.
    fn sample<'a>(
        &'a self,
        request: &'a McpSamplingRequest,
    ) -> BoxFuture<'a, Result<McpSamplingResponse, ServerRequestError>>;
}

/// A person's response to an elicitation request.
#[derive(Debug, Clone, PartialEq)]
pub enum ElicitationResponse {
    /// The values of the form. For a URL, the person agreed to open it and the value is ignored.
    Accepted(Value),
    /// The person refused to answer.
    Declined,
    /// The person dismissed the form, or the answer was no longer needed.
    Cancelled,
}

/// The client's side of one connection: answers requests and receives notifications.
pub(crate) struct McpClientHandler {
    pub(crate) server: Weak<ConfiguredServer>,
    pub(crate) server_name: String,
    pub(crate) handlers: ServerRequestHandlers,
    pub(crate) sampling: McpSampling,
    pub(crate) in_flight: Arc<McpInFlightCalls>,
    /// Number of the server's requests that were declined.
    pub(crate) declined: AtomicUsize,
}

/// Declined requests of a connection that are reported. The log has the others.
const MAX_REPORTED_DECLINES: usize = 20;

/// The call during which a server sent a request.
#[derive(Clone, Copy)]
pub(crate) enum ServerRequestOrigin<'a> {
    /// The request does not name a call.
    UnknownCall,
    /// The request came as the response to this call.
    Call(&'a Arc<McpInFlightCall>),
}

/// A pending request of a server, which the server can cancel.
struct CancellableServerRequest<'a> {
    pending: PendingServerRequest,
    /// Cancelled when the server cancels its request.
    server_cancel: &'a CancellationToken,
}

impl CancellableServerRequest<'_> {
    /// Waits until the answer is no longer needed.
    async fn until_obsolete(&self) {
        tokio::select! {
            () = self.pending.until_obsolete() => {}
            () = self.server_cancel.cancelled() => {}
        }
    }
}

impl McpClientHandler {
    /// Answers an elicitation request. A failure is reported and declines the request.
    pub(crate) async fn elicit(
        &self,
        request: ElicitRequestParams,
        origin: ServerRequestOrigin<'_>,
        server_cancel: &CancellationToken,
    ) -> ElicitResult {
        let response = self
            .handle_elicitation(&request, origin, server_cancel)
            .await;
        let response = response.unwrap_or_else(|reason| {
            self.report_declined("elicitation", &reason);
            ElicitationResponse::Declined
        });
        match response {
            ElicitationResponse::Accepted(content) => {
                let accepted = ElicitResult::new(ElicitationAction::Accept);
                match request {
                    ElicitRequestParams::FormElicitationParams { .. } => {
                        accepted.with_content(content)
                    }
                    _ => accepted,
                }
            }
            ElicitationResponse::Declined => ElicitResult::new(ElicitationAction::Decline),
            ElicitationResponse::Cancelled => ElicitResult::new(ElicitationAction::Cancel),
        }
    }

    async fn handle_elicitation(
        &self,
        request: &ElicitRequestParams,
        origin: ServerRequestOrigin<'_>,
        server_cancel: &CancellationToken,
    ) -> Result<ElicitationResponse, String> {
        let handler = self.handlers.elicitation.as_ref();
        let handler = handler.ok_or("no person can be asked")?;
        let open = CancellableServerRequest {
            pending: self.begin_request(origin)?,
            server_cancel,
        };
        let pending = &open.pending;
        if let Some(reason) = pending.counted_call.context.gate.unavailable_reason() {
            return Err(reason.to_owned());
        }
        let request = serde_json::to_value(request).map_err(|error| error.to_string())?;
        let elicitation = ElicitationRequest {
            server: self.server_name.clone(),
            scope_id: pending.scope_id.clone(),
            request,
        };
        let _paused = pending.pause_for_person();
        let answer = tokio::select! {
            biased;
            () = open.until_obsolete() => ElicitationResponse::Cancelled,
            answer = handler.elicit(&elicitation) => answer.map_err(|error| error.to_string())?,
        };
        let ElicitationResponse::Accepted(content) = answer else {
            return Ok(answer);
        };
        let content = fill_in_defaults(content, &elicitation.request);
        // A handler that accepted a form which cannot be parsed here has validated it itself.
        if let Ok(form) = ServerForm::parse(&elicitation.request) {
            form.validate(&content)
                .map_err(|reason| format!("invalid form values: {reason}"))?;
        }
        Ok(ElicitationResponse::Accepted(content))
    }

    /// Answers a sampling request. A failure is reported and declines the request.
    pub(crate) async fn sample(
        &self,
        request: CreateMessageRequestParams,
        origin: ServerRequestOrigin<'_>,
        server_cancel: &CancellationToken,
    ) -> Result<CreateMessageResult, ErrorData> {
        let response = self.handle_sampling(&request, origin, server_cancel).await;
        let response = response.and_then(|sampled| {
            serde_json::from_value(sampled.into_result()).map_err(|error| error.to_string())
        });
        response.map_err(|reason| {
            self.report_declined("sampling", &reason);
            ErrorData::new(
                rmcp::model::ErrorCode(-1),
                format!("declined: {reason}"),
                None,
            )
        })
    }

    async fn handle_sampling(
        &self,
        request: &CreateMessageRequestParams,
        origin: ServerRequestOrigin<'_>,
        server_cancel: &CancellationToken,
    ) -> Result<McpSamplingResponse, String> {
        let handler = self.handlers.sampling_for(self.sampling);
        let handler = handler.ok_or("no model is available")?;
        let open = CancellableServerRequest {
            pending: self.begin_request(origin)?,
            server_cancel,
        };
        let pending = &open.pending;
        let run = pending.scope_id.clone();
        let run = run.ok_or("calls of several runs are in flight")?;
        let request = serde_json::to_value(request).map_err(|error| error.to_string())?;
        let sampling = McpSamplingRequest::parse(&self.server_name, run, &request)?;
        if self.sampling == McpSampling::Prompt {
            let _paused = pending.pause_for_person();
            let gate = &pending.counted_call.context.gate;
            let approved = gate
                .request_approval(sampling.approval_request(), open.until_obsolete())
                .await;
            approved.map_err(|error| error.message)?;
        }
        let _paused = pending.pause_for_model();
        tokio::select! {
            biased;
            () = open.until_obsolete() => Err("the answer is no longer needed".to_owned()),
            answer = tokio::time::timeout(SAMPLING_TIMEOUT, handler.sample(&sampling)) => match answer {
                Ok(answer) => answer.map_err(|error| error.to_string()),
                Err(_) => Err(format!("the model did not answer within {} s", SAMPLING_TIMEOUT.as_secs())),
            },
        }
    }

    fn begin_request(
        &self,
        origin: ServerRequestOrigin<'_>,
    ) -> Result<PendingServerRequest, &'static str> {
        match origin {
            ServerRequestOrigin::UnknownCall => self.in_flight.begin_request(),
            ServerRequestOrigin::Call(call) => self.in_flight.begin_request_for(call),
        }
    }

    /// Reports that a request of the server was declined, as progress of a call in flight.
    fn report_declined(&self, request: &str, reason: &str) {
        let (name, short) = (&self.server_name, shorten(reason));
        let message = format!("MCP server {name}: {request} declined: {short}");
        tracing::info!(server = name, request, reason, "declined");
        let message = match self.declined.fetch_add(1, Ordering::Relaxed) {
            before if before < MAX_REPORTED_DECLINES => message,
            MAX_REPORTED_DECLINES => {
                format!("MCP server {name}: further requests are declined without a message")
            }
            _ => return,
        };
        if let Some(call) = self.in_flight.oldest() {
            emit_progress(call, LogLevel::Warn, message);
        }
    }
}

fn emit_progress(call: CallContext, level: LogLevel, message: String) {
    call.events.emit(RuntimeEvent::ScriptProgress {
        script_id: call.scope_id,
        level,
        message,
    });
}

impl ClientHandler for McpClientHandler {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        if let Some(handler) = &self.handlers.elicitation {
            let forms =
                ElicitationCapability::new().with_form(FormElicitationCapability::default());
            capabilities.elicitation = Some(match handler.supported_modes() {
                ElicitationModes::FormOnly => forms,
                ElicitationModes::FormAndUrl => forms.with_url(UrlElicitationCapability::default()),
            });
        }
        if self.handlers.sampling_for(self.sampling).is_some() {
            capabilities.sampling = Some(Default::default());
        }
        let client = Implementation::new(crate::IMPLEMENTATION_NAME, env!("CARGO_PKG_VERSION"));
        // The newest version that begins with a handshake.
        ClientConfig::new(capabilities, client).with_protocol_version(ProtocolVersion::V_2025_11_25)
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Ok(self
            .elicit(request, ServerRequestOrigin::UnknownCall, &context.ct)
            .await)
    }

    async fn create_message(
        &self,
        request: CreateMessageRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.sample(request, ServerRequestOrigin::UnknownCall, &context.ct)
            .await
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let Some(call) = self.in_flight.record_progress(&params.progress_token) else {
            return;
        };
        let position = match params.total {
            Some(total) => format!("{} of {total}", params.progress),
            None => params.progress.to_string(),
        };
        let text = params.message.unwrap_or_default();
        let text: String = text.chars().take(200).collect();
        let message = format!("{}: {position} {text}", self.server_name);
        emit_progress(call, LogLevel::Log, message.trim_end().to_owned());
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        if let Some(server) = self.server.upgrade() {
            server.spawn_catalogue_refresh();
        }
    }
}
