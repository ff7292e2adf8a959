//! The front door: a script goes in, a [`ScriptToolCallOutput`] comes out. Nothing is thrown.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use selvedge_protocol::{
    ApprovalPolicy, CallStatus, ErrorCode, Event, EventSink, Limits, Mode, Phase, RunMetadata, RunStart, RunStatus,
    ScriptError, ScriptToolCall, ScriptToolCallOutput, new_id,
};
use selvedge_sandbox::{Fault, Runtime, Wasm};
use selvedge_tools::{Approver, Earlier, Orchestrator, Registry, Scope, ScopeLimits, Source};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::bridge::Said;
use crate::compile::{Compiled, Compiler};
use crate::meter::{LogMeter, ProgressMeter};
use crate::preflight::{self, Preflight};
use crate::preview::preview;
use crate::run::{Ended, Run};
use crate::session::Session;
use crate::unicode::whole_unicode;

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
    runtime: Arc<dyn Runtime>,
    orchestrator: Orchestrator,
    compiler: Arc<Compiler>,
    limits: Limits,
    mode: Mode,
    allow_detached: bool,
}

/// The circumstances of one run.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// The run's id, where its item was made before; see [`Harness::item`].
    pub id: Option<String>,
    /// The model's own name for the call.
    pub call_id: Option<String>,
    /// Overrides the harness's mode for this run.
    pub mode: Option<Mode>,
    /// Time limit for this run; at most [`Limits::max_timeout_ms`].
    pub timeout: Option<Duration>,
    /// Seed of `Math.random`; a fresh one where none is given.
    pub seed: Option<u64>,
    /// Stops the run.
    pub cancel: CancellationToken,
    /// An earlier run that this one goes on from.
    pub resume: Option<Resume>,
    /// Takes events.
    pub events: EventSink,
    /// Shared by the scripts of a session.
    pub session: Session,
    /// What `context` tells the script.
    pub facts: Facts,
}

/// An earlier run, and what its calls came to.
#[derive(Debug, Clone)]
pub struct Resume {
    /// Its id.
    pub run: String,
    /// What it made.
    pub calls: Arc<Earlier>,
}

/// What a script learns about where it runs.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The conversation.
    pub conversation_id: String,
    /// The session.
    pub session_id: String,
    /// The turn.
    pub turn_id: String,
    /// The folder tools work in.
    pub working_directory: String,
    /// Words for the script, from whoever runs it.
    pub args: Vec<String>,
    /// Who serves the model.
    pub provider: String,
    /// The model.
    pub model: String,
}

impl Harness {
    /// A harness with the default limits, on this process's sandbox.
    pub fn new(orchestrator: Orchestrator) -> Result<Self, Fault> {
        Ok(Self::on(Wasm::shared()?, orchestrator))
    }

    /// A harness on another runtime.
    pub fn on(runtime: Arc<dyn Runtime>, orchestrator: Orchestrator) -> Self {
        Self {
            runtime,
            orchestrator,
            compiler: Arc::default(),
            limits: Limits::default(),
            mode: Mode::default(),
            allow_detached: false,
        }
    }

