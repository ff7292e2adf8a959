//! Closures as tools: the argument and result types give the schemas.

use std::marker::PhantomData;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use selvedge_protocol::{Approval, Preview, ResumeAs, ToolSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Again, Call, Risk, Tool, ToolError, ToolOutput, camel_case};

/// A tool from an async closure over its arguments.
///
/// ```
/// # use schemars::JsonSchema; use serde::{Deserialize, Serialize};
/// #[derive(Deserialize, JsonSchema)]
/// struct Add { /** first summand */ a: i64, /** second summand */ b: i64 }
///
/// let add = selvedge_tools::tool("add", "Adds two numbers.", |args: Add| async move { Ok(args.a + args.b) });
/// ```
pub fn tool<A, R, Run, Fut>(name: &str, description: &str, run: Run) -> FunctionTool<A, R>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    R: Serialize + JsonSchema + 'static,
    Run: Fn(A) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
{
    tool_with_call(name, description, move |args, _| run(args))
}

/// The same, for closures that want to know the circumstances: cancellation, events, the idempotency key.
pub fn tool_with_call<A, R, Run, Fut>(name: &str, description: &str, run: Run) -> FunctionTool<A, R>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    R: Serialize + JsonSchema + 'static,
    Run: Fn(A, Call) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
{
    let spec = ToolSpec {
        name: name.to_owned(),
        js_name: camel_case(name),
        description: description.to_owned(),
        input_schema: closed(schema_of::<A>()),
        output_schema: Some(schema_of::<R>()),
        read_only: false,
        approval: Approval::Never,
    };
    FunctionTool {
        spec,
        run: Box::new(move |args, call| run(args, call).boxed()),
        risk: None,
        reads_only: None,
        resume_as: None,
        costs_money: false,
        render: None,
        preview: None,
        agreement: None,
        allow_always: None,
        again: None,
        aliases: Vec::new(),
        positional: &[],
        takes_its_time: false,
        types: PhantomData,
    }
}

type Run<A, R> = dyn Fn(A, Call) -> BoxFuture<'static, Result<R, ToolError>> + Send + Sync;
type Judge = dyn Fn(&Value) -> Risk + Send + Sync;
type Promise = dyn Fn(&Value) -> bool + Send + Sync;
type Classify = dyn Fn(&Value) -> ResumeAs + Send + Sync;
type Render<R> = dyn Fn(&R) -> String + Send + Sync;
type Show = dyn Fn(&Value) -> Preview + Send + Sync;
type Agree = dyn Fn(&Value) -> Option<String> + Send + Sync;
type Allow = dyn Fn(&Value) + Send + Sync;
type TryAgain<R> = dyn Fn(&R, &Value) -> Option<Again> + Send + Sync;

/// A closure with a schema. Made by [`tool`].
pub struct FunctionTool<A, R> {
    spec: ToolSpec,
    run: Box<Run<A, R>>,
    risk: Option<Box<Judge>>,
    render: Option<Box<Render<R>>>,
    reads_only: Option<Box<Promise>>,
    resume_as: Option<Box<Classify>>,
    costs_money: bool,
    preview: Option<Box<Show>>,
    agreement: Option<Box<Agree>>,
    allow_always: Option<Box<Allow>>,
    again: Option<Box<TryAgain<R>>>,
    aliases: Vec<(&'static str, &'static str)>,
    positional: &'static [&'static str],
    takes_its_time: bool,
    types: PhantomData<fn(A) -> R>,
}

impl<A, R> FunctionTool<A, R> {
    /// Promises that it leaves the world as it was.
    pub fn read_only(mut self) -> Self {
        self.spec.read_only = true;
        self
    }

    /// Judges each call by its arguments.
    pub fn risk(mut self, risk: impl Fn(&Value) -> Risk + Send + Sync + 'static) -> Self {
        self.spec.approval = Approval::ByArguments;
        self.risk = Some(Box::new(risk));
        self
    }

    /// Says which calls leave the world as it was.
    pub fn reads_only(
        mut self,
        reads_only: impl Fn(&Value) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.reads_only = Some(Box::new(reads_only));
        self
    }

    /// Says what a successful call that returned this value means to a run that resumes its run.
    pub fn resume_as(
        mut self,
        resume_as: impl Fn(&Value) -> ResumeAs + Send + Sync + 'static,
    ) -> Self {
        self.resume_as = Some(Box::new(resume_as));
        self
    }

