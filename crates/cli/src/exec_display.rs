//! The answer of `selvedge exec` at a terminal: Markdown that is printed while it streams in.

use std::sync::{Arc, Mutex, PoisonError};

use selvedge_protocol::{ConversationItem, EventSink, RuntimeEvent, TurnItem};

use crate::chat::{StreamedMarkdown, Theme, finished_lines};
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