    /// The same with other limits.
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits.clamped();
        self
    }

    /// The same in another mode.
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The same, but calls nobody awaited are waited for instead of stopped.
    pub fn allow_detached_promises(mut self, allow: bool) -> Self {
        self.allow_detached = allow;
        self
    }

    /// The same with other tools; what is compiled stays compiled.
    pub fn with_tools(mut self, tools: Registry) -> Self {
        self.orchestrator = self.orchestrator.with_registry(tools);
        self
    }

    /// The same with somebody else to ask.
    pub fn with_approver(mut self, approver: Arc<dyn Approver>) -> Self {
        self.orchestrator = self.orchestrator.with_approver(approver);
        self
    }

    /// The limits scripts run under.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The tools scripts can call.
    pub fn orchestrator(&self) -> &Orchestrator {
        &self.orchestrator
    }

    /// Runs a script with nothing special about it.
    pub async fn run(&self, source: &str) -> ScriptToolCallOutput {
        self.run_with(source.as_bytes(), RunOptions::default()).await
    }

    /// Checks a script without running it.
    pub fn check(&self, source: &[u8]) -> Preflight {
        match self.compiler.compile_bytes(source, self.limits.max_source_bytes) {
            Ok((compiled, _)) => preflight::check(&compiled, &self.orchestrator),
            Err(error) => Preflight { valid: false, calls: Vec::new(), errors: vec![error] },
        }
    }

    /// The conversation item of a script about to run.
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

    /// Runs a script.
    pub async fn run_with(&self, source: &[u8], options: RunOptions) -> ScriptToolCallOutput {
        let started = Instant::now();
        let id = options.id.clone().unwrap_or_else(|| new_id("scr"));
        let call_id = options.call_id.clone().unwrap_or_else(|| new_id("call"));
        let mut output = empty(id, call_id);
        let mode = options.mode.unwrap_or(self.mode);
        if mode == Mode::Disabled {
            let error = ScriptError::new(ErrorCode::ScriptRejectedError, Phase::Parsing, "scripts are disabled here")
                .suggest("make structured tool calls, or set the mode to `enabled`");
            return reject(output, error, started);
        }
        let (compiled, cache_hit) = match self.compiler.compile_bytes(source, self.limits.max_source_bytes) {
            Ok(compiled) => compiled,
            Err(error) if mode == Mode::DryRun => {
                let report = Preflight { valid: false, calls: Vec::new(), errors: vec![error] };
                return dry_run(output, report, started);
            }
            Err(error) => return reject(output, error, started),
        };
        output.metadata.cache_hit = cache_hit;
        let report = preflight::check(&compiled, &self.orchestrator);
        if mode == Mode::DryRun {
            return dry_run(output, report, started);
        }
        if let Some(error) = rejection(report) {
            return reject(output, error, started);
        }
        let seed = options.seed.unwrap_or_else(fresh_seed);
        if let Some(ledger) = self.orchestrator.ledger() {
            let seed = seed.to_string();
            let begun = ledger.begin(&RunStart {
                id: &output.id,
                source: &compiled.source,
                directory: &options.facts.working_directory,
                session: &options.facts.session_id,
                seed: &seed,
                resumes: options.resume.as_ref().map(|resume| resume.run.as_str()),
            });
            if let Err(error) = begun {
                let message = format!("the script did not run, because that could not be written down: {error}");
                return reject(
                    output,
                    ScriptError::new(ErrorCode::HarnessInternalError, Phase::Parsing, message),
                    started,
                );
            }
        }
        options.events.emit(Event::ScriptStarted { script_id: output.id.clone() });
        let mut output = self.execute(output, &compiled, &options, seed, started).await;
        if let Some(ledger) = self.orchestrator.ledger() {
            let done = output.calls.iter().any(|call| call.status == CallStatus::Done);
            if let Some(error) = output.error.as_mut().filter(|_| done) {
                let id = &output.id;
                error.suggestions.push(format!(
                    "correct the script and run it with `resume` = `{id}`: what is done is not done again"
                ));
            }
            if let Err(error) = ledger.end(&output) {
                output.warnings.push(format!("the end of the run could not be written down: {error}"));
            }
        }
        options.events.emit(Event::ScriptFinished {
            script_id: output.id.clone(),
            status: output.status,
            duration_ms: output.metadata.duration_ms,
        });
        output
    }

    async fn execute(
        &self,
        mut output: ScriptToolCallOutput,
        compiled: &Arc<Compiled>,
        options: &RunOptions,
        seed: u64,
        started: Instant,
    ) -> ScriptToolCallOutput {
        let wished = options.timeout.or(compiled
            .pragma
            .as_ref()
            .and_then(|pragma| pragma.timeout_ms)
            .map(Duration::from_millis));
        let longest = Duration::from_millis(self.limits.max_timeout_ms);
        let timeout = wished.unwrap_or(Duration::from_millis(self.limits.timeout_ms)).min(longest);
        let mut first = true;
        let (ended, said) = loop {
            let mut scope =
                Scope::new(output.id.clone(), ScopeLimits::from(&self.limits), &options.cancel, options.events.clone());
            scope.source = Some(Source(compiled.source.clone()));
            scope.earlier = options.resume.as_ref().map(|resume| resume.calls.clone());
            let said = Said::new(LogMeter::new(&self.limits), ProgressMeter::new(&self.limits), options.session.view());
            let said = Arc::new(Mutex::new(said));
            let run = Run {
                runtime: self.runtime.as_ref(),
                orchestrator: &self.orchestrator,
                compiled,
                scope: &scope,
                limits: &self.limits,
                timeout,
                seed,
                said: &said,
                allow_detached: self.allow_detached,
            };
            let ended = run.to_its_end(self.context(&output.id, options, timeout)).await;
            // A failure of ours is tried once more, unless the world may have changed.
            let ours = matches!(&ended.result, Err(error) if error.code == ErrorCode::HarnessInternalError);
            if !(first && ours && ended.dispatched == 0) {
                break (ended, said);
            }
            first = false;
        };
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(&ended.result, Err(error) if error.code == ErrorCode::ScriptCancelledError) {
            said.session.commit();
        }
        (output.logs, output.warnings) = said.finish();
        output.output = std::mem::take(&mut said.output);
        output.metadata.tool_calls_made = ended.dispatched;
        output.metadata.memory_used_mb = (ended.heap_peak as f64 / 104_857.6).round() / 10.0;
        output.metadata.random_seed = seed.to_string();
        self.conclude(&mut output, ended);
        let silent = output.output_json.is_none() && output.output.is_empty() && output.logs.is_empty();
        let notes = compiled.notes.iter().filter(|note| silent || !note.if_silent);
        output
            .warnings
            .extend(notes.map(|note| format!("line {}: {}", compiled.position(note.offset).line, note.message)));
        output.metadata.duration_ms = millis(started);
        output
    }

    /// Puts value or error into the output, within the size it may have.
    fn conclude(&self, output: &mut ScriptToolCallOutput, ended: Ended) {
        let max = self.limits.max_return_bytes;
        output.calls = ended.calls;
        let error = match ended.result {
            Ok(value) => {
                let value = value.map(|json| whole_unicode(&json).into_owned());
                let parsed: Option<Value> = value.as_deref().and_then(|json| serde_json::from_str(json).ok());
                output.summary = parsed.as_ref().and_then(|value| value.get("message")?.as_str().map(str::to_owned));
                let bytes = value.as_ref().map_or(0, String::len);
                if bytes <= max {
                    output.status = RunStatus::Completed;
                    output.output_json = value;
                    return;
                }
                output.output_json = parsed.map(|value| preview(&value, max));
                too_large(bytes, max)
            }
            Err(error) => {
                let done =
                    output.calls.iter().filter(|call| call.status == selvedge_protocol::CallStatus::Done).count();
                let pending = output
                    .calls
                    .iter()
                    .filter(|call| {
                        call.status != selvedge_protocol::CallStatus::Done
                            && call.error.as_ref().is_none_or(|error| error.code == ErrorCode::ToolAbortedError)
                    })
                    .count();
                output.output_json = Some(partial_results(ended.results, max));
                error.with("completedTools", done).with("pendingTools", pending)
            }
        };
        // What the engine did not understand never ran.
        let ran = error.phase != Phase::Parsing;
        output.status = if ran { RunStatus::Error } else { RunStatus::Rejected };
        output.error = Some(error);
    }

    fn context(&self, script_id: &str, options: &RunOptions, timeout: Duration) -> Value {
        let facts = &options.facts;
        json!({
            "conversationId": facts.conversation_id,
            "sessionId": facts.session_id,
            "turnId": facts.turn_id,
            "scriptId": script_id,
            "workingDirectory": facts.working_directory,
            "args": facts.args,
            "provider": facts.provider,
            "model": facts.model,
            "sandbox": {
                "timeoutMs": timeout.as_millis() as u64,
                "memoryMb": self.limits.memory_mb,
                "maxConcurrentToolCalls": self.limits.max_concurrent_tool_calls,
                "mode": options.mode.unwrap_or(self.mode).as_str(),
            },
            "capabilities": {"tools": self.orchestrator.registry().iter().map(|tool| &tool.spec.js_name).collect::<Vec<_>>()},
            "approvals": {"required": self.orchestrator.policy() != ApprovalPolicy::Never},
        })
    }
}

