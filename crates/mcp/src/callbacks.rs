//! Handles what a server sends during calls: elicitation and sampling requests, progress, and
//! changes of its tool list.

// Newer protocol versions deprecate sampling; servers of older versions still use it.
#![expect(deprecated)]

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
use selvedge_protocol::{Event, LogLevel, McpSampling};
use selvedge_tools::{Call, WaitsFor};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::AskError;
use crate::calls::{Calls, InHand, Question};
use crate::form::{Form, with_defaults};
use crate::link::short;
use crate::sampling::{PATIENCE, Sampled, Sampling};
use crate::server::Server;

/// Handlers of the requests that servers send to their client.
///
/// A capability without a handler is not announced to servers, and a request for it is declined.
#[derive(Clone, Default)]
pub struct Asked {
    /// Handles elicitation requests.
    pub person: Option<Arc<dyn AskPerson>>,
    /// Handles sampling requests.
    pub model: Option<Arc<dyn AskModel>>,
}

impl Asked {
    /// Returns the sampling handler, unless the server's configuration turns sampling off.
    fn model_for(&self, sampling: McpSampling) -> Option<&Arc<dyn AskModel>> {
        let model = self.model.as_ref();
        model.filter(|_| sampling != McpSampling::Never)
    }

    /// Returns the part of a catalogue's cache key that stands for the announced capabilities.
    ///
    /// A server may list other tools to a client with other capabilities.
    pub(crate) fn mark(&self, sampling: McpSampling) -> &'static str {
        match (&self.person, self.model_for(sampling)) {
            (None, None) => "",
            (Some(_), None) => "-person",
            (None, Some(_)) => "-model",
            (Some(_), Some(_)) => "-person-model",
        }
    }
}

/// Shows a server's form to a person.
pub trait AskPerson: Send + Sync {
    /// Resolves to the person's answer, or to the reason why no person was asked.
    ///
    /// The future is dropped when the answer is no longer needed.
    fn elicit<'a>(&'a self, request: &'a Elicitation) -> BoxFuture<'a, Result<Elicited, AskError>>;

    /// Returns the elicitation modes that this handler supports.
    fn shows(&self) -> Shows {
        Shows::Fields
    }
}

/// Elicitation modes that a handler supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// Forms with fields.
    Fields,
    /// Forms with fields, and URLs that the person opens.
    Addresses,
}

/// An elicitation request of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Elicitation {
    /// Name of the server that sent the request.
    pub server: String,
    /// Id of the run or turn whose call caused the request. `None` if calls of several runs are
    /// in flight.
    pub run: Option<String>,
    /// The `params` of the `elicitation/create` request.
    pub request: Value,
}

/// Sends a server's sampling request to a model. It is called after the request was approved.
pub trait AskModel: Send + Sync {
    /// Resolves to the model's answer, or to the reason why there is none.
    ///
    /// The future is dropped when the answer is no longer needed.
    fn sample<'a>(&'a self, request: &'a Sampling) -> BoxFuture<'a, Result<Sampled, AskError>>;
}

/// A person's response to an elicitation request.
#[derive(Debug, Clone, PartialEq)]
pub enum Elicited {
    /// The values of the form. For a URL, the person agreed to open it and the value is ignored.
    Accepted(Value),
    /// The person refused to answer.
    Declined,
    /// The person dismissed the form, or the answer was no longer needed.
    Cancelled,
}

/// The client's side of one connection: answers requests and receives notifications.
pub(crate) struct Callbacks {
    pub(crate) server: Weak<Server>,
    pub(crate) name: String,
    pub(crate) asked: Asked,
    pub(crate) sampling: McpSampling,
    pub(crate) calls: Arc<Calls>,
}

/// The call during which a server sent a request.
#[derive(Clone, Copy)]
pub(crate) enum Asker<'a> {
    /// The request does not name a call.
    Unnamed,
    /// The request came as the response to this call.
    Of(&'a Arc<InHand>),
}

/// A request of a server that has not been answered yet.
struct Open<'a> {
    question: Question,
    /// Cancelled when the server cancels its request.
    taken_back: &'a CancellationToken,
}

impl Open<'_> {
    /// Waits until the answer is no longer needed.
    async fn pointless(&self) {
        tokio::select! {
            () = self.question.pointless() => {}
            () = self.taken_back.cancelled() => {}
        }
    }
}

impl Callbacks {
    /// Answers an elicitation request. A failure is reported and declines the request.
    pub(crate) async fn elicit(
        &self,
        request: ElicitRequestParams,
        origin: Asker<'_>,
        server_cancel: &CancellationToken,
    ) -> ElicitResult {
        let response = self.filled_in(&request, origin, server_cancel).await;
        let response = response.unwrap_or_else(|why| {
            self.declined("elicitation", &why);
            Elicited::Declined
        });
        match response {
            Elicited::Accepted(content) => {
                let accepted = ElicitResult::new(ElicitationAction::Accept);
                match request {
                    ElicitRequestParams::FormElicitationParams { .. } => {
                        accepted.with_content(content)
                    }
                    _ => accepted,
                }
            }
            Elicited::Declined => ElicitResult::new(ElicitationAction::Decline),
            Elicited::Cancelled => ElicitResult::new(ElicitationAction::Cancel),
        }
    }

