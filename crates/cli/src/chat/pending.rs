//! What stands to be answered in the chat: a question of the gate, or a server's form.

use std::time::Instant;

use super::form::FormAsking;
use super::look::Look;
use super::question::Asking;
use super::rows::Row;

pub(crate) enum Pending {
    Gate(Asking),
    Form(Box<FormAsking>),
}

/// What becomes of the turn when the person leaves while something is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// It ends.
    Stop,
    /// Its script is put away with the question.
    PutAway,
    /// Its calls have not begun, and are asked for again.
    LeaveAsItIs,
}

impl Pending {
    /// Nobody waits for an answer any more.
    pub(crate) fn is_void(&self) -> bool {
        match self {
            Self::Gate(asking) => asking.is_void(),
            Self::Form(asking) => asking.is_void(),
        }
    }

    /// Waits until nobody waits any more.
    pub(crate) async fn void(&mut self) {
        match self {
            Self::Gate(asking) => asking.void().await,
            Self::Form(asking) => asking.void().await,
        }
    }

    pub(crate) fn leaving(&self) -> Leaving {
        match self {
            // The server waits, and would not be there later.
            Self::Form(_) => Leaving::Stop,
            Self::Gate(asking) if asking.is_of_running_call() => Leaving::Stop,
            Self::Gate(asking) if asking.is_of_script() => Leaving::PutAway,
            Self::Gate(_) => Leaving::LeaveAsItIs,
        }
    }

    /// What is said when it is put.
    pub(crate) fn told(&self, look: Look) -> Vec<Row> {
        match self {
            Self::Gate(asking) => asking.told(look),
            Self::Form(asking) => asking.told(look),
        }
    }

    /// When keys begin to count, where they do not yet.
    pub(crate) fn opens_at(&self) -> Option<Instant> {
        match self {
            Self::Gate(asking) => asking.opens_at(),
            Self::Form(asking) => asking.opens_at(),
        }
    }

    /// Keys count if it was quiet for long enough.
    pub(crate) fn open_if_quiet(&mut self, now: Instant) {
        match self {
            Self::Gate(asking) => asking.open_if_quiet(now),
            Self::Form(asking) => asking.open_if_quiet(now),
        }
    }

    /// Something was typed or pasted that was meant for something else.
    pub(crate) fn disturbed(&mut self, now: Instant) {
        match self {
            Self::Gate(asking) => asking.disturbed(now),
            Self::Form(asking) => asking.disturbed(now),
        }
    }

    /// What stands before the words it wants, where it wants any.
    pub(crate) fn mark(&self) -> Option<String> {
        match self {
            Self::Gate(asking) => asking.wants_words().then(|| "why › ".to_owned()),
            Self::Form(asking) => asking.mark(),
        }
    }

    pub(crate) fn rows(&self, look: Look) -> Vec<Row> {
        match self {
            Self::Gate(asking) => asking.rows(look),
            Self::Form(asking) => asking.rows(look),
        }
    }
}
