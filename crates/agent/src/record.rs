//! The lines of a stored session: items as they came, and marks that close what belongs together.

use selvedge_protocol::{FinishReason, Item, Role, TurnEnd, TurnError, TurnItem, Usage};
use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Line {
    Mark(Mark),
    Item(TurnItem),
}

/// What closes the items before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Mark {
    /// They are an answer of the model. Written before anything of it is acted on.
    Answer {
        /// How they go back to the model, where that differs from the items.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wire: Option<Vec<Item>>,
        /// What its calls run under, where it has any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<String>,
        usage: Usage,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost: Option<f64>,
        /// `None` where it was not heard to its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finish_reason: Option<FinishReason>,
    },
    /// They are what the calls of the answer came to.
    Results {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wire: Option<Vec<Item>>,
    },
    /// Stands for everything before it.
    Compaction { wire: Vec<Item> },
    /// The turn is over.
    TurnEnd {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finish_reason: Option<TurnEnd>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<TurnError>,
        /// What was spent in it besides its own answers: by agents it launched.
        #[serde(default, skip_serializing_if = "Others::is_nothing")]
        others: Others,
    },
}

/// Tokens and money that others spent in a turn's name.
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

/// Items that belong together.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The turn, from one.
    pub turn: u32,
    /// What it is.
    pub kind: StepKind,
    /// As people and memory see it.
    pub items: Vec<TurnItem>,
    /// As it goes back to the model.
    pub wire: Vec<Item>,
}

/// What a step is.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum StepKind {
    /// Somebody asked.
    Asked,
    /// The model answered.
    Answered {
        /// What its structured calls run under, where it has any.
        run: Option<String>,
        /// What the answer took.
        usage: Usage,
        /// What it cost, where prices are known.
        cost: Option<f64>,
        /// Why the model stopped; `None` where it was not heard to its end.
        finish: Option<FinishReason>,
    },
    /// What the answer asked for was done.
    Acted,
    /// Stands for everything before it.
    Compacted,
}

impl Step {
    /// The lines this step is stored as.
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

/// Reads lines back into steps.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) steps: Vec<Step>,
    /// Items whose mark has not come.
    waiting: Vec<TurnItem>,
    pub(crate) turn: u32,
    /// Whether the last turn is over.
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
                let answered = StepKind::Answered {
                    run,
                    usage,
                    cost,
                    finish,
                };
                let items = std::mem::take(&mut self.waiting);
                self.push(answered, items, wire);
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
