//! Renders the live part of the chat: the turn, the question, the input, completions and status.

use std::time::Instant;

use ratatui_core::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use super::app::Chat;
use super::pending_question::ChatQuestion;
use super::rows::{StyledRow, sanitize_line, truncate, wrap_rows};
use super::screen::LiveFrame;

/// Lines of the input that are visible at once.
const MAX_INPUT_LINES: usize = 8;
/// Lines that a question has before queued messages and completions are shown.
const MIN_QUESTION_LINES: usize = 12;

impl Chat {
    /// Renders the live part for a terminal of this size.
    pub(super) fn render_frame(&self, width: usize, height: usize) -> LiveFrame {
        let (width, theme) = (width.max(1), self.theme);
        let now = Instant::now();
        let mut below: Vec<Line<'static>> = Vec::new();
        for text in &self.queued_messages {
            let row = StyledRow::dim(format!("queued: {}", truncate(&sanitize_line(text), 200)));
            below.extend(row.truncated().indented(2).wrapped(width));
        }
        let max_input_lines = match self.questions.is_empty() {
            true => MAX_INPUT_LINES,
            false => (height / 4).clamp(1, MAX_INPUT_LINES),
        };
        let (input, (row, column)) = self.input_lines(width, max_input_lines);
        let mut menu = match &self.completions {
            Some(menu) => wrap_rows(&menu.rows(theme), width),
            None => Vec::new(),
        };
        let mut lines_above = 0;
        if let Some(question) = self.questions.front() {
            // One line is for the status line, and one stays free above the live part.
            let available = height.saturating_sub(input.len() + 2);
            if available < below.len() + menu.len() + MIN_QUESTION_LINES {
                (below, menu) = (Vec::new(), Vec::new());
            }
            let available = available.saturating_sub(below.len() + menu.len());
            let question = question.live_part(theme, width, available);
            below.extend(question.lines);
            lines_above = question.lines_above;
        }
        let cursor = (below.len() + row, column);
        below.extend(input);
        below.extend(menu);
        below.push(match &self.notice {
            Some(notice) => Line::from(Span::styled(
                format!(
                    "  {}",
                    truncate(&sanitize_line(notice), width.saturating_sub(2))
                ),
                theme.progress(),
            )),
            None => self.status.render(width, theme),
        });
        let mut lines = self.turn_lines(width, now);
        // The turn gets the remaining height, below the lines of a question that were printed; its
        // first lines are dropped.
        let available = height.saturating_sub(1 + below.len() + lines_above);
        let excess = lines.len().saturating_sub(available);
        lines.drain(..excess);
        let cursor = (lines.len() + cursor.0, cursor.1);
        lines.extend(below);
        LiveFrame { lines, cursor }
    }

    /// Returns the lines of the running turn, or says what the next one waits for.
    fn turn_lines(&self, width: usize, now: Instant) -> Vec<Line<'static>> {
        let Some(running) = &self.running_turn else {
            let advice = match self.queued_messages.is_empty() {
                true => "",
                false => " Esc takes the message back",
            };
            let row = StyledRow::dim(format!("  starting the MCP servers…{advice}"));
            return match self.waits_for_servers() {
                true => wrap_rows(&[row, StyledRow::blank()], width),
                false => Vec::new(),
            };
        };
        let mut rows = running.turn.live_rows(width, self.reasoning_display, now);
        let time = now.saturating_duration_since(running.turn.started_at);
        if running.stopping {
            rows.push(StyledRow::dim("  stopping…"));
        } else if running.turn.is_empty() && self.questions.is_empty() {
            let (model, seconds) = (&self.status.model, time.as_secs());
            rows.push(StyledRow::dim(format!(
                "  waiting for {model}… {seconds} s"
            )));
        }
        if !rows.is_empty() {
            rows.push(StyledRow::blank());
        }
        wrap_rows(&rows, width)
    }

    /// Returns at most `height` lines of the input with its label, and the cursor as line and
    /// column.
    fn input_lines(&self, width: usize, height: usize) -> (Vec<Line<'static>>, (usize, usize)) {
        let (editor, label) = match self.questions.front().and_then(ChatQuestion::input_label) {
            Some(label) => (&self.answer_editor, label),
            None => (&self.editor, "› ".to_owned()),
        };
        let indent = label.width();
        let (lines, (row, column)) = editor.lines(width.saturating_sub(indent + 1), self.theme);
        let first = row.saturating_sub(height - 1);
        let shown = lines.into_iter().enumerate().skip(first).take(height);
        let lines = shown
            .map(|(index, line)| {
                let mut spans = match index {
                    0 => vec![Span::styled(label.clone(), self.theme.user_input())],
                    _ => vec![Span::raw(" ".repeat(indent))],
                };
                if index == 0 && editor.is_empty() {
                    let placeholder = self.placeholder(width.saturating_sub(indent));
                    spans.push(Span::styled(placeholder, self.theme.dim()));
                }
                spans.extend(line.spans);
                Line::from(spans)
            })
            .collect();
        (lines, (row - first, column + indent))
    }

    /// Returns the text shown in an empty input.
    fn placeholder(&self, width: usize) -> String {
        let text = match (&self.running_turn, self.questions.front()) {
            (_, Some(_)) => "",
            (Some(_), _) => "type the next message; Esc stops the turn",
            (None, _) => "type a message, @ for files, / for commands",
        };
        truncate(text, width)
    }
}
