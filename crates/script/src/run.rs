//! The main loop of a run: lets the guest compute, submits its calls, answers them, and suspends or
//! ends the run.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use selvedge_protocol::{ErrorCode, Phase, ScriptError};
use selvedge_sandbox::{Execution, Fault, Finish, Leash, Outcome, Program, Pump, Started, State};
use selvedge_tools::Report;
use serde_json::Value;

use crate::bridge::Bridge;
use crate::clock::{Clock, sleep_until};
use crate::context::{RunContext, Start};
use crate::in_flight::{CallAnswer, InFlightCalls};
use crate::outcome::{from_fault, from_syntax, from_thrown, timed_out};
use crate::recording::HostInput;
use crate::state::{RunEnd, RunState};
use crate::suspension::{SuspendError, Suspender, Suspension};
use crate::unicode::whole_unicode;

/// A run in progress.
pub(crate) struct Run<'a> {
    pub(crate) context: &'a RunContext<'a>,
    pub(crate) state: RunState,
    pub(crate) calls: InFlightCalls<'a>,
    suspender: Suspender<'a>,
    clock: Clock,
    leash: Arc<Leash>,
    pub(crate) heap_peak: u64,
}

/// An answer to the guest.
pub(crate) enum Answer {
    Call(CallAnswer),
    Timer(u32),
}

/// What ended a wait.
pub(crate) enum Wake {
    Answer(Answer),
    /// The state of a call changed, or a snapshot is due.
    Changed,
    /// The caller wants the run suspended.
    Suspend,
    RecordingEnded,
}

impl<'a> Run<'a> {
    pub(crate) fn new(context: &'a RunContext<'a>) -> Self {
        let left = match context.start {
            Start::Restore(suspension) => suspension.left,
            _ => context.timeout,
        };
        let longest = Duration::from_millis(context.limits.max_timeout_ms);
        Self {
            context,
            state: RunState::Running,
            calls: InFlightCalls::new(context),
            suspender: Suspender::new(context.orchestrator.ledger()),
            clock: Clock::start(left, longest),
            leash: Arc::new(Leash::new(left)),
            heap_peak: 0,
        }
    }

    /// The main loop. Returns the script's value as JSON, or how the run ended otherwise.
    pub(crate) async fn drive(&mut self, context: Value) -> Result<Option<String>, RunEnd> {
        let (mut guest, mut pump) = self.start(context).await?;
        loop {
            self.heap_peak = guest.heap_peak();
            if !pump.requests.is_empty() || matches!(pump.state, State::Waiting) {
                self.in_time(self.context.enter()).await??;
            }
            self.calls.accept(pump.requests)?;
            if let State::Finished(finish) = pump.state {
                return Ok(self.value(finish)?);
            }
            let answer = self.next_answer(guest.as_mut()).await?;
            if self.state.needs_claim() {
                let suspender = self.suspender;
                let claim = suspender.claim(&self.context.scope.id);
                let claimed = self.in_time(claim).await?;
                claimed.map_err(|error| self.refused(error))?;
                self.state.progress();
            }
            pump = self.settle(guest.as_mut(), answer).await?;
        }
    }

