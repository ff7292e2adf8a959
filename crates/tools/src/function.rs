//! Tools from closures. The types of arguments and result define the schemas.

use std::marker::PhantomData;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use selvedge_protocol::ToolSpec;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Call, CallFuture, Risk, Tool, ToolError, spec_of, typed_call};

/// Creates a tool from an async closure over its arguments.
///
/// ```
/// # use schemars::JsonSchema; use serde::{Deserialize, Serialize};
/// #[derive(Deserialize, JsonSchema)]
/// struct Add { /** first summand */ a: i64, /** second summand */ b: i64 }
///
/// let add = selvedge_tools::tool("add", "Adds two numbers.", |args: Add| async move {
///     Ok(args.a + args.b)
/// });
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

/// Creates a tool from an async closure that also needs the call's context: cancellation, events,
/// the idempotency key.
pub fn tool_with_call<A, R, Run, Fut>(name: &str, description: &str, run: Run) -> FunctionTool<A, R>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    R: Serialize + JsonSchema + 'static,
    Run: Fn(A, Call) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
{
    FunctionTool {
        spec: spec_of::<A, R>(name, description),
        run: Box::new(move |args, call| run(args, call).boxed()),
        risk: None,
        render: None,
        agreement: None,
        takes_its_time: false,
        types: PhantomData,
    }
}

type Run<A, R> = dyn Fn(A, Call) -> BoxFuture<'static, Result<R, ToolError>> + Send + Sync;
type Judge = dyn Fn(&Value) -> Risk + Send + Sync;
type Render<R> = dyn Fn(&R) -> String + Send + Sync;
type Agree = dyn Fn(&Value) -> Option<String> + Send + Sync;

/// A tool from a closure, created by [`tool`]. For methods of [`Tool`] that this type does not
/// offer, implement the trait for a struct.
pub struct FunctionTool<A, R> {
    spec: ToolSpec,
    run: Box<Run<A, R>>,
    risk: Option<Box<Judge>>,
    render: Option<Box<Render<R>>>,
    agreement: Option<Box<Agree>>,
    takes_its_time: bool,
    types: PhantomData<fn(A) -> R>,
}

impl<A, R> FunctionTool<A, R> {
    /// Declares that no call changes anything.
    pub fn read_only(mut self) -> Self {
        self.spec.read_only = true;
        self
    }

    /// Sets the function that judges the risk of a call from its arguments.
    pub fn risk(mut self, risk: impl Fn(&Value) -> Risk + Send + Sync + 'static) -> Self {
        self.spec = self.spec.judged_by_arguments();
        self.risk = Some(Box::new(risk));
        self
    }

    /// Sets the function that renders results as text for models, instead of JSON.
    pub fn render(mut self, render: impl Fn(&R) -> String + Send + Sync + 'static) -> Self {
        self.render = Some(Box::new(render));
        self
    }

    /// Sets the function that returns the key of a call. An approval "for this script" covers all
    /// calls with the same key.
    pub fn agreement(
        mut self,
        agreement: impl Fn(&Value) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.agreement = Some(Box::new(agreement));
        self
    }

    /// Adds other names that are accepted for fields: `(alias, field)`.
    pub fn aliases(
        mut self,
        aliases: impl IntoIterator<Item = (&'static str, &'static str)>,
    ) -> Self {
        self.spec.aliases.extend(aliases);
        self
    }

    /// Sets the fields that may be given by position.
    pub fn positional(mut self, fields: &'static [&'static str]) -> Self {
        self.spec.positional = fields;
        self
    }

    /// Declares that calls wait for a model. The script's clock stops meanwhile.
    pub fn takes_its_time(mut self) -> Self {
        self.takes_its_time = true;
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

    fn takes_its_time(&self) -> bool {
        self.takes_its_time
    }

    fn risk(&self, args: &Value) -> Risk {
        self.risk.as_ref().map_or(Risk::Harmless, |risk| risk(args))
    }

    fn agreement(&self, args: &Value) -> Option<String> {
        self.agreement.as_ref()?(args)
    }

    fn call(&self, args: Value, call: Call) -> CallFuture<'_> {
        let render = |result: &R| self.render.as_ref().map(|render| render(result));
        typed_call(args, move |args| (self.run)(args, call), render)
    }
}
