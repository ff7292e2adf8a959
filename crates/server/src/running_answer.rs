//! [`RunningAnswer`]: the text of a turn as it is written, for the OpenAI-compatible endpoints.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use selvedge_protocol::{InboxMessage, InboxState, RemovedMessage, SessionError, Usage};
use serde_json::Value;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::api_error::ApiError;
use crate::client_conversation::text_of;
use crate::client_tools::ClientCall;
use crate::feed::{FeedEvent, LiveEvent, SessionFeed};
use crate::metrics::GaugeGuard;
use crate::openai::MESSAGE_SEPARATOR;
use crate::state::SharedState;

/// How long further calls of a client's tools may take to be part of the same response.
const CALL_BATCH_DELAY: Duration = Duration::from_millis(50);
/// How long a turn is quiet before its message is read, which may have ended without an event.
const MESSAGE_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// How long an answer waits at most until its end is stored.
const STORED_END_TIMEOUT: Duration = Duration::from_secs(2);
/// How often an answer looks whether another server has stored its end.
const END_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What a turn did.
#[derive(Debug, PartialEq)]
pub(crate) enum AnswerUpdate {
    /// Text was added to the answer.
    Text(String),
    /// The turn has ended.
    Ended {
        /// Whether a limit ended it.
        is_cut: bool,
        usage: Usage,
    },
    /// The turn failed.
    Failed(String),
    /// The turn waits for results of the client's tools.
    Calls(Vec<ClientCallView>),
}

/// A call of a client's tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientCallView {
    pub(crate) id: String,
    pub(crate) name: String,
    /// The arguments, as JSON.
    pub(crate) arguments: String,
}

/// A whole answer, or the part up to calls of the client's tools.
pub(crate) struct CollectedAnswer {
    pub(crate) text: String,
    pub(crate) is_cut: bool,
    pub(crate) usage: Usage,
    /// Calls of the client's tools. If there are any, the turn waits for their results.
    pub(crate) calls: Vec<ClientCallView>,
}

/// Text of a message that was returned.
#[derive(Debug, Default)]
struct ReturnedText {
    text: String,
    /// Bytes of the text that the next events repeat, after a reader that was too slow has caught
    /// up.
    repeated: usize,
}

/// A turn whose text is read while it is written. A turn of a new session is interrupted when this
/// is dropped before its end.
pub(crate) struct RunningAnswer {
    state: SharedState,
    feed: Arc<SessionFeed>,
    live: Receiver<LiveEvent>,
    ready: VecDeque<FeedEvent>,
    pub(crate) session: String,
    pub(crate) number: u32,
    /// Number of the last stored event that was read.
    last_event: u64,
    /// The turn of the message, once it has begun.
    turn: Option<u64>,
    /// Messages of the model, by item.
    texts: HashMap<String, ReturnedText>,
    /// Whether any text was returned.
    has_text: bool,
    interrupt_on_drop: bool,
    client_calls: UnboundedReceiver<ClientCall>,
    /// Keeps the receiver of calls open without tools.
    _calls: UnboundedSender<ClientCall>,
    /// Calls that the client has not received.
    ready_calls: Vec<ClientCallView>,
    /// Calls whose results the client has not sent.
    waiting_calls: HashMap<String, oneshot::Sender<String>>,
    /// Number of responses before this one that belong to the same turn.
    pub(crate) part: u32,
    _open: GaugeGuard,
}

impl Drop for RunningAnswer {
    fn drop(&mut self) {
        self.state.client_tools.forget(&self.session, self.number);
        // Without a runtime the server stops, and so does the turn.
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && self.interrupt_on_drop
        {
            let (session, number) = (self.session.clone(), self.number);
            runtime.spawn(stop_message(self.state.clone(), session, number));
        }
    }
}

/// Removes a message from the queue, or interrupts its turn.
async fn stop_message(state: SharedState, session: String, number: u32) {
    let removed = state.stores.queues.remove_message(&session, number).await;
    if !matches!(removed, Ok(RemovedMessage::AlreadyStarted)) {
        return;
    }
    let message = state.stores.sessions.message(&session, number).await;
    if message.is_ok_and(|message| message.state == InboxState::Claimed) {
        state.workers.interrupt(&session);
    }
}

impl RunningAnswer {
    /// Follows the turn of a message, without tools of the client.
    pub(crate) fn follow(
        state: &SharedState,
        feed: Arc<SessionFeed>,
        live: Receiver<LiveEvent>,
        message: &InboxMessage,
    ) -> Self {
        let (sender, client_calls) = unbounded_channel();
        Self {
            state: state.clone(),
            feed,
            live,
            ready: VecDeque::new(),
            session: message.session.clone(),
            number: message.number,
            last_event: 0,
            turn: None,
            texts: HashMap::new(),
            has_text: false,
            interrupt_on_drop: false,
            client_calls,
            _calls: sender,
            ready_calls: Vec::new(),
            waiting_calls: HashMap::new(),
            part: 0,
            _open: state.metrics.open_streams.enter(),
        }
    }

