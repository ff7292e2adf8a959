//! Live runs: scripts that continue while no client waits for them. They can be listed, waited for,
//! answered and cancelled, and are aborted if they do not end in time.
//!
//! A client that waits for a run gets one report at a time: the run ended, sent a notification,
//! asks a person, yielded, or is still running when the timeout is over. What happens between two
//! waits is queued for the next one.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use selvedge_protocol::{
    CallRecord, ErrorCode, EventSink, LogEntry, LogLevel, OutputPart, Phase, RunStatus,
    RuntimeEvent, ScriptError, ScriptToolCallOutput, new_id,
};
use selvedge_tools::Approver;
use tokio::sync::{Notify, broadcast, oneshot};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::harness::Harness;
use crate::live_queue::{Admission, LiveRunLimits, QUEUED_MESSAGE, TooManyRuns};
use crate::options::RunOptions;
use crate::pragma::Pragma;
use crate::question::{
    AnswerDelivery, LiveRunApprover, QuestionAnswer, RunQuestion, RunQuestionKind, ask_client,
};

/// A set of live runs. Clones share it; dropping the last clone cancels the runs.
#[derive(Clone)]
pub struct LiveRuns(Arc<LiveRunsShared>);

pub(crate) struct LiveRunsShared {
    pub(crate) limits: LiveRunLimits,
    pub(crate) runs: Mutex<LiveRunLists>,
    /// Notified when a run has started or ended, so that queued runs check whether they may start.
    pub(crate) queue_changed: Arc<Notify>,
}

#[derive(Default)]
pub(crate) struct LiveRunLists {
    /// Runs that have not ended, queued ones too, sorted by age, the oldest first.
    pub(crate) running: Vec<Arc<LiveRunEntry>>,
    ended: VecDeque<Arc<LiveRunEntry>>,
}

/// A live run. Clones refer to the same run.
#[derive(Clone)]
pub struct LiveRun(Arc<LiveRunEntry>);

pub(crate) struct LiveRunEntry {
    pub(crate) id: String,
    call_id: String,
    name: Option<String>,
    pub(crate) session: String,
    created_at: Instant,
    /// When the run left the queue. Unset while it is queued.
    pub(crate) started_at: OnceLock<Instant>,
    /// Time after the start at which the script asks its caller to stop waiting.
    yield_after: Option<Duration>,
    pub(crate) cancel: CancellationToken,
    state: Mutex<LiveRunState>,
    pub(crate) changed: Notify,
    /// Created for the first subscriber.
    events: OnceLock<broadcast::Sender<RuntimeEvent>>,
    /// Time limit of the whole run plus the grace period. Waiting for people does not count.
    max_work_time: Duration,
}

#[derive(Default)]
pub(crate) struct LiveRunState {
    finished_calls: Vec<CallRecord>,
    /// Running calls: id and tool.
    running_calls: Vec<(String, String)>,
    logs: Vec<LogEntry>,
    notifications: Vec<String>,
    yielded: bool,
    pub(crate) questions: Vec<OpenQuestion>,
    /// Time spent waiting for people, without questions that are still open.
    time_waiting: Duration,
    output: Option<Arc<ScriptToolCallOutput>>,
}

pub(crate) struct OpenQuestion {
    pub(crate) question: RunQuestion,
    pub(crate) reported: bool,
    pub(crate) asked_at: Instant,
    pub(crate) answer_sender: oneshot::Sender<QuestionAnswer>,
}

/// The result of waiting for a live run.
#[derive(Debug, Clone, PartialEq)]
pub enum LiveRunReport {
    /// The run has ended with this output.
    Ended(Arc<ScriptToolCallOutput>),
    /// The script sent these notifications with `notify()`.
    Notified(Vec<String>),
    /// The run asks a person. Reported once, unless [`LiveRun::requeue_question`] puts it back.
    Question(Box<RunQuestion>),
    /// The script called `yield_control()`: the caller may stop waiting.
    Yielded,
    /// The timeout is over, and the run has not ended.
    StillRunning,
}

