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
    CallRecord, ErrorCode, Event, EventSink, LogEntry, OutputPart, Phase, RunStatus, ScriptError,
    ScriptToolCallOutput, new_id,
};
use selvedge_tools::Approver;
use tokio::sync::{Notify, broadcast, oneshot};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::harness::Harness;
use crate::options::RunOptions;
use crate::pragma::Pragma;
use crate::question::{Answered, Question, QuestionKind, Reply, ThroughTheWaiting, ask};

/// Limits of live runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveLimits {
    /// Maximum number of runs at the same time.
    pub running: usize,
    /// Maximum number of ended runs whose output can still be read.
    pub kept: usize,
    /// Time that a run has to end after its time limit. Then it is aborted.
    pub grace: Duration,
}

impl Default for LiveLimits {
    fn default() -> Self {
        Self {
            running: 32,
            kept: 32,
            grace: Duration::from_secs(10),
        }
    }
}

/// A set of live runs. Clones share it; dropping the last clone cancels the runs.
#[derive(Clone)]
pub struct LiveRuns(Arc<Shared>);

pub(crate) struct Shared {
    limits: LiveLimits,
    pub(crate) runs: Mutex<Runs>,
}

#[derive(Default)]
pub(crate) struct Runs {
    /// Sorted by age, the oldest first.
    pub(crate) running: Vec<Arc<Entry>>,
    ended: VecDeque<Arc<Entry>>,
}

/// A live run. Clones refer to the same run.
#[derive(Clone)]
pub struct LiveRun(Arc<Entry>);

pub(crate) struct Entry {
    pub(crate) id: String,
    call_id: String,
    name: Option<String>,
    session: String,
    since: Instant,
    /// Time after the start at which the script asks its caller to stop waiting.
    yield_after: Option<Duration>,
    pub(crate) cancel: CancellationToken,
    now: Mutex<Now>,
    pub(crate) news: Notify,
    /// Created for the first subscriber.
    events: OnceLock<broadcast::Sender<Event>>,
    /// Time limit of the run plus the grace period. Waiting for people does not count.
    longest: Duration,
}

#[derive(Default)]
pub(crate) struct Now {
    done: Vec<CallRecord>,
    /// Running calls: id and tool.
    under_way: Vec<(String, String)>,
    logs: Vec<LogEntry>,
    words: Vec<String>,
    yielded: bool,
    pub(crate) questions: Vec<Asked>,
    /// Time spent waiting for people, without questions that are still open.
    waited: Duration,
    output: Option<Arc<ScriptToolCallOutput>>,
}

pub(crate) struct Asked {
    pub(crate) question: Question,
    pub(crate) taken: bool,
    pub(crate) since: Instant,
    pub(crate) answer: oneshot::Sender<Reply>,
}

/// The result of waiting for a live run.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// The run has ended with this output.
    Ended(Arc<ScriptToolCallOutput>),
    /// The script sent these messages with `notify()`.
    Says(Vec<String>),
    /// The run asks a person. Reported once; see [`LiveRun::answer`] and [`LiveRun::give_back`].
    Asks(Box<Question>),
    /// The script called `yield_control()`: the caller may stop waiting.
    Yields,
    /// The timeout is over, and the run has not ended.
    StillRunning,
}

/// Summary of a live run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveSummary {
    /// Id of the run.
    pub id: String,
    /// Name that the caller gave the run.
    pub name: Option<String>,
    /// Id of the session that the run belongs to.
    pub session: String,
    /// Time since the run started.
    pub age: Duration,
    /// Number of finished calls.
    pub calls_done: usize,
    /// Tools of the running calls.
    pub calling: Vec<String>,
    /// Number of open questions.
    pub questions: usize,
}

/// A script cannot be started because the limit of live runs is reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{running} scripts are running, which is the limit: the oldest is {}", describe(.oldest))]
pub struct TooManyRuns {
    /// Number of live runs.
    pub running: usize,
    /// The oldest run, which the caller can wait for or cancel.
    pub oldest: Box<LiveSummary>,
}

fn describe(run: &LiveSummary) -> String {
    let name = run.name.as_ref().map(|name| format!(" ({name})"));
    let name = name.unwrap_or_default();
    format!("{}{name}, for {} s", run.id, run.age.as_secs())
}

