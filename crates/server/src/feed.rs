//! The events of a session: stored with numbers, and sent to the clients that follow the session.
//!
//! Completed items and state changes are stored before they are sent. The text that an open item
//! receives is not stored: the feed keeps it until the item is complete, for clients that connect
//! meanwhile. The same holds for the newest output of running calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use selvedge_protocol::{
    EventSink, MAX_EVENT_READ, RuntimeEvent, ServerStoreError, SessionEvent, SessionEventStore,
};
use serde_json::{Value, json};
use tokio::sync::broadcast::{self, Receiver, Sender};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::metrics::ServerMetrics;
use crate::open_calls::OpenCalls;

/// Most events that wait for one client. A slower client reads the stored events again. The memory
/// for as many is taken for each session that is followed.
const MAX_WAITING_EVENTS: usize = 64;
/// Largest stored event that waits for clients, in bytes. They read larger ones from the storage.
const MAX_WAITING_EVENT_BYTES: usize = 16 << 10;
/// Most events that are stored in one transaction, and sent at once.
const MAX_BATCH: usize = MAX_WAITING_EVENTS;
/// How often a failed write is tried again.
const MAX_WRITE_RETRIES: u32 = 5;
/// Pause before a failed write is tried again.
const WRITE_RETRY_DELAY: Duration = Duration::from_millis(200);
/// How often a quiet stream looks for events that another server stored.
const OTHER_SERVERS_POLL_INTERVAL: Duration = Duration::from_secs(3);
/// How long the last events may take to be stored when the server stops.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// An event for clients. A number means that it is stored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FeedEvent {
    pub(crate) number: Option<u64>,
    pub(crate) body: Arc<str>,
}

/// An event that waits for a client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LiveEvent {
    /// The event itself.
    Event(FeedEvent),
    /// The number of a stored event that is too large to wait.
    Large(u64),
}

impl LiveEvent {
    fn new(event: FeedEvent) -> Self {
        match event.number {
            Some(number) if event.body.len() > MAX_WAITING_EVENT_BYTES => Self::Large(number),
            _ => Self::Event(event),
        }
    }

    /// Returns the number of the event if it is stored.
    pub(crate) fn number(&self) -> Option<u64> {
        match self {
            Self::Event(event) => event.number,
            Self::Large(number) => Some(*number),
        }
    }
}

impl From<SessionEvent> for FeedEvent {
    fn from(event: SessionEvent) -> Self {
        Self {
            number: Some(event.number),
            body: event.body.to_string().into(),
        }
    }
}

/// The feeds of the sessions that run turns or are followed.
pub(crate) struct SessionFeeds {
    feeds: Mutex<HashMap<String, Weak<SessionFeed>>>,
    store: Arc<dyn SessionEventStore>,
    metrics: Arc<ServerMetrics>,
    /// The tasks that store and send events.
    publishers: TaskTracker,
}

impl SessionFeeds {
    pub(crate) fn new(store: Arc<dyn SessionEventStore>, metrics: Arc<ServerMetrics>) -> Self {
        Self {
            feeds: Mutex::default(),
            store,
            metrics,
            publishers: TaskTracker::new(),
        }
    }

    /// Waits until all events of turns that have ended are stored.
    pub(crate) async fn flush(&self) {
        self.publishers.close();
        if tokio::time::timeout(FLUSH_TIMEOUT, self.publishers.wait())
            .await
            .is_err()
        {
            tracing::warn!("events were not stored in time");
        }
    }

    /// Returns the feed of a session. It exists as long as it is used.
    pub(crate) fn feed(&self, session: &str) -> Arc<SessionFeed> {
        let mut feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(feed) = feeds.get(session).and_then(Weak::upgrade) {
            return feed;
        }
        feeds.retain(|_, feed| feed.strong_count() > 0);
        let feed = Arc::new(SessionFeed {
            session: session.to_owned(),
            store: self.store.clone(),
            metrics: self.metrics.clone(),
            publishers: self.publishers.clone(),
            publishing: tokio::sync::Mutex::default(),
            open_items: Mutex::default(),
            open_calls: Mutex::default(),
            live: broadcast::channel(MAX_WAITING_EVENTS).0,
        });
        feeds.insert(session.to_owned(), Arc::downgrade(&feed));
        feed
    }
}

/// The events of one session.
pub(crate) struct SessionFeed {
    session: String,
    store: Arc<dyn SessionEventStore>,
    metrics: Arc<ServerMetrics>,
    publishers: TaskTracker,
    /// Locked while events are stored and sent, and while a client catches up with them.
    publishing: tokio::sync::Mutex<()>,
    open_items: Mutex<Vec<OpenItem>>,
    open_calls: Mutex<OpenCalls>,
    live: Sender<LiveEvent>,
}

