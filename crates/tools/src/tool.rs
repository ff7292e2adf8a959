//! The [`Tool`] trait, and helpers to implement it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use selvedge_protocol::{
    ApprovalRequirement, CallReach, CallTimeout, ErrorCode, EventSink, OutputPart, Preview,
    ResultView, ResumeAs, RuleScope, ToolSpec,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::{CallGate, Risk, ScopeNotes, ScopeResources, camel_case};

/// Future of a call's result.
pub type CallFuture<'a> = BoxFuture<'a, Result<ToolOutput, ToolError>>;

/// A tool that scripts and models can call. [`spec_of`] and [`typed_call`] implement `spec` and
/// `call` for a tool whose arguments and result are Rust types.
pub trait Tool: Send + Sync {
    /// Returns name, description and schemas. Called once, when the tool is registered.
    fn spec(&self) -> ToolSpec;

    /// Returns the risk of a call with these arguments, which decides whether it needs approval.
    fn risk(&self, args: &Value) -> Risk {
        let _ = args;
        Risk::Harmless
    }

    /// Returns whether a call with these arguments changes nothing. Called only if the spec does
    /// not declare the whole tool read-only.
    fn is_read_only(&self, args: &Value) -> bool {
        let _ = args;
        false
    }

    /// Returns what this result of a successful call means to a resumed run. Override it if a
    /// result can report a failure or unfinished work. Not asked for calls that only read and cost
    /// nothing: they always run again.
    fn resume_as(&self, value: &Value) -> ResumeAs {
        let _ = value;
        ResumeAs::Reuse
    }

    /// Returns whether a call costs money. A resumed run reuses the result of such a call even if
    /// the call only read something.
    fn costs_money(&self) -> bool {
        false
    }

    /// Returns what an approver is shown of the call. It may be slow: it is called only if the call
    /// needs approval.
    fn preview(&self, args: &Value) -> Preview {
        let _ = args;
        Preview::default()
    }

    /// Returns a key shared by all calls that an approval of similar calls covers. With `None` it
    /// covers only calls with the same arguments.
    fn approval_key(&self, args: &Value) -> Option<String> {
        let _ = args;
        None
    }

    /// Returns the folder outside of the workspace that the call gives access to; `None` if there
    /// is none. The approval request names it, and an approval of all later calls does not cover
    /// it.
    fn granted_folder(&self, args: &Value) -> Option<String> {
        let _ = args;
        None
    }

    /// Approves everything that the rule of this call's preview covers, as long and where `scope`
    /// says.
    fn add_rule(&self, args: &Value, scope: RuleScope) {
        let _ = (args, scope);
    }

    /// Returns whether only scripts can call the tool. Such a tool is not offered for structured
    /// calls: because it needs a script, or because it is one of hundreds.
    fn is_script_only(&self) -> bool {
        false
    }

    /// Returns why calls of the tool cannot succeed now, in one line; `None` if they can. A check
    /// of a script reports it, because such a call cannot be checked.
    fn unavailable_reason(&self) -> Option<String> {
        None
    }

    /// Returns the function that reads the plan of the task from the arguments of a call; `None` if
    /// the tool does not set a plan. The last plan stays in a compacted session.
    fn plan_reader(&self) -> Option<PlanReader> {
        None
    }

    /// Runs a call with arguments that match the schema. Must stop soon after `call.cancel` is
    /// cancelled.
    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_>;

    /// Returns a variant of the tool that returns the complete response instead of its relevant
    /// part. Scripts call it as `tools.x.raw(…)`.
    fn raw(&self) -> Option<Box<dyn Tool>> {
        None
    }

    /// Returns arguments that match the schema in canonical form. Everything after the validation
    /// uses it: policy, approvals, the ledger and the comparison with earlier calls. Override it if
    /// one call can be written in several ways.
    fn canonical_args(&self, args: Value) -> Value {
        args
    }

    /// Returns how the argument fields are spelled in scripts.
    fn field_case(&self) -> FieldCase {
        FieldCase::Camel
    }
}

/// Returns the plan in the arguments of a call, as text; `None` if they contain none.
pub type PlanReader = fn(&Value) -> Option<String>;

