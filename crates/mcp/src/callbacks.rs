//! What servers ask of us: a form for the person, a word from the model, and news about their tools.

// Sampling leaves the protocol; servers that know it still ask.
#![expect(deprecated)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use rmcp::model::{
    ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams,
    ElicitResult, ElicitationAction, ElicitationCapability, ErrorData, FormElicitationCapability, Implementation,
    ProgressNotificationParam, ProgressToken, ProtocolVersion,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{ClientHandler, RoleClient};
use selvedge_protocol::{Event, LogLevel};
use selvedge_tools::Call;
use serde_json::Value;

use crate::server::Server;

/// Whom servers can turn to. What is not there is not offered, and declined where it is asked for all the same.
#[derive(Clone, Default)]
pub struct Asked {
    /// Shows a form to a person.
    pub person: Option<Arc<dyn AskPerson>>,
    /// Puts a question to a model.
    pub model: Option<Arc<dyn AskModel>>,
}

/// Shows a server's form to a person.
pub trait AskPerson: Send + Sync {
    /// `request` is the `elicitation/create` request's `params`; `run` the script whose call it belongs to, where that is
    /// certain. Resolves to the person's answer.
    fn elicit<'a>(&'a self, server: &'a str, run: Option<String>, request: Value) -> BoxFuture<'a, Elicited>;
}

/// Puts a server's question to a model.
pub trait AskModel: Send + Sync {
    /// `request` is the `sampling/createMessage` request's `params`, the answer its result. An error is the reason why not.
    fn sample<'a>(
        &'a self,
        server: &'a str,
        run: Option<String>,
        request: Value,
    ) -> BoxFuture<'a, Result<Value, String>>;
}

/// What a person made of a form.
#[derive(Debug, Clone, PartialEq)]
pub enum Elicited {
    /// Filled in.
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
    pub(crate) calls: Arc<Calls>,
}

/// The calls a server has in hand, by the token its progress comes with.
#[derive(Default)]
pub(crate) struct Calls {
    /// Scripts with calls in its hands, from before they are sent: it may ask something before we know that it has them.
    runs: Mutex<Vec<String>>,
    underway: Mutex<HashMap<ProgressToken, Call>>,
    last_progress: Mutex<Option<Instant>>,
}

/// Least time between two words of progress that are passed on.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

impl Calls {
    pub(crate) fn begin(self: &Arc<Self>, token: ProgressToken, call: Call) -> Underway {
        self.underway.lock().unwrap_or_else(PoisonError::into_inner).insert(token.clone(), call);
        Underway { calls: self.clone(), token }
    }

    /// A script is about to call the server.
    pub(crate) fn enter(self: &Arc<Self>, run: &str) -> Entered {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).push(run.to_owned());
        Entered { calls: self.clone(), run: run.to_owned() }
    }

    /// The one script that calls the server right now.
    fn only_run(&self) -> Option<String> {
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let first = runs.first()?;
        runs.iter().all(|run| run == first).then(|| first.clone())
    }

    /// The call whose progress it is, unless progress was told just now.
    fn find(&self, token: &ProgressToken) -> Option<Call> {
        let mut last = self.last_progress.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() < PROGRESS_INTERVAL) {
            return None;
        }
        *last = Some(Instant::now());
        self.underway.lock().unwrap_or_else(PoisonError::into_inner).get(token).cloned()
    }
}

/// A script that calls the server.
pub(crate) struct Entered {
    calls: Arc<Calls>,
    run: String,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut runs = self.calls.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = runs.iter().position(|run| *run == self.run) {
            runs.swap_remove(at);
        }
    }
}

/// A call in the hands of a server.
pub(crate) struct Underway {
    calls: Arc<Calls>,
    token: ProgressToken,
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.calls.underway.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.token);
    }
}

impl Callbacks {
    /// A form for the person.
    pub(crate) async fn elicit(&self, request: ElicitRequestParams) -> ElicitResult {
        let request = serde_json::to_value(&request).unwrap_or_default();
        let answer = match &self.asked.person {
            Some(person) => person.elicit(&self.name, self.calls.only_run(), request.clone()).await,
            None => Elicited::Declined,
        };
        match answer {
            Elicited::Accepted(content) => {
                ElicitResult::new(ElicitationAction::Accept).with_content(with_defaults(content, &request))
            }
            Elicited::Declined => ElicitResult::new(ElicitationAction::Decline),
            Elicited::Cancelled => ElicitResult::new(ElicitationAction::Cancel),
        }
    }

    /// A question for the model.
    pub(crate) async fn sample(&self, request: CreateMessageRequestParams) -> Result<CreateMessageResult, ErrorData> {
        let declined = |why: String| ErrorData::new(rmcp::model::ErrorCode(-1), why, None);
        let Some(model) = &self.asked.model else {
            return Err(declined("there is no model to ask here".to_owned()));
        };
        let request = serde_json::to_value(&request).map_err(|error| declined(error.to_string()))?;
        let answer = model.sample(&self.name, self.calls.only_run(), request).await.map_err(declined)?;
        serde_json::from_value(answer).map_err(|error| declined(format!("the model's answer cannot be read: {error}")))
    }
}

/// What was filled in, and for the rest what the form says where nothing is.
fn with_defaults(mut content: Value, request: &Value) -> Value {
    let fields = request["requestedSchema"]["properties"].as_object().into_iter().flatten();
    if let Value::Object(content) = &mut content {
        for (name, field) in fields {
            if let (Some(default), false) = (field.get("default"), content.contains_key(name)) {
                content.insert(name.clone(), default.clone());
            }
        }
    }
    content
}

impl ClientHandler for Callbacks {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        if self.asked.person.is_some() {
            capabilities.elicitation =
                Some(ElicitationCapability::new().with_form(FormElicitationCapability::default()));
        }
        if self.asked.model.is_some() {
            capabilities.sampling = Some(Default::default());
        }
        ClientConfig::new(capabilities, Implementation::new(crate::NAME, env!("CARGO_PKG_VERSION")))
            // The newest version that begins with a handshake.
            .with_protocol_version(ProtocolVersion::V_2025_11_25)
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Ok(self.elicit(request).await)
    }

    async fn create_message(
        &self,
        request: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.sample(request).await
    }

    async fn on_progress(&self, progress: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let Some(call) = self.calls.find(&progress.progress_token) else { return };
        let far = match progress.total {
            Some(total) => format!("{} of {total}", progress.progress),
            None => progress.progress.to_string(),
        };
        let words: String = progress.message.unwrap_or_default().chars().take(200).collect();
        let message = format!("{}: {far} {words}", self.name).trim_end().to_owned();
        call.events.emit(Event::Progress { script_id: call.scope_id, level: LogLevel::Log, message });
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        if let Some(server) = self.server.upgrade() {
            server.tools_changed();
        }
    }
}
