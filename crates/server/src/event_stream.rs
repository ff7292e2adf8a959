//! Server-Sent Events: the events of a session, and the messages of a channel.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use futures_util::stream::unfold;
use selvedge_protocol::{MAX_CHANNEL_READ, ReadFrom};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::caller::Caller;
use crate::channel_routes::PostView;
use crate::feed::{FeedEvent, LiveEvent, SessionFeed};
use crate::metrics::{GaugeGuard, ServerMetrics};
use crate::state::SharedState;

/// How often a comment is sent on a stream without events, so that proxies keep it open.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// How often a followed channel is read.
const CHANNEL_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Whether a stream ends after the stored events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// It sends later events as well, until the client or the server closes it.
    Never,
    /// It ends after the events that are stored now.
    AfterStored,
}

/// Reads the events of a session for one client.
struct SessionEventReader {
    feed: Arc<SessionFeed>,
    /// Number of the last event that was sent.
    sent: u64,
    ready: VecDeque<FeedEvent>,
    /// `None` until the client has caught up with the stored events.
    live: Option<Receiver<LiveEvent>>,
    end: StreamEnd,
    stopping: CancellationToken,
    /// The notices of other servers that were seen.
    notices_seen: u64,
    _open: GaugeGuard,
}

/// Returns the events of a session after a number as Server-Sent Events.
pub(crate) fn session_events(
    feed: Arc<SessionFeed>,
    after: u64,
    end: StreamEnd,
    metrics: &Arc<ServerMetrics>,
    stopping: CancellationToken,
) -> Response {
    let reader = SessionEventReader {
        feed,
        sent: after,
        ready: VecDeque::new(),
        live: None,
        end,
        stopping,
        notices_seen: 0,
        _open: metrics.open_streams.enter(),
    };
    let events = unfold(reader, async |mut reader| {
        let event = reader.next().await?;
        let sse = match event.number {
            Some(number) => Event::default().id(number.to_string()),
            None => Event::default(),
        };
        Some((Ok(sse.data(&*event.body)), reader))
    });
    event_response(events)
}

