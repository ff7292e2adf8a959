//! The public entry point: takes a script and returns a [`ScriptToolCallOutput`], for failed
//! scripts too.

use std::sync::Arc;

use selvedge_protocol::{
    LimitSurface, Limits, RunStatus, ScriptError, ScriptMode, ScriptToolCall, ScriptToolCallOutput,
    new_id,
};
use selvedge_sandbox::{EngineSettings, Fault, LazyWasmRuntime, Runtime, WasmRuntime};
use selvedge_tools::{Approver, Orchestrator, Registry, ScopeLimits, TaskSet};

use crate::analysis::ToolMentions;
use crate::compile::{CompiledScript, ScriptCompiler};
use crate::options::RunOptions;
use crate::preflight::{self, Preflight};

/// Runs scripts against a set of tools.
///
/// ```no_run
/// # async fn demo(registry: selvedge_tools::Registry) -> Result<(), selvedge_sandbox::Fault> {
/// let harness = selvedge_script::Harness::new(selvedge_tools::Orchestrator::new(registry))?;
/// let output = harness.run("return await tools.add({ a: 1, b: 2 })").await;
/// assert_eq!(output.output_json.as_deref(), Some("3"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Harness {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) orchestrator: Orchestrator,
    pub(crate) compiler: Arc<ScriptCompiler>,
    pub(crate) limits: Limits,
    pub(crate) surface: LimitSurface,
    pub(crate) mode: ScriptMode,
    pub(crate) allow_detached: bool,
    pub(crate) tasks: Option<TaskSet>,
}

impl Harness {
    /// Creates a harness with the default limits on the runtime that the process shares. Loads the
    /// runtime.
    pub fn new(orchestrator: Orchestrator) -> Result<Self, Fault> {
        Ok(Self::with_runtime(WasmRuntime::shared()?, orchestrator))
    }

    /// Creates a harness as [`new`](Self::new) does, but loads the runtime when the first script
    /// runs.
    pub fn with_lazy_runtime(orchestrator: Orchestrator) -> Self {
        Self::with_runtime(Arc::new(LazyWasmRuntime::default()), orchestrator)
    }

    /// Uses a runtime for a process that runs one script and ends.
    pub fn for_one_script(mut self) -> Self {
        self.runtime = Arc::new(LazyWasmRuntime::new(EngineSettings::for_one_script()));
        self
    }

    /// Creates a harness with the default limits on this runtime.
    pub fn with_runtime(runtime: Arc<dyn Runtime>, orchestrator: Orchestrator) -> Self {
        Self {
            runtime,
            orchestrator,
            compiler: Arc::default(),
            limits: Limits::default(),
            surface: LimitSurface::default(),
            mode: ScriptMode::default(),
            allow_detached: false,
            tasks: None,
        }
    }

    /// Sets the limits of scripts; values outside their range are clamped.
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits.clamped();
        self
    }

    /// Sets where scripts come from, which decides how errors say that a limit can be raised.
    pub fn with_surface(mut self, surface: LimitSurface) -> Self {
        self.surface = surface;
        self
    }

    /// Returns the limits of the calls of one script or turn.
    pub fn scope_limits(&self) -> ScopeLimits {
        ScopeLimits::from(&self.limits).on(self.surface)
    }

    /// Sets whether scripts run, are only checked, or are rejected.
    pub fn with_mode(mut self, mode: ScriptMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets whether calls that a script did not await are waited for at its end instead of
    /// cancelled.
    pub fn allow_detached_promises(mut self, allow: bool) -> Self {
        self.allow_detached = allow;
        self
    }

    /// Lets scripts start tasks, which continue after the script has ended. The tools of tasks must
    /// be in the orchestrator's registry; see [`TaskSet::register`].
    pub fn with_tasks(mut self, tasks: &TaskSet) -> Self {
        self.tasks = Some(tasks.clone());
        self
    }

    /// Replaces the tools. Compiled scripts stay cached.
    pub fn with_tools(mut self, tools: Registry) -> Self {
        self.orchestrator = self.orchestrator.with_registry(tools);
        self
    }

    /// Replaces the approver.
    pub fn with_approver(mut self, approver: Arc<dyn Approver>) -> Self {
        self.orchestrator = self.orchestrator.with_approver(approver);
        self
    }

    /// Replaces the orchestrator.
    pub fn with_orchestrator(mut self, orchestrator: Orchestrator) -> Self {
        self.orchestrator = orchestrator;
        self
    }

    /// Returns the limits of scripts.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the orchestrator, through which scripts call tools.
    pub fn orchestrator(&self) -> &Orchestrator {
        &self.orchestrator
    }

    /// Runs a script with default options.
    pub async fn run(&self, source: &str) -> ScriptToolCallOutput {
        self.run_with(source.as_bytes(), RunOptions::default())
            .await
    }

    /// Checks a script without running it. Blocks while it is compiled.
    pub fn check(&self, source: &[u8]) -> Preflight {
        let compiled = self
            .compiler
            .compile_bytes(source, self.limits.max_source_bytes);
        self.check_compiled(compiled).0
    }

    /// Checks a script, and returns whether its compiled form was cached.
    pub(crate) async fn compile_and_check(&self, source: &[u8]) -> (Preflight, bool) {
        let max_bytes = self.limits.max_source_bytes;
        let registry = Some(self.orchestrator.registry());
        let compiled = self.compiler.compile_async(source, max_bytes, registry);
        self.check_compiled(compiled.await)
    }

    fn check_compiled(
        &self,
        compiled: Result<(Arc<CompiledScript>, bool), ScriptError>,
    ) -> (Preflight, bool) {
        match compiled {
            Ok((compiled, cached)) => (preflight::check(&compiled, &self.orchestrator), cached),
            Err(error) => {
                let errors = vec![error];
                let (valid, calls) = (false, Vec::new());
                (
                    Preflight {
                        valid,
                        calls,
                        errors,
                    },
                    false,
                )
            }
        }
    }

    /// Returns the tools that a script may call; none if it does not compile. Does not add the
    /// script to the cache of compiled scripts.
    pub async fn mentioned_tools(&self, source: &[u8]) -> ToolMentions {
        Arc::new(ScriptCompiler::default())
            .compile_async(source, self.limits.max_source_bytes, None)
            .await
            .map(|(compiled, _)| compiled.mentions.clone())
            .unwrap_or_default()
    }

    /// Creates the conversation item of a script that is about to run.
    pub fn new_script_call(&self, source: &str, call_id: &str) -> ScriptToolCall {
        let sha256 = crate::compile::sha256_hex(source);
        ScriptToolCall {
            id: new_id("scr"),
            call_id: call_id.to_owned(),
            language: "ts".to_owned(),
            source_code: source.to_owned(),
            source_sha256: sha256,
            status: RunStatus::Pending,
        }
    }

    pub(crate) async fn compile(&self, source: &[u8]) -> Result<Arc<CompiledScript>, ScriptError> {
        let compiled = self.compiler.compile_async(source, usize::MAX, None);
        Ok(compiled.await?.0)
    }
}
