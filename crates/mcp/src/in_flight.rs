//! The calls that are in flight to one server.
//!
//! Assigns requests of the server to calls, limits the number of requests per call, and times out a
//! call whose server is silent for too long.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rmcp::model::ProgressToken;
use selvedge_tools::{CallContext, WaitGuard};
use tokio::sync::Notify;

use crate::connection::lock;

/// The calls in flight to one server.
///
/// A call is added before it is sent, because the server may send a request as soon as it has it.
#[derive(Default)]
pub(crate) struct McpInFlightCalls {
    calls: Mutex<Vec<Arc<McpInFlightCall>>>,
    /// Notified when a call is removed.
    call_ended: Notify,
    last_progress: Mutex<Option<Instant>>,
}

/// A call in flight.
pub(crate) struct McpInFlightCall {
    pub(crate) context: CallContext,
    /// Token of the call's progress notifications; set when the call is sent.
    progress_token: Mutex<Option<ProgressToken>>,
    timer: Mutex<McpCallTimer>,
    /// Notified when the timer continues.
    timer_resumed: Notify,
    request_count: AtomicU32,
}

/// Measures how long the server has been silent. It is paused while the server waits for the
/// answer to one of its requests.
struct McpCallTimer {
    /// Start of the call, plus the time during which the timer was paused.
    started_at: Instant,
    /// Last time the server sent something about the call.
    last_activity: Instant,
    /// Number of unanswered requests of the server. The timer is paused if it is not zero.
    open_requests: usize,
    /// Start of the current pause.
    paused_at: Instant,
}

/// Shortest interval between two progress notifications that are passed on.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Requests that a server may send during one call, answered or not.
const MAX_REQUESTS_PER_CALL: u32 = 10;

impl McpInFlightCalls {
    /// Adds a call that is about to be sent. It is removed when the guard is dropped.
    pub(crate) fn register(self: &Arc<Self>, call: &CallContext) -> InFlightCallGuard {
        let now = Instant::now();
        let in_flight = Arc::new(McpInFlightCall {
            context: call.clone(),
            progress_token: Mutex::default(),
            timer: Mutex::new(McpCallTimer {
                started_at: now,
                last_activity: now,
                open_requests: 0,
                paused_at: now,
            }),
            timer_resumed: Notify::new(),
            request_count: AtomicU32::new(0),
        });
        self.lock_calls().push(in_flight.clone());
        InFlightCallGuard {
            calls: self.clone(),
            call: in_flight,
        }
    }

    fn lock_calls(&self) -> MutexGuard<'_, Vec<Arc<McpInFlightCall>>> {
        lock(&self.calls)
    }

    /// Registers a request that does not name a call: it may belong to any call in flight.
    ///
    /// The error is the reason why the request is declined.
    pub(crate) fn begin_request(self: &Arc<Self>) -> Result<PendingServerRequest, &'static str> {
        let candidates = self.lock_calls().clone();
        let Some(first) = candidates.first() else {
            return Err("the server has no call in flight");
        };
        let run = &first.context.scope_id;
        let mut all = candidates.iter();
        let run = all
            .all(|other| other.context.scope_id == *run)
            .then(|| run.clone());
        self.new_request(run, candidates)
    }

    /// Registers a request that belongs to this call.
    pub(crate) fn begin_request_for(
        self: &Arc<Self>,
        in_flight: &Arc<McpInFlightCall>,
    ) -> Result<PendingServerRequest, &'static str> {
        let run = in_flight.context.scope_id.clone();
        self.new_request(Some(run), vec![in_flight.clone()])
    }

    fn new_request(
        self: &Arc<Self>,
        run: Option<String>,
        candidates: Vec<Arc<McpInFlightCall>>,
    ) -> Result<PendingServerRequest, &'static str> {
        let counted = candidates
            .iter()
            .find(|in_flight| in_flight.try_count_request());
        let counted = counted.ok_or("too many requests during one call")?;
        Ok(PendingServerRequest {
            in_flight: self.clone(),
            scope_id: run,
            counted_call: counted.clone(),
            candidate_calls: candidates,
        })
    }

    /// Returns the oldest call in flight, whose event sink receives messages about the server.
    pub(crate) fn oldest(&self) -> Option<CallContext> {
        self.lock_calls()
            .first()
            .map(|in_flight| in_flight.context.clone())
    }

    /// Records a progress notification. Returns its call, unless another notification was passed
    /// on within [`PROGRESS_INTERVAL`].
    pub(crate) fn record_progress(&self, token: &ProgressToken) -> Option<CallContext> {
        let with_token = |in_flight: &&Arc<McpInFlightCall>| {
            lock(&in_flight.progress_token).as_ref() == Some(token)
        };
        let in_flight = self.lock_calls().iter().find(with_token).cloned()?;
        in_flight.record_activity();
        let mut last = lock(&self.last_progress);
        if last.is_some_and(|last| last.elapsed() < PROGRESS_INTERVAL) {
            return None;
        }
        *last = Some(Instant::now());
        Some(in_flight.context.clone())
    }
}

