//! The live part of the chat as lines: the turn, the question, what is typed and what is offered, and the status.

use std::time::Instant;

use ratatui_core::text::{Line, Span};

use super::app::Chat;
use super::pending::Pending;
use super::rows::{Row, fitted, one_line, short};
use super::screen::Frame;

/// Lines of what is typed that are shown at once.
const INPUT_LINES: usize = 8;

impl Chat {
    /// The live part for a window of this size.
    pub(super) fn frame_for(&self, width: usize, height: usize) -> Frame {
        let (width, look) = (width.max(1), self.look);
        let now = Instant::now();
        let mut below: Vec<Line<'static>> = Vec::new();
        for text in &self.queue {
            let row = Row::quiet(format!("next: {}", short(&one_line(text), 200)));
            below.extend(row.cut().indent(2).fitted(width));
        }
        if let Some(asking) = self.asking.front() {
            below.extend(fitted(&asking.rows(look), width));
        }
        let (input, (row, column)) = self.input(width);
        let cursor = (below.len() + row, column);
        below.extend(input);
        if let Some(offers) = &self.offers {
            below.extend(fitted(&offers.rows(look), width));
        }
        below.push(match &self.notice {
            Some(notice) => Line::from(Span::styled(
                format!("  {}", short(notice, width.saturating_sub(2))),
                look.busy(),
            )),
            None => self.status.line(width, look),
        });
        let mut lines = self.above(width, now);
        // The turn gets what room the rest leaves.
        let room = height.saturating_sub(1 + below.len());
        let over = lines.len().saturating_sub(room);
        lines.drain(..over);
        let cursor = (lines.len() + cursor.0, cursor.1);
        lines.extend(below);
        Frame { lines, cursor }
    }

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

    /// What is typed, behind its mark, and where the cursor is.
    fn input(&self, width: usize) -> (Vec<Line<'static>>, (usize, usize)) {
        let (editor, mark) = match self.asking.front().and_then(Pending::mark) {
            Some(mark) => (&self.why, mark),
            None => (&self.editor, "› ".to_owned()),
        };
        let indent = mark.chars().count();
        let (lines, (row, column)) = editor.lines(width.saturating_sub(indent + 1), self.look);
        let first = row.saturating_sub(INPUT_LINES - 1);
        let shown = lines.into_iter().enumerate().skip(first).take(INPUT_LINES);
        let lines = shown
            .map(|(at, line)| {
                let mut spans = match at {
                    0 => vec![Span::styled(mark.clone(), self.look.person())],
                    _ => vec![Span::raw(" ".repeat(indent))],
                };
                if at == 0 && editor.is_empty() {
                    let invitation = self.invitation(width.saturating_sub(indent));
                    spans.push(Span::styled(invitation, self.look.quiet()));
                }
                spans.extend(line.spans);
                Line::from(spans)
            })
            .collect();
        (lines, (row - first, column + indent))
    }

    fn invitation(&self, width: usize) -> String {
        let words = match (&self.running, self.asking.front()) {
            (_, Some(_)) => "",
            (Some(_), _) => "type what comes next; Ctrl-C stops",
            (None, _) => "ask, @ a file, / for commands",
        };
        short(words, width)
    }
}
