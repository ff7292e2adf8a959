//! What servers ask of us: a form for the person, a word from the model, and news about their tools.

// Sampling leaves the protocol; servers that know it still ask.
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

/// Whom servers can turn to. What is not there is not offered, and declined where it is asked for all the same.
#[derive(Clone, Default)]
pub struct Asked {
    /// Shows a form to a person.
    pub person: Option<Arc<dyn AskPerson>>,
    /// Puts a question to a model.
    pub model: Option<Arc<dyn AskModel>>,
}

impl Asked {
    /// The model, for a server that may ask it.
    fn model_for(&self, sampling: McpSampling) -> Option<&Arc<dyn AskModel>> {
        let model = self.model.as_ref();
        model.filter(|_| sampling != McpSampling::Never)
    }

    /// Names what such a server is offered: it may have other tools for those who offer less.
    pub(crate) fn mark(&self, sampling: McpSampling) -> &'static str {
        match (&self.person, self.model_for(sampling)) {
            (None, None) => "",
            (Some(_), None) => "-person",
            (None, Some(_)) => "-model",
            (Some(_), Some(_)) => "-person-model",
        }
    }
}

/// Shows a server's form to a person. Dropped when nobody needs the answer any more.
pub trait AskPerson: Send + Sync {
    /// Resolves to the person's answer; an error is the reason why nobody was asked.
    fn elicit<'a>(&'a self, wanted: &'a Elicitation) -> BoxFuture<'a, Result<Elicited, AskError>>;

    /// Which forms it can show.
    fn shows(&self) -> Shows {
        Shows::Fields
    }
}

/// Which forms can be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// Those with fields.
    Fields,
    /// Addresses to be opened, too.
    Addresses,
}

/// A server's wish for a person's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Elicitation {
    /// Who asks.
    pub server: String,
    /// The script or turn whose call it belongs to, where that is certain.
    pub run: Option<String>,
    /// The `params` of the `elicitation/create` request.
    pub request: Value,
}

/// Puts a server's question to a model. The gate has agreed to it. Dropped when nobody needs the answer any more.
pub trait AskModel: Send + Sync {
    /// Resolves to the model's answer; an error is the reason why there is none.
    fn sample<'a>(&'a self, asked: &'a Sampling) -> BoxFuture<'a, Result<Sampled, AskError>>;
}

/// What a person made of a form.
#[derive(Debug, Clone, PartialEq)]
pub enum Elicited {
    /// Filled in; of an address, that it is opened.
    Accepted(Value),
    /// Not wanted.
    Declined,
    /// Left.
    Cancelled,
}

/// Takes what one server asks and tells.
pub(crate) struct Callbacks {
    pub(crate) server: Weak<Server>,
    pub(crate) name: String,
    pub(crate) asked: Asked,
    pub(crate) sampling: McpSampling,
    pub(crate) calls: Arc<Calls>,
}

/// Which call of the server's a question belongs to.
#[derive(Clone, Copy)]
pub(crate) enum Asker<'a> {
    /// It does not say.
    Unnamed,
    /// This one.
    Of(&'a Arc<InHand>),
}

/// What a server asks, as long as it wants to know.
struct Open<'a> {
    question: Question,
    /// The server has thought better of it.
    taken_back: &'a CancellationToken,
}

impl Open<'_> {
    /// Nobody needs the answer any more.
    async fn pointless(&self) {
        tokio::select! {
            () = self.question.pointless() => {}
            () = self.taken_back.cancelled() => {}
        }
    }
}