    /// Receives the calls of the client's tools here.
    pub(crate) fn with_client_calls(
        mut self,
        (sender, receiver): (UnboundedSender<ClientCall>, UnboundedReceiver<ClientCall>),
    ) -> Self {
        (self._calls, self.client_calls) = (sender, receiver);
        self
    }

    /// Interrupts the turn when this is dropped before its end.
    pub(crate) fn interrupted_on_drop(mut self) -> Self {
        self.interrupt_on_drop = true;
        self
    }

    /// Reads these events first.
    pub(crate) fn after(mut self, missed: VecDeque<FeedEvent>) -> Self {
        self.ready = missed;
        self
    }

    /// Returns the end of the message if it has ended and all events of its turn were read: it was
    /// removed or refused before its turn began, or another process ran the turn.
    async fn ended_message(&mut self) -> Option<AnswerUpdate> {
        let message = match self.message().await {
            Ok(message) => message?,
            Err(deleted) => return Some(deleted),
        };
        if !self.live.is_empty() {
            return None;
        }
        let answer = message.answer.unwrap_or_default();
        match message.state {
            InboxState::Queued | InboxState::Claimed => None,
            InboxState::Stopped if answer.is_empty() => {
                Some(self.fail("the message was removed".to_owned()))
            }
            InboxState::Failed | InboxState::Stopped => Some(self.fail(answer)),
            InboxState::Answered if !self.has_text && !answer.is_empty() => {
                self.has_text = true;
                Some(AnswerUpdate::Text(answer))
            }
            InboxState::Answered => {
                self.interrupt_on_drop = false;
                Some(AnswerUpdate::Ended {
                    is_cut: false,
                    usage: Usage::default(),
                })
            }
        }
    }

    /// Reads the message; `None` if that fails now. If it was deleted, returns this as the end.
    async fn message(&mut self) -> Result<Option<InboxMessage>, AnswerUpdate> {
        let sessions = &self.state.stores.sessions;
        match sessions.message(&self.session, self.number).await {
            Ok(message) => Ok(Some(message)),
            Err(SessionError::NotFound(_) | SessionError::MessageNotFound(..)) => {
                Err(self.fail("the session was deleted".to_owned()))
            }
            Err(_) => Ok(None),
        }
    }

    /// Returns what happens next. After `Ended` and `Failed` nothing follows.
    pub(crate) async fn next(&mut self) -> AnswerUpdate {
        loop {
            let event = match self.ready.pop_front() {
                Some(event) => Ok(LiveEvent::Event(event)),
                // The text before a call comes first.
                None if !self.ready_calls.is_empty() => match self.live.try_recv() {
                    Ok(event) => Ok(event),
                    Err(_) => return AnswerUpdate::Calls(std::mem::take(&mut self.ready_calls)),
                },
                None => tokio::select! {
                    biased;
                    event = self.live.recv() => event,
                    Some(call) = self.client_calls.recv() => {
                        self.collect_calls(call).await;
                        continue;
                    }
                    () = self.state.stopping.cancelled() => {
                        // The next server continues the turn.
                        return self.fail("the server stops".to_owned());
                    }
                    () = tokio::time::sleep(MESSAGE_CHECK_INTERVAL) => {
                        match self.ended_message().await {
                            Some(update) => return update,
                            None => continue,
                        }
                    }
                },
            };
            let event = match event {
                Ok(event) => match self.feed.load(event).await {
                    Ok(Some(event)) => event,
                    Ok(None) => continue,
                    Err(error) => return self.fail(error.to_string()),
                },
                Err(RecvError::Lagged(_)) => match self.feed.catch_up(self.last_event).await {
                    Ok(caught_up) => {
                        self.live = caught_up.live;
                        self.ready.extend(caught_up.events);
                        continue;
                    }
                    Err(error) => return self.fail(error.to_string()),
                },
                Err(RecvError::Closed) => return self.fail("the server stops".to_owned()),
            };
            self.last_event = event.number.unwrap_or(self.last_event);
            let body: Value = serde_json::from_str(&event.body).unwrap_or_default();
            if let Some(update) = self.read_event(&body).await {
                return update;
            }
        }
    }

    /// Keeps a call of the client's tools, and those that follow it at once.
    async fn collect_calls(&mut self, first: ClientCall) {
        let mut next = Some(first);
        while let Some(call) = next {
            self.ready_calls.push(ClientCallView {
                id: call.id.clone(),
                name: call.name,
                arguments: call.arguments,
            });
            self.waiting_calls.insert(call.id, call.reply);
            let more = tokio::time::timeout(CALL_BATCH_DELAY, self.client_calls.recv());
            next = more.await.ok().flatten();
        }
    }

    /// Returns an id for the response: session, number of the message, and part of the turn.
    pub(crate) fn response_id(&self) -> String {
        match self.part {
            0 => format!("{}_{}", self.session, self.number),
            part => format!("{}_{}.{part}", self.session, self.number),
        }
    }

    /// Whether the turn waits for the result of a call.
    pub(crate) fn waits_for(&self, call: &str) -> bool {
        self.waiting_calls.contains_key(call)
    }

