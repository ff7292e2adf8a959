//! Runs that go on while nobody waits for them: listed, named, cancelled, asked about, and always brought to an end.
//!
//! Whoever waits for a run gets one report at a time: it ended, it has something to say, it needs a person, or patience is
//! over. What happens between two waits is kept for the next.

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

/// How many runs there may be, and how long they may overstay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveLimits {
    /// Runs at the same time.
    pub running: usize,
    /// Ended runs whose output is kept for those who ask again.
    pub kept: usize,
    /// Time a run may take to end after its own limit; then control is taken back from it.
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

/// Runs that go on. Clones share them; with the last clone they are cancelled.
#[derive(Clone)]
pub struct LiveRuns(Arc<Shared>);

pub(crate) struct Shared {
    limits: LiveLimits,
    pub(crate) runs: Mutex<Runs>,
}

#[derive(Default)]
pub(crate) struct Runs {
    /// The oldest first.
    pub(crate) running: Vec<Arc<Entry>>,
    ended: VecDeque<Arc<Entry>>,
}

/// One run.
#[derive(Clone)]
pub struct LiveRun(Arc<Entry>);

pub(crate) struct Entry {
    pub(crate) id: String,
    call_id: String,
    name: Option<String>,
    session: String,
    since: Instant,
    /// When the script itself wishes to be waited for later.
    yield_after: Option<Duration>,
    pub(crate) cancel: CancellationToken,
    now: Mutex<Now>,
    pub(crate) news: Notify,
    /// Made when somebody first listens.
    events: OnceLock<broadcast::Sender<Event>>,
    /// How long it may work.
    longest: Duration,
}

#[derive(Default)]
pub(crate) struct Now {
    done: Vec<CallRecord>,
    /// Calls under way: id and tool.
    under_way: Vec<(String, String)>,
    logs: Vec<LogEntry>,
    words: Vec<String>,
    yielded: bool,
    pub(crate) questions: Vec<Asked>,
    /// Time spent waiting for people, questions that are still open left out.
    waited: Duration,
    output: Option<Arc<ScriptToolCallOutput>>,
}

pub(crate) struct Asked {
    pub(crate) question: Question,
    pub(crate) taken: bool,
    pub(crate) since: Instant,
    pub(crate) answer: oneshot::Sender<Reply>,
}

/// What became of waiting.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// It is over.
    Ended(Arc<ScriptToolCallOutput>),
    /// It said this with `notify()`.
    Says(Vec<String>),
    /// It needs a person. Told once; see [`LiveRun::answer`] and [`LiveRun::give_back`].
    Asks(Box<Question>),
    /// It said `yield_control()`: it would rather be waited for later.
    Yields,
    /// Patience is over, and the run is not.
    StillRunning,
}

/// A run in a few words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveSummary {
    /// The run.
    pub id: String,
    /// What it was called.
    pub name: Option<String>,
    /// The session it belongs to.
    pub session: String,
    /// How long it runs.
    pub age: Duration,
    /// Calls that are over.
    pub calls_done: usize,
    /// Tools that are at work.
    pub calling: Vec<String>,
    /// Questions that wait for a person.
    pub questions: usize,
}

/// There are as many runs as there may be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{running} scripts are running, and no more may: the oldest is {}", describe(.oldest))]
pub struct TooManyRuns {
    /// How many there are.
    pub running: usize,
    /// The one to wait for, or to cancel.
    pub oldest: Box<LiveSummary>,
}

fn describe(run: &LiveSummary) -> String {
    let name = run.name.as_ref().map(|name| format!(" ({name})"));
    let name = name.unwrap_or_default();
    format!("{}{name}, for {} s", run.id, run.age.as_secs())
}

/// How often a run that waits for a person is checked for being overdue.
const OVERDUE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Words a run may say before somebody listens.
const MAX_WORDS: usize = 50;
/// Events kept for a listener that is slow; older ones it misses.
const EVENTS: usize = 64;
/// Log lines shown of a run that goes on.
const MAX_LOGS: usize = 50;

impl LiveRuns {
    /// No runs yet.
    pub fn new(limits: LiveLimits) -> Self {
        Self(Arc::new(Shared {
            limits,
            runs: Mutex::default(),
        }))
    }