    async fn filled_in(
        &self,
        request: &ElicitRequestParams,
        origin: Asker<'_>,
        server_cancel: &CancellationToken,
    ) -> Result<Elicited, String> {
        let person = self.asked.person.as_ref();
        let person = person.ok_or("no interactive terminal")?;
        let open = Open {
            question: self.question(origin)?,
            taken_back: server_cancel,
        };
        let pending = &open.question;
        if let Some(why) = pending.by.call.gate.why_shut() {
            return Err(why.to_owned());
        }
        let request = serde_json::to_value(request).map_err(|error| error.to_string())?;
        let elicitation = Elicitation {
            server: self.name.clone(),
            run: pending.run.clone(),
            request,
        };
        let _paused = pending.waits(WaitsFor::Person);
        let answer = tokio::select! {
            biased;
            () = open.pointless() => Elicited::Cancelled,
            answer = person.elicit(&elicitation) => answer.map_err(|error| error.to_string())?,
        };
        let Elicited::Accepted(content) = answer else {
            return Ok(answer);
        };
        let content = with_defaults(content, &elicitation.request);
        // A handler that accepted a form which cannot be parsed here has validated it itself.
        if let Ok(form) = Form::read(&elicitation.request) {
            form.check(&content)
                .map_err(|why| format!("invalid form values: {why}"))?;
        }
        Ok(Elicited::Accepted(content))
    }

    /// Answers a sampling request. A failure is reported and declines the request.
    pub(crate) async fn sample(
        &self,
        request: CreateMessageRequestParams,
        origin: Asker<'_>,
        server_cancel: &CancellationToken,
    ) -> Result<CreateMessageResult, ErrorData> {
        let response = self.answered(&request, origin, server_cancel).await;
        let response = response.and_then(|sampled| {
            serde_json::from_value(sampled.result()).map_err(|error| error.to_string())
        });
        response.map_err(|why| {
            self.declined("sampling", &why);
            ErrorData::new(rmcp::model::ErrorCode(-1), format!("declined: {why}"), None)
        })
    }

    async fn answered(
        &self,
        request: &CreateMessageRequestParams,
        origin: Asker<'_>,
        server_cancel: &CancellationToken,
    ) -> Result<Sampled, String> {
        let model = self.asked.model_for(self.sampling);
        let model = model.ok_or("no model is available")?;
        let open = Open {
            question: self.question(origin)?,
            taken_back: server_cancel,
        };
        let pending = &open.question;
        let run = pending.run.clone();
        let run = run.ok_or("calls of several runs are in flight")?;
        let request = serde_json::to_value(request).map_err(|error| error.to_string())?;
        let sampling = Sampling::read(&self.name, run, &request)?;
        if self.sampling == McpSampling::Prompt {
            let _paused = pending.waits(WaitsFor::Person);
            let gate = &pending.by.call.gate;
            let approved = gate.agree(sampling.wish(), open.pointless()).await;
            approved.map_err(|error| error.message)?;
        }
        let _paused = pending.waits(WaitsFor::Model);
        tokio::select! {
            biased;
            () = open.pointless() => Err("the answer is no longer needed".to_owned()),
            answer = tokio::time::timeout(PATIENCE, model.sample(&sampling)) => match answer {
                Ok(answer) => answer.map_err(|error| error.to_string()),
                Err(_) => Err(format!("the model did not answer within {} s", PATIENCE.as_secs())),
            },
        }
    }

    fn question(&self, origin: Asker<'_>) -> Result<Question, &'static str> {
        match origin {
            Asker::Unnamed => self.calls.asks(),
            Asker::Of(call) => self.calls.asks_for(call),
        }
    }

    /// Reports that a request of the server was declined, as progress of a call in flight.
    fn declined(&self, request: &str, why: &str) {
        let (name, short) = (&self.name, short(why));
        let message = format!("MCP server {name}: {request} declined: {short}");
        tracing::info!(server = name, request, why, "declined");
        if let Some(call) = self.calls.any() {
            progress(call, LogLevel::Warn, message);
        }
    }
}

fn progress(call: Call, level: LogLevel, message: String) {
    call.events.emit(Event::Progress {
        script_id: call.scope_id,
        level,
        message,
    });
}

impl ClientHandler for Callbacks {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        if let Some(person) = &self.asked.person {
            let forms =
                ElicitationCapability::new().with_form(FormElicitationCapability::default());
            capabilities.elicitation = Some(match person.shows() {
                Shows::Fields => forms,
                Shows::Addresses => forms.with_url(UrlElicitationCapability::default()),
            });
        }
        if self.asked.model_for(self.sampling).is_some() {
            capabilities.sampling = Some(Default::default());
        }
        let client = Implementation::new(crate::NAME, env!("CARGO_PKG_VERSION"));
        // The newest version that begins with a handshake.
        ClientConfig::new(capabilities, client).with_protocol_version(ProtocolVersion::V_2025_11_25)
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Ok(self.elicit(request, Asker::Unnamed, &context.ct).await)
    }

    async fn create_message(
        &self,
        request: CreateMessageRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.sample(request, Asker::Unnamed, &context.ct).await
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let Some(call) = self.calls.progress(&params.progress_token) else {
            return;
        };
        let position = match params.total {
            Some(total) => format!("{} of {total}", params.progress),
            None => params.progress.to_string(),
        };
        let text = params.message.unwrap_or_default();
        let text: String = text.chars().take(200).collect();
        let message = format!("{}: {position} {text}", self.name);
        progress(call, LogLevel::Log, message.trim_end().to_owned());
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        if let Some(server) = self.server.upgrade() {
            server.tools_changed();
        }
    }
}