/// Summary of a live run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRunSummary {
    /// Id of the run.
    pub id: String,
    /// Name that the caller gave the run.
    pub name: Option<String>,
    /// Id of the session that the run belongs to.
    pub session: String,
    /// Time since the run was started or queued.
    pub age: Duration,
    /// Whether the run waits for others to end before it starts.
    pub queued: bool,
    /// Number of finished calls.
    pub calls_done: usize,
    /// Tools of the running calls.
    pub running_tools: Vec<String>,
    /// Number of open questions.
    pub questions: usize,
}

/// Shortest interval at which a run is checked for being overdue.
const OVERDUE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of notifications that are queued for the next wait.
const MAX_QUEUED_NOTIFICATIONS: usize = 50;
/// Maximum number of events that are queued for a slow subscriber. It misses older ones.
const EVENT_BUFFER_EVENTS: usize = 64;
/// Maximum number of log lines in the intermediate output of a live run.
const MAX_LOG_ENTRIES: usize = 50;

impl LiveRuns {
    /// Creates an empty set with these limits.
    pub fn new(limits: LiveRunLimits) -> Self {
        Self(Arc::new(LiveRunsShared {
            limits,
            runs: Mutex::default(),
            queue_changed: Arc::default(),
        }))
    }

    /// Starts a script in the background; beyond the limits it first waits in a queue. Must be
    /// called on a tokio runtime. `name` appears in [`LiveRunSummary`].
    pub fn start(
        &self,
        harness: &Harness,
        source: Vec<u8>,
        mut options: RunOptions,
        name: Option<String>,
    ) -> Result<LiveRun, TooManyRuns> {
        let text = std::str::from_utf8(&source).unwrap_or_default();
        let pragma = Pragma::parse(text).ok().flatten();
        let yield_ms = pragma.as_ref().and_then(|pragma| pragma.yield_time_ms);
        let id = options.id.get_or_insert_with(|| new_id("scr")).clone();
        let call_id = options.call_id.get_or_insert_with(|| new_id("call"));
        let call_id = call_id.clone();
        let entry = Arc::new(LiveRunEntry {
            id,
            call_id,
            name,
            session: options.context.session_id.clone(),
            created_at: Instant::now(),
            started_at: OnceLock::new(),
            yield_after: yield_ms.map(Duration::from_millis),
            cancel: options.cancel.child_token(),
            state: Mutex::default(),
            changed: Notify::new(),
            events: OnceLock::new(),
            max_work_time: Duration::from_millis(harness.limits().max_timeout_ms)
                + self.0.limits.grace,
        });
        let admission = self.0.admit(&entry)?;
        options.cancel = entry.cancel.clone();
        let (events, observed) = (std::mem::take(&mut options.events), entry.clone());
        options.events = EventSink::new(move |event| {
            observed.record_event(&event);
            if let Some(subscribers) = observed.events.get()
                && subscribers.receiver_count() > 0
            {
                // The last subscriber may have gone meanwhile.
                let _ = subscribers.send(event.clone());
            }
            events.emit(event);
        });
        if admission == Admission::Queued {
            options.events.emit(RuntimeEvent::ScriptProgress {
                script_id: entry.id.clone(),
                level: LogLevel::Log,
                message: QUEUED_MESSAGE.to_owned(),
            });
        }
        let (harness, running, shared) = (harness.clone(), entry.clone(), Arc::downgrade(&self.0));
        let task = tokio::spawn(async move {
            if !LiveRunsShared::wait_in_queue(&shared, &running).await {
                let output = running.unstarted_output();
                return LiveRunsShared::end_run(&shared, &running, output);
            }
            let run = AssertUnwindSafe(harness.run_with(&source, options)).catch_unwind();
            let output = run.await;
            let output =
                output.unwrap_or_else(|_| running.internal_error_output("the run panicked"));
            LiveRunsShared::end_run(&shared, &running, output);
        });
        // In its own task, so that a run that blocks its thread does not block the check.
        let shared = Arc::downgrade(&self.0);
        tokio::spawn(abort_if_overdue(shared, entry.clone(), task.abort_handle()));
        Ok(LiveRun(entry))
    }

    /// Returns the run with this id. Ended runs are found until they are dropped.
    pub fn find(&self, id: &str) -> Option<LiveRun> {
        let runs = self.lock_runs();
        let mut all = runs.running.iter().chain(&runs.ended);
        all.find(|entry| entry.id == id).cloned().map(LiveRun)
    }

