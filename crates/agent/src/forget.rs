//! Forgetting turns of a conversation so that it can still be gone on with.
//!
//! Of a forgotten turn stay the user's place and the model's, each with a note, and what its answers took. Calls leave
//! together with their results, so that what goes over the wire is whole. What was made shorter since told of the turn:
//! it goes too, and is made anew when it is needed.

use std::collections::BTreeSet;

use selvedge_journal::{Forgotten, Journal, StoredItem};
use selvedge_protocol::{Item, Role, TurnEnd, TurnError, TurnItem};

use crate::record::{Line, Mark, Others};
use crate::{AgentError, Session};

/// What stands in the place of what was said.
const ASKED: &str = "[This turn was removed from the conversation at the user's wish.]";
const ANSWERED: &str = "[removed]";

impl Session {
    /// Forgets a turn of a stored conversation, or all of it where none is named, with everything done for it. Refused
    /// while another process works on the conversation or something of the turn is under way. What is left in free pages
    /// of the file goes with [`Journal::scrub`].
    pub fn forget(journal: &Journal, id: &str, turn: Option<u32>) -> Result<Forgotten, AgentError> {
        Ok(journal.forget(id, turn, &rewritten)?)
    }

    /// What [`Session::forget`] would forget, or why it would not. Nothing changes.
    pub fn would_forget(
        journal: &Journal,
        id: &str,
        turn: Option<u32>,
    ) -> Result<Forgotten, AgentError> {
        Ok(journal.would_forget(id, turn, &rewritten)?)
    }
}

fn rewritten(items: Vec<StoredItem>, turns: &BTreeSet<u32>) -> Vec<StoredItem> {
    let last = items.last().cloned();
    let mut left: Vec<StoredItem> = Vec::new();
    let (mut asked, mut answered, mut ended) = (None, None, None);
    for mut item in items {
        let forgotten = turns.contains(&item.turn);
        let line = match serde_json::from_value::<Line>(item.item.clone()) {
            Ok(Line::Mark(Mark::Compaction { .. })) => continue,
            _ if !forgotten => {
                left.push(item);
                continue;
            }
            Ok(line) => line,
            // It cannot be told what it is: nothing of it stays.
            Err(_) => continue,
        };
        let first = |of: &mut Option<u32>| of.replace(item.turn) != Some(item.turn);
        let line = match line {
            Line::Item(TurnItem::Item(Item::Message(message)))
                if message.role == Role::User && first(&mut asked) =>
            {
                Line::Item(Item::message(Role::User, ASKED).into())
            }
            Line::Mark(Mark::Answer {
                usage,
                cost,
                finish_reason,
                ..
            }) => {
                let said = Item::message(Role::Assistant, ANSWERED);
                let said = first(&mut answered).then_some(said);
                Line::Mark(Mark::Answer {
                    wire: Some(said.into_iter().collect()),
                    run: None,
                    usage,
                    cost,
                    finish_reason,
                })
            }
            Line::Mark(Mark::TurnEnd {
                finish_reason,
                error,
                others,
            }) => {
                ended = Some(item.turn);
                // What a provider says may quote what it was sent.
                let error = error.map(|error| TurnError {
                    message: ANSWERED.to_owned(),
                    ..error
                });
                Line::Mark(Mark::TurnEnd {
                    finish_reason,
                    error,
                    others,
                })
            }
            _ => continue,
        };
        if let Ok(value) = serde_json::to_value(line) {
            item.item = value;
            left.push(item);
        }
    }
    // Nothing is left of it to go on with.
    if let Some(last) = last
        && turns.contains(&last.turn)
        && ended != Some(last.turn)
    {
        let end = Line::Mark(Mark::TurnEnd {
            finish_reason: Some(TurnEnd::Interrupted),
            error: None,
            others: Others::default(),
        });
        if let Ok(item) = serde_json::to_value(end) {
            left.push(StoredItem {
                number: last.number + 1,
                item,
                ..last
            });
        }
    }
    left
}
