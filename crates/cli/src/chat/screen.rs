//! Writes the chat to the terminal: finished rows once, and below them the live part, which is
//! redrawn in place.
//!
//! Finished rows belong to the terminal: they scroll, can be selected, and stay when the chat ends.
//! The live part is reached by moving up from the last cursor position, so the terminal is never
//! asked where its cursor is. After a resize all visible rows are printed again.

use std::collections::VecDeque;
use std::io::{self, Write};

use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::Line;
use selvedge_text::visible_line;

use super::rows::StyledRow;
use crate::output::{END_QUESTION_NOTICE, QUESTION_NOTICE};

/// Finished rows that are kept to be printed again after a resize.
const MAX_REPRINTED_ROWS: usize = 400;

/// The live part: the lines below the finished rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct LiveFrame {
    pub(crate) lines: Vec<Line<'static>>,
    /// Line and column of the cursor, from zero.
    pub(crate) cursor: (usize, usize),
}

/// The terminal and what is currently drawn on it.
pub(crate) struct ChatScreen<W: Write> {
    out: W,
    width: usize,
    height: usize,
    /// The live part that is on the terminal.
    drawn_frame: LiveFrame,
    /// The last [`MAX_REPRINTED_ROWS`] finished rows.
    finished_rows: VecDeque<StyledRow>,
    /// Whether the title of the terminal says that a question is open.
    question_open: bool,
}

impl<W: Write> ChatScreen<W> {
    pub(crate) fn new(out: W, width: usize, height: usize) -> Self {
        Self {
            out,
            width: width.max(1),
            height: height.max(2),
            drawn_frame: LiveFrame::default(),
            finished_rows: VecDeque::new(),
            question_open: false,
        }
    }

    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn height(&self) -> usize {
        self.height
    }

    /// Prints finished rows above the live part, and redraws the lines of the live part that
    /// changed.
    pub(crate) fn paint(&mut self, finished: Vec<StyledRow>, frame: LiveFrame) -> io::Result<()> {
        let frame = self.clip_frame(frame);
        if finished.is_empty() && frame == self.drawn_frame {
            return Ok(());
        }
        let mut bytes: Vec<u8> = BEGIN_UPDATE.into();
        if finished.is_empty() {
            self.redraw(&mut bytes, &frame);
        } else {
            move_up(&mut bytes, self.drawn_frame.cursor.0);
            bytes.extend(CLEAR_BELOW);
            for line in finished.iter().flat_map(|row| row.wrapped(self.width)) {
                push_line(&mut bytes, &line);
                bytes.extend(b"\r\n");
            }
            draw_frame(&mut bytes, &frame);
        }
        bytes.extend(END_UPDATE);
        self.finished_rows.extend(finished);
        let excess = self.finished_rows.len().saturating_sub(MAX_REPRINTED_ROWS);
        self.finished_rows.drain(..excess);
        self.drawn_frame = frame;
        self.out.write_all(&bytes)?;
        self.out.flush()
    }

    /// Prints all visible rows again for a new size of the terminal.
    pub(crate) fn resize(
        &mut self,
        width: usize,
        height: usize,
        frame: LiveFrame,
    ) -> io::Result<()> {
        let (old_width, old_height) = (self.width, self.height);
        (self.width, self.height) = (width.max(1), height.max(2));
        let frame = self.clip_frame(frame);
        let mut bytes: Vec<u8> = BEGIN_UPDATE.into();
        // Most terminals rewrap long lines when they become narrower, which adds lines above the
        // cursor.
        let rewrapped = |line: &Line<'_>| line.width().max(1).div_ceil(self.width);
        let live_above = self
            .drawn_frame
            .lines
            .iter()
            .take(self.drawn_frame.cursor.0);
        let live_above: usize = live_above.map(rewrapped).sum();
        let shown = self
            .finished_rows
            .iter()
            .flat_map(|row| row.wrapped(old_width));
        let above: usize = shown.map(|line| rewrapped(&line)).sum::<usize>() + live_above;
        // The cursor cannot move above the top of the terminal.
        move_up(&mut bytes, above.min(self.height.max(old_height)));
        bytes.extend(CLEAR_BELOW);
        let lines = self
            .finished_rows
            .iter()
            .flat_map(|row| row.wrapped(self.width));
        let lines: Vec<Line<'static>> = lines.collect();
        let available = self.height.saturating_sub(frame.lines.len());
        for line in &lines[lines.len().saturating_sub(available)..] {
            push_line(&mut bytes, line);
            bytes.extend(b"\r\n");
        }
        draw_frame(&mut bytes, &frame);
        bytes.extend(END_UPDATE);
        self.drawn_frame = frame;
        self.out.write_all(&bytes)?;
        self.out.flush()
    }