    /// Lists the runs that have not ended, the oldest first.
    pub fn summaries(&self) -> Vec<LiveRunSummary> {
        let runs = self.lock_runs();
        runs.running.iter().map(|entry| entry.summary()).collect()
    }

    /// Cancels all runs and waits until they have ended.
    pub async fn cancel_all(&self) {
        let running = self.lock_runs().running.clone();
        running.iter().for_each(|entry| entry.cancel.cancel());
        for entry in running {
            LiveRun(entry).wait_for_end().await;
        }
    }

    /// Returns an approver that asks the client that waits for the run, now or later.
    pub fn approver(&self) -> Arc<dyn Approver> {
        Arc::new(LiveRunApprover(Arc::downgrade(&self.0)))
    }

    /// Asks the client that waits for the run, now or later. Returns `None` if the run ends first.
    pub async fn ask(&self, run: &str, kind: RunQuestionKind) -> Option<QuestionAnswer> {
        ask_client(&self.0, run, new_id("ask"), kind).await
    }

    fn lock_runs(&self) -> MutexGuard<'_, LiveRunLists> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveRunsShared {
    /// Ends a run with this output, unless it has ended. The output can still be read afterwards.
    pub(crate) fn end_run(
        shared: &Weak<Self>,
        entry: &Arc<LiveRunEntry>,
        output: ScriptToolCallOutput,
    ) {
        {
            let shared = shared.upgrade();
            // Locked first: a client that has the output does not find the run among the running.
            let runs = shared.as_ref().map(|shared| shared.runs.lock());
            let mut state = entry.lock_state();
            if state.output.is_some() {
                return;
            }
            state.questions.clear();
            state.output = Some(Arc::new(output));
            if let (Some(shared), Some(runs)) = (&shared, runs) {
                let mut runs = runs.unwrap_or_else(PoisonError::into_inner);
                runs.running.retain(|other| !Arc::ptr_eq(other, entry));
                runs.ended.push_back(entry.clone());
                while runs.ended.len() > shared.limits.max_ended {
                    runs.ended.pop_front();
                }
            }
        }
        entry.changed.notify_waiters();
        if let Some(shared) = shared.upgrade() {
            shared.queue_changed.notify_waiters();
        }
    }
}

/// Aborts a run that does not end within its time limit and the grace period.
async fn abort_if_overdue(
    shared: Weak<LiveRunsShared>,
    entry: Arc<LiveRunEntry>,
    task: AbortHandle,
) {
    let overdue = async {
        loop {
            let left = entry.time_left();
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.max(OVERDUE_CHECK_INTERVAL)).await;
        }
    };
    tokio::select! {
        _ = entry.wait_for_end() => return,
        () = overdue => {}
    }
    task.abort();
    entry.cancel.cancel();
    let output =
        entry.internal_error_output("the run did not end within its time limit and was aborted");
    LiveRunsShared::end_run(&shared, &entry, output);
}

impl Drop for LiveRunsShared {
    fn drop(&mut self) {
        let runs = self.runs.get_mut().unwrap_or_else(PoisonError::into_inner);
        runs.running.iter().for_each(|entry| entry.cancel.cancel());
    }
}

impl LiveRun {
    /// Returns the run's id.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Returns the id of the session that the run belongs to.
    pub fn session(&self) -> &str {
        &self.0.session
    }

    /// Returns the time after the start at which the script asks its caller to stop waiting.
    pub fn yield_after(&self) -> Option<Duration> {
        self.0.yield_after
    }

    /// Cancels the run.
    pub fn cancel(&self) {
        self.0.cancel.cancel();
    }

