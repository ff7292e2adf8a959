//! What `selvedge exec` prints at a terminal: the answer as Markdown while it streams in, and a
//! summary of the turn.

use std::sync::{Arc, Mutex, PoisonError};

use selvedge_agent::TurnOutcome;
use selvedge_protocol::{ConversationItem, EventSink, Prices, RuntimeEvent, TurnItem};

use crate::chat::{StreamedMarkdown, Theme, finished_lines, format_usage};
use crate::output::print_with_escapes;
use crate::progress::ProgressDisplay;

/// The message that streams in, and its item.
#[derive(Default)]
struct CurrentMessage {
    item_id: String,
    text: StreamedMarkdown,
}

/// Returns a sink that prints messages of the model on standard output, block by block, and passes
/// all events on.
pub(crate) fn streaming_sink(progress: &ProgressDisplay, inner: EventSink) -> EventSink {
    let progress = progress.clone();
    let current = Arc::new(Mutex::new(CurrentMessage::default()));
    let theme = Theme::from_env();
    EventSink::new(move |event| {
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        let has_news = match &event {
            RuntimeEvent::ItemStarted {
                item_id,
                item: TurnItem::Conversation(ConversationItem::Message(_)),
            } => {
                *current = CurrentMessage {
                    item_id: item_id.clone(),
                    ..CurrentMessage::default()
                };
                false
            }
            RuntimeEvent::ItemUpdated { item_id, delta } if *item_id == current.item_id => {
                current.text.push(delta);
                true
            }
            RuntimeEvent::ItemCompleted {
                item_id,
                item: TurnItem::Conversation(ConversationItem::Message(message)),
            } if *item_id == current.item_id => {
                current.text.complete(Some(message.text()));
                true
            }
            RuntimeEvent::ItemDropped { item_id } if *item_id == current.item_id => {
                *current = CurrentMessage::default();
                false
            }
            _ => false,
        };
        if has_news {
            let lines = finished_lines(&mut current.text, theme);
            if !lines.is_empty() {
                // A failed write is reported by the command, which prints on the same stream.
                progress.suspend(|| _ = print_with_escapes(&lines.join("\n")));
            }
        }
        drop(current);
        inner.emit(event);
    })
}

/// Returns the session, the tokens and the cost of a turn in one line. `session` is the id of the
/// session, `None` if it is not in the journal; `prices` are those of the model.
pub(crate) fn turn_summary(
    session: Option<&str>,
    outcome: &TurnOutcome,
    prices: Option<Prices>,
) -> String {
    let cost = match (prices, outcome.cost) {
        (None, _) => Some("cost unknown: the model has no prices".to_owned()),
        (Some(_), Some(cost)) if cost > 0.0 => Some(format!("${cost:.4}")),
        (Some(_), _) => None,
    };
    let parts = [
        session.map(str::to_owned),
        Some(format_usage(&outcome.usage)),
        cost,
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(" · ")
}
