//! Runs a script: from its text, from a suspended run, or from a recording, to its output.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use selvedge_protocol::{
    ApprovalPolicy, CallError, ErrorCode, Ledger, LedgerError, LimitKind, LimitSurface, Phase,
    ReachedLimit, ResumeAs, RunStart, RunStatus, RuntimeEvent, ScriptError, ScriptMode,
    ScriptToolCallOutput, TimeoutSource, new_id,
};
use selvedge_tools::{
    CallFailure, ExternalCancel, Scope, ScriptSource, SuspendPolicy, TaskContext,
    run_until_cancel_requested,
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::compile::CompiledScript;
use crate::context::{RunContext, StartMode};
use crate::harness::Harness;
use crate::options::{RestoreInput, RunOptions};
use crate::output_buffer::OutputBuffer;
use crate::pragma::Pragma;
use crate::preflight;
use crate::recording::{Recorder, Recording};
use crate::replay_calls::ReplayAnswers;
use crate::run::ScriptRun;
use crate::run_output::{
    CLAIMED_BY_OTHER_WARNING, dry_run_output, fill_result, preflight_error, rejected_output,
    set_duration,
};
use crate::run_record::RunRecord;
use crate::state::RunExit;
use crate::suspension::{RestoreError, Suspension};
use crate::teardown::EndedRun;

/// How long a run that has ended waits for a write to the ledger before it returns its output. The
/// write is completed later in any case.
const WRITE_TIMEOUT: Duration = Duration::from_millis(500);

/// What all attempts of a run share: how it starts, its seed, its recorder.
pub(crate) struct RunLaunch<'a> {
    start_mode: StartMode<'a>,
    seed: u64,
    recorder: Arc<Mutex<Recorder>>,
    /// Output that a restored run had before it was suspended.
    output: Option<OutputBuffer>,
    /// What the recorded calls mean to a run that resumes this one.
    resume_as: ResumeAs,
    /// Ids of the recorded calls that a run that resumes this one has to decide.
    undecided: BTreeSet<String>,
}

impl<'a> RunLaunch<'a> {
    pub(crate) fn new(start: StartMode<'a>, seed: u64, recorder: Recorder) -> Self {
        Self {
            start_mode: start,
            seed,
            recorder: Arc::new(Mutex::new(recorder)),
            output: None,
            resume_as: ResumeAs::Rerun,
            undecided: BTreeSet::new(),
        }
    }

    /// Discards the recorded inputs.
    fn discard_recording(&self) {
        let mut recorder = self.recorder();
        if recorder.is_enabled() {
            let discarded = &recorder.recording;
            *recorder = Recorder::append_to(Recording::new(&discarded.limits, discarded.timeout));
        }
    }

    pub(crate) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One attempt to run a script.
struct RunAttempt {
    ended: EndedRun,
    buffer: Arc<Mutex<OutputBuffer>>,
    /// The attempt failed for an internal reason and had no effect.
    may_retry: bool,
}

impl RunAttempt {
    /// Writes the values that the script stored to its session, if it returned or failed.
    async fn save_stored_values(&self) {
        let store_values = match &self.ended.exit {
            RunExit::Returned(_) => true,
            RunExit::Failed(error) => error.code != ErrorCode::ScriptCancelledError,
            RunExit::Suspended | RunExit::ClaimedByOther | RunExit::RecordingEnded => false,
        };
        if !store_values {
            return;
        }
        let commit = self.buffer().stored_values.commit();
        let warning = match timeout(WRITE_TIMEOUT, commit).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("cannot save the values that the script stored: {error}"),
            Err(_) => {
                "the journal has not answered within 0.5 s; the values that the script stored are \
                 saved when it does"
                    .into()
            }
        };
        self.buffer().warn(warning);
    }