impl SessionEventReader {
    /// Returns the next event; `None` at the end of the stream.
    async fn next(&mut self) -> Option<FeedEvent> {
        loop {
            while let Some(event) = self.ready.pop_front() {
                match event.number {
                    Some(number) if number <= self.sent => continue,
                    Some(number) => self.sent = number,
                    None => {}
                }
                return Some(event);
            }
            let Some(live) = &mut self.live else {
                self.read_stored().await?;
                continue;
            };
            let received = tokio::select! {
                received = live.recv() => received,
                () = self.stopping.cancelled() => {
                    // The client still gets the end of a turn that ended before the stop.
                    (self.live, self.end) = (None, StreamEnd::AfterStored);
                    continue;
                }
                () = self.feed.wait_for_other_servers(&mut self.notices_seen) => {
                    // The stream ends if the storage fails; the client connects again.
                    let stored = self.feed.stored_by_other_servers(self.sent, live).await.ok()?;
                    self.ready.extend(stored);
                    continue;
                }
            };
            match received {
                // Another server stored the events between.
                Ok(event)
                    if event
                        .number()
                        .is_some_and(|number| number > self.sent.saturating_add(1)) =>
                {
                    self.live = None;
                }
                Ok(event) => self.ready.extend(self.feed.load(event).await.ok()?),
                // The client was too slow: it gets the stored events again.
                Err(RecvError::Lagged(_)) => self.live = None,
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// Reads stored events. After the last ones it follows the feed, or returns `None` at the end
    /// of the stream.
    async fn read_stored(&mut self) -> Option<()> {
        // The stream ends if the storage fails; the client connects again.
        let page = self.feed.stored_after(self.sent).await.ok()?;
        if !page.is_empty() {
            self.ready.extend(page);
            return Some(());
        }
        if self.end == StreamEnd::AfterStored {
            return None;
        }
        let caught_up = self.feed.catch_up(self.sent).await.ok()?;
        self.ready.extend(caught_up.events);
        self.live = Some(caught_up.live);
        Some(())
    }
}

/// Reads the messages of a channel for one client.
struct ChannelReader {
    state: SharedState,
    caller: Caller,
    name: String,
    /// Number of the last message that was sent.
    sent: u64,
    /// Messages that were read, with their numbers.
    ready: VecDeque<(u64, String)>,
    _open: GaugeGuard,
}

/// Returns the messages of a channel after a number as Server-Sent Events.
pub(crate) fn channel_messages(
    state: SharedState,
    caller: Caller,
    name: String,
    after: u64,
) -> Response {
    let reader = ChannelReader {
        _open: state.metrics.open_streams.enter(),
        state,
        caller,
        name,
        sent: after,
        ready: VecDeque::new(),
    };
    let messages = unfold(reader, async |mut reader| {
        let (number, body) = reader.next().await?;
        let event = Event::default().id(number.to_string());
        Some((Ok(event.data(body)), reader))
    });
    event_response(messages)
}

impl ChannelReader {
    /// Returns the next message with its number; `None` at the end of the stream.
    async fn next(&mut self) -> Option<(u64, String)> {
        loop {
            if let Some((number, body)) = self.ready.pop_front() {
                self.sent = number;
                return Some((number, body));
            }
            let from = ReadFrom::After(self.sent);
            let channels = &self.state.stores.channels;
            let read = channels.read(&self.name, from, MAX_CHANNEL_READ);
            // The stream ends if the storage fails; the client connects again.
            let messages = read.await.ok()?;
            for message in messages {
                let number = message.number;
                let view = PostView::new(&self.state, &self.caller, message).await;
                let body = serde_json::to_string(&view).ok()?;
                self.ready.push_back((number, body));
            }
            if self.ready.is_empty() {
                tokio::select! {
                    () = tokio::time::sleep(CHANNEL_POLL_INTERVAL) => {}
                    () = self.state.stopping.cancelled() => return None,
                }
            }
        }
    }
}

/// Returns a response that sends these events.
pub(crate) fn event_response(
    events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static,
) -> Response {
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE_INTERVAL);
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    let no = http::HeaderValue::from_static("no");
    // Proxies must not collect events.
    headers.insert("x-accel-buffering", no);
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Mutex;

    use async_trait::async_trait;
    use selvedge_protocol::{RuntimeEvent, ServerStoreError, SessionEvent, SessionEventStore};
    use serde_json::{Value, json};

    use super::*;
    use crate::feed::SessionFeeds;

    /// Events of one session in memory.
    #[derive(Default)]
    struct StoredEvents(Mutex<Vec<Value>>);

    #[async_trait]
    impl SessionEventStore for StoredEvents {
        async fn append_events(
            &self,
            _: &str,
            bodies: Vec<Value>,
        ) -> Result<u64, ServerStoreError> {
            let mut events = self.0.lock().unwrap();
            let first = events.len() as u64 + 1;
            events.extend(bodies);
            Ok(first)
        }

        async fn events_after(
            &self,
            _: &str,
            after: u64,
            limit: u32,
        ) -> Result<Vec<SessionEvent>, ServerStoreError> {
            let numbered = (1..).zip(self.0.lock().unwrap().clone());
            let events = numbered.map(|(number, body)| SessionEvent { number, body });
            let events = events.skip(after as usize).take(limit as usize);
            Ok(events.collect())
        }

        async fn events_of_kinds(
            &self,
            _: &str,
            _: &[&str],
            _: u64,
            _: u32,
        ) -> Result<Vec<SessionEvent>, ServerStoreError> {
            Ok(Vec::new())
        }

        async fn event_before(
            &self,
            _: &str,
            _: &str,
            _: u64,
        ) -> Result<Option<SessionEvent>, ServerStoreError> {
            Ok(None)
        }
    }

    #[test]
    fn a_reader_gets_events_of_other_servers_in_order_and_large_events_from_the_storage() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (store, metrics) = (Arc::<StoredEvents>::default(), Arc::default());
            let feeds = SessionFeeds::new(store.clone(), Arc::clone(&metrics));
            let feed = feeds.feed("ses_1");
            let mut reader = SessionEventReader {
                feed: feed.clone(),
                sent: 0,
                ready: VecDeque::new(),
                live: None,
                end: StreamEnd::Never,
                stopping: CancellationToken::new(),
                notices_seen: 0,
                _open: metrics.open_streams.enter(),
            };
            let (events, flush) = feed.sink();
            events.emit(RuntimeEvent::TurnStarted { turn: 1 });
            flush.wait().await;
            assert_eq!(reader.next().await.unwrap().number, Some(1));
            // The reader waits for live events.
            events.emit(RuntimeEvent::TurnStarted { turn: 2 });
            flush.wait().await;
            assert_eq!(reader.next().await.unwrap().number, Some(2));
            // Another server stores an event.
            let body = json!({"type": "turn.started", "turn": 3});
            store.append_events("ses_1", vec![body]).await.unwrap();
            let message = "x".repeat(100_000);
            events.emit(RuntimeEvent::Error { message });
            flush.wait().await;
            let next = reader.next().await.unwrap();
            assert_eq!(next.number, Some(3));
            assert!(next.body.contains("\"turn\":3"), "{}", next.body);
            let next = reader.next().await.unwrap();
            assert_eq!((next.number, next.body.len() > 100_000), (Some(4), true));
            let message = "y".repeat(100_000);
            events.emit(RuntimeEvent::Error { message });
            flush.wait().await;
            let next = reader.next().await.unwrap();
            assert_eq!((next.number, next.body.len() > 100_000), (Some(5), true));
            // A stop ends the stream after the stored events.
            events.emit(RuntimeEvent::TurnStarted { turn: 4 });
            flush.wait().await;
            reader.stopping.cancel();
            assert_eq!(reader.next().await.unwrap().number, Some(6));
            assert_eq!(reader.next().await, None);
        });
    }
}