    /// Notifies of a question that opens, with bell, notification and title, or restores the title
    /// after the last one. Does nothing if there is no change.
    pub(crate) fn set_question_open(&mut self, is_open: bool) -> io::Result<()> {
        if self.question_open == is_open {
            return Ok(());
        }
        self.question_open = is_open;
        let sequence = match is_open {
            true => QUESTION_NOTICE,
            false => END_QUESTION_NOTICE,
        };
        self.out.write_all(sequence.as_bytes())?;
        self.out.flush()
    }

    /// Erases the terminal and its scrollback, and forgets all rows.
    pub(crate) fn erase(&mut self) -> io::Result<()> {
        self.finished_rows.clear();
        self.drawn_frame = LiveFrame::default();
        self.out.write_all(b"\x1b[H\x1b[2J\x1b[3J")?;
        self.out.flush()
    }

    /// Sends a text, encoded as base64, to the clipboard of the terminal (OSC 52).
    pub(crate) fn copy(&mut self, encoded: &str) -> io::Result<()> {
        write!(self.out, "\x1b]52;c;{encoded}\x1b\\")?;
        self.out.flush()
    }

    /// Clears the live part and leaves the cursor below the finished rows.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        move_up(&mut bytes, self.drawn_frame.cursor.0);
        bytes.extend(CLEAR_BELOW);
        self.drawn_frame = LiveFrame::default();
        self.out.write_all(&bytes)?;
        self.out.flush()
    }

    /// Drops the first lines of a live part that is taller than the terminal.
    fn clip_frame(&self, mut frame: LiveFrame) -> LiveFrame {
        let excess = frame.lines.len().saturating_sub(self.height - 1);
        frame.lines.drain(..excess);
        let last = frame.lines.len().saturating_sub(1);
        frame.cursor.0 = frame.cursor.0.saturating_sub(excess).min(last);
        frame.cursor.1 = frame.cursor.1.min(self.width - 1);
        frame
    }

    /// Redraws the lines that differ from those on the terminal.
    fn redraw(&self, bytes: &mut Vec<u8>, frame: &LiveFrame) {
        let old = &self.drawn_frame.lines;
        let mut row = self.drawn_frame.cursor.0;
        for (index, line) in frame.lines.iter().enumerate() {
            if old.get(index) == Some(line) {
                continue;
            }
            move_to_line(bytes, &mut row, index, old.len());
            bytes.extend(b"\r\x1b[K");
            push_line(bytes, line);
        }
        if frame.lines.len() < old.len() {
            move_to_line(bytes, &mut row, frame.lines.len(), old.len());
            bytes.extend(CLEAR_BELOW);
        }
        let height = old.len().max(frame.lines.len());
        move_to_line(bytes, &mut row, frame.cursor.0, height);
        move_to_column(bytes, frame.cursor.1);
    }
}

/// Starts and ends a synchronized update with the cursor hidden, so that no intermediate state is
/// visible.
const BEGIN_UPDATE: &[u8] = b"\x1b[?2026h\x1b[?25l";
const END_UPDATE: &[u8] = b"\x1b[?25h\x1b[?2026l";
const CLEAR_BELOW: &[u8] = b"\r\x1b[J";