    /// Passes the results of the client to the calls that wait. A call without a result fails.
    pub(crate) fn deliver(&mut self, results: &[(String, String)]) {
        for (id, result) in results {
            if let Some(reply) = self.waiting_calls.remove(id) {
                // A call that timed out waits no more.
                let _ = reply.send(result.clone());
            }
        }
        self.waiting_calls.clear();
        self.part += 1;
        self.has_text = false;
    }

    fn fail(&mut self, message: String) -> AnswerUpdate {
        self.interrupt_on_drop = false;
        AnswerUpdate::Failed(message)
    }

    async fn read_event(&mut self, event: &Value) -> Option<AnswerUpdate> {
        let kind = event["type"].as_str().unwrap_or_default();
        if self.turn.is_none() {
            return self.find_turn(event).await;
        }
        match kind {
            "item.started" if is_message(&event["item"]) => {
                let id = event["item_id"].as_str()?;
                let known = self.texts.entry(id.to_owned()).or_default();
                known.repeated = known.text.len();
                None
            }
            "item.updated" => {
                let id = event["item_id"].as_str()?;
                let delta = event["delta"].as_str()?;
                self.add_text(id, delta)
            }
            "item.completed" if is_message(&event["item"]) => {
                let id = event["item_id"].as_str()?;
                let whole = text_of(&event["item"]["content"]).unwrap_or_default();
                let known = self.texts.entry(id.to_owned()).or_default();
                // What was not received as parts.
                known.repeated = known.text.len();
                self.add_text(id, &whole)
            }
            "turn.completed" if event["turn"].as_u64() == self.turn => {
                self.interrupt_on_drop = false;
                self.wait_for_stored_end().await;
                let usage = serde_json::from_value(event["usage"].clone());
                let end = event["finish_reason"].as_str().unwrap_or_default();
                Some(AnswerUpdate::Ended {
                    is_cut: !["stop", "interrupted"].contains(&end),
                    usage: usage.unwrap_or_default(),
                })
            }
            "turn.failed" if event["turn"].as_u64() == self.turn => {
                let message = event["error"]["message"]
                    .as_str()
                    .unwrap_or("the turn failed");
                Some(self.fail(message.to_owned()))
            }
            _ => None,
        }
    }

    /// Waits until the end of the message is stored: a client that has its answer finds the session
    /// without a queued message. The answer is complete in any case.
    async fn wait_for_stored_end(&self) {
        let (sessions, id) = (&self.state.stores.sessions, &self.session);
        let ends = self.state.workers.message_ends.of_session(id);
        let stored = async {
            loop {
                let ended = ends.notified();
                match sessions.message(id, self.number).await {
                    // The turns of other servers notify nothing here.
                    Ok(message) if message.state.is_open() => {
                        let _ = tokio::time::timeout(END_POLL_INTERVAL, ended).await;
                    }
                    _ => return,
                }
            }
        };
        let _ = tokio::time::timeout(STORED_END_TIMEOUT, stored).await;
    }

    /// Looks whether an event begins the turn of the message, or says that it cannot begin.
    async fn find_turn(&mut self, event: &Value) -> Option<AnswerUpdate> {
        match event["type"].as_str()? {
            "turn.started" => {
                let message = match self.message().await {
                    Ok(message) => message?,
                    Err(deleted) => return Some(deleted),
                };
                let turn = event["turn"].as_u64();
                if message.turn.map(u64::from) == turn {
                    self.turn = turn;
                }
                None
            }
            // It may concern this message, or the turn before.
            "error" | "turn.failed" => self.ended_message().await,
            _ => None,
        }
    }

    /// Adds text of an item, if the item is a message of the model.
    fn add_text(&mut self, item: &str, delta: &str) -> Option<AnswerUpdate> {
        let known = self.texts.get_mut(item)?;
        let repeated = known.repeated.min(delta.len());
        known.repeated -= repeated;
        let delta = delta.get(repeated..).filter(|rest| !rest.is_empty())?;
        let separator = match known.text.is_empty() && self.has_text {
            true => MESSAGE_SEPARATOR,
            false => "",
        };
        known.text.push_str(delta);
        self.has_text = true;
        Some(AnswerUpdate::Text(format!("{separator}{delta}")))
    }

    /// Reads the answer up to its end, or up to calls of the client's tools.
    pub(crate) async fn collect(&mut self) -> Result<CollectedAnswer, ApiError> {
        let mut collected = CollectedAnswer {
            text: String::new(),
            is_cut: false,
            usage: Usage::default(),
            calls: Vec::new(),
        };
        loop {
            match self.next().await {
                AnswerUpdate::Text(delta) => collected.text.push_str(&delta),
                AnswerUpdate::Ended { is_cut, usage } => {
                    (collected.is_cut, collected.usage) = (is_cut, usage);
                    return Ok(collected);
                }
                AnswerUpdate::Calls(calls) => {
                    collected.calls = calls;
                    return Ok(collected);
                }
                AnswerUpdate::Failed(message) => return Err(ApiError::turn_failed(message)),
            }
        }
    }
}

fn is_message(item: &Value) -> bool {
    item["type"] == "message" && item["role"] == "assistant"
}