    /// Starts the guest, or restores it from its snapshot.
    async fn start(&mut self, script_context: Value) -> Result<Started, RunEnd> {
        let context = self.context;
        let bridge = Box::new(Bridge {
            output: context.output.clone(),
            recorder: context.recorder.clone(),
            compiled: context.compiled.clone(),
            orchestrator: context.orchestrator.clone(),
            scope: context.scope.clone(),
            context: script_context,
            max_depth: context.limits.max_value_depth,
            tasks: context.tasks.clone(),
        });
        let source = context.source();
        let program = Program {
            source: &source,
            seed: context.seed,
            memory_limit: context.limits.memory_mb << 20,
            stack_limit: context.limits.max_stack_bytes,
            leash: self.leash.clone(),
        };
        let (interrupt, deadline) = (self.leash.clone(), self.clock.deadline());
        if let Start::Restore(suspension) = context.start {
            let snapshot = suspension.image();
            let restore = context.runtime.restore(&snapshot, program, bridge);
            let restored = self
                .calls
                .while_computing(&interrupt, deadline, restore)
                .await;
            let guest = restored.map_err(|fault| self.fault(&fault))?;
            self.calls.restore(&suspension.calls);
            let pump = Pump {
                requests: Vec::new(),
                state: State::Waiting,
            };
            return Ok((guest, pump));
        }
        // The script can start a task while it computes, before its first call.
        if context.tasks.is_some() {
            self.in_time(context.enter()).await??;
        }
        let start = context.runtime.start(program, bridge);
        let started = self
            .calls
            .while_computing(&interrupt, deadline, start)
            .await;
        started.map_err(|fault| self.fault(&fault))
    }

    /// Answers the guest and lets it compute until it waits again.
    async fn settle(&mut self, guest: &mut dyn Execution, answer: Answer) -> Result<Pump, RunEnd> {
        let (id, result, input) = match answer {
            Answer::Timer(id) => (id, Ok("null".to_owned()), HostInput::TimerFired { id }),
            Answer::Call((id, call, result)) => {
                let error = result.as_ref().err().cloned();
                (id, result, HostInput::Settled { id, call, error })
            }
        };
        self.context.recorder().write(input);
        self.clock.run();
        let deadline = self.clock.deadline();
        if let Some(deadline) = deadline {
            self.leash.stop_at(deadline);
        }
        let settlement = match &result {
            Ok(value) => Outcome::Value(value),
            Err(error) => Outcome::Error(error),
        };
        let computing = guest.settle(id, settlement);
        let interrupt = self.leash.clone();
        let pump = self
            .calls
            .while_computing(&interrupt, deadline, computing)
            .await;
        pump.map_err(|fault| self.fault(&fault))
    }

    /// Waits for the next answer to the guest. Meanwhile saves snapshots, and suspends the run if
    /// that is requested.
    async fn next_answer(&mut self, guest: &mut dyn Execution) -> Result<Answer, RunEnd> {
        loop {
            if self.suspender.is_enabled() && self.calls.wait_for_people() {
                self.save_if_due(guest).await?;
                if self.state == RunState::Suspended {
                    return Err(RunEnd::Suspended);
                }
            }
            match self.next_wake().await? {
                Wake::Answer(answer) => return Ok(answer),
                Wake::Changed => {}
                Wake::Suspend => {
                    self.finish_calls().await?;
                    if !self.state.has_snapshot() {
                        let saved = self.save(guest).await?;
                        saved.map_err(|error| self.refused(error))?;
                    }
                    return Err(RunEnd::Suspended);
                }
                Wake::RecordingEnded => self.resume_after_replay()?,
            }
        }
    }

    /// Saves a snapshot of a run that waits for people, unless it has one or the last one is too
    /// recent.
    async fn save_if_due(&mut self, guest: &mut dyn Execution) -> Result<(), RunEnd> {
        let suspending = self.state == RunState::Suspending;
        let too_soon = self.suspender.not_before() > Some(std::time::Instant::now());
        if !self.state.wants_snapshot() || (too_soon && !suspending) {
            return Ok(());
        }
        match self.save(guest).await? {
            // The person may still answer in this process, so the run continues without a
            // snapshot.
            Err(error) if !suspending && !matches!(error, SuspendError::TakenOver) => {
                self.context.output().warn(error.to_string());
                self.state.snapshot_failed();
                Ok(())
            }
            saved => saved.map_err(|error| self.refused(error)),
        }
    }

