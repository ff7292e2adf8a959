//! Tools from closures. The types of arguments and result define the schemas.

use std::marker::PhantomData;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use selvedge_protocol::{CallReach, CallTimeout, ToolSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{CallContext, CallFuture, Risk, Tool, ToolError, spec_of, typed_call};

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
    tool_with_context(name, description, move |args, _| run(args))
}

/// Creates a tool from an async closure that also needs the call's context: cancellation, events,
/// the idempotency key.
pub fn tool_with_context<A, R, Run, Fut>(
    name: &str,
    description: &str,
    run: Run,
) -> FunctionTool<A, R>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    R: Serialize + JsonSchema + 'static,
    Run: Fn(A, CallContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
{
    FunctionTool {
        spec: spec_of::<A, R>(name, description),
        run: Box::new(move |args, call| run(args, call).boxed()),
        risk: None,
        render: None,
        approval_key: None,
        types: PhantomData,
    }
}

type ToolFn<A, R> =
    dyn Fn(A, CallContext) -> BoxFuture<'static, Result<R, ToolError>> + Send + Sync;
type RiskFn = dyn Fn(&Value) -> Risk + Send + Sync;
type RenderFn<R> = dyn Fn(&R) -> String + Send + Sync;
type ApprovalKeyFn = dyn Fn(&Value) -> Option<String> + Send + Sync;

/// A tool from a closure, created by [`tool`]. For methods of [`Tool`] that this type does not
/// offer, implement the trait for a struct.
pub struct FunctionTool<A, R> {
    spec: ToolSpec,
    run: Box<ToolFn<A, R>>,
    risk: Option<Box<RiskFn>>,
    render: Option<Box<RenderFn<R>>>,
    approval_key: Option<Box<ApprovalKeyFn>>,
    types: PhantomData<fn(A) -> R>,
}

impl<A, R> FunctionTool<A, R> {
    /// Declares that no call changes anything.
    pub fn read_only(mut self) -> Self {
        self.spec.read_only = true;
        self
    }

    /// Sets the function that determines the risk of a call from its arguments.
    pub fn risk(mut self, risk: impl Fn(&Value) -> Risk + Send + Sync + 'static) -> Self {
        self.spec = self.spec.approval_by_arguments();
        self.risk = Some(Box::new(risk));
        self
    }

    /// Sets the function that renders results as text for models, instead of JSON.
    pub fn render(mut self, render: impl Fn(&R) -> String + Send + Sync + 'static) -> Self {
        self.render = Some(Box::new(render));
        self
    }

    /// Sets the function that returns the key of a call. An approval of similar calls covers all
    /// calls with the same key.
    pub fn approval_key(
        mut self,
        agreement: impl Fn(&Value) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.approval_key = Some(Box::new(agreement));
        self
    }

    /// Sets what calls reach, which decides the limit of calls that they count against and their
    /// default time limit.
    pub fn reach(mut self, reach: CallReach) -> Self {
        self.spec = self.spec.with_reach(reach);
        self
    }

    /// Sets the time limit of calls.
    pub fn timeout(mut self, timeout: CallTimeout) -> Self {
        self.spec = self.spec.with_timeout(timeout);
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

    fn risk(&self, args: &Value) -> Risk {
        self.risk.as_ref().map_or(Risk::Harmless, |risk| risk(args))
    }

    fn approval_key(&self, args: &Value) -> Option<String> {
        self.approval_key.as_ref()?(args)
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let render = |result: &R| self.render.as_ref().map(|render| render(result));
        typed_call(args, move |args| (self.run)(args, call), render)
    }
}