/// Draws all lines of the live part at the cursor, and moves the cursor to its place in them.
fn draw_frame(bytes: &mut Vec<u8>, frame: &LiveFrame) {
    for (index, line) in frame.lines.iter().enumerate() {
        if index > 0 {
            bytes.extend(b"\r\n");
        }
        push_line(bytes, line);
    }
    let last = frame.lines.len().saturating_sub(1);
    move_up(bytes, last - frame.cursor.0.min(last));
    move_to_column(bytes, frame.cursor.1);
}

/// Moves from line `row` to line `to` of the live part. Lines below the `existing` ones are created
/// with line breaks.
fn move_to_line(bytes: &mut Vec<u8>, row: &mut usize, to: usize, existing: usize) {
    while *row < to {
        let last = existing.saturating_sub(1);
        if *row < last {
            let down = to.min(last) - *row;
            bytes.extend(format!("\x1b[{down}B").bytes());
            *row += down;
        } else {
            bytes.extend(b"\r\n");
            *row += 1;
        }
    }
    move_up(bytes, *row - to);
    *row = to;
}

fn move_up(bytes: &mut Vec<u8>, lines: usize) {
    if lines > 0 {
        bytes.extend(format!("\x1b[{lines}A").bytes());
    }
}

fn move_to_column(bytes: &mut Vec<u8>, column: usize) {
    bytes.push(b'\r');
    if column > 0 {
        bytes.extend(format!("\x1b[{column}C").bytes());
    }
}

fn push_line(bytes: &mut Vec<u8>, line: &Line<'_>) {
    bytes.extend(line_with_escapes(line).bytes());
}

/// Returns a line with the escape sequences of its styles.
pub(crate) fn line_with_escapes(line: &Line<'_>) -> String {
    let mut shown = String::new();
    for span in &line.spans {
        let codes = sgr_codes(span.style);
        // Rows should be sanitized already. This ensures that only escape sequences written here
        // reach the terminal.
        let text = visible_line(&span.content);
        match codes.is_empty() {
            true => shown.push_str(&text),
            false => shown.push_str(&format!("\x1b[{codes}m{text}\x1b[0m")),
        }
    }
    shown
}

