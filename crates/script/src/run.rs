//! The main loop of a run: lets the guest compute, submits its calls, answers them, and suspends or
//! ends the run.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use selvedge_protocol::{ErrorCode, Phase, ScriptError};
use selvedge_sandbox::{
    Execution, Fault, GuestProgram, GuestStep, GuestStepState, InterruptHandle, ScriptFinish,
    Settlement, StartedExecution,
};
use selvedge_tools::BatchReport;
use serde_json::Value;

use crate::clock::{RemainingTime, RunActivity, RunClock, sleep_until};
use crate::context::{RunContext, StartMode};
use crate::errors::{from_fault, from_syntax, from_thrown, timeout_error};
use crate::in_flight::{CallAnswer, InFlightCalls};
use crate::recording::RecordingEntry;
use crate::script_host::ScriptHost;
use crate::state::{ActiveRunState, RunExit};
use crate::suspension::{SuspendError, Suspender, Suspension};
use crate::unicode::replace_lone_surrogates;

/// A run in progress.
pub(crate) struct ScriptRun<'a> {
    pub(crate) context: &'a RunContext<'a>,
    pub(crate) state: ActiveRunState,
    pub(crate) calls: InFlightCalls<'a>,
    suspender: Suspender<'a>,
    clock: RunClock,
    interrupt: Arc<InterruptHandle>,
    pub(crate) heap_peak: u64,
}

/// An answer to the guest.
pub(crate) enum GuestAnswer {
    Call(CallAnswer),
    Timer(u32),
}

/// What ended a wait.
pub(crate) enum WakeReason {
    Answer(GuestAnswer),
    /// The state of a call changed, or a snapshot is due.
    Recheck,
    /// The caller wants the run suspended.
    Suspend,
    RecordingEnded,
}

impl<'a> ScriptRun<'a> {
    pub(crate) fn new(context: &'a RunContext<'a>) -> Self {
        let remaining = match context.start_mode {
            StartMode::Restore(suspension) => suspension.remaining_time(context.limits),
            _ => RemainingTime {
                script: context.timeout,
                run: Duration::from_millis(context.limits.max_timeout_ms),
            },
        };
        Self {
            context,
            state: ActiveRunState::Running,
            calls: InFlightCalls::new(context),
            suspender: Suspender::new(context.orchestrator.ledger()),
            clock: RunClock::start(remaining),
            interrupt: Arc::new(InterruptHandle::new(remaining.script.min(remaining.run))),
            heap_peak: 0,
        }
    }

    /// The main loop. Returns the script's value as JSON, or how the run ended otherwise.
    pub(crate) async fn drive(
        &mut self,
        script_context_json: Value,
    ) -> Result<Option<String>, RunExit> {
        let (mut guest, mut step) = self.start(script_context_json).await?;
        loop {
            self.heap_peak = guest.heap_peak();
            if !step.requests.is_empty() || matches!(step.state, GuestStepState::Waiting) {
                self.wait_for_write(self.context.ensure_start_recorded())
                    .await??;
            }
            self.calls.handle_requests(step.requests)?;
            if let GuestStepState::Finished(finish) = step.state {
                return Ok(self.script_result(finish)?);
            }
            let answer = self.next_answer(guest.as_mut()).await?;
            if self.state.needs_claim() {
                let suspender = self.suspender;
                let claim = suspender.claim(&self.context.scope.id);
                let claimed = self.wait_for_write(claim).await?;
                claimed.map_err(|error| self.end_after_suspend_error(error))?;
                self.state.on_snapshot_obsolete();
            }
            step = self.settle(guest.as_mut(), answer).await?;
        }
    }

