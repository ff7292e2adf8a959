//! Tools of OpenAI clients: the agent calls them, and the client runs them.
//!
//! A call ends the response of the client's request; the turn waits. The client sends the result in
//! its next request, whose response is the rest of the turn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use selvedge_protocol::{
    ApprovalRequirement, CallReach, CallTimeout, ResultView, ToolSpec, new_id,
};
use selvedge_tools::{CallContext, CallFuture, FieldCase, Tool, ToolError, ToolOutput};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{RwLock, oneshot};

use crate::api_error::ApiError;
use crate::running_answer::RunningAnswer;

/// How long a client may take to send the result of a call.
const CLIENT_CALL_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Most tools that a client can offer.
const MAX_CLIENT_TOOLS: usize = 128;
/// Longest name of a client's tool, in characters.
const MAX_TOOL_NAME_CHARS: usize = 64;

/// A tool that a client runs.
#[derive(Clone)]
pub struct ClientTool {
    spec: ToolSpec,
    calls: UnboundedSender<ClientCall>,
}

/// A call of a client's tool, and where its result goes.
pub(crate) struct ClientCall {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
    pub(crate) reply: oneshot::Sender<String>,
}

impl ClientTool {
    /// Returns the name of the tool.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Reads the function tools of a request, in the form of chat completions or of responses.
    pub(crate) fn parse_all(
        tools: &Value,
        calls: &UnboundedSender<ClientCall>,
    ) -> Result<Vec<Self>, ApiError> {
        let tools = match tools {
            Value::Null => &[],
            Value::Array(tools) => tools.as_slice(),
            _ => return Err(ApiError::invalid("`tools` is not a list")),
        };
        if tools.len() > MAX_CLIENT_TOOLS {
            let message = format!("more than {MAX_CLIENT_TOOLS} tools");
            return Err(ApiError::invalid(message));
        }
        let parsed = tools.iter().map(|tool| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function["name"].as_str();
            match name.filter(|_| tool["type"] == "function") {
                Some(name) if !is_tool_name(name) => Err(ApiError::invalid(format!(
                    "the name of a tool must have 1 to {MAX_TOOL_NAME_CHARS} letters, digits, \
                     `_` and `-`"
                ))),
                Some(name) => Ok(Self {
                    spec: client_spec(name, function),
                    calls: calls.clone(),
                }),
                None => Err(ApiError::invalid(
                    "only tools of the type `function` are supported",
                )),
            }
        });
        parsed.collect()
    }
}

/// Returns whether a client's tool may have a name.
pub(crate) fn is_tool_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (1..=MAX_TOOL_NAME_CHARS).contains(&name.len()) && name.chars().all(is_plain)
}

fn client_spec(name: &str, function: &Value) -> ToolSpec {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let plain = |c| if is_plain(c) { c } else { '_' };
    let schema = match &function["parameters"] {
        Value::Object(schema) => Value::Object(schema.clone()),
        _ => json!({"type": "object", "properties": {}}),
    };
    ToolSpec {
        name: name.to_owned(),
        js_name: name.chars().map(plain).collect(),
        description: function["description"].as_str().unwrap_or(name).to_owned(),
        input_schema: schema,
        output_schema: None,
        read_only: false,
        approval: ApprovalRequirement::Never,
        aliases: Vec::new(),
        positional: &[],
        explanatory: &[],
        reach: CallReach::Service,
        timeout: CallTimeout::new(CLIENT_CALL_TIMEOUT),
        structured_defaults: &[],
        result_view: ResultView::Plain,
    }
}

impl Tool for ClientTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn field_case(&self) -> FieldCase {
        FieldCase::Verbatim
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        async move {
            let gone = || ToolError::new("the client that runs this tool is gone");
            let (reply, result) = oneshot::channel();
            let call = ClientCall {
                id: new_id("call"),
                name: self.spec.name.clone(),
                arguments: args.to_string(),
                reply,
            };
            self.calls.send(call).map_err(|_| gone())?;
            let text = result.await.map_err(|_| gone())?;
            // A result that is JSON is a value in scripts.
            let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
            Ok(ToolOutput::from(value))
        }
        .boxed()
    }
}

/// The tools of clients that wait for their turns, and the turns that wait for clients.
#[derive(Default)]
pub(crate) struct ClientTools {
    /// Tools by session and number of the message that they belong to.
    tools: Mutex<HashMap<(String, u32), Vec<ClientTool>>>,
    /// Locked for writing while a message with tools is stored, so that its turn finds them.
    storing: RwLock<()>,
    waiting: Mutex<Vec<WaitingTurn>>,
}

/// The tools that clients sent with messages to one session.
#[derive(Clone)]
pub struct SessionClientTools {
    pub(crate) tools: Arc<ClientTools>,
    pub(crate) session: String,
}

impl SessionClientTools {
    /// Returns the tools that belong to a message, once it is claimed.
    pub async fn of_message(&self, number: u32) -> Vec<ClientTool> {
        let _stored = self.tools.storing.read().await;
        let all = self.tools.lock_tools();
        let tools = all.get(&(self.session.clone(), number));
        tools.cloned().unwrap_or_default()
    }
}

/// A turn that waits for results of its client.
struct WaitingTurn {
    token: String,
    since: Instant,
    answer: RunningAnswer,
}

impl ClientTools {
    /// Stores a message with its tools. `queue` returns session and number of the message.
    pub(crate) async fn queue_with<T>(
        &self,
        tools: Vec<ClientTool>,
        queue: impl Future<Output = Result<T, ApiError>>,
        place: impl FnOnce(&T) -> (String, u32),
    ) -> Result<T, ApiError> {
        if tools.is_empty() {
            return queue.await;
        }
        let _storing = self.storing.write().await;
        let queued = queue.await?;
        self.lock_tools().insert(place(&queued), tools);
        Ok(queued)
    }

    /// Forgets the tools of a message. Its turn keeps them if it has begun.
    pub(crate) fn forget(&self, session: &str, number: u32) {
        self.lock_tools().remove(&(session.to_owned(), number));
    }

    fn lock_tools(&self) -> MutexGuard<'_, HashMap<(String, u32), Vec<ClientTool>>> {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_waiting(&self) -> MutexGuard<'_, Vec<WaitingTurn>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a turn until its client sends the results of its calls.
    pub(crate) fn park(&self, token: &str, answer: RunningAnswer) {
        let mut waiting = self.lock_waiting();
        // Their calls have timed out.
        let (old, kept) = std::mem::take(&mut *waiting)
            .into_iter()
            .partition(|turn| turn.since.elapsed() > CLIENT_CALL_TIMEOUT);
        *waiting = kept;
        waiting.push(WaitingTurn {
            token: token.to_owned(),
            since: Instant::now(),
            answer,
        });
        drop(waiting);
        // Interrupts their turns, which may take locks.
        drop::<Vec<WaitingTurn>>(old);
    }

    /// Returns the turn of a token that waits for one of these calls, with their results delivered.
    pub(crate) fn resume(
        &self,
        token: &str,
        results: &[(String, String)],
    ) -> Result<RunningAnswer, ApiError> {
        let mut waiting = self.lock_waiting();
        let found = waiting.iter().position(|turn| {
            turn.token == token && results.iter().any(|(id, _)| turn.answer.waits_for(id))
        });
        let Some(found) = found else {
            return Err(
                ApiError::conflict("no turn waits for these results of tools")
                    .hint("send the conversation with a new message of the user at its end"),
            );
        };
        let mut answer = waiting.swap_remove(found).answer;
        answer.deliver(results);
        Ok(answer)
    }
}