    fn buffer(&self) -> MutexGuard<'_, OutputBuffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Harness {
    /// Runs a script with these options, without a span and metrics.
    pub(crate) async fn run_unobserved(
        &self,
        source: &[u8],
        options: RunOptions,
    ) -> ScriptToolCallOutput {
        let started = Instant::now();
        let id = options.id.clone().unwrap_or_else(|| new_id("scr"));
        let call_id = options.call_id.clone().unwrap_or_else(|| new_id("call"));
        let mut output = ScriptToolCallOutput::new(id, call_id);
        let mode = options.mode.unwrap_or(self.mode);
        if mode == ScriptMode::Disabled {
            let message = "scripts are disabled";
            let error = ScriptError::new(ErrorCode::ScriptRejectedError, Phase::Parsing, message)
                .suggest(match self.surface {
                    LimitSurface::Run => "pass --mode enabled",
                    _ => "make structured tool calls, or set the mode to `enabled`",
                });
            return rejected_output(output, error, started);
        }
        if mode == ScriptMode::DryRun {
            let (report, cache_hit) = self.compile_and_check(source).await;
            output.metadata.cache_hit = cache_hit;
            return dry_run_output(output, report, started);
        }
        let max_bytes = self.limits.max_source_bytes;
        let registry = Some(self.orchestrator.registry());
        let compiled = self.compiler.compile_async(source, max_bytes, registry);
        let (compiled, cache_hit) = match compiled.await {
            Ok(compiled) => compiled,
            Err(error) => return rejected_output(output, error, started),
        };
        output.metadata.cache_hit = cache_hit;
        if let Some(error) = preflight_error(preflight::check(&compiled, &self.orchestrator)) {
            return rejected_output(output, error, started);
        }
        self.run_compiled(output, &compiled, &options, started)
            .await
    }

    /// Runs a script that passed its checks.
    async fn run_compiled(
        &self,
        output: ScriptToolCallOutput,
        compiled: &Arc<CompiledScript>,
        options: &RunOptions,
        started: Instant,
    ) -> ScriptToolCallOutput {
        let recorded_seed = options.resume.as_ref().and_then(|resume| resume.seed);
        let seed = options.seed.or(recorded_seed).unwrap_or_else(random_seed);
        let (id, seed_text) = (output.id.clone(), seed.to_string());
        let ledger = self.orchestrator.ledger();
        let start_record = ledger.map(|ledger| {
            let start = RunStart {
                id: &id,
                source: &compiled.source,
                directory: &options.context.working_directory,
                session: &options.context.session_id,
                seed: &seed_text,
                resumes: options.resume.as_ref().map(|resume| resume.run_id.as_str()),
                saved_config: &options.saved_config,
            };
            RunRecord::new(ledger, start)
        });
        let timeout = self.effective_timeout(compiled.pragma.as_ref(), options);
        let recorder = ledger.map(|_| Recorder::append_to(Recording::new(&self.limits, timeout)));
        let start = StartMode::Fresh(start_record.as_ref());
        let mut launch = RunLaunch::new(start, seed, recorder.unwrap_or_default());
        emit_started(options, &id);
        let output = self
            .execute(output, compiled, options, &mut launch, started)
            .await;
        self.record_and_emit_end(output, &launch, options).await
    }

    /// Restores a suspended run as [`Harness::restore_suspended`] does, without a span and metrics.
    pub(crate) async fn restore_unobserved(
        &self,
        source: &str,
        suspended: &RestoreInput,
        mut options: RunOptions,
    ) -> Result<ScriptToolCallOutput, RestoreError> {
        let started = Instant::now();
        let suspension = Suspension::from_bytes(&suspended.state)?;
        let compiler = &self.compiler;
        let compiled = compiler.compile_async(source.as_bytes(), usize::MAX, None);
        let compiled = compiled.await;
        let (compiled, cache_hit) =
            compiled.map_err(|error| RestoreError::Compile(error.message))?;
        let recording: Recording = Suspension::parse_part(&suspension.recording)?;
        let id = options.id.clone().unwrap_or_default();
        let mut output = ScriptToolCallOutput::new(id, suspension.call_id.clone());
        output.metadata.cache_hit = cache_hit;
        options.timeout = Some(suspension.timeout);
        let values = suspended.values.iter();
        let values = values.map(|(id, value)| (id.clone(), value.to_string()));
        let recorded =
            ReplayAnswers::new(values, suspension.calls.log.records().cloned().collect());
        let seed = suspension.seed;
        let same_build = suspension.build == self.runtime.build_id();
        let mut launch = if same_build {
            let recorder = Recorder::append_to(recording);
            RunLaunch {
                output: Some(Suspension::parse_part(&suspension.output)?),
                ..RunLaunch::new(StartMode::Restore(&suspension), seed, recorder)
            }
        } else if recording.truncated {
            return Err(RestoreError::OtherBuild);
        } else {
            let start = StartMode::ReplayThenRestore(&recorded, &suspension);
            RunLaunch::new(start, seed, Recorder::replay_of(recording))
        };
        emit_started(&options, &output.id);
        let mut output = self
            .execute(output, &compiled, &options, &mut launch, started)
            .await;
        if !same_build {
            output.warnings.push(
                "the script was suspended by another build of the engine: \
                 it was started again and its recorded inputs were replayed"
                    .to_owned(),
            );
        }
        Ok(self.record_and_emit_end(output, &launch, &options).await)
    }