    /// Starts the guest, or restores it from its snapshot.
    async fn start(&mut self, script_context_json: Value) -> Result<StartedExecution, RunExit> {
        let context = self.context;
        let host = Box::new(ScriptHost {
            output: context.output.clone(),
            recorder: context.recorder.clone(),
            compiled: context.compiled.clone(),
            orchestrator: context.orchestrator.clone(),
            scope: context.scope.clone(),
            script_context_json,
            limits: context.limits_of_run(),
            surface: context.surface,
            tasks: context.tasks.clone(),
        });
        let source = context.javascript();
        let program = GuestProgram {
            source: &source,
            seed: context.seed,
            memory_limit: context.limits.memory_mb << 20,
            stack_limit: context.limits.max_stack_bytes,
            interrupt: self.interrupt.clone(),
        };
        let (interrupt, deadline) = (self.interrupt.clone(), self.clock.deadline());
        if let StartMode::Restore(suspension) = context.start_mode {
            let snapshot = suspension.snapshot();
            let restore = context.runtime.restore(&snapshot, program, host);
            let restored = self.calls.run_guest(&interrupt, deadline, restore).await;
            let guest = restored.map_err(|fault| self.fault_exit(&fault))?;
            self.calls.restore(&suspension.calls);
            let step = GuestStep {
                requests: Vec::new(),
                state: GuestStepState::Waiting,
            };
            return Ok((guest, step));
        }
        // The script can start a task while it computes, before its first call.
        if context.tasks.is_some() {
            self.wait_for_write(context.ensure_start_recorded())
                .await??;
        }
        let start = context.runtime.start(program, host);
        let started = self.calls.run_guest(&interrupt, deadline, start).await;
        started.map_err(|fault| self.fault_exit(&fault))
    }

    /// Answers the guest and lets it compute until it waits again.
    async fn settle(
        &mut self,
        guest: &mut dyn Execution,
        answer: GuestAnswer,
    ) -> Result<GuestStep, RunExit> {
        let (id, result, input) = match answer {
            GuestAnswer::Timer(id) => {
                (id, Ok("null".to_owned()), RecordingEntry::TimerFired { id })
            }
            GuestAnswer::Call((id, call, result)) => {
                let error = result.as_ref().err().cloned();
                (id, result, RecordingEntry::Settled { id, call, error })
            }
        };
        self.context.lock_recorder().record(input);
        self.clock.set_activity(RunActivity::Script);
        let deadline = self.clock.deadline();
        if let Some(deadline) = deadline {
            self.interrupt.set_deadline(deadline);
        }
        let settlement = match &result {
            Ok(value) => Settlement::Value(value),
            Err(error) => Settlement::Error(error),
        };
        let computing = guest.settle(id, settlement);
        let interrupt = self.interrupt.clone();
        let step = self.calls.run_guest(&interrupt, deadline, computing).await;
        step.map_err(|fault| self.fault_exit(&fault))
    }

    /// Waits for the next answer to the guest. Meanwhile saves snapshots, and suspends the run if
    /// that is requested.
    async fn next_answer(&mut self, guest: &mut dyn Execution) -> Result<GuestAnswer, RunExit> {
        loop {
            if self.suspender.is_enabled() && self.calls.can_suspend() {
                self.save_if_due(guest).await?;
                if self.state == ActiveRunState::Suspended {
                    return Err(RunExit::Suspended);
                }
            }
            match self.next_wake().await? {
                WakeReason::Answer(answer) => return Ok(answer),
                WakeReason::Recheck => {}
                WakeReason::Suspend => {
                    self.wait_for_running_calls().await?;
                    if !self.state.has_snapshot() {
                        let saved = self.save(guest).await?;
                        saved.map_err(|error| self.end_after_suspend_error(error))?;
                    }
                    return Err(RunExit::Suspended);
                }
                WakeReason::RecordingEnded => self.restore_after_replay()?,
            }
        }
    }

    /// Saves a snapshot of a run that waits for people, unless it has one or the last one is too
    /// recent.
    async fn save_if_due(&mut self, guest: &mut dyn Execution) -> Result<(), RunExit> {
        let suspending = self.state == ActiveRunState::Suspending;
        let too_soon = self.suspender.next_save_time() > Some(std::time::Instant::now());
        if !self.state.needs_snapshot() || (too_soon && !suspending) {
            return Ok(());
        }
        match self.save(guest).await? {
            // The person may still answer in this process, so the run continues without a
            // snapshot.
            Err(error) if !suspending && !matches!(error, SuspendError::ClaimedByOther) => {
                self.context.lock_output().warn(error.to_string());
                self.state.on_snapshot_failed();
                Ok(())
            }
            saved => saved.map_err(|error| self.end_after_suspend_error(error)),
        }
    }