    /// Subscribes to the events of the run, from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<RuntimeEvent> {
        let events = &self.0.events;
        let sender = events.get_or_init(|| broadcast::Sender::new(EVENT_BUFFER_EVENTS));
        sender.subscribe()
    }

    /// Waits for the next report, at most for `timeout`.
    pub async fn wait_for_report(&self, timeout: Duration) -> LiveRunReport {
        let report = self.0.wait_for(LiveRunState::next_report);
        let reported = tokio::time::timeout(timeout, report).await;
        reported.unwrap_or(LiveRunReport::StillRunning)
    }

    /// Waits until the run ends and returns its output.
    pub async fn wait_for_end(&self) -> Arc<ScriptToolCallOutput> {
        self.0.wait_for_end().await
    }

    /// Answers a question. Returns whether the question was still open.
    pub fn answer(&self, question: &str, reply: QuestionAnswer) -> AnswerDelivery {
        let open_question = self.0.lock_state().close_question(question);
        match open_question.map(|open_question| open_question.answer_sender.send(reply)) {
            Some(Ok(())) => AnswerDelivery::Delivered,
            _ => AnswerDelivery::TooLate,
        }
    }

    /// Puts a reported question that could not be asked back into the queue. It is reported again,
    /// also to clients that are waiting now.
    pub fn requeue_question(&self, question: &str) {
        self.requeue_question_silently(question);
        self.0.changed.notify_waiters();
    }

    /// Like [`requeue_question`](Self::requeue_question), but clients that are waiting now are not
    /// woken: the next wait reports the question.
    pub fn requeue_question_silently(&self, question: &str) {
        let mut state = self.0.lock_state();
        let mut questions = state.questions.iter_mut();
        if let Some(open_question) =
            questions.find(|open_question| open_question.question.id == question)
        {
            open_question.reported = false;
        }
    }

    /// Waits until a question is answered or withdrawn, or its run has ended.
    pub async fn wait_until_closed(&self, question: &str) {
        let open = |open_question: &OpenQuestion| open_question.question.id == question;
        let settled = |state: &mut LiveRunState| (!state.questions.iter().any(open)).then_some(());
        self.0.wait_for(settled).await;
    }

    /// Returns the open questions.
    pub fn open_questions(&self) -> Vec<RunQuestion> {
        let state = self.0.lock_state();
        let questions = state.questions.iter();
        questions
            .map(|open_question| open_question.question.clone())
            .collect()
    }

    /// Returns the run as an item of status `running`: its calls and logs so far, and these
    /// notifications.
    pub fn progress_output(&self, notifications: Vec<String>) -> ScriptToolCallOutput {
        let mut output = ScriptToolCallOutput::new(self.0.id.clone(), self.0.call_id.clone());
        let state = self.0.lock_state();
        output.status = RunStatus::Running;
        let notifications = notifications.into_iter();
        output.output = notifications
            .map(|text| OutputPart::Text { text })
            .collect();
        output.calls = state.finished_calls.clone();
        output.logs = state.logs.clone();
        output.metadata.tool_calls_made =
            (state.finished_calls.len() + state.running_calls.len()) as u32;
        output.metadata.duration_ms =
            (self.0.created_at.elapsed().as_secs_f64() * 1e6).round() / 1e3;
        let tools = state.running_calls.iter().map(|(_, tool)| tool.as_str());
        let tools: Vec<&str> = tools.collect();
        let warnings = &mut output.warnings;
        if self.0.is_queued() {
            warnings.push(QUEUED_MESSAGE.to_owned());
        }
        if !tools.is_empty() {
            warnings.push(format!("running: {}", tools.join(", ")));
        }
        if !state.questions.is_empty() {
            warnings.push("waiting for a person's answer".to_owned());
        }
        output
    }
}

