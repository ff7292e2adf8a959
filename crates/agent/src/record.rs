//! The stored form of a session: a sequence of lines. A line is an item, or a mark that groups the
//! items before it into a step.

use selvedge_protocol::{FinishReason, Item, Role, TurnEnd, TurnError, TurnItem, Usage};
use serde::{Deserialize, Serialize};

/// A line of a stored session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Line {
    Mark(Mark),
    Item(TurnItem),
}

/// Groups the items since the last mark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Mark {
    /// The items are an answer of the model. Stored before its scripts and calls run.
    Answer {
        /// The items as later requests repeat them; `None` if they are the same.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wire: Option<Vec<Item>>,
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
        wire: Option<Vec<Item>>,
    },
    /// Replaces all earlier steps in requests.
    Compaction { wire: Vec<Item> },
    /// The turn has ended.
    TurnEnd {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finish_reason: Option<TurnEnd>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<TurnError>,
        /// The usage of agents that the turn launched and of sampling requests.
        #[serde(default, skip_serializing_if = "Others::is_nothing")]
        others: Others,
    },
}

/// Tokens and cost of a turn besides its own answers: of launched agents and sampling requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Others {
    pub(crate) usage: Usage,
    pub(crate) cost: f64,
}

impl Others {
    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.usage += more.usage;
        self.cost += more.cost;
    }
}

/// A group of items of a session: a prompt, an answer, or the results of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The number of the turn, counted from 1.
    pub turn: u32,
    /// The kind of the step.
    pub kind: StepKind,
    /// The items as people and memory see them.
    pub items: Vec<TurnItem>,
    /// The items as requests to the model contain them.
    pub wire: Vec<Item>,
}

/// The kind of a step.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum StepKind {
    /// A prompt of the user.
    Asked,
    /// An answer of the model.
    Answered {
        /// The id of the run of its structured calls, if it has any.
        run: Option<String>,
        /// The tokens of the request and its answer.
        usage: Usage,
        /// The cost, in the currency of the model's prices; `None` if they are not known.
        cost: Option<f64>,
        /// Why the model stopped; `None` if the answer was not read to its end.
        finish: Option<FinishReason>,
    },
    /// The results of the scripts and calls of an answer.
    Acted,
    /// A compacted conversation, which replaces all earlier steps in requests.
    Compacted,
}

impl Step {
    /// Returns the lines as which the step is stored.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let mut pairs = self.items.iter().zip(&self.wire);
        let same = self.items.len() == self.wire.len()
            && pairs.all(|(item, wire)| matches!(item, TurnItem::Item(item) if item == wire));
        let wire = (!same).then(|| self.wire.clone());
        let mark = match &self.kind {
            StepKind::Asked => None,
            StepKind::Answered {
                run,
                usage,
                cost,
                finish,
            } => Some(Mark::Answer {
                wire,
                run: run.clone(),
                usage: *usage,
                cost: *cost,
                finish_reason: finish.clone(),
            }),
            StepKind::Acted => Some(Mark::Results { wire }),
            StepKind::Compacted => Some(Mark::Compaction {
                wire: self.wire.clone(),
            }),
        };
        let items = self.items.iter().cloned().map(Line::Item);
        items.chain(mark.map(Line::Mark)).collect()
    }
}

/// Parses lines into steps.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) steps: Vec<Step>,
    /// Items whose mark has not been read yet.
    waiting: Vec<TurnItem>,
    pub(crate) turn: u32,
    /// Whether the last turn has ended.
    pub(crate) ended: bool,
    pub(crate) others: Others,
}

impl Reader {
    pub(crate) fn read(&mut self, turn: u32, line: Line) {
        if turn != self.turn {
            (self.turn, self.ended) = (turn, false);
        }
        match line {
            Line::Item(TurnItem::Item(Item::Message(message))) if message.role == Role::User => {
                let item = Item::Message(message);
                self.push(StepKind::Asked, vec![item.clone().into()], Some(vec![item]));
            }
            Line::Item(item) => self.waiting.push(item),
            Line::Mark(Mark::Answer {
                wire,
                run,
                usage,
                cost,
                finish_reason: finish,
            }) => {
                let kind = StepKind::Answered {
                    run,
                    usage,
                    cost,
                    finish,
                };
                let items = std::mem::take(&mut self.waiting);
                self.push(kind, items, wire);
            }
            Line::Mark(Mark::Results { wire }) => {
                let items = std::mem::take(&mut self.waiting);
                self.push(StepKind::Acted, items, wire);
            }
            Line::Mark(Mark::Compaction { wire }) => {
                self.push(StepKind::Compacted, Vec::new(), Some(wire))
            }
            Line::Mark(Mark::TurnEnd { others, .. }) => {
                self.ended = true;
                self.others.add(others);
            }
        }
    }

    fn push(&mut self, kind: StepKind, items: Vec<TurnItem>, wire: Option<Vec<Item>>) {
        let plain = |item: &TurnItem| match item {
            TurnItem::Item(item) => Some(item.clone()),
            _ => None,
        };
        let wire = wire.unwrap_or_else(|| items.iter().filter_map(plain).collect());
        self.steps.push(Step {
            turn: self.turn,
            kind,
            items,
            wire,
        });
    }
}
