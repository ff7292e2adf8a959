//! Unanswered questions of the chat: an approval, or a form of an MCP server.

use std::time::{Duration, Instant};

use ratatui_core::text::Line;

use super::approval_prompt::ApprovalPrompt;
use super::form_prompt::FormPrompt;
use super::rows::StyledRow;
use super::theme::Theme;

/// Time without input after which keys answer a question.
pub(crate) const TYPING_PAUSE_DURATION: Duration = Duration::from_millis(400);

/// The pause between showing a question and accepting keys as its answer. Any input restarts it,
/// so that text typed while the question appeared does not answer it.
pub(crate) struct TypingPause {
    /// When the question was shown, or the last input during the pause.
    last_input: Instant,
    /// Whether keys are accepted.
    pub(crate) is_over: bool,
}

impl TypingPause {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            last_input: now,
            is_over: false,
        }
    }

    /// Returns when the pause ends, or `None` if it is over.
    pub(crate) fn ends_at(&self) -> Option<Instant> {
        (!self.is_over).then_some(self.last_input + TYPING_PAUSE_DURATION)
    }

    /// Ends the pause if there was no input for [`TYPING_PAUSE_DURATION`].
    pub(crate) fn end_if_elapsed(&mut self, now: Instant) {
        self.is_over |= now >= self.last_input + TYPING_PAUSE_DURATION;
    }

    /// Restarts the pause after input that was not an answer.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.last_input = now;
    }
}

/// The lines of a question in the live part.
pub(crate) struct LiveQuestion {
    pub(crate) lines: Vec<Line<'static>>,
    /// How many lines before the live part belong to the question. They must stay visible.
    pub(crate) lines_above: usize,
}

/// A question that waits for an answer.
pub(crate) enum ChatQuestion {
    Approval(Box<ApprovalPrompt>),
    Form(Box<FormPrompt>),
}

/// What happens to the turn if the user quits while a question is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuitAction {
    /// The turn is cancelled.
    CancelTurn,
    /// The script that asks is suspended.
    SuspendScript,
    /// The turn stays interrupted. Its calls have not started, and are asked for again when the
    /// session is continued.
    KeepInterrupted,
}

impl ChatQuestion {
    /// Whether the asker no longer waits for an answer.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::Approval(prompt) => prompt.is_abandoned(),
            Self::Form(prompt) => prompt.is_abandoned(),
        }
    }

    /// Completes when the asker no longer waits for an answer.
    pub(crate) async fn until_abandoned(&mut self) {
        match self {
            Self::Approval(prompt) => prompt.until_abandoned().await,
            Self::Form(prompt) => prompt.until_abandoned().await,
        }
    }

    pub(crate) fn quit_action(&self) -> QuitAction {
        match self {
            // A server's request cannot be answered in a later process.
            Self::Form(_) => QuitAction::CancelTurn,
            Self::Approval(prompt) if prompt.is_from_running_call() => QuitAction::CancelTurn,
            Self::Approval(prompt) if prompt.is_from_script() => QuitAction::SuspendScript,
            Self::Approval(_) => QuitAction::KeepInterrupted,
        }
    }

    /// Returns the rows that are printed once, when the question is shown.
    pub(crate) fn intro_rows(&self, theme: Theme) -> Vec<StyledRow> {
        match self {
            Self::Approval(prompt) => prompt.intro_rows(theme),
            Self::Form(prompt) => prompt.intro_rows(theme),
        }
    }

    pub(crate) fn typing_pause_mut(&mut self) -> &mut TypingPause {
        match self {
            Self::Approval(prompt) => &mut prompt.typing_pause,
            Self::Form(prompt) => &mut prompt.typing_pause,
        }
    }

    /// Returns the label before the question's own input, or `None` if it takes no text now.
    pub(crate) fn input_label(&self) -> Option<String> {
        match self {
            Self::Approval(prompt) => prompt.takes_reason().then(|| "reason › ".to_owned()),
            Self::Form(prompt) => prompt.input_label(),
        }
    }

    /// Returns the digit that begins the text typed or pasted last, if it was taken for a choice.
    pub(crate) fn take_typed_digit(&mut self) -> Option<char> {
        match self {
            Self::Approval(prompt) => prompt.take_typed_digit(),
            Self::Form(prompt) => prompt.take_typed_digit(),
        }
    }

    /// Handles a paste while the question takes no text.
    pub(crate) fn handle_paste(&mut self, now: Instant) {
        self.typing_pause_mut().restart(now);
        match self {
            Self::Approval(prompt) => prompt.handle_paste(),
            Self::Form(prompt) => prompt.handle_paste(),
        }
    }

    /// Returns the live part: the current field or call, and the list of answers. `height` is the
    /// number of lines that the terminal has for them.
    pub(crate) fn live_part(&self, theme: Theme, width: usize, height: usize) -> LiveQuestion {
        match self {
            Self::Approval(prompt) => prompt.live_part(theme, width, height),
            Self::Form(prompt) => LiveQuestion {
                lines: prompt.live_lines(theme, width, height),
                lines_above: 0,
            },
        }
    }
}