/// Returns the parameters of the SGR escape sequence for a style.
fn sgr_codes(style: Style) -> String {
    let modifiers = [
        (Modifier::BOLD, "1"),
        (Modifier::DIM, "2"),
        (Modifier::ITALIC, "3"),
        (Modifier::UNDERLINED, "4"),
        (Modifier::REVERSED, "7"),
        (Modifier::CROSSED_OUT, "9"),
    ];
    let set = modifiers
        .iter()
        .filter(|(modifier, _)| style.add_modifier.contains(*modifier));
    let colour = style.fg.and_then(|colour| match colour {
        Color::Red => Some("31"),
        Color::Green => Some("32"),
        Color::Yellow => Some("33"),
        Color::Blue => Some("34"),
        Color::Magenta => Some("35"),
        Color::Cyan => Some("36"),
        _ => None,
    });
    set.map(|(_, code)| *code)
        .chain(colour)
        .collect::<Vec<_>>()
        .join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terminal(width: u16, height: u16) -> vt100::Parser {
        let size = |n: u16| std::num::NonZeroU16::new(n).unwrap();
        vt100::Parser::new(size(height), size(width), 100)
    }

    fn frame(lines: &[&str]) -> LiveFrame {
        let lines: Vec<Line<'static>> = lines
            .iter()
            .map(|line| Line::from((*line).to_owned()))
            .collect();
        LiveFrame {
            cursor: (lines.len() - 1, 1),
            lines,
        }
    }

    fn rows(lines: &[&str]) -> Vec<StyledRow> {
        lines
            .iter()
            .map(|line| StyledRow::styled(*line, Style::new()))
            .collect()
    }

    /// Returns the rows as they stand on the terminal: a line that it wrapped has several.
    fn text(terminal: &vt100::Parser) -> String {
        let screen = terminal.screen();
        let rows: Vec<String> = screen.rows(0, screen.size().1.get()).collect();
        rows.join("\n").trim_end().to_owned()
    }

    fn show(screen: &mut ChatScreen<Vec<u8>>, terminal: &mut vt100::Parser) -> String {
        terminal.process(&std::mem::take(&mut screen.out));
        text(terminal)
    }

    #[test]
    fn finished_rows_scroll_and_the_live_part_stays_below() {
        let (mut screen, mut terminal) = (ChatScreen::new(Vec::new(), 20, 5), terminal(20, 5));
        screen
            .paint(Vec::new(), frame(&["live", "> in", "status"]))
            .unwrap();
        assert_eq!(show(&mut screen, &mut terminal), "live\n> in\nstatus");
        for number in 0..9 {
            screen
                .paint(
                    rows(&[&format!("line {number}")]),
                    frame(&["> in", "status"]),
                )
                .unwrap();
        }
        assert_eq!(
            show(&mut screen, &mut terminal),
            "line 6\nline 7\nline 8\n> in\nstatus"
        );
        terminal.screen_mut().set_scrollback(100);
        assert!(
            text(&terminal).starts_with("line 0\nline 1"),
            "all rows are in the scrollback"
        );
    }

    #[test]
    fn the_live_part_grows_shrinks_and_changes_in_place() {
        let (mut screen, mut terminal) = (ChatScreen::new(Vec::new(), 20, 8), terminal(20, 8));
        for lines in [
            &["a", "b"][..],
            &["a", "c", "d", "e"],
            &["x"],
            &["x", "y", "z"],
            &["y"],
        ] {
            screen.paint(Vec::new(), frame(lines)).unwrap();
            assert_eq!(show(&mut screen, &mut terminal), lines.join("\n"));
            assert_eq!(
                terminal.screen().cursor_position(),
                (lines.len() as u16 - 1, 1)
            );
        }
    }

    #[test]
    fn too_many_live_lines_are_cut_at_the_top() {
        let (mut screen, mut terminal) = (ChatScreen::new(Vec::new(), 20, 4), terminal(20, 4));
        screen
            .paint(rows(&["done"]), frame(&["1", "2", "3", "4", "5"]))
            .unwrap();
        assert_eq!(show(&mut screen, &mut terminal), "done\n3\n4\n5");
    }

    #[test]
    fn after_a_resize_the_rows_are_wrapped_again() {
        let (mut screen, mut terminal) = (ChatScreen::new(Vec::new(), 30, 10), terminal(30, 10));
        screen
            .paint(
                rows(&["some words that are rather long", "end"]),
                frame(&["live", "> in"]),
            )
            .unwrap();
        show(&mut screen, &mut terminal);
        let size = |n: u16| std::num::NonZeroU16::new(n).unwrap();
        terminal.screen_mut().set_size(size(10), size(12));
        screen.resize(12, 10, frame(&["live", "> in"])).unwrap();
        assert_eq!(
            show(&mut screen, &mut terminal),
            "some words\nthat are\nrather long\nend\nlive\n> in"
        );
        terminal.screen_mut().set_size(size(4), size(40));
        screen.resize(40, 4, frame(&["live", "> in"])).unwrap();
        assert_eq!(
            show(&mut screen, &mut terminal),
            "some words that are rather long\nend\nlive\n> in"
        );
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let (mut screen, mut terminal) = (ChatScreen::new(Vec::new(), 30, 5), terminal(30, 5));
        screen
            .paint(rows(&["a\u{1b}[2Jb"]), frame(&["\u{7}live"]))
            .unwrap();
        assert_eq!(show(&mut screen, &mut terminal), "a\\u{1b}[2Jb\n\\u{7}live");
    }

    #[test]
    fn styles_become_sgr_codes() {
        let style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
        assert_eq!(sgr_codes(style), "1;31");
        assert_eq!(sgr_codes(Style::new()), "");
    }
}