/// How argument fields are spelled in scripts. Calls may use either spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldCase {
    /// Keys in camelCase.
    Camel,
    /// As in the schema.
    Verbatim,
}

/// Context of one call, passed to its tool.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// Id of the call, unique in its scope.
    pub id: String,
    /// Id of the scope: the run, turn or task.
    pub scope_id: String,
    /// Whether the call was judged to change nothing before it was allowed to run.
    pub read_only: bool,
    /// Idempotency key, the same for every attempt at this call. A tool may send it to a service
    /// that supports such keys.
    pub idempotency_key: String,
    /// Cancelled when the call has to stop.
    pub cancel: CancellationToken,
    /// Time limit of the call. The orchestrator enforces it, later if the tool's spec says that the
    /// tool does so itself.
    pub time_limit: Duration,
    /// Receives progress events.
    pub events: EventSink,
    /// Owns what outlives the call and ends with the scope, such as background processes.
    pub resources: ScopeResources,
    /// What earlier calls of the scope noted for later ones.
    pub notes: ScopeNotes,
    /// Requests approvals while the call runs.
    pub gate: CallGate,
    /// The warnings of this call.
    pub warnings: CallWarnings,
}

impl CallContext {
    /// Warns about the result of the call, for example that it reached a limit. The model always
    /// sees it: in `warnings` of the script, or with the result of a structured call. The name of
    /// the tool is added.
    pub fn warn(&self, warning: impl Into<String>) {
        self.warnings.lock().push(warning.into());
    }
}

/// Warnings of one call. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct CallWarnings(Arc<Mutex<Vec<String>>>);

impl CallWarnings {
    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lock())
    }
}

/// Result of a call: a value for scripts and, optionally, a text for models.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutput {
    /// Value for scripts.
    pub value: Value,
    /// Text for models. `None` shows them the value: a string as it is, anything else as JSON.
    pub model_text: Option<String>,
    /// Images for models that call the tool directly, besides the text.
    pub images: Vec<OutputPart>,
    /// How to retry the call outside its confinement, which seems to have blocked it. The retry
    /// needs approval.
    pub unconfined_retry: Option<UnconfinedRetry>,
    /// What went wrong, if the value reports a failure, such as the exit code of a command. One
    /// line for people who watch the calls.
    pub failure: Option<String>,
}

/// Retry of a call outside its confinement.
#[derive(Debug, Clone, PartialEq)]
pub struct UnconfinedRetry {
    /// Arguments of the retry.
    pub args: Value,
    /// Why the confinement seems to have blocked the call, for the approver.
    pub reason: String,
}

impl ToolOutput {
    /// Creates an output from a value that serialises to JSON.
    pub fn from_value(result: &impl Serialize) -> Result<Self, ToolError> {
        serde_json::to_value(result)
            .map(Self::from)
            .map_err(|error| ToolError::new(format!("cannot serialise the result: {error}")))
    }

    /// Returns the text of the result for a model.
    pub fn text_for_model(&self) -> String {
        match (&self.model_text, &self.value) {
            (Some(text), _) | (None, Value::String(text)) => text.clone(),
            (None, value) => value.to_string(),
        }
    }
}

/// Longest image that is sent to a model, in bytes of Base64. Providers reject larger ones.
const MAX_IMAGE_BYTES: usize = 5 << 20;
/// Most images of one result that are sent to a model.
const MAX_IMAGES: usize = 16;

/// Returns the images among content blocks (`{type: "image", data, mimeType}`). Those that are too
/// large for a model are omitted.
pub fn image_parts(blocks: &[Value]) -> Vec<OutputPart> {
    let image = |block: &Value| {
        let field = |name: &str| block.get(name).and_then(Value::as_str);
        let data = field("data").filter(|data| data.len() <= MAX_IMAGE_BYTES)?;
        (field("type") == Some("image")).then(|| OutputPart::Image {
            data: data.to_owned(),
            mime_type: field("mimeType").unwrap_or("image/png").to_owned(),
        })
    };
    blocks.iter().filter_map(image).take(MAX_IMAGES).collect()
}

