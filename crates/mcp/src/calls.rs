//! The calls a server has in hand: whose they are, whether it still gives signs of life, and what it asks on their way.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rmcp::model::ProgressToken;
use selvedge_tools::{Call, Waiting, WaitsFor};
use tokio::sync::Notify;

use crate::link::lock;

/// The calls of one server. It may ask something before we know that it has a call: they are here from before they are
/// sent.
#[derive(Default)]
pub(crate) struct Calls {
    in_hand: Mutex<Vec<Arc<InHand>>>,
    /// A call came back.
    left: Notify,
    last_progress: Mutex<Option<Instant>>,
}

/// A call in the hands of a server.
pub(crate) struct InHand {
    pub(crate) call: Call,
    /// What its progress comes with, once it is sent.
    token: Mutex<Option<ProgressToken>>,
    clock: Mutex<Clock>,
    news: Notify,
    questions: AtomicU32,
}

/// How long the server has been silent. Stands still while it waits for somebody on our side.
struct Clock {
    began: Instant,
    heard: Instant,
    /// Questions that are open, and since when there are any.
    open: usize,
    since: Instant,
}

/// Least time between two words of progress that are passed on.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Questions a server may ask on the way of one call, answered or not.
const MAX_QUESTIONS: u32 = 10;

impl Calls {
    /// A call is about to be made.
    pub(crate) fn enter(self: &Arc<Self>, call: &Call) -> Entered {
        let now = Instant::now();
        let in_hand = Arc::new(InHand {
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
        self.list().push(in_hand.clone());
        Entered {
            calls: self.clone(),
            in_hand,
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<InHand>>> {
        lock(&self.in_hand)
    }

    /// The server asks something of its own accord; the error is why it may not.
    pub(crate) fn asks(self: &Arc<Self>) -> Result<Question, &'static str> {
        let on_the_way_of = self.list().clone();
        let Some(first) = on_the_way_of.first() else {
            return Err("it has no call of ours in hand");
        };
        let run = &first.call.scope_id;
        let mut all = on_the_way_of.iter();
        let run = all
            .all(|other| other.call.scope_id == *run)
            .then(|| run.clone());
        self.question(run, on_the_way_of)
    }

    /// The server asks something on the way of this call, which it says itself.
    pub(crate) fn asks_for(
        self: &Arc<Self>,
        in_hand: &Arc<InHand>,
    ) -> Result<Question, &'static str> {
        let run = in_hand.call.scope_id.clone();
        self.question(Some(run), vec![in_hand.clone()])
    }

    fn question(
        self: &Arc<Self>,
        run: Option<String>,
        on_the_way_of: Vec<Arc<InHand>>,
    ) -> Result<Question, &'static str> {
        let by = on_the_way_of.iter().find(|in_hand| in_hand.may_ask());
        let by = by.ok_or("it has asked too often on the way of one call")?;
        Ok(Question {
            calls: self.clone(),
            run,
            by: by.clone(),
            on_the_way_of,
        })
    }

    /// A call that is under way, to tell its people something.
    pub(crate) fn any(&self) -> Option<Call> {
        self.list().first().map(|in_hand| in_hand.call.clone())
    }

    /// Takes note of a sign of life; the call it is of, unless progress was told just now.
    pub(crate) fn progress(&self, token: &ProgressToken) -> Option<Call> {
        let with_token = |in_hand: &&Arc<InHand>| lock(&in_hand.token).as_ref() == Some(token);
        let in_hand = self.list().iter().find(with_token).cloned()?;
        in_hand.heard();
        let mut last = lock(&self.last_progress);
        if last.is_some_and(|last| last.elapsed() < PROGRESS_INTERVAL) {
            return None;
        }
        *last = Some(Instant::now());
        Some(in_hand.call.clone())
    }
}

impl InHand {
    fn clock(&self) -> MutexGuard<'_, Clock> {
        lock(&self.clock)
    }

    fn heard(&self) {
        self.clock().heard = Instant::now();
    }

    fn may_ask(&self) -> bool {
        let more = |asked| (asked < MAX_QUESTIONS).then_some(asked + 1);
        self.questions
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
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

    /// Waits until it is silent for so long, or has taken so long altogether.
    pub(crate) async fn silence(&self, limit: Duration, most: Duration) {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // Heard from here on, so that nothing falls between looking and waiting.
            news.as_mut().enable();
            let until = {
                let clock = self.clock();
                let longest = clock.began + most;
                let silent = clock.heard.checked_add(limit).unwrap_or(longest);
                (clock.open == 0).then(|| silent.min(longest))
            };
            match until {
                None => news.await,
                Some(until) if until <= Instant::now() => return,
                Some(until) => tokio::time::sleep_until(until.into()).await,
            }
        }
    }
}

/// A call that is made; in the server's hands until this is dropped.
pub(crate) struct Entered {
    calls: Arc<Calls>,
    pub(crate) in_hand: Arc<InHand>,
}

impl Entered {
    /// It is sent, and its progress comes with this.
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

/// What a server asks on the way of its calls.
pub(crate) struct Question {
    calls: Arc<Calls>,
    /// The script or turn they belong to, where that is certain.
    pub(crate) run: Option<String>,
    /// The call it is put to the account of.
    pub(crate) by: Arc<InHand>,
    /// The calls it may be asked for.
    on_the_way_of: Vec<Arc<InHand>>,
}

impl Question {
    /// Its calls wait for somebody until this is dropped.
    pub(crate) fn waits(&self, whom: WaitsFor) -> Held {
        let held = self.on_the_way_of.iter().map(|in_hand| {
            in_hand.hold();
            (in_hand.clone(), in_hand.call.gate.wait(whom))
        });
        Held(held.collect())
    }

    /// Waits until none of its calls goes on: then nobody needs the answer.
    pub(crate) async fn pointless(&self) {
        loop {
            let left = self.calls.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            let going_on = |in_hand: &&Arc<InHand>| {
                let list = self.calls.list();
                let there = list.iter().any(|other| Arc::ptr_eq(other, in_hand));
                there && !in_hand.call.cancel.is_cancelled()
            };
            let Some(one) = self.on_the_way_of.iter().find(going_on) else {
                return;
            };
            tokio::select! {
                () = left => {}
                () = one.call.cancel.cancelled() => {}
            }
        }
    }
}

/// Calls whose time does not run.
pub(crate) struct Held(Vec<(Arc<InHand>, Waiting)>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.iter().for_each(|(in_hand, _)| in_hand.let_go());
    }
}