    async fn save(
        &mut self,
        guest: &mut dyn Execution,
    ) -> Result<Result<(), SuspendError>, RunExit> {
        let (remaining, calls) = (self.clock.remaining(), self.calls.to_suspended());
        let context = self.context;
        let state = Suspension::of(context, guest, remaining, calls)
            .and_then(|suspension| Ok(suspension.to_bytes()?));
        let state = match state {
            Ok(state) => state,
            Err(error) => return Ok(Err(error)),
        };
        let suspender = self.suspender;
        let saved = self
            .wait_for_write(suspender.save(&context.scope.id, state))
            .await?;
        if saved.is_ok() {
            self.suspender.mark_saved();
            self.state.on_snapshot_saved();
        }
        Ok(saved)
    }

    /// Waits for a write to the ledger while calls continue. Fails at a cancellation or at the
    /// deadline; the ledger makes the write in any case.
    async fn wait_for_write<T>(&mut self, write: impl Future<Output = T>) -> Result<T, RunExit> {
        tokio::pin!(write);
        let (context, deadline) = (self.context, self.clock.deadline());
        loop {
            tokio::select! {
                biased;
                written = &mut write => return Ok(written),
                () = context.scope.cancel.cancelled() => {
                    return Err(self.fault_exit(&Fault::Cancelled));
                }
                () = sleep_until(deadline) => return Err(self.timeout_exit()),
                Some(()) = self.calls.batches.next(), if !self.calls.batches.is_empty() => {}
            }
        }
    }

    /// Returns how the run ends after this error.
    fn end_after_suspend_error(&mut self, error: SuspendError) -> RunExit {
        match error {
            SuspendError::ClaimedByOther => self.state.on_claimed_by_other(),
            error => RunExit::from(ScriptError::from(error)),
        }
    }

    /// Called at the end of the recording: a suspended run continues live, a replay ends.
    fn restore_after_replay(&mut self) -> Result<(), RunExit> {
        let StartMode::ReplayThenRestore(_, suspension) = self.context.start_mode else {
            self.fail_if_deadlocked()?;
            return Err(RunExit::RecordingEnded);
        };
        self.clock = RunClock::start(suspension.remaining_time(self.context.limits));
        self.context.lock_recorder().record_from_here();
        self.calls.restore(&suspension.calls);
        Ok(())
    }

    /// Returns a held answer, the next recorded input, or waits.
    async fn next_wake(&mut self) -> Result<WakeReason, RunExit> {
        if let Some(held) = self.calls.held_answers.pop_front() {
            return Ok(WakeReason::Answer(GuestAnswer::Call(held)));
        }
        match self.context.start_mode.recorded() {
            Some(recorded) if self.context.lock_recorder().is_replaying() => {
                Ok(self.calls.replay_next(recorded)?)
            }
            _ => self.wait().await,
        }
    }

    /// Waits for a report of a call, a timer, the deadline, or a request to stop.
    async fn wait(&mut self) -> Result<WakeReason, RunExit> {
        self.fail_if_deadlocked()?;
        self.clock.set_activity(self.calls.activity());
        let context = self.context;
        let timer = self.calls.timers.first().map(|(at, _)| *at);
        let save_at = (self.state.needs_snapshot() && self.calls.can_suspend())
            .then(|| self.suspender.next_save_time())
            .flatten();
        tokio::select! {
            biased;
            () = context.scope.cancel.cancelled() => Err(self.fault_exit(&Fault::Cancelled)),
            // Polled before reports, so that no answer starts further calls.
            () = context.suspend.cancelled(), if self.suspender.is_enabled() => Ok(WakeReason::Suspend),
            // Polled before the deadline, so that calls that have finished still count. This cannot
            // postpone the deadline for long, because the number of calls is limited.
            Some(report) = self.calls.reports.recv() => {
                let answer = self.handle_report(report)?;
                Ok(answer.map_or(WakeReason::Recheck, |answer| WakeReason::Answer(GuestAnswer::Call(answer))))
            }
            Some(()) = self.calls.batches.next(), if !self.calls.batches.is_empty() => {
                Ok(WakeReason::Recheck)
            }
            () = sleep_until(self.clock.deadline()) => Err(self.timeout_exit()),
            () = context.caller_gone.cancelled() => match self.state.has_snapshot() {
                true => Ok(WakeReason::Suspend),
                false => Err(self.fault_exit(&Fault::Cancelled)),
            },
            () = sleep_until(timer) => Ok(match self.calls.timers.pop_first() {
                Some((_, id)) => WakeReason::Answer(GuestAnswer::Timer(id)),
                None => WakeReason::Recheck,
            }),
            () = sleep_until(save_at) => Ok(WakeReason::Recheck),
        }
    }

