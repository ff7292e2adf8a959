//! The calls that are in flight to one server.
//!
//! Assigns requests of the server to calls, limits their number, and times out a call whose server
//! is silent for too long.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rmcp::model::ProgressToken;
use selvedge_tools::{Call, Waiting, WaitsFor};
use tokio::sync::Notify;

use crate::link::lock;

/// The calls in flight to one server.
///
/// A call is added before it is sent, because the server may send a request as soon as it has it.
#[derive(Default)]
pub(crate) struct Calls {
    in_hand: Mutex<Vec<Arc<InHand>>>,
    /// Notified when a call is removed.
    left: Notify,
    last_progress: Mutex<Option<Instant>>,
}

/// A call in flight.
pub(crate) struct InHand {
    pub(crate) call: Call,
    /// Token of the call's progress notifications; set when the call is sent.
    token: Mutex<Option<ProgressToken>>,
    clock: Mutex<Clock>,
    /// Notified when the clock continues.
    news: Notify,
    questions: AtomicU32,
}

/// Measures how long the server has been silent. It is paused while the server waits for the
/// answer to one of its requests.
struct Clock {
    /// Start of the call, moved forward by the time during which the clock was paused.
    began: Instant,
    /// Last time the server sent something about the call.
    heard: Instant,
    /// Number of unanswered requests of the server. The clock is paused if it is not zero.
    open: usize,
    /// Start of the current pause.
    since: Instant,
}

/// Shortest interval between two progress notifications that are passed on.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Requests that a server may send during one call, answered or not.
const MAX_QUESTIONS: u32 = 10;

impl Calls {
    /// Adds a call that is about to be sent. It is removed when the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>, call: &Call) -> Entered {
        let now = Instant::now();
        let in_flight = Arc::new(InHand {
            call: call.clone(),
            token: Mutex::default(),
            clock: Mutex::new(Clock {
                began: now,
                heard: now,
                open: 0,
                since: now,
            }),
            news: Notify::new(),
            questions: AtomicU32::new(0),
        });
        self.list().push(in_flight.clone());
        Entered {
            calls: self.clone(),
            in_hand: in_flight,
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<InHand>>> {
        lock(&self.in_hand)
    }

    /// Registers a request that does not name a call: it may belong to any call in flight.
    ///
    /// The error is the reason why the request is declined.
    pub(crate) fn asks(self: &Arc<Self>) -> Result<Question, &'static str> {
        let candidates = self.list().clone();
        let Some(first) = candidates.first() else {
            return Err("the server has no call in flight");
        };
        let run = &first.call.scope_id;
        let mut all = candidates.iter();
        let run = all
            .all(|other| other.call.scope_id == *run)
            .then(|| run.clone());
        self.question(run, candidates)
    }

    /// Registers a request that belongs to this call.
    pub(crate) fn asks_for(
        self: &Arc<Self>,
        in_flight: &Arc<InHand>,
    ) -> Result<Question, &'static str> {
        let run = in_flight.call.scope_id.clone();
        self.question(Some(run), vec![in_flight.clone()])
    }

    fn question(
        self: &Arc<Self>,
        run: Option<String>,
        candidates: Vec<Arc<InHand>>,
    ) -> Result<Question, &'static str> {
        let charged = candidates.iter().find(|in_flight| in_flight.may_ask());
        let charged = charged.ok_or("too many requests during one call")?;
        Ok(Question {
            calls: self.clone(),
            run,
            by: charged.clone(),
            on_the_way_of: candidates,
        })
    }

    /// Returns the oldest call in flight, whose event sink receives messages about the server.
    pub(crate) fn any(&self) -> Option<Call> {
        self.list().first().map(|in_flight| in_flight.call.clone())
    }

    /// Records a progress notification. Returns its call, unless another notification was passed
    /// on within [`PROGRESS_INTERVAL`].
    pub(crate) fn progress(&self, token: &ProgressToken) -> Option<Call> {
        let with_token = |in_flight: &&Arc<InHand>| lock(&in_flight.token).as_ref() == Some(token);
        let in_flight = self.list().iter().find(with_token).cloned()?;
        in_flight.heard();
        let mut last = lock(&self.last_progress);
        if last.is_some_and(|last| last.elapsed() < PROGRESS_INTERVAL) {
            return None;
        }
        *last = Some(Instant::now());
        Some(in_flight.call.clone())
    }
}