/// Shortest interval at which a run is checked for being overdue.
const OVERDUE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of notifications that are queued for the next wait.
const MAX_WORDS: usize = 50;
/// Maximum number of events that are queued for a slow subscriber. It misses older ones.
const EVENTS: usize = 64;
/// Maximum number of log lines in the intermediate output of a live run.
const MAX_LOGS: usize = 50;

impl LiveRuns {
    /// Creates an empty set with these limits.
    pub fn new(limits: LiveLimits) -> Self {
        Self(Arc::new(Shared {
            limits,
            runs: Mutex::default(),
        }))
    }

    /// Starts a script in the background. Must be called on a tokio runtime. `name` appears in
    /// [`LiveSummary`].
    pub fn start(
        &self,
        harness: &Harness,
        source: Vec<u8>,
        mut options: RunOptions,
        name: Option<String>,
    ) -> Result<LiveRun, TooManyRuns> {
        let text = std::str::from_utf8(&source).unwrap_or_default();
        let pragma = Pragma::read(text).ok().flatten();
        let yield_ms = pragma.as_ref().and_then(|pragma| pragma.yield_time_ms);
        let id = options.id.get_or_insert_with(|| new_id("scr")).clone();
        let call_id = options.call_id.get_or_insert_with(|| new_id("call"));
        let call_id = call_id.clone();
        let entry = Arc::new(Entry {
            id,
            call_id,
            name,
            session: options.facts.session_id.clone(),
            since: Instant::now(),
            yield_after: yield_ms.map(Duration::from_millis),
            cancel: options.cancel.child_token(),
            now: Mutex::default(),
            news: Notify::new(),
            events: OnceLock::new(),
            longest: harness.timeout(pragma.as_ref(), &options) + self.0.limits.grace,
        });
        {
            let mut runs = self.runs();
            if runs.running.len() >= self.0.limits.running
                && let Some(oldest) = runs.running.first()
            {
                return Err(TooManyRuns {
                    running: runs.running.len(),
                    oldest: Box::new(oldest.summary()),
                });
            }
            runs.running.push(entry.clone());
        }
        options.cancel = entry.cancel.clone();
        let (events, observed) = (std::mem::take(&mut options.events), entry.clone());
        options.events = EventSink::new(move |event| {
            observed.take(&event);
            if let Some(subscribers) = observed.events.get()
                && subscribers.receiver_count() > 0
            {
                // The last subscriber may have gone meanwhile.
                let _ = subscribers.send(event.clone());
            }
            events.emit(event);
        });
        let (harness, running, shared) = (harness.clone(), entry.clone(), Arc::downgrade(&self.0));
        let task = tokio::spawn(async move {
            let run = AssertUnwindSafe(harness.run_with(&source, options)).catch_unwind();
            let output = run.await;
            let output = output.unwrap_or_else(|_| running.broken("the run panicked"));
            Shared::end(&shared, &running, output);
        });
        // In its own task, so that a run that blocks its thread does not block the check.
        let shared = Arc::downgrade(&self.0);
        tokio::spawn(stop_if_overdue(shared, entry.clone(), task.abort_handle()));
        Ok(LiveRun(entry))
    }

    /// Returns the run with this id. Ended runs are found until they are dropped.
    pub fn find(&self, id: &str) -> Option<LiveRun> {
        let runs = self.runs();
        let mut all = runs.running.iter().chain(&runs.ended);
        all.find(|entry| entry.id == id).cloned().map(LiveRun)
    }

    /// Lists the runs that have not ended, the oldest first.
    pub fn list(&self) -> Vec<LiveSummary> {
        let runs = self.runs();
        runs.running.iter().map(|entry| entry.summary()).collect()
    }

    /// Cancels all runs and waits until they have ended.
    pub async fn stop_all(&self) {
        let running = self.runs().running.clone();
        running.iter().for_each(|entry| entry.cancel.cancel());
        for entry in running {
            LiveRun(entry).ended().await;
        }
    }

    /// Returns an approver that asks the client that waits for the run, now or later.
    pub fn approver(&self) -> Arc<dyn Approver> {
        Arc::new(ThroughTheWaiting(Arc::downgrade(&self.0)))
    }

