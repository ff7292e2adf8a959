//! The front door: a script goes in, a [`ScriptToolCallOutput`] comes out. Nothing is thrown.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use selvedge_protocol::{
    ApprovalPolicy, CallRecord, CallStatus, ErrorCode, Event, LedgerError, Limits, Mode, Phase,
    RunStart, RunStatus, ScriptError, ScriptToolCall, ScriptToolCallOutput, new_id,
};
use selvedge_sandbox::{Fault, OnFirstUse, Runtime, Settings, Wasm};
use selvedge_tools::{
    Approver, Means, Orchestrator, Registry, Rest, Scope, ScopeLimits, Source, Stopped, Tasks,
    heeding,
};
use serde_json::{Value, json};

use crate::bridge::Said;
use crate::compile::{Compiled, Compiler};
use crate::conclusion::{GOES_ON_ELSEWHERE, conclude, dry_run, millis, reject, rejection};
use crate::first_line::FirstLine;
use crate::meter::{LogMeter, ProgressMeter};
use crate::options::{RunOptions, Suspended};
use crate::playing::Recorded;
use crate::preflight::{self, Preflight};
use crate::run::{Begin, Over, Run};
use crate::suspension::Suspension;
use crate::tape::{Head, Tape};

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
    tasks: Option<Tasks>,
}

impl Harness {
    /// A harness with the default limits, on this process's sandbox.
    pub fn new(orchestrator: Orchestrator) -> Result<Self, Fault> {
        Ok(Self::on(Wasm::shared()?, orchestrator))
    }

    /// The same, on a sandbox that is loaded when the first script runs.
    pub fn on_first_use(orchestrator: Orchestrator) -> Self {
        Self::on(Arc::new(OnFirstUse::default()), orchestrator)
    }

