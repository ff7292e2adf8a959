//! Renders the live part of the chat: the turn, the question, the input, completions and status.

use std::time::Instant;

use ratatui_core::text::{Line, Span};

use super::app::Chat;
use super::pending::Pending;
use super::rows::{Row, fitted, one_line, short};
use super::screen::Frame;

/// Lines of the input that are visible at once.
const INPUT_LINES: usize = 8;

impl Chat {
    /// Renders the live part for a terminal of this size.
    pub(super) fn frame_for(&self, width: usize, height: usize) -> Frame {
        let (width, theme) = (width.max(1), self.look);
        let now = Instant::now();
        let mut below: Vec<Line<'static>> = Vec::new();
        for text in &self.queue {
            let row = Row::quiet(format!("queued: {}", short(&one_line(text), 200)));
            below.extend(row.cut().indent(2).fitted(width));
        }
        if let Some(question) = self.asking.front() {
            below.extend(fitted(&question.rows(theme), width));
        }
        let (input, (row, column)) = self.input(width);
        let cursor = (below.len() + row, column);
        below.extend(input);
        if let Some(menu) = &self.offers {
            below.extend(fitted(&menu.rows(theme), width));
        }
        below.push(match &self.notice {
            Some(notice) => Line::from(Span::styled(
                format!("  {}", short(notice, width.saturating_sub(2))),
                theme.busy(),
            )),
            None => self.status.line(width, theme),
        });
        let mut lines = self.above(width, now);
        // The turn gets the remaining height; its first lines are dropped.
        let available = height.saturating_sub(1 + below.len());
        let excess = lines.len().saturating_sub(available);
        lines.drain(..excess);
        let cursor = (lines.len() + cursor.0, cursor.1);
        lines.extend(below);
        Frame { lines, cursor }
    }

    /// Returns the lines of the running turn.
    fn above(&self, width: usize, now: Instant) -> Vec<Line<'static>> {
        let Some(running) = &self.running else {
            return Vec::new();
        };
        let mut rows = running.turn.rows(width, self.thoughts, now);
        let time = now.saturating_duration_since(running.turn.started);
        if running.stopping {
            rows.push(Row::quiet("  stopping…"));
        } else if running.turn.is_idle() && self.asking.is_empty() {
            let (model, seconds) = (&self.status.model, time.as_secs());
            rows.push(Row::quiet(format!("  waiting for {model}… {seconds} s")));
        }
        if !rows.is_empty() {
            rows.push(Row::blank());
        }
        fitted(&rows, width)
    }

    /// Returns the lines of the input with its label, and the cursor as line and column.
    fn input(&self, width: usize) -> (Vec<Line<'static>>, (usize, usize)) {
        let (editor, label) = match self.asking.front().and_then(Pending::mark) {
            Some(label) => (&self.why, label),
            None => (&self.editor, "› ".to_owned()),
        };
        let indent = label.chars().count();
        let (lines, (row, column)) = editor.lines(width.saturating_sub(indent + 1), self.look);
        let first = row.saturating_sub(INPUT_LINES - 1);
        let shown = lines.into_iter().enumerate().skip(first).take(INPUT_LINES);
        let lines = shown
            .map(|(index, line)| {
                let mut spans = match index {
                    0 => vec![Span::styled(label.clone(), self.look.person())],
                    _ => vec![Span::raw(" ".repeat(indent))],
                };
                if index == 0 && editor.is_empty() {
                    let placeholder = self.invitation(width.saturating_sub(indent));
                    spans.push(Span::styled(placeholder, self.look.quiet()));
                }
                spans.extend(line.spans);
                Line::from(spans)
            })
            .collect();
        (lines, (row - first, column + indent))
    }

    /// Returns the text shown in an empty input.
    fn invitation(&self, width: usize) -> String {
        let text = match (&self.running, self.asking.front()) {
            (_, Some(_)) => "",
            (Some(_), _) => "type the next message; Ctrl-C stops the turn",
            (None, _) => "type a message, @ for files, / for commands",
        };
        short(text, width)
    }
}