/// An item that is not complete, with its text so far.
#[derive(Debug, Clone)]
struct OpenItem {
    id: String,
    started: Arc<str>,
    text: String,
}

/// What the task that publishes events receives.
enum FeedInput {
    Event(Box<RuntimeEvent>),
    /// Answered when all events before it are stored, with whether that succeeded.
    Flush(oneshot::Sender<bool>),
}

/// Waits until the events of a turn are stored.
#[derive(Clone)]
pub struct EventFlush(UnboundedSender<FeedInput>);

impl EventFlush {
    /// Waits until all events are stored that were emitted before. Returns `false` if one of them
    /// cannot be stored; then no event after it was stored or sent.
    pub async fn wait(&self) -> bool {
        let (sender, stored) = oneshot::channel();
        // The task runs as long as there is a sender.
        self.0.send(FeedInput::Flush(sender)).is_ok() && stored.await.unwrap_or(false)
    }
}

/// What a client gets that caught up with the stored events.
pub(crate) struct CaughtUp {
    /// The rest of the stored events, then the open items with their text so far, and the newest
    /// output of running calls.
    pub(crate) events: Vec<FeedEvent>,
    /// All later events.
    pub(crate) live: Receiver<LiveEvent>,
}

impl SessionFeed {
    /// Returns a sink for the events of a turn, and what waits until they are stored. The task that
    /// stores and sends them ends when both are dropped.
    pub(crate) fn sink(self: &Arc<Self>) -> (EventSink, EventFlush) {
        let (sender, receiver) = unbounded_channel();
        self.publishers.spawn(self.clone().publish_all(receiver));
        let flush = EventFlush(sender.clone());
        let sink = EventSink::new(move |event| {
            // The task runs as long as there is a sender.
            let _ = sender.send(FeedInput::Event(Box::new(event)));
        });
        (sink, flush)
    }

    async fn publish_all(self: Arc<Self>, mut receiver: UnboundedReceiver<FeedInput>) {
        let mut inputs = Vec::new();
        let mut all_stored = true;
        while receiver.recv_many(&mut inputs, MAX_BATCH).await > 0 {
            let (mut events, mut flushes) = (Vec::new(), Vec::new());
            for input in inputs.drain(..) {
                match input {
                    FeedInput::Event(event) => events.push(*event),
                    FeedInput::Flush(flush) => flushes.push(flush),
                }
            }
            // After an event that is missing, later ones would hide the gap.
            all_stored = all_stored && self.publish(events).await;
            for flush in flushes {
                let _ = flush.send(all_stored);
            }
        }
    }

    /// Stores the events that are to be stored, and sends all of them in order. If they cannot be
    /// stored, sends none and returns `false`.
    async fn publish(&self, events: Vec<RuntimeEvent>) -> bool {
        let stored = events.iter().filter(|event| is_stored(event));
        let stored: Vec<Value> = stored
            .filter_map(|event| serde_json::to_value(event).ok())
            .collect();
        let _publishing = self.publishing.lock().await;
        let mut next = None;
        if !stored.is_empty() {
            next = self.store_events(stored).await;
            if next.is_none() {
                return false;
            }
        }
        for event in events {
            let Ok(body) = serde_json::to_string(&event) else {
                continue;
            };
            let number = next.filter(|_| is_stored(&event));
            if number.is_some() {
                next = next.map(|number| number + 1);
            }
            let body: Arc<str> = body.into();
            self.track_open_item(&event, &body);
            self.lock_open_calls().track(&event);
            // Without a client there is nothing to send to.
            let _ = self.live.send(LiveEvent::new(FeedEvent { number, body }));
        }
        true
    }

    /// Stores events, and returns the number of the first one; `None` if that failed repeatedly.
    async fn store_events(&self, bodies: Vec<Value>) -> Option<u64> {
        for attempt in 0..=MAX_WRITE_RETRIES {
            match self
                .store
                .append_events(&self.session, bodies.clone())
                .await
            {
                Ok(first) => {
                    self.metrics.events_stored.add(bodies.len() as u64);
                    return Some(first);
                }
                Err(error @ ServerStoreError::TakenOver(_)) => {
                    tracing::error!(session = self.session, %error, "cannot store events");
                    return None;
                }
                Err(error) => {
                    tracing::error!(session = self.session, attempt, %error, "cannot store events");
                    tokio::time::sleep(WRITE_RETRY_DELAY).await;
                }
            }
        }
        None
    }