pub(crate) fn empty(id: String, call_id: String) -> ScriptToolCallOutput {
    ScriptToolCallOutput {
        id,
        call_id,
        status: RunStatus::Rejected,
        output_json: None,
        error: None,
        summary: None,
        output: Vec::new(),
        calls: Vec::new(),
        logs: Vec::new(),
        warnings: Vec::new(),
        metadata: RunMetadata::default(),
    }
}

fn reject(mut output: ScriptToolCallOutput, error: ScriptError, started: Instant) -> ScriptToolCallOutput {
    output.error = Some(error);
    output.metadata.duration_ms = millis(started);
    output
}

fn dry_run(mut output: ScriptToolCallOutput, report: Preflight, started: Instant) -> ScriptToolCallOutput {
    output.status = RunStatus::DryRun;
    output.output_json = serde_json::to_string(&report).ok();
    output.error = report.errors.into_iter().next();
    output.warnings.push("dry run: the script was checked, nothing ran".to_owned());
    output.metadata.duration_ms = millis(started);
    output
}

/// The first problem, with all the others in its metadata.
fn rejection(report: Preflight) -> Option<ScriptError> {
    let others: Vec<Value> = report
        .errors
        .iter()
        .skip(1)
        .map(|error| json!({"code": error.code, "message": error.message, "line": error.line, "column": error.column, "suggestions": error.suggestions}))
        .collect();
    let first = report.errors.into_iter().next()?;
    Some(if others.is_empty() { first } else { first.with("alsoWrong", Value::Array(others)) })
}

fn too_large(bytes: usize, max: usize) -> ScriptError {
    let message = format!("the returned value has {bytes} bytes as JSON, more than {max}: output_json holds a preview");
    ScriptError::new(ErrorCode::SerializationError, Phase::Finalizing, message)
        .suggest("return only what is needed: filter, count, or take a slice")
        .with("bytes", bytes)
}

fn partial_results(results: Vec<(String, String, String)>, max: usize) -> String {
    let list: Vec<Value> = results
        .into_iter()
        .map(|(call_id, tool, json)| json!({"callId": call_id, "tool": tool, "value": serde_json::from_str::<Value>(&json).unwrap_or_default()}))
        .collect();
    let whole = json!({"partialResults": list});
    let text = whole.to_string();
    if text.len() <= max { text } else { preview(&whole, max) }
}

fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

fn millis(since: Instant) -> f64 {
    (since.elapsed().as_secs_f64() * 1e6).round() / 1e3
}