    async fn save(
        &mut self,
        guest: &mut dyn Execution,
    ) -> Result<Result<(), SuspendError>, RunEnd> {
        let (left, calls) = (self.clock.left(), self.calls.suspend());
        let context = self.context;
        let state = Suspension::of(context, guest, left, calls)
            .and_then(|suspension| Ok(suspension.to_bytes()?));
        let state = match state {
            Ok(state) => state,
            Err(error) => return Ok(Err(error)),
        };
        let suspender = self.suspender;
        let saved = self
            .in_time(suspender.save(&context.scope.id, state))
            .await?;
        if saved.is_ok() {
            self.suspender.saved();
            self.state.snapshot_saved();
        }
        Ok(saved)
    }

    /// Waits for a write to the ledger while calls continue. Fails at a cancellation or at the
    /// deadline; the ledger makes the write in any case.
    async fn in_time<T>(&mut self, write: impl Future<Output = T>) -> Result<T, RunEnd> {
        tokio::pin!(write);
        let (context, deadline) = (self.context, self.clock.deadline());
        loop {
            tokio::select! {
                biased;
                written = &mut write => return Ok(written),
                () = context.scope.cancel.cancelled() => {
                    return Err(self.fault(&Fault::Cancelled));
                }
                () = sleep_until(deadline) => return Err(self.time_up()),
                Some(()) = self.calls.batches.next(), if !self.calls.batches.is_empty() => {}
            }
        }
    }

    /// Returns how the run ends after this error.
    fn refused(&mut self, error: SuspendError) -> RunEnd {
        match error {
            SuspendError::TakenOver => self.state.taken_over(),
            error => RunEnd::Failed(error.into()),
        }
    }

    /// Called at the end of the recording: a suspended run continues live, a replay ends.
    fn resume_after_replay(&mut self) -> Result<(), RunEnd> {
        let Start::ReplayThenResume(_, suspension) = self.context.start else {
            self.check_not_stuck()?;
            return Err(RunEnd::RecordingEnded);
        };
        self.clock.restart(suspension.left);
        self.context.recorder().record_from_here();
        self.calls.restore(&suspension.calls);
        Ok(())
    }

    /// Returns a held answer, the next recorded input, or waits.
    async fn next_wake(&mut self) -> Result<Wake, RunEnd> {
        if let Some(held) = self.calls.held.pop_front() {
            return Ok(Wake::Answer(Answer::Call(held)));
        }
        match self.context.start.recorded() {
            Some(recorded) if self.context.recorder().is_replaying() => {
                Ok(self.calls.replay_next(recorded)?)
            }
            _ => self.wait().await,
        }
    }

    /// Waits for a report of a call, a timer, the deadline, or a request to stop.
    async fn wait(&mut self) -> Result<Wake, RunEnd> {
        self.check_not_stuck()?;
        if self.calls.all_wait_for_person() {
            self.clock.pause()
        } else if self.calls.all_wait_for_model() {
            self.clock.wait_for_models()
        } else {
            self.clock.run()
        }
        let context = self.context;
        let timer = self.calls.timers.first().map(|(at, _)| *at);
        let save_at = (self.state.wants_snapshot() && self.calls.wait_for_people())
            .then(|| self.suspender.not_before())
            .flatten();
        tokio::select! {
            biased;
            () = context.scope.cancel.cancelled() => Err(self.fault(&Fault::Cancelled)),
            // Before the deadline: calls that have finished count, and their number is limited.
            Some(report) = self.calls.reports.recv() => {
                let answer = self.take_report(report)?;
                Ok(answer.map_or(Wake::Changed, |answer| Wake::Answer(Answer::Call(answer))))
            }
            Some(()) = self.calls.batches.next(), if !self.calls.batches.is_empty() => {
                Ok(Wake::Changed)
            }
            () = sleep_until(self.clock.deadline()) => Err(self.time_up()),
            () = context.leave.cancelled() => match self.state.has_snapshot() {
                true => Ok(Wake::Suspend),
                false => Err(self.fault(&Fault::Cancelled)),
            },
            () = context.suspend.cancelled(), if self.suspender.is_enabled() => Ok(Wake::Suspend),
            () = sleep_until(timer) => Ok(match self.calls.timers.pop_first() {
                Some((_, id)) => Wake::Answer(Answer::Timer(id)),
                None => Wake::Changed,
            }),
            () = sleep_until(save_at) => Ok(Wake::Changed),
        }
    }

