//! What a tool is.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use selvedge_protocol::{Approval, EventSink, Preview, ResumeAs, ToolSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::{Belongings, Gate, Risk, camel_case};

/// A call on its way to its result.
pub type CallFuture<'a> = BoxFuture<'a, Result<ToolOutput, ToolError>>;

/// Something a script or a model can call. [`spec_of`] and [`typed_call`] implement `spec` and `call`
/// for a tool whose arguments and result are Rust types.
pub trait Tool: Send + Sync {
    /// Name, purpose and shape.
    fn spec(&self) -> ToolSpec;

    /// What could go wrong if this ran, judged from the arguments.
    fn risk(&self, args: &Value) -> Risk {
        let _ = args;
        Risk::Harmless
    }

    /// Whether a call with these arguments leaves the world as it was, although not every call does.
    fn reads_only(&self, args: &Value) -> bool {
        let _ = args;
        false
    }

    /// What a successful call that returned this value means to a run that resumes its run. A tool
    /// whose value can report a failure, or work that goes on, says so here.
    fn resume_as(&self, value: &Value) -> ResumeAs {
        let _ = value;
        ResumeAs::Answer
    }

    /// Whether a call costs money. A resumed run reuses the result of such a call even if it only
    /// read something.
    fn costs_money(&self) -> bool {
        false
    }

    /// What a person is shown before agreeing. May take its time: it is only asked for when a person is.
    fn preview(&self, args: &Value) -> Preview {
        let _ = args;
        Preview::default()
    }

    /// What "for this script" covers besides this very call; `None` covers nothing else.
    fn agreement(&self, args: &Value) -> Option<String> {
        let _ = args;
        None
    }

    /// A person agreed to this call and to all that its preview's rule covers, for ever.
    fn allow_always(&self, args: &Value) {
        let _ = args;
    }

    /// Whether it waits for a model, which has limits of its own: a script's clock stands still while it waits for such
    /// calls alone.
    fn takes_its_time(&self) -> bool {
        false
    }

    /// Runs it. The arguments fit the schema. Must stop soon after `call.cancel` says so.
    fn call(&self, args: Value, call: Call) -> CallFuture<'_>;

    /// The same tool, giving back everything it was told instead of the value that matters. Scripts call it as
    /// `tools.x.raw(…)`.
    fn raw(&self) -> Option<Box<dyn Tool>> {
        None
    }

    /// How scripts see the argument fields.
    fn field_case(&self) -> FieldCase {
        FieldCase::Camel
    }
}

/// How scripts see argument fields. Both spellings are accepted either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldCase {
    /// In camelCase.
    Camel,
    /// As the schema spells them.
    Verbatim,
}

/// The circumstances of one call.
#[derive(Debug, Clone)]
pub struct Call {
    /// The call's id in its scope.
    pub id: String,
    /// The scope's id.
    pub scope_id: String,
    /// The same for every attempt at this call in its scope: a tool may hand it to a service that knows such keys.
    pub idempotency_key: String,
    /// Says when to stop.
    pub cancel: CancellationToken,
    /// Where to tell of progress.
    pub events: EventSink,
    /// For what outlives the call, but not its scope.
    pub belongings: Belongings,
    /// For what has to be asked on the way.
    pub gate: Gate,
}

/// What a tool gives back: a value for scripts and, where it reads better, a rendering for models.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutput {
    /// For scripts.
    pub value: Value,
    /// For models; the value as JSON where there is none.
    pub rendering: Option<String>,
    /// How it could be tried again with a person's agreement, where it looks stopped by its confinement.
    pub again: Option<Again>,
}

/// The same work once more, less confined.
#[derive(Debug, Clone, PartialEq)]
pub struct Again {
    /// With these arguments.
    pub args: Value,
    /// What it looks like, for the person who is asked.
    pub reason: String,
}

impl ToolOutput {
    /// A result as JSON.
    pub fn of(result: &impl Serialize) -> Result<Self, ToolError> {
        serde_json::to_value(result)
            .map(Self::from)
            .map_err(|error| ToolError::new(format!("cannot write the result: {error}")))
    }
}

/// The spec of a tool with these types of arguments and result, which asks for no approval.
pub fn spec_of<A: JsonSchema, R: JsonSchema>(name: &str, description: &str) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        js_name: camel_case(name),
        description: description.to_owned(),
        input_schema: closed(schema_of::<A>()),
        output_schema: Some(schema_of::<R>()),
        read_only: false,
        approval: Approval::Never,
        aliases: Vec::new(),
        positional: &[],
    }
}

/// Arguments that fit the schema as the type that gave the schema.
pub fn read_args<A: DeserializeOwned>(args: Value) -> Result<A, ToolError> {
    serde_json::from_value(args)
        .map_err(|error| ToolError::new(format!("cannot read the arguments: {error}")))
}

/// Implements [`Tool::call`] with a function over typed arguments. `render` says what a model reads;
/// `None` is the result as JSON.
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
        let result = run(read_args(args)?).await?;
        Ok(ToolOutput {
            rendering: render(&result),
            ..ToolOutput::of(&result)?
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

/// Arguments say so when a field is unknown, unless their type decided otherwise.
fn closed(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        object.remove("title");
        if object.contains_key("properties") && !object.contains_key("additionalProperties") {
            object.insert("additionalProperties".into(), Value::Bool(false));
        }
    }
    schema
}

impl From<Value> for ToolOutput {
    fn from(value: Value) -> Self {
        Self {
            value,
            rendering: None,
            again: None,
        }
    }
}

/// A tool that ran and failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    /// One line that says what happened to what.
    pub message: String,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// What to try instead.
    pub suggestions: Vec<String>,
    /// Facts, such as an exit status.
    pub metadata: Map<String, Value>,
    /// Whether the call may have had its effect all the same: nobody saw its end.
    pub outcome_unknown: bool,
}

impl ToolError {
    /// A failure in one line.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            retryable: false,
            suggestions: Vec::new(),
            metadata: Map::new(),
            outcome_unknown: false,
        }
    }

    /// The same failure, worth trying again.
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }

    /// The same failure, of a call that may have had its effect all the same.
    pub fn outcome_unknown(mut self) -> Self {
        self.outcome_unknown = true;
        self
    }

    /// The same failure with a hint.
    pub fn suggest(mut self, suggestion: impl Into<String>) -> Self {
        self.suggestions.push(suggestion.into());
        self
    }
}
