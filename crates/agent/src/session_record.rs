//! The stored form of a session: a sequence of rows. A row is an item, or a mark that groups the
//! items before it into a step.

use std::collections::BTreeSet;

use selvedge_protocol::{
    ConversationItem, FinishReason, MessageRole, TurnEnd, TurnError, TurnItem, Usage,
};
use serde::{Deserialize, Serialize};

/// A row of a stored session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum SessionRow {
    Mark(SessionMark),
    Item(TurnItem),
}

/// Says what the items since the last mark are, or that the session was compacted or the turn
/// ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum SessionMark {
    /// The items are an answer of the model. Stored before its scripts and calls run.
    Answer {
        /// The items as later requests repeat them; `None` if they are the same.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_items: Option<Vec<ConversationItem>>,
        /// The id of the run of its structured calls, if it has any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<String>,
        usage: Usage,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost: Option<f64>,
        /// Why the model stopped; `None` if the answer was not read to its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finish_reason: Option<FinishReason>,
    },
    /// The items are the results of the scripts and calls of the answer.
    Results {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_items: Option<Vec<ConversationItem>>,
    },
    /// Replaces all earlier steps in requests.
    Compaction {
        request_items: Vec<ConversationItem>,
    },
    /// The last lines of the system prompt, which state the date and the branch at the beginning of
    /// the session.
    Opening { note: String },
    /// An agent wrote the message of the turn, not a person.
    AskedByAgent,
    /// The turn has ended.
    TurnEnd {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finish_reason: Option<TurnEnd>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<TurnError>,
        /// The usage of agents that the turn launched and of sampling requests.
        #[serde(default, skip_serializing_if = "DelegatedUsage::is_zero")]
        delegated: DelegatedUsage,
    },
}

/// Tokens and cost of a turn besides its own answers: of launched agents and sampling requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DelegatedUsage {
    pub(crate) usage: Usage,
    pub(crate) cost: f64,
}

impl DelegatedUsage {
    fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.usage += more.usage;
        self.cost += more.cost;
    }
}

/// A group of items of a session: a user message, an answer, the results of an answer, or a
/// compacted conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionStep {
    /// The number of the turn, counted from 1.
    pub turn: u32,
    /// The kind of the step.
    pub kind: SessionStepKind,
    /// The items as people and memory see them.
    pub items: Vec<TurnItem>,
    /// The items as requests to the model contain them.
    pub request_items: Vec<ConversationItem>,
}

/// The kind of a step.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum SessionStepKind {
    /// A message of the user.
    UserMessage,
    /// An answer of the model.
    Answer {
        /// The id of the run of its structured calls, if it has any.
        run: Option<String>,
        /// The tokens of the request and its answer.
        usage: Usage,
        /// The cost, in the currency of the model's prices; `None` if they are not known.
        cost: Option<f64>,
        /// Why the model stopped; `None` if the answer was not read to its end.
        finish_reason: Option<FinishReason>,
    },
    /// The results of the scripts and calls of an answer.
    Results,
    /// A compacted conversation, which replaces all earlier steps in requests.
    Compaction,
}

impl SessionStep {
    /// Returns the rows that store the step.
    pub(crate) fn rows(&self) -> Vec<SessionRow> {
        let mut pairs = self.items.iter().zip(&self.request_items);
        let same = self.items.len() == self.request_items.len()
            && pairs
                .all(|(item, sent)| matches!(item, TurnItem::Conversation(item) if item == sent));
        let request_items = (!same).then(|| self.request_items.clone());
        let mark = match &self.kind {
            SessionStepKind::UserMessage => None,
            SessionStepKind::Answer {
                run,
                usage,
                cost,
                finish_reason,
            } => Some(SessionMark::Answer {
                request_items,
                run: run.clone(),
                usage: *usage,
                cost: *cost,
                finish_reason: finish_reason.clone(),
            }),
            SessionStepKind::Results => Some(SessionMark::Results { request_items }),
            SessionStepKind::Compaction => Some(SessionMark::Compaction {
                request_items: self.request_items.clone(),
            }),
        };
        let items = self.items.iter().cloned().map(SessionRow::Item);
        items.chain(mark.map(SessionRow::Mark)).collect()
    }
}

/// Parses rows into steps.
#[derive(Debug, Default)]
pub(crate) struct SessionReader {
    pub(crate) steps: Vec<SessionStep>,
    /// Items whose mark has not been read yet.
    pub(crate) pending_items: Vec<TurnItem>,
    pub(crate) turn: u32,
    /// How the last turn ended; `None` if it is open.
    pub(crate) turn_end: Option<Result<TurnEnd, TurnError>>,
    pub(crate) delegated: DelegatedUsage,
    pub(crate) start_note: Option<String>,
    /// The turns whose messages agents wrote.
    pub(crate) turns_of_agents: BTreeSet<u32>,
}

impl SessionReader {
    pub(crate) fn push_row(&mut self, turn: u32, row: SessionRow) {
        if turn != self.turn {
            (self.turn, self.turn_end) = (turn, None);
        }
        match row {
            SessionRow::Item(TurnItem::Conversation(ConversationItem::Message(message)))
                if message.role == MessageRole::User =>
            {
                let item = ConversationItem::Message(message);
                self.push_step(
                    SessionStepKind::UserMessage,
                    vec![item.clone().into()],
                    Some(vec![item]),
                );
            }
            SessionRow::Item(item) => self.pending_items.push(item),
            SessionRow::Mark(SessionMark::Answer {
                request_items,
                run,
                usage,
                cost,
                finish_reason,
            }) => {
                let kind = SessionStepKind::Answer {
                    run,
                    usage,
                    cost,
                    finish_reason,
                };
                let items = std::mem::take(&mut self.pending_items);
                self.push_step(kind, items, request_items);
            }
            SessionRow::Mark(SessionMark::Results { request_items }) => {
                let items = std::mem::take(&mut self.pending_items);
                self.push_step(SessionStepKind::Results, items, request_items);
            }
            SessionRow::Mark(SessionMark::Compaction { request_items }) => {
                self.push_step(SessionStepKind::Compaction, Vec::new(), Some(request_items))
            }
            SessionRow::Mark(SessionMark::Opening { note }) => self.start_note = Some(note),
            SessionRow::Mark(SessionMark::AskedByAgent) => _ = self.turns_of_agents.insert(turn),
            SessionRow::Mark(SessionMark::TurnEnd {
                finish_reason,
                error,
                delegated,
            }) => {
                let end = error.map_or(Ok(finish_reason.unwrap_or(TurnEnd::Stop)), Err);
                self.turn_end = Some(end);
                self.delegated.add(delegated);
            }
        }
    }

    fn push_step(
        &mut self,
        kind: SessionStepKind,
        items: Vec<TurnItem>,
        request_items: Option<Vec<ConversationItem>>,
    ) {
        let plain = |item: &TurnItem| match item {
            TurnItem::Conversation(item) => Some(item.clone()),
            _ => None,
        };
        let request_items =
            request_items.unwrap_or_else(|| items.iter().filter_map(plain).collect());
        self.steps.push(SessionStep {
            turn: self.turn,
            kind,
            items,
            request_items,
        });
    }
}