    fn track_open_item(&self, event: &RuntimeEvent, body: &Arc<str>) {
        let mut items = self.lock_open_items();
        match event {
            RuntimeEvent::ItemStarted { item_id, .. } => items.push(OpenItem {
                id: item_id.clone(),
                started: body.clone(),
                text: String::new(),
            }),
            RuntimeEvent::ItemUpdated { item_id, delta } => {
                let open = items.iter_mut().find(|item| item.id == *item_id);
                if let Some(item) = open {
                    item.text.push_str(delta);
                }
            }
            RuntimeEvent::ItemCompleted { item_id, .. } | RuntimeEvent::ItemDropped { item_id } => {
                items.retain(|item| item.id != *item_id);
            }
            RuntimeEvent::TurnStarted { .. }
            | RuntimeEvent::TurnCompleted { .. }
            | RuntimeEvent::TurnFailed { .. } => items.clear(),
            _ => {}
        }
    }

    fn lock_open_items(&self) -> MutexGuard<'_, Vec<OpenItem>> {
        self.open_items
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_open_calls(&self) -> MutexGuard<'_, OpenCalls> {
        let locked = self.open_calls.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns up to [`MAX_EVENT_READ`] stored events after a number.
    pub(crate) async fn stored_after(
        &self,
        after: u64,
    ) -> Result<Vec<FeedEvent>, ServerStoreError> {
        let read = self
            .store
            .events_after(&self.session, after, MAX_EVENT_READ);
        Ok(read.await?.into_iter().map(FeedEvent::from).collect())
    }

    /// Returns an event that waited, `None` if it was removed meanwhile.
    pub(crate) async fn load(
        &self,
        event: LiveEvent,
    ) -> Result<Option<FeedEvent>, ServerStoreError> {
        let number = match event {
            LiveEvent::Event(event) => return Ok(Some(event)),
            LiveEvent::Large(number) => number,
        };
        let read = self
            .store
            .events_after(&self.session, number - 1, 1)
            .await?;
        let found = read.into_iter().find(|event| event.number == number);
        Ok(found.map(FeedEvent::from))
    }

    /// Returns a receiver for all events that follow.
    pub(crate) async fn follow(&self) -> Receiver<LiveEvent> {
        let _publishing = self.publishing.lock().await;
        self.live.subscribe()
    }

    /// Waits until another server may have stored events: until it says so, or for the time after
    /// which a quiet stream looks for them.
    pub(crate) async fn wait_for_other_servers(&self, notices_seen: &mut u64) {
        tokio::select! {
            () = self.store.events_changed(&self.session, notices_seen) => {}
            () = tokio::time::sleep(OTHER_SERVERS_POLL_INTERVAL) => {}
        }
    }

    /// Returns stored events after a number that another process stored. Returns none if this
    /// process has sent events that `live` has not received.
    pub(crate) async fn stored_by_other_servers(
        &self,
        after: u64,
        live: &Receiver<LiveEvent>,
    ) -> Result<Vec<FeedEvent>, ServerStoreError> {
        let _publishing = self.publishing.lock().await;
        match live.is_empty() {
            true => self.stored_after(after).await,
            false => Ok(Vec::new()),
        }
    }

    /// Returns the stored events after a number, the open items, and a receiver for all events that
    /// follow. No event is missing or doubled.
    pub(crate) async fn catch_up(&self, mut after: u64) -> Result<CaughtUp, ServerStoreError> {
        let _publishing = self.publishing.lock().await;
        let mut events = Vec::new();
        loop {
            let page = self.stored_after(after).await?;
            let Some(last) = page.last().and_then(|event| event.number) else {
                break;
            };
            after = last;
            events.extend(page);
        }
        for item in self.lock_open_items().iter() {
            events.push(FeedEvent {
                number: None,
                body: item.started.clone(),
            });
            if !item.text.is_empty() {
                let update = json!({
                    "type": "item.updated",
                    "item_id": item.id,
                    "delta": item.text,
                });
                events.push(FeedEvent {
                    number: None,
                    body: update.to_string().into(),
                });
            }
        }
        let outputs = self.lock_open_calls();
        events.extend(outputs.events().map(|event| FeedEvent {
            number: None,
            body: event.to_string().into(),
        }));
        drop(outputs);
        Ok(CaughtUp {
            events,
            live: self.live.subscribe(),
        })
    }
}

/// Returns whether an event is stored: everything except parts of items and of output.
fn is_stored(event: &RuntimeEvent) -> bool {
    !matches!(
        event,
        RuntimeEvent::ItemStarted { .. }
            | RuntimeEvent::ItemUpdated { .. }
            | RuntimeEvent::CallOutput { .. }
    )
}
