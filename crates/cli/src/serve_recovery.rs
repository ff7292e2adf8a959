//! Makes the stored events of an interrupted turn agree with its session.
//!
//! A server may be killed after an item was recorded and before its event was stored, or the other
//! way round. Before the turn continues, the missing events are emitted, and items that the session
//! does not have are dropped.

use selvedge_agent::{Session, SessionStepKind};
use selvedge_protocol::{
    ConversationItem, EventSink, MAX_EVENT_READ, MessageRole, RuntimeEvent, ServerStoreError,
    SessionEvent, SessionEventStore, TurnEnd, TurnError, TurnItem, Usage,
};
use serde_json::{Value, json};

/// How every id of an item in events begins. A number follows.
const ITEM_ID_PREFIX: &str = "item_";

/// Emits what the events of the session's last turn lack. If the turn has ended, this includes its
/// end.
pub(crate) async fn reconcile_events(
    store: &dyn SessionEventStore,
    session: &mut Session,
    events: &EventSink,
) -> Result<(), ServerStoreError> {
    let turn = session.turn_number();
    let end = last_turn_end(store, session.id()).await?;
    if end.as_ref().is_some_and(|end| end.body["turn"] == turn) {
        return Ok(());
    }
    let after = end.map_or(0, |end| end.number);
    let stored = events_after(store, session.id(), after).await?;
    let recorded: Vec<TurnItem> = session
        .turn_items(turn)
        .into_iter()
        .filter(is_emitted)
        .map(|item| item.without_native())
        .collect();
    // Items that are equal are counted: each event stands for one of them.
    let mut missing: Vec<(Value, TurnItem)> = recorded
        .into_iter()
        .map(|item| (json!(item), item))
        .collect();
    for (item_id, body) in emitted_items(&stored) {
        match missing.iter().position(|(other, _)| *other == body) {
            Some(index) => _ = missing.remove(index),
            None => events.emit(RuntimeEvent::ItemDropped { item_id }),
        }
    }
    let mut next_id = next_item_id(&stored).max(after);
    for (_, item) in missing {
        let item_id = format!("{ITEM_ID_PREFIX}{next_id}");
        next_id += 1;
        events.emit(RuntimeEvent::ItemCompleted { item_id, item });
    }
    session.continue_item_ids(next_id);
    if let Some(end) = session.turn_end().cloned() {
        events.emit(end_event(session, turn, end));
    }
    Ok(())
}

/// Makes the item ids of the next turn differ from those of all turns before: there are at least as
/// many stored events as ids.
pub(crate) async fn continue_item_ids(
    store: &dyn SessionEventStore,
    session: &mut Session,
) -> Result<(), ServerStoreError> {
    let end = last_turn_end(store, session.id()).await?;
    session.continue_item_ids(end.map_or(0, |end| end.number));
    Ok(())
}

/// Returns the event of the newest turn whose end is stored.
async fn last_turn_end(
    store: &dyn SessionEventStore,
    session: &str,
) -> Result<Option<SessionEvent>, ServerStoreError> {
    let completed = store.latest_event(session, "turn.completed").await?;
    let failed = store.latest_event(session, "turn.failed").await?;
    Ok(completed
        .into_iter()
        .chain(failed)
        .max_by_key(|end| end.number))
}

async fn events_after(
    store: &dyn SessionEventStore,
    session: &str,
    mut after: u64,
) -> Result<Vec<SessionEvent>, ServerStoreError> {
    let mut events = Vec::new();
    loop {
        let page = store.events_after(session, after, MAX_EVENT_READ).await?;
        let Some(last) = page.last() else {
            return Ok(events);
        };
        after = last.number;
        events.extend(page);
    }
}

/// Returns the completed items that were not dropped, with their ids.
fn emitted_items(events: &[SessionEvent]) -> Vec<(String, Value)> {
    let mut items: Vec<(String, Value)> = Vec::new();
    for event in events {
        let id = event.body["item_id"].as_str().unwrap_or_default();
        match event.body["type"].as_str() {
            Some("item.completed") => items.push((id.to_owned(), event.body["item"].clone())),
            Some("item.dropped") => items.retain(|(other, _)| other != id),
            _ => {}
        }
    }
    items
}

/// Returns the first number of an item id that none of these events uses.
fn next_item_id(events: &[SessionEvent]) -> u64 {
    let ids = events.iter().filter_map(|event| {
        let id = event.body["item_id"].as_str()?;
        id.strip_prefix(ITEM_ID_PREFIX)?.parse::<u64>().ok()
    });
    ids.max().map_or(0, |last| last + 1)
}

/// Returns whether a turn emits an event for an item: not for messages of the user and for data
/// that only a provider understands.
fn is_emitted(item: &TurnItem) -> bool {
    match item {
        TurnItem::Conversation(ConversationItem::Message(message)) => {
            message.role == MessageRole::Assistant
        }
        TurnItem::Conversation(ConversationItem::Reasoning(thought)) => {
            !(thought.summary.is_empty() && thought.content.is_empty())
        }
        TurnItem::Conversation(ConversationItem::Native(_)) => false,
        _ => true,
    }
}

/// Returns the event of a turn whose end is recorded.
fn end_event(session: &Session, turn: u32, end: Result<TurnEnd, TurnError>) -> RuntimeEvent {
    let (mut usage, mut cost) = (Usage::default(), None);
    for step in session.steps().iter().filter(|step| step.turn == turn) {
        if let SessionStepKind::Answer {
            usage: used,
            cost: paid,
            ..
        } = &step.kind
        {
            usage += *used;
            cost = cost.into_iter().chain(*paid).reduce(|a, b| a + b);
        }
    }
    RuntimeEvent::turn_end(turn, end, usage, cost)
}