    /// Writes the end of a run to the ledger and emits the event. A suspended run has not ended.
    async fn record_and_emit_end(
        &self,
        mut output: ScriptToolCallOutput,
        launch: &RunLaunch<'_>,
        options: &RunOptions,
    ) -> ScriptToolCallOutput {
        let suspended = output.status == RunStatus::Suspended;
        if let Some(resume) = &options.resume
            && !suspended
        {
            output.warnings.extend(resume.prior_calls.warnings());
        }
        if let Some(ledger) = self.orchestrator.ledger()
            && !suspended
        {
            if launch.resume_as != ResumeAs::Rerun
                && let Some(error) = &mut output.error
            {
                let first = first_step_to_resume(error);
                let mut ids = output.calls.iter().map(|call| call.id.as_str());
                let undecided = ids.find(|id| launch.undecided.contains(*id));
                let suggestion = options
                    .resume_hint
                    .suggestion(&first, &output.id, undecided);
                error.suggestions.push(suggestion);
            }
            match timeout(WRITE_TIMEOUT, record_end(ledger, &output, launch)).await {
                Ok(Ok(())) => {}
                Ok(Err(LedgerError::ClaimedByOther)) => {
                    output.status = RunStatus::Suspended;
                    output.error = None;
                    output.warnings.push(CLAIMED_BY_OTHER_WARNING.to_owned());
                }
                // The error of the run already says that the disk is full.
                Ok(Err(LedgerError::DiskFull(_)))
                    if output.error.as_ref().is_some_and(is_disk_full) => {}
                Ok(Err(error)) => output
                    .warnings
                    .push(format!("the end of the run is not recorded: {error}")),
                Err(_) => output.warnings.push(
                    "the journal has not answered within 0.5 s; the end of the run is written when \
                     it does"
                        .to_owned(),
                ),
            }
        }
        options.events.emit(RuntimeEvent::ScriptFinished {
            script_id: output.id.clone(),
            status: output.status,
            duration_ms: output.metadata.duration_ms,
            error: output.error.as_ref().map(|error| CallError {
                code: error.code,
                message: error.message.clone(),
            }),
            limit: output.error.as_ref().and_then(reached_limit),
        });
        output
    }

    /// Runs a compiled script to its end. An internal failure is retried once if the script had no
    /// effect yet.
    pub(crate) async fn execute(
        &self,
        mut output: ScriptToolCallOutput,
        compiled: &Arc<CompiledScript>,
        options: &RunOptions,
        launch: &mut RunLaunch<'_>,
        started: Instant,
    ) -> ScriptToolCallOutput {
        if let Err(fault) = self.runtime.load() {
            let message = format!("cannot start the sandbox: {fault}");
            let code = ErrorCode::HarnessInternalError;
            let error = ScriptError::new(code, Phase::Executing, message)
                .suggest("run `selvedge doctor` to check this machine");
            output.error = Some(error);
            output.status = RunStatus::Error;
            set_duration(&mut output, started);
            return output;
        }
        let mut attempt = self.run_attempt(&output, compiled, options, launch).await;
        if attempt.may_retry {
            launch.discard_recording();
            // Boxed, because a retry is rare and should not double the size of every run's future.
            attempt = Box::pin(self.run_attempt(&output, compiled, options, launch)).await;
        }
        output.metadata.random_seed = launch.seed.to_string();
        attempt.save_stored_values().await;
        self.fill_output(&mut output, compiled, attempt);
        set_duration(&mut output, started);
        output
    }