    /// The same in a process that runs one script and ends.
    pub fn for_one_script(mut self) -> Self {
        self.runtime = Arc::new(OnFirstUse::new(Settings::for_one_script()));
        self
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
            tasks: None,
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

    /// The same, and scripts can start work that goes on when they have ended. The tasks' tools must be among those of
    /// the orchestrator; see [`Tasks::register`].
    pub fn with_tasks(mut self, tasks: &Tasks) -> Self {
        self.tasks = Some(tasks.clone());
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

    /// The same with another way to the tools.
    pub fn with_orchestrator(mut self, orchestrator: Orchestrator) -> Self {
        self.orchestrator = orchestrator;
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
        self.run_with(source.as_bytes(), RunOptions::default())
            .await
    }

    /// Checks a script without running it.
    pub fn check(&self, source: &[u8]) -> Preflight {
        match self
            .compiler
            .compile_bytes(source, self.limits.max_source_bytes)
        {
            Ok((compiled, _)) => preflight::check(&compiled, &self.orchestrator),
            Err(error) => Preflight {
                valid: false,
                calls: Vec::new(),
                errors: vec![error],
            },
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
        let mut output = ScriptToolCallOutput::new(id, call_id);
        let mode = options.mode.unwrap_or(self.mode);
        if mode == Mode::Disabled {
            let error = ScriptError::new(
                ErrorCode::ScriptRejectedError,
                Phase::Parsing,
                "scripts are disabled here",
            )
            .suggest("make structured tool calls, or set the mode to `enabled`");
            return reject(output, error, started);
        }
        let (compiled, cache_hit) = match self
            .compiler
            .compile_bytes(source, self.limits.max_source_bytes)
        {
            Ok(compiled) => compiled,
            Err(error) if mode == Mode::DryRun => {
                let report = Preflight {
                    valid: false,
                    calls: Vec::new(),
                    errors: vec![error],
                };
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
        let recorded_seed = options.resume.as_ref().and_then(|resume| resume.seed);
        let seed = options.seed.or(recorded_seed).unwrap_or_else(fresh_seed);
        let (id, written_seed) = (output.id.clone(), seed.to_string());
        let first_line = self.orchestrator.ledger().map(|ledger| {
            let start = RunStart {
                id: &id,
                source: &compiled.source,
                directory: &options.facts.working_directory,
                session: &options.facts.session_id,
                seed: &written_seed,
                resumes: options.resume.as_ref().map(|resume| resume.run.as_str()),
                setting: &options.setting,
            };
            FirstLine::new(ledger, start)
        });
        options.events.emit(Event::ScriptStarted {
            script_id: output.id.clone(),
        });
        let tape = match self.orchestrator.ledger() {
            Some(_) => Head::recording(Tape::blank(
                &self.limits,
                self.time_for(&compiled, &options),
            )),
            None => Head::default(),
        };
        let head = Arc::new(Mutex::new(tape));
        let mut start = Start {
            begin: Begin::Fresh(first_line.as_ref()),
            seed,
            head,
            said: None,
        };
        let output = self
            .execute(output, &compiled, &options, &mut start, started)
            .await;
        self.over(output, &start, &options)
    }

    /// Goes on with a run that was put away, perhaps by another process. Whoever does must have claimed it.
    pub async fn go_on(
        &self,
        source: &str,
        suspended: &Suspended,
        mut options: RunOptions,
    ) -> Result<ScriptToolCallOutput, String> {
        let started = Instant::now();
        let suspension = Suspension::from_bytes(&suspended.state)?;
        let compiled = self.compiler.compile_bytes(source.as_bytes(), usize::MAX);
        let (compiled, cache_hit) = compiled.map_err(|error| error.message)?;
        let mut tape: Tape = Suspension::part(&suspension.tape)?;
        let id = options.id.clone().unwrap_or_default();
        let mut output = ScriptToolCallOutput::new(id, suspension.call_id.clone());
        output.metadata.cache_hit = cache_hit;
        options.timeout = Some(suspension.timeout);
        let seed = suspension.seed;
        let ours = suspension.build == self.runtime.build();
        if !ours && tape.cut {
            return Err("it was put away by another build of the engine, and was told too much to be told again".into());
        }
        let values = suspended
            .values
            .iter()
            .map(|(id, value)| (id.clone(), value.to_string()));
        let recorded = Recorded::new(
            values,
            suspension.traffic.calls.iter().flatten().cloned().collect(),
        );
        let mut start = if ours {
            let said = Suspension::part(&suspension.said)?;
            let head = Head::recording(std::mem::take(&mut tape));
            Start {
                begin: Begin::Thawed(&suspension),
                seed,
                head: Arc::new(Mutex::new(head)),
                said: Some(said),
            }
        } else {
            let head = Head::playing(std::mem::take(&mut tape));
            let begin = Begin::Retold(&recorded, &suspension);
            Start {
                begin,
                seed,
                head: Arc::new(Mutex::new(head)),
                said: None,
            }
        };
        options.events.emit(Event::ScriptStarted {
            script_id: output.id.clone(),
        });
        let mut output = self
            .execute(output, &compiled, &options, &mut start, started)
            .await;
        if !ours {
            output.warnings.push(
                "the script was put away by another build of the engine: it was begun anew and told what it had been told"
                    .to_owned(),
            );
        }
        Ok(self.over(output, &start, &options))
    }

    /// A run has ended or come to rest: that is written down and told.
    fn over(
        &self,
        mut output: ScriptToolCallOutput,
        start: &Start<'_>,
        options: &RunOptions,
    ) -> ScriptToolCallOutput {
        if let Some(resume) = options
            .resume
            .as_ref()
            .filter(|_| output.status != RunStatus::Suspended)
        {
            output.warnings.extend(resume.calls.reuse_warning());
        }
        if let Some(ledger) = self.orchestrator.ledger()
            && output.status != RunStatus::Suspended
        {
            // What was begun must not be begun again either.
            let done = |call: &CallRecord| {
                matches!(
                    call.status,
                    CallStatus::Done | CallStatus::OutcomeUnknown | CallStatus::Aborted
                )
            };
            let done = output.calls.iter().any(done);
            if let Some(error) = output.error.as_mut().filter(|_| done) {
                error
                    .suggestions
                    .push(options.author.goes_on_from(&output.id));
            }
            let head = start.head.lock().unwrap_or_else(PoisonError::into_inner);
            let recording = (!head.tape.cut)
                .then(|| serde_json::to_vec(&head.tape).ok())
                .flatten();
            drop(head);
            let ended = match start.begin {
                Begin::Fresh(Some(first_line)) => first_line.end(&output, recording.as_deref()),
                _ => ledger.end(&output, recording.as_deref()),
            };
            if ended == Err(LedgerError::TakenOver) {
                output.status = RunStatus::Suspended;
                output.error = None;
                output.warnings.push(GOES_ON_ELSEWHERE.to_owned());
            } else if let Err(error) = ended {
                output.warnings.push(format!(
                    "the end of the run could not be written down: {error}"
                ));
            }
        }
        options.events.emit(Event::ScriptFinished {
            script_id: output.id.clone(),
            status: output.status,
            duration_ms: output.metadata.duration_ms,
        });
        output
    }

    pub(crate) async fn execute(
        &self,
        mut output: ScriptToolCallOutput,
        compiled: &Arc<Compiled>,
        options: &RunOptions,
        start: &mut Start<'_>,
        started: Instant,
    ) -> ScriptToolCallOutput {
        let timeout = self.time_for(compiled, options);
        if let Err(fault) = self.runtime.load() {
            let message = format!("the sandbox cannot be started: {fault}");
            let error =
                ScriptError::new(ErrorCode::HarnessInternalError, Phase::Executing, message)
                    .suggest("`selvedge doctor` says what this machine lacks");
            output.error = Some(error);
            output.status = RunStatus::Error;
            return output;
        }
        let mut first = true;
        let (ended, said) = loop {
            let mut scope = Scope::new(
                output.id.clone(),
                ScopeLimits::from(&self.limits),
                &options.cancel,
                options.events.clone(),
            );
            scope.source = Some(Source(compiled.source.clone()));
            scope.prior = options.resume.as_ref().map(|resume| resume.calls.clone());
            if self.orchestrator.ledger().is_some() {
                scope.rest = Rest::AtQuestions;
            }
            if let Begin::Thawed(suspension) | Begin::Retold(_, suspension) = start.begin {
                scope.stand_in(&suspension.standing);
            }
            let said = match start.said.take() {
                Some(mut said) => {
                    said.session.move_to(&options.session);
                    said
                }
                None => Said::new(
                    LogMeter::new(&self.limits),
                    ProgressMeter::new(&self.limits),
                    options.session.view(),
                ),
            };
            let said = Arc::new(Mutex::new(said));
            let tasks = self.tasks.as_ref().map(|tasks| {
                let means = Means {
                    orchestrator: self.orchestrator.clone(),
                    limits: ScopeLimits::from(&self.limits),
                    directory: options.facts.working_directory.clone(),
                    session: options.facts.session_id.clone(),
                };
                (tasks.clone(), means)
            });
            let run = Run {
                runtime: self.runtime.as_ref(),
                orchestrator: &self.orchestrator,
                compiled,
                scope: &scope,
                limits: &self.limits,
                timeout,
                seed: start.seed,
                said: &said,
                head: &start.head,
                begin: start.begin,
                suspend: &options.suspend,
                leave: &options.leave,
                call_id: &output.call_id,
                allow_detached: self.allow_detached,
                tasks: &tasks,
            };
            let context = self.context(&output.id, options, timeout);
            let ledger = self.orchestrator.ledger();
            // Pinned where it is made: moved, it would take its room twice.
            let (mut ended, stopped) = heeding(ledger, &scope, pin!(run.to_its_end(context))).await;
            if let Err(error) = &mut ended.result
                && (stopped, error.code) == (Stopped::FromOutside, ErrorCode::ScriptCancelledError)
            {
                error.message = "the script was cancelled with `selvedge runs cancel`".to_owned();
            }
            // A failure of ours is tried once more, unless the world may have changed.
            let ours = matches!(&ended.result, Err(error) if error.code == ErrorCode::HarnessInternalError);
            let fresh = matches!(start.begin, Begin::Fresh(_));
            let nothing_began =
                ended.calls.is_empty() && scope.calls_left() == self.limits.max_tool_calls;
            if !(first && ours && fresh && nothing_began) {
                break (ended, said);
            }
            first = false;
            let mut head = start.head.lock().unwrap_or_else(PoisonError::into_inner);
            if head.is_on() {
                *head = Head::recording(Tape::blank(&self.limits, timeout));
            }
        };
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        let cancelled = |error: &ScriptError| error.code == ErrorCode::ScriptCancelledError;
        // A script that is put away has not ended.
        let ended_by_itself = match &ended.result {
            Ok(over) => matches!(over, Over::Returned(_)),
            Err(error) => !cancelled(error),
        };
        if ended_by_itself && let Err(error) = said.session.commit() {
            said.warn(format!("what the script stored could not be kept: {error}"));
        }
        (output.logs, output.warnings) = said.finish();
        output.output = std::mem::take(&mut said.output);
        output.metadata.tool_calls_made = ended.dispatched;
        output.metadata.memory_used_mb = (ended.heap_peak as f64 / 104_857.6).round() / 10.0;
        output.metadata.random_seed = start.seed.to_string();
        conclude(&mut output, self.limits.max_return_bytes, ended);
        let silent =
            output.output_json.is_none() && output.output.is_empty() && output.logs.is_empty();
        let notes = compiled
            .notes
            .iter()
            .filter(|note| silent || !note.if_silent);
        output.warnings.extend(notes.map(|note| {
            format!(
                "line {}: {}",
                compiled.position(note.offset).line,
                note.message
            )
        }));
        output.metadata.duration_ms = millis(started);
        output
    }

    pub(crate) fn compile(&self, source: &[u8]) -> Result<Arc<Compiled>, ScriptError> {
        Ok(self.compiler.compile_bytes(source, usize::MAX)?.0)
    }

    /// How long a script may take.
    fn time_for(&self, compiled: &Compiled, options: &RunOptions) -> Duration {
        let asked = compiled
            .pragma
            .as_ref()
            .and_then(|pragma| pragma.timeout_ms)
            .map(Duration::from_millis);
        let longest = Duration::from_millis(self.limits.max_timeout_ms);
        options
            .timeout
            .or(asked)
            .unwrap_or(Duration::from_millis(self.limits.timeout_ms))
            .min(longest)
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
            "approvals": {"required": self.orchestrator.policy() != ApprovalPolicy::Never},
        })
    }
}

/// Where a run begins, and what is kept of it on the way.
pub(crate) struct Start<'a> {
    pub(crate) begin: Begin<'a>,
    pub(crate) seed: u64,
    pub(crate) head: Arc<Mutex<Head>>,
    /// What the script said before.
    pub(crate) said: Option<Said>,
}

fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}