    /// Waits until no call is running. Answers are held back from the guest.
    async fn finish_calls(&mut self) -> Result<(), RunEnd> {
        let deadline = self.clock.deadline();
        while !self.calls.none_at_work() {
            tokio::select! {
                biased;
                () = self.context.scope.cancel.cancelled() => {
                    return Err(self.fault(&Fault::Cancelled));
                }
                () = sleep_until(deadline) => return Err(self.time_up()),
                Some(report) = self.calls.reports.recv() => {
                    let answer = self.take_report(report)?;
                    self.calls.held.extend(answer);
                }
                Some(()) = self.calls.batches.next(), if !self.calls.batches.is_empty() => {}
            }
        }
        Ok(())
    }

    /// Handles a report about calls in flight. Returns an answer if it settles a call.
    pub(crate) fn take_report(&mut self, report: Report) -> Result<Option<CallAnswer>, RunEnd> {
        let calls = &mut self.calls;
        match report {
            Report::Asking {
                request_id,
                calls: asked,
                so_far,
            } => {
                self.context.output().last_approval = Some(request_id);
                calls.asked(&asked, Some(so_far));
            }
            Report::Answered(answered) => {
                calls.asked(&answered, None);
                self.state.progress();
            }
            Report::Waits(call, waits_for) => calls
                .waits(&call)
                .into_iter()
                .for_each(|waits| waits.push(waits_for)),
            Report::GoesOn(call, waited_for) => {
                if let Some(waits) = calls.waits(&call)
                    && let Some(at) = waits.iter().position(|other| *other == waited_for)
                {
                    waits.swap_remove(at);
                }
            }
            Report::Later => self.state.answer_deferred(),
            Report::TakenOver => return Err(self.state.taken_over()),
            Report::Repeated(record) => {
                calls.log.dispatched += 1;
                calls.log.record(record);
            }
            Report::Finished(outcome) => return Ok(calls.finished(*outcome)),
        }
        Ok(None)
    }

    /// Returns the value that the script returned, or the error that it ended with.
    fn value(&self, finish: Finish) -> Result<Option<String>, ScriptError> {
        match finish {
            Finish::Value(value) => Ok(value),
            Finish::Exit => Ok(None),
            Finish::Error(error) => {
                let made = |id: &str| self.calls.log.iter().any(|call| call.id == id);
                let (compiled, registry) =
                    (self.context.compiled, self.context.orchestrator.registry());
                Err(from_thrown(
                    &whole_unicode(&error),
                    compiled,
                    registry,
                    made,
                ))
            }
            Finish::Syntax(error) => Err(from_syntax(&error)),
        }
    }

    /// Fails if no call or timer is pending that could answer the guest.
    fn check_not_stuck(&self) -> Result<(), ScriptError> {
        if !self.calls.is_idle() {
            return Ok(());
        }
        let message = "the script waits for a promise that nothing will ever settle";
        let mut error = ScriptError::new(ErrorCode::ScriptRuntimeError, Phase::Executing, message)
            .suggest(
                "check that every `new Promise` calls its resolve function, \
                 and has no async executor",
            );
        let output = self.context.output();
        let rejections = output.rejections.values();
        error
            .suggestions
            .extend(rejections.map(|description| format!("a promise failed and {description}")));
        Err(error)
    }

    fn fault(&self, fault: &Fault) -> RunEnd {
        let timeout_ms = self.context.timeout.as_millis() as u64;
        from_fault(fault, self.context.limits, timeout_ms).into()
    }

    fn time_up(&self) -> RunEnd {
        let limit = self.clock.limit(self.context.timeout);
        timed_out(limit.as_millis() as u64).into()
    }
}