    /// Runs the script once, in its own scope.
    async fn run_attempt(
        &self,
        output: &ScriptToolCallOutput,
        compiled: &Arc<CompiledScript>,
        options: &RunOptions,
        launch: &mut RunLaunch<'_>,
    ) -> RunAttempt {
        let timeout = self.effective_timeout(compiled.pragma.as_ref(), options);
        let scope = self.new_scope(&output.id, compiled, options, launch.start_mode);
        let buffer = match launch.output.take() {
            Some(mut restored) => {
                restored.stored_values.set_store(&options.store);
                restored
            }
            None => OutputBuffer::new(&self.limits, &options.store),
        };
        let buffer = Arc::new(Mutex::new(buffer));
        let tasks = self.tasks.as_ref().map(|tasks| {
            let task_context = TaskContext {
                orchestrator: self.orchestrator.clone(),
                limits: self.scope_limits(),
                directory: options.context.working_directory.clone(),
                session: options.context.session_id.clone(),
            };
            (tasks.clone(), task_context)
        });
        let context = RunContext {
            runtime: self.runtime.as_ref(),
            orchestrator: &self.orchestrator,
            compiled,
            scope: &scope,
            limits: &self.limits,
            surface: self.surface,
            timeout,
            timeout_source: timeout_source(compiled.pragma.as_ref(), options),
            seed: launch.seed,
            output: &buffer,
            recorder: &launch.recorder,
            start_mode: launch.start_mode,
            suspend: &options.suspend,
            caller_gone: &options.caller_gone,
            call_id: &output.call_id,
            allow_detached: self.allow_detached,
            tasks: &tasks,
        };
        let script_context = self.script_context(&output.id, options, timeout);
        let (mut ended, stopped) = {
            // Pinned here instead of moved into the call, which would store the large future twice.
            let run = pin!(ScriptRun::new(&context).run_to_end(script_context));
            run_until_cancel_requested(self.orchestrator.ledger(), &scope, run).await
        };
        launch.resume_as = scope.resume_as();
        launch.undecided = scope.undecided_calls();
        let mut internal_failure = false;
        if let RunExit::Failed(error) = &mut ended.exit {
            internal_failure = error.code == ErrorCode::HarnessInternalError;
            if (stopped, error.code) == (ExternalCancel::Requested, ErrorCode::ScriptCancelledError)
            {
                error.message = "the script was cancelled with `selvedge runs cancel`".to_owned();
            }
        }
        let may_retry = internal_failure
            && matches!(launch.start_mode, StartMode::Fresh(_))
            && ended.calls.is_empty()
            && scope.is_unused();
        RunAttempt {
            ended,
            buffer,
            may_retry,
        }
    }

    /// Writes the script's output and its end into `output`.
    fn fill_output(
        &self,
        output: &mut ScriptToolCallOutput,
        compiled: &CompiledScript,
        attempt: RunAttempt,
    ) {
        let RunAttempt { ended, buffer, .. } = attempt;
        let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
        (output.logs, output.warnings) = buffer.take_logs_and_warnings();
        output.output = std::mem::take(&mut buffer.output);
        output.metadata.tool_calls_made = ended.invoked_calls;
        output.metadata.memory_used_mb = (ended.heap_peak as f64 / 104_857.6).round() / 10.0;
        fill_result(output, &self.limits, self.surface, ended);
        let silent = output.status == RunStatus::Completed
            && output.output_json.is_none()
            && output.output.is_empty()
            && output.logs.is_empty();
        let notes = compiled.warnings.iter();
        let notes = notes.filter(|note| silent || !note.only_without_output);
        output.warnings.extend(notes.map(|note| {
            let line = compiled.position_of_offset(note.offset).line;
            format!("line {line}: {}", note.message)
        }));
    }