impl Callbacks {
    /// A form for the person.
    pub(crate) async fn elicit(
        &self,
        request: ElicitRequestParams,
        asker: Asker<'_>,
        taken_back: &CancellationToken,
    ) -> ElicitResult {
        let filled_in = self.filled_in(&request, asker, taken_back).await;
        let filled_in = filled_in.unwrap_or_else(|why| {
            self.declined("a person", &why);
            Elicited::Declined
        });
        match filled_in {
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
        asker: Asker<'_>,
        taken_back: &CancellationToken,
    ) -> Result<Elicited, String> {
        let person = self.asked.person.as_ref();
        let person = person.ok_or("there is no terminal to ask at")?;
        let open = Open {
            question: self.question(asker)?,
            taken_back,
        };
        let question = &open.question;
        if let Some(why) = question.by.call.gate.why_shut() {
            return Err(why.to_owned());
        }
        let request = serde_json::to_value(request).map_err(|error| error.to_string())?;
        let wanted = Elicitation {
            server: self.name.clone(),
            run: question.run.clone(),
            request,
        };
        let _held = question.waits(WaitsFor::Person);
        let answer = tokio::select! {
            biased;
            () = open.pointless() => Elicited::Cancelled,
            answer = person.elicit(&wanted) => answer.map_err(|error| error.to_string())?,
        };
        let Elicited::Accepted(content) = answer else {
            return Ok(answer);
        };
        let content = with_defaults(content, &wanted.request);
        // Whoever shows forms we cannot read has looked after them.
        if let Ok(form) = Form::read(&wanted.request) {
            form.check(&content)
                .map_err(|why| format!("what was filled in does not fit: {why}"))?;
        }
        Ok(Elicited::Accepted(content))
    }

    /// A question for the model.
    pub(crate) async fn sample(
        &self,
        request: CreateMessageRequestParams,
        asker: Asker<'_>,
        taken_back: &CancellationToken,
    ) -> Result<CreateMessageResult, ErrorData> {
        let answered = self.answered(&request, asker, taken_back).await;
        let answered = answered.and_then(|sampled| {
            serde_json::from_value(sampled.result()).map_err(|error| error.to_string())
        });
        answered.map_err(|why| {
            self.declined("your model", &why);
            ErrorData::new(rmcp::model::ErrorCode(-1), format!("declined: {why}"), None)
        })
    }

    async fn answered(
        &self,
        request: &CreateMessageRequestParams,
        asker: Asker<'_>,
        taken_back: &CancellationToken,
    ) -> Result<Sampled, String> {
        let model = self.asked.model_for(self.sampling);
        let model = model.ok_or("there is no model to ask here")?;
        let open = Open {
            question: self.question(asker)?,
            taken_back,
        };
        let question = &open.question;
        let run = question.run.clone();
        let run = run.ok_or("it cannot be told on whose behalf")?;
        let request = serde_json::to_value(request).map_err(|error| error.to_string())?;
        let sampling = Sampling::read(&self.name, run, &request)?;
        if self.sampling == McpSampling::Prompt {
            let _held = question.waits(WaitsFor::Person);
            let gate = &question.by.call.gate;
            let agreed = gate.agree(sampling.wish(), open.pointless()).await;
            agreed.map_err(|error| error.message)?;
        }
        let _held = question.waits(WaitsFor::Model);
        tokio::select! {
            biased;
            () = open.pointless() => Err("nobody waits for the answer any more".to_owned()),
            answer = tokio::time::timeout(PATIENCE, model.sample(&sampling)) => match answer {
                Ok(answer) => answer.map_err(|error| error.to_string()),
                Err(_) => Err(format!("the model did not answer within {} s", PATIENCE.as_secs())),
            },
        }
    }

    fn question(&self, asker: Asker<'_>) -> Result<Question, &'static str> {
        match asker {
            Asker::Unnamed => self.calls.asks(),
            Asker::Of(in_hand) => self.calls.asks_for(in_hand),
        }
    }

    /// Says that a server was declined something, and why.
    fn declined(&self, whom: &str, why: &str) {
        let (name, short) = (&self.name, short(why));
        let message = format!("{name} asked {whom} something and was declined: {short}");
        tracing::info!(server = name, whom, why, "declined");
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
        let us = Implementation::new(crate::NAME, env!("CARGO_PKG_VERSION"));
        // The newest version that begins with a handshake.
        ClientConfig::new(capabilities, us).with_protocol_version(ProtocolVersion::V_2025_11_25)
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
        told: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let Some(call) = self.calls.progress(&told.progress_token) else {
            return;
        };
        let far = match told.total {
            Some(total) => format!("{} of {total}", told.progress),
            None => told.progress.to_string(),
        };
        let words = told.message.unwrap_or_default();
        let words: String = words.chars().take(200).collect();
        let message = format!("{}: {far} {words}", self.name);
        progress(call, LogLevel::Log, message.trim_end().to_owned());
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        if let Some(server) = self.server.upgrade() {
            server.tools_changed();
        }
    }
}