impl InHand {
    fn clock(&self) -> MutexGuard<'_, Clock> {
        lock(&self.clock)
    }

    fn heard(&self) {
        self.clock().heard = Instant::now();
    }

    /// Counts a request of the server; `false` if the limit is reached.
    fn may_ask(&self) -> bool {
        let increment = |count| (count < MAX_QUESTIONS).then_some(count + 1);
        self.questions
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment)
            .is_ok()
    }

    fn hold(&self) {
        let mut clock = self.clock();
        if clock.open == 0 {
            clock.since = Instant::now();
        }
        clock.open += 1;
    }

    fn let_go(&self) {
        let mut clock = self.clock();
        clock.open = clock.open.saturating_sub(1);
        if clock.open == 0 {
            let now = Instant::now();
            let waited = now.duration_since(clock.since);
            clock.began += waited;
            clock.heard = now;
        }
        drop(clock);
        self.news.notify_waiters();
    }

    /// Waits until the server has been silent for `silence_limit`, or the call has taken
    /// `total_limit`. Pauses of the clock do not count.
    pub(crate) async fn silence(&self, silence_limit: Duration, total_limit: Duration) {
        loop {
            let changed = self.news.notified();
            tokio::pin!(changed);
            // Registered before the clock is read: a notification in between is not lost.
            changed.as_mut().enable();
            let deadline = {
                let clock = self.clock();
                let latest = clock.began + total_limit;
                let silent = clock.heard.checked_add(silence_limit).unwrap_or(latest);
                (clock.open == 0).then(|| silent.min(latest))
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
pub(crate) struct Entered {
    calls: Arc<Calls>,
    pub(crate) in_hand: Arc<InHand>,
}

impl Entered {
    /// Records that the call was sent, and the token of its progress notifications.
    pub(crate) fn sent(&self, token: ProgressToken) {
        *lock(&self.in_hand.token) = Some(token);
        self.in_hand.heard();
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.calls
            .list()
            .retain(|other| !Arc::ptr_eq(other, &self.in_hand));
        self.calls.left.notify_waiters();
    }
}

/// An elicitation or sampling request of a server, with the calls it may belong to.
pub(crate) struct Question {
    calls: Arc<Calls>,
    /// Id of the run or turn of these calls; `None` if they belong to several.
    pub(crate) run: Option<String>,
    /// The call whose limit of requests this one counts against.
    pub(crate) by: Arc<InHand>,
    /// The calls that the request may belong to.
    on_the_way_of: Vec<Arc<InHand>>,
}

impl Question {
    /// Pauses the clocks of the calls until the returned guard is dropped.
    pub(crate) fn waits(&self, waits_for: WaitsFor) -> Held {
        let paused = self.on_the_way_of.iter().map(|in_flight| {
            in_flight.hold();
            (in_flight.clone(), in_flight.call.gate.wait(waits_for))
        });
        Held(paused.collect())
    }

    /// Waits until all of the calls have ended or were cancelled: the answer is then not needed.
    pub(crate) async fn pointless(&self) {
        loop {
            let removed = self.calls.left.notified();
            tokio::pin!(removed);
            // Registered before the list is read: a notification in between is not lost.
            removed.as_mut().enable();
            let is_active = |in_flight: &&Arc<InHand>| {
                let list = self.calls.list();
                let listed = list.iter().any(|other| Arc::ptr_eq(other, in_flight));
                listed && !in_flight.call.cancel.is_cancelled()
            };
            let Some(active) = self.on_the_way_of.iter().find(is_active) else {
                return;
            };
            tokio::select! {
                () = removed => {}
                () = active.call.cancel.cancelled() => {}
            }
        }
    }
}

/// Calls whose clocks are paused until this is dropped.
pub(crate) struct Held(Vec<(Arc<InHand>, Waiting)>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.iter().for_each(|(in_flight, _)| in_flight.let_go());
    }
}