    /// Asks the client that waits for the run, now or later. Returns `None` if the run ends first.
    pub async fn ask(&self, run: &str, kind: QuestionKind) -> Option<Reply> {
        ask(&self.0, run, new_id("ask"), kind).await
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Ends a run with this output, unless it has ended. The output can still be read afterwards.
    pub(crate) fn end(shared: &Weak<Self>, entry: &Arc<Entry>, output: ScriptToolCallOutput) {
        {
            let mut state = entry.now();
            if state.output.is_some() {
                return;
            }
            state.questions.clear();
            state.output = Some(Arc::new(output));
        }
        entry.news.notify_waiters();
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let mut runs = shared.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.running.retain(|other| !Arc::ptr_eq(other, entry));
        runs.ended.push_back(entry.clone());
        while runs.ended.len() > shared.limits.kept {
            runs.ended.pop_front();
        }
    }
}

/// Aborts a run that does not end within its time limit and the grace period.
async fn stop_if_overdue(shared: Weak<Shared>, entry: Arc<Entry>, task: AbortHandle) {
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
        _ = entry.ended() => return,
        () = overdue => {}
    }
    task.abort();
    entry.cancel.cancel();
    let output = entry.broken("the run did not end within its time limit and was aborted");
    Shared::end(&shared, &entry, output);
}

impl Drop for Shared {
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

    /// Returns the time after the start at which the script asks its caller to stop waiting.
    pub fn yield_after(&self) -> Option<Duration> {
        self.0.yield_after
    }

    /// Cancels the run.
    pub fn cancel(&self) {
        self.0.cancel.cancel();
    }

    /// Subscribes to the events of the run, from now on.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        let events = &self.0.events;
        let sender = events.get_or_init(|| broadcast::Sender::new(EVENTS));
        sender.subscribe()
    }

    /// Waits for the next report, at most for `timeout`.
    pub async fn report(&self, timeout: Duration) -> Report {
        let report = self.0.wait_for(Now::report);
        let reported = tokio::time::timeout(timeout, report).await;
        reported.unwrap_or(Report::StillRunning)
    }

    /// Waits until the run ends and returns its output.
    pub async fn ended(&self) -> Arc<ScriptToolCallOutput> {
        self.0.ended().await
    }

    /// Answers a question. Returns whether the question was still open.
    pub fn answer(&self, question: &str, reply: Reply) -> Answered {
        let asked = self.0.now().close(question);
        match asked.map(|asked| asked.answer.send(reply)) {
            Some(Ok(())) => Answered::InTime,
            _ => Answered::TooLate,
        }
    }

    /// Puts a reported question that could not be asked back into the queue. It is reported again,
    /// also to clients that are waiting now.
    pub fn give_back(&self, question: &str) {
        self.give_back_later(question);
        self.0.news.notify_waiters();
    }

    /// Puts a reported question back as [`give_back`](Self::give_back) does, but does not wake
    /// clients that are waiting now: the next wait reports it.
    pub fn give_back_later(&self, question: &str) {
        let mut state = self.0.now();
        let mut questions = state.questions.iter_mut();
        if let Some(asked) = questions.find(|asked| asked.question.id == question) {
            asked.taken = false;
        }
    }

    /// Waits until a question is answered or withdrawn, or its run has ended.
    pub async fn settled(&self, question: &str) {
        let open = |asked: &Asked| asked.question.id == question;
        let settled = |state: &mut Now| (!state.questions.iter().any(open)).then_some(());
        self.0.wait_for(settled).await;
    }

    /// Returns the open questions.
    pub fn questions(&self) -> Vec<Question> {
        let state = self.0.now();
        let questions = state.questions.iter();
        questions.map(|asked| asked.question.clone()).collect()
    }

    /// Returns the run as an item of status `running`: its calls and logs so far, and these
    /// notifications.
    pub fn so_far(&self, notifications: Vec<String>) -> ScriptToolCallOutput {
        let mut output = ScriptToolCallOutput::new(self.0.id.clone(), self.0.call_id.clone());
        let state = self.0.now();
        output.status = RunStatus::Running;
        let notifications = notifications.into_iter();
        output.output = notifications
            .map(|text| OutputPart::Text { text })
            .collect();
        output.calls = state.done.clone();
        output.logs = state.logs.clone();
        output.metadata.tool_calls_made = (state.done.len() + state.under_way.len()) as u32;
        output.metadata.duration_ms = (self.0.since.elapsed().as_secs_f64() * 1e6).round() / 1e3;
        let tools = state.under_way.iter().map(|(_, tool)| tool.as_str());
        let tools: Vec<&str> = tools.collect();
        let warnings = &mut output.warnings;
        if !tools.is_empty() {
            warnings.push(format!("running: {}", tools.join(", ")));
        }
        if !state.questions.is_empty() {
            warnings.push("waiting for a person's answer".to_owned());
        }
        output
    }
}