    /// Waits until no call is running. Answers are held back from the guest.
    async fn wait_for_running_calls(&mut self) -> Result<(), RunExit> {
        let deadline = self.clock.deadline();
        while !self.calls.all_wait_before_start() {
            tokio::select! {
                biased;
                () = self.context.scope.cancel.cancelled() => {
                    return Err(self.fault_exit(&Fault::Cancelled));
                }
                () = sleep_until(deadline) => return Err(self.timeout_exit()),
                Some(report) = self.calls.reports.recv() => {
                    let answer = self.handle_report(report)?;
                    self.calls.held_answers.extend(answer);
                }
                Some(()) = self.calls.batches.next(), if !self.calls.batches.is_empty() => {}
            }
        }
        Ok(())
    }

    /// Handles a report about calls in flight. Returns an answer if it settles a call.
    pub(crate) fn handle_report(
        &mut self,
        report: BatchReport,
    ) -> Result<Option<CallAnswer>, RunExit> {
        let calls = &mut self.calls;
        match report {
            BatchReport::ApprovalRequested {
                request_id,
                calls: asked,
                timing,
            } => {
                self.context.lock_output().last_approval_id = Some(request_id);
                calls.set_open_approval(&asked, Some(timing));
            }
            BatchReport::ApprovalEnded(answered) => {
                calls.set_open_approval(&answered, None);
                self.state.on_snapshot_obsolete();
            }
            BatchReport::ToolStarted(call) => {
                calls.update_pending(&call, |pending| pending.tool_runs = true);
            }
            BatchReport::ToolEnded(call) => {
                calls.update_pending(&call, |pending| pending.tool_runs = false);
            }
            BatchReport::WaitStarted(call) => {
                calls.update_pending(&call, |pending| pending.waits += 1);
            }
            BatchReport::WaitEnded(call) => calls.update_pending(&call, |pending| {
                pending.waits = pending.waits.saturating_sub(1);
            }),
            BatchReport::ApprovalDeferred => self.state.on_answer_deferred(),
            BatchReport::ClaimedByOther => return Err(self.state.on_claimed_by_other()),
            BatchReport::Retrying(record) => {
                calls.log.invoked_count += 1;
                calls.log.add_record(record);
            }
            BatchReport::Finished(outcome) => return Ok(calls.finish_call(*outcome)),
        }
        Ok(None)
    }

    /// Returns the value that the script returned, or the error that it ended with.
    fn script_result(&self, finish: ScriptFinish) -> Result<Option<String>, ScriptError> {
        match finish {
            ScriptFinish::Value(value) => Ok(value),
            ScriptFinish::Exit => Ok(None),
            ScriptFinish::Error(error) => {
                let made = |id: &str| self.calls.log.records().any(|call| call.id == id);
                let (compiled, registry) =
                    (self.context.compiled, self.context.orchestrator.registry());
                Err(from_thrown(
                    &replace_lone_surrogates(&error),
                    compiled,
                    registry,
                    (self.context.limits, self.context.surface),
                    made,
                ))
            }
            ScriptFinish::Syntax(error) => Err(from_syntax(&error)),
        }
    }

    /// Fails if no call or timer is pending that could answer the guest.
    fn fail_if_deadlocked(&self) -> Result<(), ScriptError> {
        if !self.calls.nothing_pending() {
            return Ok(());
        }
        let message = "the script waits for a promise that nothing will ever settle";
        let mut error = ScriptError::new(ErrorCode::ScriptRuntimeError, Phase::Executing, message)
            .suggest(
                "check that every `new Promise` calls its resolve function, \
                 and has no async executor",
            );
        let output = self.context.lock_output();
        let rejections = output.unhandled_rejections.values();
        error.suggestions.extend(rejections.cloned());
        Err(error)
    }

    fn fault_exit(&self, fault: &Fault) -> RunExit {
        match fault {
            Fault::Deadline => self.timeout_exit(),
            fault => from_fault(fault, self.context.limits, self.context.surface).into(),
        }
    }

    fn timeout_exit(&self) -> RunExit {
        let limits = self.context.limits_of_run();
        let source = self.context.timeout_source;
        timeout_error(
            self.clock.next_limit(),
            &limits,
            self.context.surface,
            source,
        )
        .into()
    }
}