    /// Says that each call costs money.
    pub fn costs_money(mut self) -> Self {
        self.costs_money = true;
        self
    }

    /// Shows results to models in its own words instead of as JSON.
    pub fn render(mut self, render: impl Fn(&R) -> String + Send + Sync + 'static) -> Self {
        self.render = Some(Box::new(render));
        self
    }

    /// Shows a person what a call would do.
    pub fn preview(mut self, preview: impl Fn(&Value) -> Preview + Send + Sync + 'static) -> Self {
        self.preview = Some(Box::new(preview));
        self
    }

    /// Says which other calls "for this script" covers: those with the same words.
    pub fn agreement(
        mut self,
        agreement: impl Fn(&Value) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.agreement = Some(Box::new(agreement));
        self
    }

    /// Remembers that calls like this one are allowed for ever.
    pub fn allow_always(mut self, allow: impl Fn(&Value) + Send + Sync + 'static) -> Self {
        self.allow_always = Some(Box::new(allow));
        self
    }

    /// Says of a result how it could be tried again, less confined.
    pub fn again(
        mut self,
        again: impl Fn(&R, &Value) -> Option<Again> + Send + Sync + 'static,
    ) -> Self {
        self.again = Some(Box::new(again));
        self
    }

    /// Accepts other names for fields: `(alias, field)`.
    pub fn aliases(
        mut self,
        aliases: impl IntoIterator<Item = (&'static str, &'static str)>,
    ) -> Self {
        self.aliases.extend(aliases);
        self
    }

    /// Accepts these fields by position.
    pub fn positional(mut self, fields: &'static [&'static str]) -> Self {
        self.positional = fields;
        self
    }

    /// Says that it waits for a model: a script's clock stands still meanwhile.
    pub fn takes_its_time(mut self) -> Self {
        self.takes_its_time = true;
        self
    }

    /// Asks a person before every call; "for this script" covers them all.
    pub fn ask_always(mut self, reason: &str) -> Self {
        let reason = reason.to_owned();
        self = self
            .risk(move |_| Risk::Ask {
                reason: reason.clone(),
            })
            .agreement(|_| Some(String::new()));
        self.spec.approval = Approval::Always;
        self
    }
}

impl<A, R> Tool for FunctionTool<A, R>
where
    A: DeserializeOwned + Send + 'static,
    R: Serialize + 'static,
{
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn field_aliases(&self) -> &[(&str, &str)] {
        &self.aliases
    }

    fn positional(&self) -> &[&str] {
        self.positional
    }

    fn takes_its_time(&self) -> bool {
        self.takes_its_time
    }

    fn risk(&self, args: &Value) -> Risk {
        self.risk.as_ref().map_or(Risk::Harmless, |risk| risk(args))
    }

    fn reads_only(&self, args: &Value) -> bool {
        self.reads_only
            .as_ref()
            .is_some_and(|reads_only| reads_only(args))
    }

    fn resume_as(&self, value: &Value) -> ResumeAs {
        let classify = self.resume_as.as_ref();
        classify.map_or(ResumeAs::Answer, |classify| classify(value))
    }

    fn costs_money(&self) -> bool {
        self.costs_money
    }

    fn preview(&self, args: &Value) -> Preview {
        self.preview
            .as_ref()
            .map(|preview| preview(args))
            .unwrap_or_default()
    }

    fn agreement(&self, args: &Value) -> Option<String> {
        self.agreement
            .as_ref()
            .and_then(|agreement| agreement(args))
    }

    fn allow_always(&self, args: &Value) {
        if let Some(allow) = &self.allow_always {
            allow(args);
        }
    }

    fn call<'a>(&'a self, args: Value, call: Call) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        async move {
            let given = self.again.is_some().then(|| args.clone());
            let args = serde_json::from_value(args)
                .map_err(|error| ToolError::new(format!("cannot read the arguments: {error}")))?;
            let result = (self.run)(args, call).await?;
            let rendering = self.render.as_ref().map(|render| render(&result));
            let again = self
                .again
                .as_ref()
                .zip(given)
                .and_then(|(again, args)| again(&result, &args));
            let value = serde_json::to_value(result)
                .map_err(|error| ToolError::new(format!("cannot write the result: {error}")))?;
            Ok(ToolOutput {
                value,
                rendering,
                again,
            })
        }
        .boxed()
    }
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