    /// Starts a script and leaves it to itself. Must be called on a tokio runtime.
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
        let (events, seen) = (std::mem::take(&mut options.events), entry.clone());
        options.events = EventSink::new(move |event| {
            seen.take(&event);
            if let Some(listeners) = seen.events.get()
                && listeners.receiver_count() > 0
            {
                // A listener may have left since.
                let _ = listeners.send(event.clone());
            }
            events.emit(event);
        });
        let (harness, running, shared) = (harness.clone(), entry.clone(), Arc::downgrade(&self.0));
        let task = tokio::spawn(async move {
            let run = AssertUnwindSafe(harness.run_with(&source, options)).catch_unwind();
            let output = run.await;
            let output = output.unwrap_or_else(|_| running.broken("the run broke"));
            Shared::end(&shared, &running, output);
        });
        // In a task of its own: a run that blocks its thread does not block this.
        let shared = Arc::downgrade(&self.0);
        tokio::spawn(stop_if_overdue(shared, entry.clone(), task.abort_handle()));
        Ok(LiveRun(entry))
    }

    /// The run of this id, also when it is over but not forgotten.
    pub fn find(&self, id: &str) -> Option<LiveRun> {
        let runs = self.runs();
        let mut all = runs.running.iter().chain(&runs.ended);
        all.find(|entry| entry.id == id).cloned().map(LiveRun)
    }

    /// The runs that go on, the oldest first.
    pub fn list(&self) -> Vec<LiveSummary> {
        let runs = self.runs();
        runs.running.iter().map(|entry| entry.summary()).collect()
    }

    /// Tells all runs to stop, and waits until they have.
    pub async fn stop_all(&self) {
        let running = self.runs().running.clone();
        running.iter().for_each(|entry| entry.cancel.cancel());
        for entry in running {
            LiveRun(entry).ended().await;
        }
    }

    /// Asks whoever waits for the run, now or later.
    pub fn approver(&self) -> Arc<dyn Approver> {
        Arc::new(ThroughTheWaiting(Arc::downgrade(&self.0)))
    }

    /// Puts a question to whoever waits for the run; `None` when nobody answers it any more.
    pub async fn ask(&self, run: &str, kind: QuestionKind) -> Option<Reply> {
        ask(&self.0, run, new_id("ask"), kind).await
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Ends a run with this output, unless it has ended, and keeps the output for later questions.
    pub(crate) fn end(shared: &Weak<Self>, entry: &Arc<Entry>, output: ScriptToolCallOutput) {
        {
            let mut now = entry.now();
            if now.output.is_some() {
                return;
            }
            now.questions.clear();
            now.output = Some(Arc::new(output));
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

/// Takes control back from a run that does not end when its time is up.
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
    let output = entry.broken("the run did not end when its time was up, and was let go");
    Shared::end(&shared, &entry, output);
}

impl Drop for Shared {
    fn drop(&mut self) {
        let runs = self.runs.get_mut().unwrap_or_else(PoisonError::into_inner);
        runs.running.iter().for_each(|entry| entry.cancel.cancel());
    }
}

impl LiveRun {
    /// The run's id.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// When the script itself wishes to be waited for later, counted from its start.
    pub fn yield_after(&self) -> Option<Duration> {
        self.0.yield_after
    }

    /// Tells it to stop.
    pub fn cancel(&self) {
        self.0.cancel.cancel();
    }

    /// What happens from now on.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        let events = &self.0.events;
        let sender = events.get_or_init(|| broadcast::Sender::new(EVENTS));
        sender.subscribe()
    }

    /// Waits until there is something to report, at most for this long.
    pub async fn report(&self, patience: Duration) -> Report {
        let report = self.0.wait_for(Now::report);
        let reported = tokio::time::timeout(patience, report).await;
        reported.unwrap_or(Report::StillRunning)
    }

    /// Waits for the end.
    pub async fn ended(&self) -> Arc<ScriptToolCallOutput> {
        self.0.ended().await
    }

    /// Answers a question; says whether it still waited.
    pub fn answer(&self, question: &str, reply: Reply) -> Answered {
        let asked = self.0.now().close(question);
        match asked.map(|asked| asked.answer.send(reply)) {
            Some(Ok(())) => Answered::InTime,
            _ => Answered::TooLate,
        }
    }

    /// Leaves a question that could not be put to anybody for the next who waits.
    pub fn give_back(&self, question: &str) {
        self.give_back_later(question);
        self.0.news.notify_waiters();
    }

    /// The same, quietly: the next who comes is asked, but nobody who waits now.
    pub fn give_back_later(&self, question: &str) {
        let mut now = self.0.now();
        let mut questions = now.questions.iter_mut();
        if let Some(asked) = questions.find(|asked| asked.question.id == question) {
            asked.taken = false;
        }
    }

    /// Waits until a question is answered, withdrawn, or its run over.
    pub async fn settled(&self, question: &str) {
        let open = |asked: &Asked| asked.question.id == question;
        let settled = |now: &mut Now| (!now.questions.iter().any(open)).then_some(());
        self.0.wait_for(settled).await;
    }

    /// The questions that wait.
    pub fn questions(&self) -> Vec<Question> {
        let now = self.0.now();
        let questions = now.questions.iter();
        questions.map(|asked| asked.question.clone()).collect()
    }

    /// The run as an item of status `running`: what it did so far, and what it says.
    pub fn so_far(&self, words: Vec<String>) -> ScriptToolCallOutput {
        let mut output = ScriptToolCallOutput::new(self.0.id.clone(), self.0.call_id.clone());
        let now = self.0.now();
        output.status = RunStatus::Running;
        let words = words.into_iter();
        output.output = words.map(|text| OutputPart::Text { text }).collect();
        output.calls = now.done.clone();
        output.logs = now.logs.clone();
        output.metadata.tool_calls_made = (now.done.len() + now.under_way.len()) as u32;
        output.metadata.duration_ms = (self.0.since.elapsed().as_secs_f64() * 1e6).round() / 1e3;
        let tools = now.under_way.iter().map(|(_, tool)| tool.as_str());
        let tools: Vec<&str> = tools.collect();
        let warnings = &mut output.warnings;
        if !tools.is_empty() {
            warnings.push(format!("at work: {}", tools.join(", ")));
        }
        if !now.questions.is_empty() {
            warnings.push("it waits for a person's answer".to_owned());
        }
        output
    }
}

impl Entry {
    pub(crate) fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` finds what it looks for.
    async fn wait_for<T>(&self, ready: impl Fn(&mut Now) -> Option<T>) -> T {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // Registered before looking, so that no notification is missed in between.
            news.as_mut().enable();
            if let Some(found) = ready(&mut self.now()) {
                return found;
            }
            news.await;
        }
    }

    async fn ended(&self) -> Arc<ScriptToolCallOutput> {
        self.wait_for(|now| now.output.clone()).await
    }

    fn take(&self, event: &Event) {
        let mut now = self.now();
        match event {
            Event::CallStarted { call_id, tool, .. } => {
                now.under_way.push((call_id.clone(), tool.clone()))
            }
            Event::CallFinished { call, .. } => {
                now.under_way.retain(|(id, _)| *id != call.id);
                now.done.push(call.clone());
            }
            Event::Log { level, message, .. } if now.logs.len() < MAX_LOGS => {
                now.logs.push(LogEntry {
                    level: *level,
                    message: message.clone(),
                });
            }
            Event::Notify { message, .. } if now.words.len() < MAX_WORDS => {
                now.words.push(message.clone())
            }
            Event::Yield { .. } => now.yielded = true,
            _ => return,
        }
        if matches!(event, Event::Notify { .. } | Event::Yield { .. }) {
            drop(now);
            self.news.notify_waiters();
        }
    }

    /// Time the run may still work. Time spent waiting for a person does not count.
    fn time_left(&self) -> Duration {
        let now = self.now();
        let open = now.questions.iter().map(|asked| asked.since.elapsed());
        let waiting = now.waited + open.max().unwrap_or_default();
        let worked = self.since.elapsed().saturating_sub(waiting);
        self.longest.saturating_sub(worked)
    }

    fn broken(&self, message: &str) -> ScriptToolCallOutput {
        let mut output = ScriptToolCallOutput::new(self.id.clone(), self.call_id.clone());
        output.status = RunStatus::Error;
        let code = ErrorCode::HarnessInternalError;
        output.error = Some(ScriptError::new(code, Phase::Executing, message));
        output.calls = self.now().done.clone();
        output
    }

    fn summary(&self) -> LiveSummary {
        let now = self.now();
        LiveSummary {
            id: self.id.clone(),
            name: self.name.clone(),
            session: self.session.clone(),
            age: self.since.elapsed(),
            calls_done: now.done.len(),
            calling: now.under_way.iter().map(|(_, tool)| tool.clone()).collect(),
            questions: now.questions.len(),
        }
    }
}

impl Now {
    /// The next thing to tell.
    fn report(&mut self) -> Option<Report> {
        // What it said before it ended is said before.
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
