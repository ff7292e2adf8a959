//! The public entry point: takes a script and returns a [`ScriptToolCallOutput`], for failed
//! scripts too.

use std::sync::Arc;

use selvedge_protocol::{
    Limits, Mode, RunStatus, ScriptError, ScriptToolCall, ScriptToolCallOutput, new_id,
};
use selvedge_sandbox::{Fault, OnFirstUse, Runtime, Settings, Wasm};
use selvedge_tools::{Approver, Orchestrator, Registry, Tasks};

use crate::compile::{Compiled, Compiler};
use crate::options::RunOptions;
use crate::preflight::{self, Preflight};
use crate::survey::Mentions;

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
    pub(crate) compiler: Arc<Compiler>,
    pub(crate) limits: Limits,
    pub(crate) mode: Mode,
    pub(crate) allow_detached: bool,
    pub(crate) tasks: Option<Tasks>,
}

impl Harness {
    /// Creates a harness with the default limits on the runtime that the process shares. Loads the
    /// runtime.
    pub fn new(orchestrator: Orchestrator) -> Result<Self, Fault> {
        Ok(Self::on(Wasm::shared()?, orchestrator))
    }

    /// Creates a harness as [`new`](Self::new) does, but loads the runtime when the first script
    /// runs.
    pub fn on_first_use(orchestrator: Orchestrator) -> Self {
        Self::on(Arc::new(OnFirstUse::default()), orchestrator)
    }

    /// Uses a runtime for a process that runs one script and ends.
    pub fn for_one_script(mut self) -> Self {
        self.runtime = Arc::new(OnFirstUse::new(Settings::for_one_script()));
        self
    }

    /// Creates a harness with the default limits on this runtime.
    pub fn on(runtime: Arc<dyn Runtime>, orchestrator: Orchestrator) -> Self {
        Self {
            runtime,
            orchestrator,
            compiler: Arc::default(),
            limits: Limits::default(),
            mode: Mode::default(),
            allow_detached: false,
            tasks: None,
        }
    }

    /// Sets the limits of scripts; values outside their range are clamped.
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits.clamped();
        self
    }

    /// Sets whether scripts run, are only checked, or are rejected.
    pub fn with_mode(mut self, mode: Mode) -> Self {
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
    /// be in the orchestrator's registry; see [`Tasks::register`].
    pub fn with_tasks(mut self, tasks: &Tasks) -> Self {
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

    /// Checks a script without running it.
    pub fn check(&self, source: &[u8]) -> Preflight {
        self.check_compiled(source).0
    }

    /// Checks a script, and returns whether its compiled form was cached.
    pub(crate) fn check_compiled(&self, source: &[u8]) -> (Preflight, bool) {
        let max_bytes = self.limits.max_source_bytes;
        match self.compiler.compile_bytes(source, max_bytes) {
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
    pub fn mentions(&self, source: &[u8]) -> Mentions {
        Compiler::default()
            .compile_bytes(source, self.limits.max_source_bytes)
            .map(|(compiled, _)| compiled.mentions.clone())
            .unwrap_or_default()
    }

    /// Creates the conversation item of a script that is about to run.
    pub fn item(&self, source: &str, call_id: &str) -> ScriptToolCall {
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

    pub(crate) fn compile(&self, source: &[u8]) -> Result<Arc<Compiled>, ScriptError> {
        Ok(self.compiler.compile_bytes(source, usize::MAX)?.0)
    }
}
