//! Deletes turns of a session so that the session can still be continued.
//!
//! A note replaces the user's message and the model's first answer of a deleted turn, and the usage
//! of its answers remains. Calls are deleted together with their results, so that requests stay
//! valid. Later compactions, which may quote the turn, are deleted as well and are made again when
//! necessary.

use std::collections::BTreeSet;

use selvedge_journal::{Journal, SessionForgetReport, StoredRow};
use selvedge_protocol::{ConversationItem, MessageRole, TurnEnd, TurnError, TurnItem};

use crate::session_record::{DelegatedUsage, SessionMark, SessionRow};
use crate::{AgentError, Session};

/// The notes that replace the messages of a deleted turn.
const REMOVED_PROMPT_NOTE: &str =
    "[This turn was removed from the conversation at the user's request.]";
const REMOVED_ANSWER_NOTE: &str = "[removed]";

impl Session {
    /// Deletes a turn of a stored session, or the whole session if `turn` is `None`, with
    /// everything recorded for it. Fails if another process has claimed the session or a run of the
    /// turn has not ended. [`Journal::scrub`] overwrites what remains in free pages of the file.
    pub fn forget(
        journal: &Journal,
        id: &str,
        turn: Option<u32>,
    ) -> Result<SessionForgetReport, AgentError> {
        Ok(journal.forget(id, turn, &rewrite_items)?)
    }

    /// Returns what [`Session::forget`] would return, and changes nothing.
    pub fn preview_forget(
        journal: &Journal,
        id: &str,
        turn: Option<u32>,
    ) -> Result<SessionForgetReport, AgentError> {
        Ok(journal.preview_forget(id, turn, &rewrite_items)?)
    }
}

/// Returns the items that remain of a session without the content of some turns.
fn rewrite_items(items: Vec<StoredRow>, turns: &BTreeSet<u32>) -> Vec<StoredRow> {
    let last = items.last().cloned();
    let mut remaining: Vec<StoredRow> = Vec::new();
    let (mut asked, mut answered, mut ended) = (None, None, None);
    for mut item in items {
        let deleted = turns.contains(&item.turn);
        let row = match serde_json::from_value::<SessionRow>(item.item.clone()) {
            Ok(SessionRow::Mark(SessionMark::Compaction { .. })) => continue,
            _ if !deleted => {
                remaining.push(item);
                continue;
            }
            Ok(row) => row,
            // An item of a deleted turn that cannot be parsed is deleted.
            Err(_) => continue,
        };
        let first = |of: &mut Option<u32>| of.replace(item.turn) != Some(item.turn);
        let row = match row {
            SessionRow::Item(TurnItem::Conversation(ConversationItem::Message(message)))
                if message.role == MessageRole::User && first(&mut asked) =>
            {
                SessionRow::Item(
                    ConversationItem::message(MessageRole::User, REMOVED_PROMPT_NOTE).into(),
                )
            }
            SessionRow::Mark(SessionMark::Answer {
                usage,
                cost,
                finish_reason,
                ..
            }) => {
                let note = ConversationItem::message(MessageRole::Assistant, REMOVED_ANSWER_NOTE);
                let note = first(&mut answered).then_some(note);
                SessionRow::Mark(SessionMark::Answer {
                    request_items: Some(note.into_iter().collect()),
                    run: None,
                    usage,
                    cost,
                    finish_reason,
                })
            }
            SessionRow::Mark(SessionMark::TurnEnd {
                finish_reason,
                error,
                delegated,
            }) => {
                ended = Some(item.turn);
                // The error message of a provider may quote the request.
                let error = error.map(|error| TurnError {
                    message: REMOVED_ANSWER_NOTE.to_owned(),
                    ..error
                });
                SessionRow::Mark(SessionMark::TurnEnd {
                    finish_reason,
                    error,
                    delegated,
                })
            }
            _ => continue,
        };
        if let Ok(value) = serde_json::to_value(row) {
            item.item = value;
            remaining.push(item);
        }
    }
    // If the last turn was deleted before it ended, it ends now: nothing is left to continue.
    if let Some(last) = last
        && turns.contains(&last.turn)
        && ended != Some(last.turn)
    {
        let end = SessionRow::Mark(SessionMark::TurnEnd {
            finish_reason: Some(TurnEnd::Interrupted),
            error: None,
            delegated: DelegatedUsage::default(),
        });
        if let Ok(item) = serde_json::to_value(end) {
            remaining.push(StoredRow {
                number: last.number + 1,
                item,
                ..last
            });
        }
    }
    remaining
}
