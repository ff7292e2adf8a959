//! A part of a long text with keys to scroll it, for a question that does not fit the terminal.

use std::cell::Cell;

use crossterm::event::KeyCode;
use ratatui_core::text::Line;

use super::rows::StyledRow;

/// The position in the text. The sizes are those of the last drawing.
#[derive(Debug, Default)]
pub(crate) struct ScrollView {
    first: usize,
    page: Cell<usize>,
    total: Cell<usize>,
}

impl ScrollView {
    /// Scrolls by a page, to the start or to the end. Returns whether the key is one of these.
    pub(crate) fn handle_key(&mut self, code: KeyCode) -> bool {
        let last_page = self.total.get().saturating_sub(self.page.get());
        // One line of the page before stays visible.
        let step = self.page.get().saturating_sub(1).max(1);
        self.first = match code {
            KeyCode::PageDown => (self.first + step).min(last_page),
            KeyCode::PageUp => self.first.min(last_page).saturating_sub(step),
            _ => return false,
        };
        true
    }

    /// Returns the visible part of the lines in a window of this size, followed by a line that says
    /// which part it is.
    pub(crate) fn window(
        &self,
        lines: &[Line<'static>],
        width: usize,
        height: usize,
    ) -> Vec<Line<'static>> {
        let page = height.saturating_sub(1).max(1);
        self.page.set(page);
        self.total.set(lines.len());
        let first = self.first.min(lines.len().saturating_sub(page));
        let last = (first + page).min(lines.len());
        let mut shown = lines[first..last].to_vec();
        let position = format!(
            "  lines {} to {last} of {} · Page Up and Page Down scroll",
            first + 1,
            lines.len()
        );
        shown.extend(StyledRow::dim(position).truncated().wrapped(width));
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_can_be_reached() {
        let lines: Vec<Line<'static>> = (0..25).map(|n| Line::from(n.to_string())).collect();
        let mut view = ScrollView::default();
        let mut seen = Vec::new();
        for _ in 0..10 {
            let window = view.window(&lines, 60, 5);
            assert_eq!(window.len(), 5);
            seen.extend(window[..4].iter().map(ToString::to_string));
            view.handle_key(KeyCode::PageDown);
        }
        for n in 0..25 {
            assert!(seen.contains(&n.to_string()), "{n}");
        }
        assert_eq!(
            view.window(&lines, 60, 5)[4].to_string(),
            "  lines 22 to 25 of 25 · Page Up and Page Down scroll"
        );
        let narrow = view.window(&lines, 20, 5);
        assert_eq!(narrow[4].to_string(), "  lines 22 to 25 of…");
        for _ in 0..10 {
            view.handle_key(KeyCode::PageUp);
        }
        assert_eq!(view.window(&lines, 60, 5)[0].to_string(), "0");
        assert!(!view.handle_key(KeyCode::Char('x')));
    }
}
