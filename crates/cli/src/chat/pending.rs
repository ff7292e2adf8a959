//! What stands to be answered in the chat: a question of the gate, or a server's form.

use std::time::{Duration, Instant};

use super::form::FormAsking;
use super::look::Look;
use super::question::Asking;
use super::rows::Row;

/// How long nothing must be typed before a key is an answer.
pub(crate) const QUIET: Duration = Duration::from_millis(400);

/// Waits for a moment without typing: what a person was writing when a question came is no answer to it.
pub(crate) struct QuietWait {
    since: Instant,
    /// Keys count from now on.
    pub(crate) is_over: bool,
}

impl QuietWait {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            since: now,
            is_over: false,
        }
    }

    /// When keys begin to count, where they do not yet.
    pub(crate) fn opens_at(&self) -> Option<Instant> {
        (!self.is_over).then_some(self.since + QUIET)
    }

    pub(crate) fn open_if_quiet(&mut self, now: Instant) {
        self.is_over |= now >= self.since + QUIET;
    }

    /// Something was typed or pasted that was meant for something else.
    pub(crate) fn disturbed(&mut self, now: Instant) {
        self.since = now;
    }
}

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

    pub(crate) fn quiet(&mut self) -> &mut QuietWait {
        match self {
            Self::Gate(asking) => &mut asking.quiet,
            Self::Form(asking) => &mut asking.quiet,
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