impl McpInFlightCall {
    fn lock_timer(&self) -> MutexGuard<'_, McpCallTimer> {
        lock(&self.timer)
    }

    fn record_activity(&self) {
        self.lock_timer().last_activity = Instant::now();
    }

    /// Counts a request of the server; `false` if the limit is reached.
    fn try_count_request(&self) -> bool {
        let increment = |count| (count < MAX_REQUESTS_PER_CALL).then_some(count + 1);
        self.request_count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment)
            .is_ok()
    }

    fn pause_timer(&self) {
        let mut timer = self.lock_timer();
        if timer.open_requests == 0 {
            timer.paused_at = Instant::now();
        }
        timer.open_requests += 1;
    }

    fn resume_timer(&self) {
        let mut timer = self.lock_timer();
        timer.open_requests = timer.open_requests.saturating_sub(1);
        if timer.open_requests == 0 {
            let now = Instant::now();
            let waited = now.duration_since(timer.paused_at);
            timer.started_at += waited;
            timer.last_activity = now;
        }
        drop(timer);
        self.timer_resumed.notify_waiters();
    }

    /// Waits until the server has been silent for `silence_limit`, or the call has taken
    /// `total_limit`. Pauses of the timer do not count.
    pub(crate) async fn wait_for_timeout(&self, silence_limit: Duration, total_limit: Duration) {
        loop {
            let changed = self.timer_resumed.notified();
            tokio::pin!(changed);
            // Registered before the timer is read: a notification in between is not lost.
            changed.as_mut().enable();
            let deadline = {
                let timer = self.lock_timer();
                let latest = timer.started_at + total_limit;
                let silent = timer
                    .last_activity
                    .checked_add(silence_limit)
                    .unwrap_or(latest);
                (timer.open_requests == 0).then(|| silent.min(latest))
            };
            match deadline {
                None => changed.await,
                Some(deadline) if deadline <= Instant::now() => return,
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            }
        }
    }
}

/// Keeps a call in the list of calls in flight until it is dropped.
pub(crate) struct InFlightCallGuard {
    calls: Arc<McpInFlightCalls>,
    pub(crate) call: Arc<McpInFlightCall>,
}

impl InFlightCallGuard {
    /// Records that the call was sent, and the token of its progress notifications.
    pub(crate) fn set_progress_token(&self, token: ProgressToken) {
        *lock(&self.call.progress_token) = Some(token);
        self.call.record_activity();
    }
}

impl Drop for InFlightCallGuard {
    fn drop(&mut self) {
        self.calls
            .lock_calls()
            .retain(|other| !Arc::ptr_eq(other, &self.call));
        self.calls.call_ended.notify_waiters();
    }
}

/// An elicitation or sampling request of a server, with the calls it may belong to.
pub(crate) struct PendingServerRequest {
    in_flight: Arc<McpInFlightCalls>,
    /// Id of the run or turn of these calls; `None` if they belong to several.
    pub(crate) scope_id: Option<String>,
    /// The call whose limit of requests this one counts against.
    pub(crate) counted_call: Arc<McpInFlightCall>,
    /// The calls that the request may belong to.
    candidate_calls: Vec<Arc<McpInFlightCall>>,
}

impl PendingServerRequest {
    /// Pauses the timers of the calls and the clocks of their runs until the returned guard is
    /// dropped.
    pub(crate) fn pause_for_person(&self) -> PausedCalls {
        self.pause_calls(|in_flight| Some(in_flight.context.gate.wait_for_person()))
    }

    /// Pauses the timers of the calls until the returned guard is dropped. A model has its own time
    /// limits.
    pub(crate) fn pause_for_model(&self) -> PausedCalls {
        self.pause_calls(|_| None)
    }

    fn pause_calls(&self, wait: impl Fn(&McpInFlightCall) -> Option<WaitGuard>) -> PausedCalls {
        let paused = self.candidate_calls.iter().map(|in_flight| {
            in_flight.pause_timer();
            (in_flight.clone(), wait(in_flight))
        });
        PausedCalls(paused.collect())
    }

    /// Waits until all of the calls have ended or were cancelled: the answer is then not needed.
    pub(crate) async fn until_obsolete(&self) {
        loop {
            let removed = self.in_flight.call_ended.notified();
            tokio::pin!(removed);
            // Registered before the list is read: a notification in between is not lost.
            removed.as_mut().enable();
            let is_active = |in_flight: &&Arc<McpInFlightCall>| {
                let list = self.in_flight.lock_calls();
                let listed = list.iter().any(|other| Arc::ptr_eq(other, in_flight));
                listed && !in_flight.context.cancel.is_cancelled()
            };
            let Some(active) = self.candidate_calls.iter().find(is_active) else {
                return;
            };
            tokio::select! {
                () = removed => {}
                () = active.context.cancel.cancelled() => {}
            }
        }
    }
}

/// Calls whose clocks are paused until this is dropped.
pub(crate) struct PausedCalls(Vec<(Arc<McpInFlightCall>, Option<WaitGuard>)>);

impl Drop for PausedCalls {
    fn drop(&mut self) {
        self.0
            .iter()
            .for_each(|(in_flight, _)| in_flight.resume_timer());
    }
}