impl Entry {
    pub(crate) fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` returns a value. It is called after every change.
    async fn wait_for<T>(&self, ready: impl Fn(&mut Now) -> Option<T>) -> T {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // Registered before the check, so that no change in between is missed.
            news.as_mut().enable();
            if let Some(value) = ready(&mut self.now()) {
                return value;
            }
            news.await;
        }
    }

    async fn ended(&self) -> Arc<ScriptToolCallOutput> {
        self.wait_for(|state| state.output.clone()).await
    }

    /// Records an event of the run.
    fn take(&self, event: &Event) {
        let mut state = self.now();
        match event {
            Event::CallStarted { call_id, tool, .. } => {
                state.under_way.push((call_id.clone(), tool.clone()))
            }
            Event::CallFinished { call, .. } => {
                state.under_way.retain(|(id, _)| *id != call.id);
                state.done.push(call.clone());
            }
            Event::Log { level, message, .. } if state.logs.len() < MAX_LOGS => {
                state.logs.push(LogEntry {
                    level: *level,
                    message: message.clone(),
                });
            }
            Event::Notify { message, .. } if state.words.len() < MAX_WORDS => {
                state.words.push(message.clone())
            }
            Event::Yield { .. } => state.yielded = true,
            _ => return,
        }
        if matches!(event, Event::Notify { .. } | Event::Yield { .. }) {
            drop(state);
            self.news.notify_waiters();
        }
    }

    /// Returns the time until the run is overdue. Time spent waiting for a person does not count.
    fn time_left(&self) -> Duration {
        let state = self.now();
        let open = state.questions.iter().map(|asked| asked.since.elapsed());
        let waiting = state.waited + open.max().unwrap_or_default();
        let worked = self.since.elapsed().saturating_sub(waiting);
        self.longest.saturating_sub(worked)
    }

    /// Creates the output of a run that failed for an internal reason.
    fn broken(&self, message: &str) -> ScriptToolCallOutput {
        let mut output = ScriptToolCallOutput::new(self.id.clone(), self.call_id.clone());
        output.status = RunStatus::Error;
        let code = ErrorCode::HarnessInternalError;
        output.error = Some(ScriptError::new(code, Phase::Executing, message));
        output.calls = self.now().done.clone();
        output
    }

    fn summary(&self) -> LiveSummary {
        let state = self.now();
        LiveSummary {
            id: self.id.clone(),
            name: self.name.clone(),
            session: self.session.clone(),
            age: self.since.elapsed(),
            calls_done: state.done.len(),
            calling: state
                .under_way
                .iter()
                .map(|(_, tool)| tool.clone())
                .collect(),
            questions: state.questions.len(),
        }
    }
}

impl Now {
    /// Takes the next report, if there is one.
    fn report(&mut self) -> Option<Report> {
        // Notifications come before the end.
        if !self.words.is_empty() {
            return Some(Report::Says(std::mem::take(&mut self.words)));
        }
        if let Some(output) = &self.output {
            return Some(Report::Ended(output.clone()));
        }
        if let Some(asked) = self.questions.iter_mut().find(|asked| !asked.taken) {
            asked.taken = true;
            return Some(Report::Asks(Box::new(asked.question.clone())));
        }
        std::mem::take(&mut self.yielded).then_some(Report::Yields)
    }

    /// Removes an open question.
    pub(crate) fn close(&mut self, question: &str) -> Option<Asked> {
        let mut questions = self.questions.iter();
        let at = questions.position(|asked| asked.question.id == question)?;
        let asked = self.questions.remove(at);
        if self.questions.is_empty() {
            self.waited += asked.since.elapsed();
        }
        Some(asked)
    }
}