    /// Creates the scope that owns everything the run starts.
    fn new_scope(
        &self,
        id: &str,
        compiled: &CompiledScript,
        options: &RunOptions,
        start: StartMode<'_>,
    ) -> Scope {
        let mut scope = Scope::new(
            id.to_owned(),
            self.scope_limits(),
            &options.cancel,
            options.events.clone(),
        );
        scope.source = Some(ScriptSource(compiled.source.clone()));
        scope.prior_calls = options
            .resume
            .as_ref()
            .map(|resume| resume.prior_calls.clone());
        if self.orchestrator.ledger().is_some() {
            scope.suspend_policy = SuspendPolicy::OnDeferredApproval;
        }
        if let Some(suspension) = start.suspension() {
            scope.restore(&suspension.scope);
        }
        scope
    }

    /// Returns the time limit of a script: the caller's, the script's own, or the default.
    pub(crate) fn effective_timeout(
        &self,
        pragma: Option<&Pragma>,
        options: &RunOptions,
    ) -> Duration {
        let own = pragma.and_then(|pragma| pragma.timeout_ms);
        let default = own.unwrap_or(self.limits.timeout_ms);
        let timeout = options.timeout.unwrap_or(Duration::from_millis(default));
        timeout.min(Duration::from_millis(self.limits.max_timeout_ms))
    }

    /// Returns the script's `context` as JSON.
    fn script_context(&self, script_id: &str, options: &RunOptions, timeout: Duration) -> Value {
        let context = &options.context;
        json!({
            "conversationId": context.conversation_id,
            "sessionId": context.session_id,
            "turnId": context.turn_id,
            "scriptId": script_id,
            "workingDirectory": context.working_directory,
            "args": context.args,
            "provider": context.provider,
            "model": context.model,
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

fn emit_started(options: &RunOptions, id: &str) {
    options.events.emit(RuntimeEvent::ScriptStarted {
        script_id: id.to_owned(),
    });
}

async fn record_end(
    ledger: &Arc<dyn Ledger>,
    output: &ScriptToolCallOutput,
    launch: &RunLaunch<'_>,
) -> Result<(), LedgerError> {
    let recording = match &launch.recorder().recording {
        recording if recording.truncated => None,
        recording => serde_json::to_vec(recording).ok(),
    };
    match launch.start_mode {
        StartMode::Fresh(Some(start)) => start.record_end(output, recording).await,
        _ => ledger.record_run_end(output, recording).await,
    }
}

/// Returns what set the time limit of a script.
fn timeout_source(pragma: Option<&Pragma>, options: &RunOptions) -> TimeoutSource {
    let own = pragma.and_then(|pragma| pragma.timeout_ms);
    let own = own.map(Duration::from_millis);
    match (options.timeout, own) {
        (Some(timeout), own) if own != Some(timeout) => TimeoutSource::Argument,
        (_, Some(_)) => TimeoutSource::Pragma,
        (_, None) => TimeoutSource::Configured,
    }
}

/// Returns the limit that an error reports as reached.
fn reached_limit(error: &ScriptError) -> Option<ReachedLimit> {
    Some(ReachedLimit {
        key: error
            .metadata
            .get(LimitKind::METADATA_KEY)?
            .as_str()?
            .to_owned(),
        set_by_script: error.metadata.contains_key(TimeoutSource::METADATA_KEY),
    })
}

fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// Whether a run failed because the disk of the journal is full.
fn is_disk_full(error: &ScriptError) -> bool {
    error
        .metadata
        .contains_key(CallFailure::DISK_FULL_METADATA_KEY)
}

/// Returns what has to be done before a failed run is resumed. Takes the suggestions that it
/// replaces from the error.
fn first_step_to_resume(error: &mut ScriptError) -> String {
    let of_server = error
        .tool_name
        .as_ref()
        .is_some_and(|tool| tool.starts_with("mcp."));
    if is_disk_full(error) {
        // A new run would repeat the completed changes.
        error.suggestions.clear();
        "free disk space".to_owned()
    } else if error.code == ErrorCode::ToolTimeoutError && error.suggestions.len() == 1 {
        error.suggestions.remove(0)
    } else if of_server && error.code == ErrorCode::ToolExecutionError {
        "correct the script or the server".to_owned()
    } else {
        "correct the script".to_owned()
    }
}
