//! Unanswered questions of the chat: an approval, or a form of an MCP server.

use std::time::{Duration, Instant};

use super::form::FormAsking;
use super::look::Look;
use super::question::Asking;
use super::rows::Row;

/// Time without input after which keys answer a question.
pub(crate) const QUIET: Duration = Duration::from_millis(400);

/// The pause between showing a question and accepting keys as its answer. Any input restarts it,
/// so that text typed while the question appeared does not answer it.
pub(crate) struct QuietWait {
    /// When the question was shown, or the last input during the pause.
    since: Instant,
    /// Whether keys are accepted.
    pub(crate) is_over: bool,
}

impl QuietWait {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            since: now,
            is_over: false,
        }
    }

    /// Returns when the pause ends, or `None` if it is over.
    pub(crate) fn opens_at(&self) -> Option<Instant> {
        (!self.is_over).then_some(self.since + QUIET)
    }

    /// Ends the pause if there was no input for [`QUIET`].
    pub(crate) fn open_if_quiet(&mut self, now: Instant) {
        self.is_over |= now >= self.since + QUIET;
    }

    /// Restarts the pause after input that was not an answer.
    pub(crate) fn disturbed(&mut self, now: Instant) {
        self.since = now;
    }
}

/// A question that waits for an answer.
pub(crate) enum Pending {
    Gate(Asking),
    Form(Box<FormAsking>),
}

/// What happens to the turn if the user quits while a question is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// The turn is cancelled.
    Stop,
    /// The script that asks is suspended.
    PutAway,
    /// The turn stays interrupted. Its calls have not started, and are asked for again when the
    /// session is continued.
    LeaveAsItIs,
}

impl Pending {
    /// Whether the asker no longer waits for an answer.
    pub(crate) fn is_void(&self) -> bool {
        match self {
            Self::Gate(prompt) => prompt.is_void(),
            Self::Form(prompt) => prompt.is_void(),
        }
    }

    /// Completes when the asker no longer waits for an answer.
    pub(crate) async fn void(&mut self) {
        match self {
            Self::Gate(prompt) => prompt.void().await,
            Self::Form(prompt) => prompt.void().await,
        }
    }

    pub(crate) fn leaving(&self) -> Leaving {
        match self {
            // A server's request cannot be answered in a later process.
            Self::Form(_) => Leaving::Stop,
            Self::Gate(prompt) if prompt.is_of_running_call() => Leaving::Stop,
            Self::Gate(prompt) if prompt.is_of_script() => Leaving::PutAway,
            Self::Gate(_) => Leaving::LeaveAsItIs,
        }
    }

    /// Returns the rows that are printed once, when the question is shown.
    pub(crate) fn told(&self, theme: Look) -> Vec<Row> {
        match self {
            Self::Gate(prompt) => prompt.told(theme),
            Self::Form(prompt) => prompt.told(theme),
        }
    }

    pub(crate) fn quiet(&mut self) -> &mut QuietWait {
        match self {
            Self::Gate(prompt) => &mut prompt.quiet,
            Self::Form(prompt) => &mut prompt.quiet,
        }
    }

    /// Returns the label before the question's own input, or `None` if it takes no text now.
    pub(crate) fn mark(&self) -> Option<String> {
        match self {
            Self::Gate(prompt) => prompt.wants_words().then(|| "reason › ".to_owned()),
            Self::Form(prompt) => prompt.mark(),
        }
    }

    /// Returns the rows of the live part: the current field or call, and the keys.
    pub(crate) fn rows(&self, theme: Look) -> Vec<Row> {
        match self {
            Self::Gate(prompt) => prompt.rows(theme),
            Self::Form(prompt) => prompt.rows(theme),
        }
    }
}