impl LiveRunEntry {
    pub(crate) fn lock_state(&self) -> MutexGuard<'_, LiveRunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` returns a value. It is called after every change.
    async fn wait_for<T>(&self, ready: impl Fn(&mut LiveRunState) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the check, so that no change in between is missed.
            changed.as_mut().enable();
            if let Some(value) = ready(&mut self.lock_state()) {
                return value;
            }
            changed.await;
        }
    }

    async fn wait_for_end(&self) -> Arc<ScriptToolCallOutput> {
        self.wait_for(|state| state.output.clone()).await
    }

    /// Records an event of the run.
    fn record_event(&self, event: &RuntimeEvent) {
        let mut state = self.lock_state();
        match event {
            RuntimeEvent::CallStarted { call_id, tool, .. } => {
                state.running_calls.push((call_id.clone(), tool.clone()))
            }
            RuntimeEvent::CallFinished { call, .. } => {
                state.running_calls.retain(|(id, _)| *id != call.id);
                state.finished_calls.push(call.clone());
            }
            RuntimeEvent::ScriptLog { level, message, .. }
                if state.logs.len() < MAX_LOG_ENTRIES =>
            {
                state.logs.push(LogEntry {
                    level: *level,
                    message: message.clone(),
                });
            }
            RuntimeEvent::ScriptNotify { message, .. }
                if state.notifications.len() < MAX_QUEUED_NOTIFICATIONS =>
            {
                state.notifications.push(message.clone())
            }
            RuntimeEvent::ScriptYield { .. } => state.yielded = true,
            _ => return,
        }
        if matches!(
            event,
            RuntimeEvent::ScriptNotify { .. } | RuntimeEvent::ScriptYield { .. }
        ) {
            drop(state);
            self.changed.notify_waiters();
        }
    }

    /// Whether the run waits in the queue.
    pub(crate) fn is_queued(&self) -> bool {
        self.started_at.get().is_none()
    }

    /// Creates the output of a run that was cancelled in the queue.
    fn unstarted_output(&self) -> ScriptToolCallOutput {
        let mut output = ScriptToolCallOutput::new(self.id.clone(), self.call_id.clone());
        let message = "the script was cancelled before it started";
        let code = ErrorCode::ScriptCancelledError;
        output.error = Some(ScriptError::new(code, Phase::Parsing, message));
        output
    }

    /// Returns the time until the run is overdue. Time spent in the queue or waiting for a person
    /// does not count.
    fn time_left(&self) -> Duration {
        let Some(started_at) = self.started_at.get() else {
            return self.max_work_time;
        };
        let state = self.lock_state();
        let open = state
            .questions
            .iter()
            .map(|open_question| open_question.asked_at.elapsed());
        let waiting = state.time_waiting + open.max().unwrap_or_default();
        let worked = started_at.elapsed().saturating_sub(waiting);
        self.max_work_time.saturating_sub(worked)
    }

    /// Creates the output of a run that failed for an internal reason.
    fn internal_error_output(&self, message: &str) -> ScriptToolCallOutput {
        let mut output = ScriptToolCallOutput::new(self.id.clone(), self.call_id.clone());
        output.status = RunStatus::Error;
        let code = ErrorCode::HarnessInternalError;
        output.error = Some(ScriptError::new(code, Phase::Executing, message));
        output.calls = self.lock_state().finished_calls.clone();
        output
    }

    pub(crate) fn summary(&self) -> LiveRunSummary {
        let state = self.lock_state();
        LiveRunSummary {
            id: self.id.clone(),
            name: self.name.clone(),
            session: self.session.clone(),
            age: self.created_at.elapsed(),
            queued: self.is_queued(),
            calls_done: state.finished_calls.len(),
            running_tools: state
                .running_calls
                .iter()
                .map(|(_, tool)| tool.clone())
                .collect(),
            questions: state.questions.len(),
        }
    }
}

impl LiveRunState {
    /// Takes the next report, if there is one.
    fn next_report(&mut self) -> Option<LiveRunReport> {
        // Notifications come before the end.
        if !self.notifications.is_empty() {
            return Some(LiveRunReport::Notified(std::mem::take(
                &mut self.notifications,
            )));
        }
        if let Some(output) = &self.output {
            return Some(LiveRunReport::Ended(output.clone()));
        }
        if let Some(open_question) = self
            .questions
            .iter_mut()
            .find(|open_question| !open_question.reported)
        {
            open_question.reported = true;
            return Some(LiveRunReport::Question(Box::new(
                open_question.question.clone(),
            )));
        }
        std::mem::take(&mut self.yielded).then_some(LiveRunReport::Yielded)
    }

    /// Removes an open question.
    pub(crate) fn close_question(&mut self, question: &str) -> Option<OpenQuestion> {
        let mut questions = self.questions.iter();
        let at = questions.position(|open_question| open_question.question.id == question)?;
        let open_question = self.questions.remove(at);
        if self.questions.is_empty() {
            self.time_waiting += open_question.asked_at.elapsed();
        }
        Some(open_question)
    }
}