/// Returns the spec of a tool with these types of arguments and result. It may change something,
/// needs no approval, and reaches a service outside this process.
pub fn spec_of<A: JsonSchema, R: JsonSchema>(name: &str, description: &str) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        js_name: camel_case(name),
        description: description.to_owned(),
        input_schema: disallow_unknown_fields(schema_of::<A>()),
        output_schema: Some(schema_of::<R>()),
        read_only: false,
        approval: ApprovalRequirement::Never,
        aliases: Vec::new(),
        positional: &[],
        explanatory: &["approval_context", "justification"],
        reach: CallReach::default(),
        timeout: CallTimeout::default(),
        structured_defaults: &[],
        result_view: ResultView::Plain,
    }
}

/// Deserialises arguments that match the schema of `A`.
pub fn parse_args<A: DeserializeOwned>(args: Value) -> Result<A, ToolError> {
    serde_json::from_value(args)
        .map_err(|error| ToolError::new(format!("cannot read the arguments: {error}")))
}

/// Implements [`Tool::call`] with a function over typed arguments. `render` returns the text for
/// models; with `None` they read the result as JSON.
pub fn typed_call<'a, A, R, Fut>(
    args: Value,
    run: impl FnOnce(A) -> Fut + Send + 'a,
    render: impl FnOnce(&R) -> Option<String> + Send + 'a,
) -> CallFuture<'a>
where
    A: DeserializeOwned + Send,
    R: Serialize,
    Fut: Future<Output = Result<R, ToolError>> + Send + 'a,
{
    async move {
        let result = run(parse_args(args)?).await?;
        Ok(ToolOutput {
            model_text: render(&result),
            ..ToolOutput::from_value(&result)?
        })
    }
    .boxed()
}

fn schema_of<T: JsonSchema>() -> Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12()
        .with(|settings| settings.meta_schema = None);
    settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value()
}

/// Disallows unknown fields in a schema of arguments, unless the type allows them.
fn disallow_unknown_fields(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        object.remove("title");
        let is_object = object.get("type").is_some_and(|kind| kind == "object");
        if is_object && !object.contains_key("additionalProperties") {
            object.insert("additionalProperties".into(), Value::Bool(false));
        }
    }
    schema
}

impl From<Value> for ToolOutput {
    fn from(value: Value) -> Self {
        Self {
            value,
            model_text: None,
            images: Vec::new(),
            unconfined_retry: None,
            failure: None,
        }
    }
}

/// Failure of a tool that ran.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    /// Code of the error: [`ErrorCode::ToolExecutionError`], unless the tool reached its time limit
    /// or the sandbox refused the call.
    pub code: ErrorCode,
    /// One line that says what failed.
    pub message: String,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// What to do instead, each one line.
    pub suggestions: Vec<String>,
    /// Further data, such as an exit status.
    pub metadata: Map<String, Value>,
    /// Whether the call may have taken effect, because its end was not observed.
    pub outcome_unknown: bool,
    /// What the call had written when it was cancelled, for people.
    pub partial_output: Option<String>,
}

impl ToolError {
    /// Creates a failure that is not retryable.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            code: ErrorCode::ToolExecutionError,
            message: message.into(),
            retryable: false,
            suggestions: Vec::new(),
            metadata: Map::new(),
            outcome_unknown: false,
            partial_output: None,
        }
    }

    /// Creates the failure of a call that the sandbox policy does not allow.
    pub fn sandbox_violation(message: impl Into<String>) -> Self {
        Self {
            code: ErrorCode::SandboxViolationError,
            ..Self::new(message)
        }
    }

    /// Marks the failure as that of a call that reached its time limit.
    pub fn timed_out(mut self) -> Self {
        self.code = ErrorCode::ToolTimeoutError;
        self
    }

    /// Marks the failure as one that a later call may not have.
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }

    /// Marks the call as one that may have taken effect.
    pub fn outcome_unknown(mut self) -> Self {
        self.outcome_unknown = true;
        self
    }

    /// Adds a suggestion.
    pub fn suggest(mut self, suggestion: impl Into<String>) -> Self {
        self.suggestions.push(suggestion.into());
        self
    }
}
