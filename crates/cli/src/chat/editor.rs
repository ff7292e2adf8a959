//! A multi-line text editor with the keys of a shell. A long paste is shown as a placeholder and
//! kept unchanged.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_core::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use super::look::Look;
use super::rows::clean;

/// A paste with more lines than this is shown as a placeholder.
const LONG_LINES: usize = 6;
/// A paste with more characters than this is shown as a placeholder.
const LONG_LETTERS: usize = 600;
/// First and last placeholder character. The text holds one character of this private-use range
/// for each long paste; its offset in the range is the index of the paste.
const FIRST_PIECE: u32 = 0xF_0000;
const LAST_PIECE: u32 = 0xF_FFFD;

/// The text being edited and its cursor.
#[derive(Debug, Default)]
pub(crate) struct Editor {
    /// The text, with a placeholder character for each long paste.
    text: String,
    /// Byte offset of the cursor in `text`.
    at: usize,
    /// The long pastes, in the order of their placeholders.
    pieces: Vec<String>,
    /// The text that Ctrl-Y inserts: the last one cut with Ctrl-W, -U, -K or Alt-D.
    cut: String,
}

/// What a key did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edit {
    Changed,
    Moved,
    /// Up in the first line, or Down in the last. The text and cursor are unchanged.
    Beyond,
    Ignored,
}

impl Editor {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the whole text, with every paste as it was pasted.
    pub(crate) fn text(&self) -> String {
        self.text.chars().fold(String::new(), |mut whole, c| {
            match self.piece(c) {
                Some(paste) => whole.push_str(paste),
                None => whole.push(c),
            }
            whole
        })
    }

    /// Returns the text with placeholders for long pastes, and the cursor as a byte offset in it.
    pub(crate) fn typed(&self) -> (&str, usize) {
        (&self.text, self.at)
    }

    pub(crate) fn take(&mut self) -> String {
        let text = self.text();
        self.clear();
        text
    }

    pub(crate) fn clear(&mut self) {
        (self.text, self.at, self.pieces) = (String::new(), 0, Vec::new());
    }

    pub(crate) fn set(&mut self, text: &str) {
        self.clear();
        self.insert(text);
    }

    pub(crate) fn insert(&mut self, text: &str) {
        let text: String = text.chars().filter(|c| !is_piece(*c)).collect();
        self.text.insert_str(self.at, &text);
        self.at += text.len();
    }

    /// Inserts a paste. Terminals send line breaks as `\r`; they become `\n`.
    pub(crate) fn paste(&mut self, text: &str) {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let long = text.lines().count() > LONG_LINES || text.chars().count() > LONG_LETTERS;
        match char::from_u32(FIRST_PIECE + self.pieces.len() as u32)
            .filter(|placeholder| long && is_piece(*placeholder))
        {
            None => self.insert(&text),
            Some(placeholder) => {
                self.pieces.push(text);
                self.text.insert(self.at, placeholder);
                self.at += placeholder.len_utf8();
            }
        }
    }

    /// Replaces the text from byte offset `from` up to the cursor.
    pub(crate) fn replace_from(&mut self, from: usize, with: &str) {
        if self.text.is_char_boundary(from) && from <= self.at {
            self.text.replace_range(from..self.at, with);
            self.at = from + with.len();
        }
    }

    /// Applies an editing key.
    pub(crate) fn press(&mut self, key: KeyEvent) -> Edit {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let alt = key.modifiers.contains(KeyModifiers::ALT);
        match key.code {
            KeyCode::Enter => self.add("\n"),
            KeyCode::Char('j') if control => self.add("\n"),
            KeyCode::Char('a') if control => self.go(self.line_start()),
            KeyCode::Char('e') if control => self.go(self.line_end()),
            KeyCode::Char('b') if control => self.go(self.before()),
            KeyCode::Char('f') if control => self.go(self.after()),
            KeyCode::Char('p') if control => self.up(),
            KeyCode::Char('n') if control => self.down(),
            KeyCode::Char('b') if alt => self.go(self.word_before()),
            KeyCode::Char('f') if alt => self.go(self.word_after()),
            KeyCode::Char('d') if alt => self.cut_out(self.at, self.word_after()),
            KeyCode::Char('d') if control => self.remove(self.at, self.after()),
            KeyCode::Char('h') if control => self.remove(self.before(), self.at),
            KeyCode::Char('w') if control => self.cut_out(self.blank_before(), self.at),
            KeyCode::Char('u') if control => self.cut_out(self.line_start(), self.at),
            KeyCode::Char('k') if control => {
                let end = self.line_end();
                self.cut_out(self.at, if end == self.at { self.after() } else { end })
            }
            KeyCode::Char('y') if control => {
                let cut = self.cut.clone();
                self.add(&cut)
            }
            KeyCode::Char(c) if !control && !alt => self.add(c.encode_utf8(&mut [0; 4])),
            KeyCode::Backspace if alt || control => self.cut_out(self.word_before(), self.at),
            KeyCode::Backspace => self.remove(self.before(), self.at),
            KeyCode::Delete => self.remove(self.at, self.after()),
            KeyCode::Left if control || alt => self.go(self.word_before()),
            KeyCode::Right if control || alt => self.go(self.word_after()),
            KeyCode::Left => self.go(self.before()),
            KeyCode::Right => self.go(self.after()),
            KeyCode::Home => self.go(self.line_start()),
            KeyCode::End => self.go(self.line_end()),
            KeyCode::Up => self.up(),
            KeyCode::Down => self.down(),
            _ => Edit::Ignored,
        }
    }

    /// Inserts text at the cursor. Unlike `insert` it keeps placeholders, which Ctrl-Y may bring
    /// back.
    fn add(&mut self, text: &str) -> Edit {
        self.text.insert_str(self.at, text);
        self.at += text.len();
        Edit::Changed
    }

    fn go(&mut self, to: usize) -> Edit {
        self.at = to;
        Edit::Moved
    }

    fn remove(&mut self, from: usize, to: usize) -> Edit {
        self.text.replace_range(from..to, "");
        self.at = from;
        Edit::Changed
    }

    /// Removes text and keeps it for Ctrl-Y.
    fn cut_out(&mut self, from: usize, to: usize) -> Edit {
        if from < to {
            self.cut = self.text[from..to].to_owned();
        }
        self.remove(from, to)
    }

    fn up(&mut self) -> Edit {
        let start = self.line_start();
        if start == 0 {
            return Edit::Beyond;
        }
        let column = self.text[start..self.at].graphemes(true).count();
        let above = self.text[..start - 1].rfind('\n').map_or(0, |end| end + 1);
        self.go(self.in_line(above, column))
    }

    fn down(&mut self) -> Edit {
        let end = self.line_end();
        if end == self.text.len() {
            return Edit::Beyond;
        }
        let before = &self.text[self.line_start()..self.at];
        self.go(self.in_line(end + 1, before.graphemes(true).count()))
    }

    /// Returns the byte offset of a column in the line that begins at `start`, or of its end.
    fn in_line(&self, start: usize, column: usize) -> usize {
        let line = self.text[start..].split('\n').next().unwrap_or_default();
        let graphemes = line.graphemes(true).take(column);
        start + graphemes.map(str::len).sum::<usize>()
    }

    fn line_start(&self) -> usize {
        self.text[..self.at].rfind('\n').map_or(0, |end| end + 1)
    }

    fn line_end(&self) -> usize {
        let end = self.text[self.at..].find('\n');
        end.map_or(self.text.len(), |end| self.at + end)
    }

    /// Returns the start of the grapheme before the cursor.
    fn before(&self) -> usize {
        let grapheme = self.text[..self.at].graphemes(true).next_back();
        grapheme.map_or(0, |grapheme| self.at - grapheme.len())
    }

    /// Returns the end of the grapheme after the cursor.
    fn after(&self) -> usize {
        let grapheme = self.text[self.at..].graphemes(true).next();
        grapheme.map_or(self.at, |grapheme| self.at + grapheme.len())
    }

    /// Returns the start of the word before the cursor.
    fn word_before(&self) -> usize {
        let mut words = self.text[..self.at].split_word_bound_indices();
        let word = words.rfind(|(_, word)| is_word(word));
        word.map_or(0, |(start, _)| start)
    }

    /// Returns the end of the word after the cursor.
    fn word_after(&self) -> usize {
        let mut words = self.text[self.at..].split_word_bound_indices();
        let word = words.find(|(_, word)| is_word(word));
        word.map_or(self.text.len(), |(start, word)| {
            self.at + start + word.len()
        })
    }

    /// Returns the start of the whitespace-delimited word before the cursor.
    fn blank_before(&self) -> usize {
        let before = self.text[..self.at].trim_end();
        before.rfind(char::is_whitespace).map_or(0, |space| {
            space + before[space..].chars().next().map_or(0, char::len_utf8)
        })
    }

    /// Returns the paste for a placeholder.
    fn piece(&self, placeholder: char) -> Option<&str> {
        let index = (placeholder as u32).checked_sub(FIRST_PIECE)?;
        let paste = self
            .pieces
            .get(index as usize)
            .filter(|_| is_piece(placeholder));
        paste.map(String::as_str)
    }

    /// Returns the text wrapped to `width`, and the cursor as line and column.
    pub(crate) fn lines(&self, width: usize, theme: Look) -> (Vec<Line<'static>>, (usize, usize)) {
        let width = width.max(2);
        let mut lines: Vec<Vec<Span<'static>>> = vec![Vec::new()];
        let mut used = 0;
        let mut cursor = (0, 0);
        let mut offset = 0;
        for grapheme in self.text.graphemes(true) {
            let paste = grapheme.chars().next().and_then(|c| self.piece(c));
            let shown = match paste {
                Some(paste) => Span::styled(told(paste), theme.code()),
                None => Span::raw(clean(grapheme).into_owned()),
            };
            let columns = if grapheme == "\n" {
                0
            } else {
                shown.content.width()
            };
            if used + columns > width && used > 0 {
                lines.push(Vec::new());
                used = 0;
            }
            if offset == self.at {
                cursor = (lines.len() - 1, used);
            }
            offset += grapheme.len();
            if grapheme == "\n" {
                lines.push(Vec::new());
                used = 0;
            } else if let Some(line) = lines.last_mut() {
                line.push(shown);
                used += columns;
            }
        }
        if self.at >= offset {
            if used >= width {
                lines.push(Vec::new());
                used = 0;
            }
            cursor = (lines.len() - 1, used);
        }
        (lines.into_iter().map(Line::from).collect(), cursor)
    }
}

/// Returns the text shown in place of a long paste.
fn told(paste: &str) -> String {
    match paste.lines().count() {
        0 | 1 => format!("[{} characters pasted]", paste.chars().count()),
        lines => format!("[{lines} lines pasted]"),
    }
}

fn is_piece(c: char) -> bool {
    (FIRST_PIECE..=LAST_PIECE).contains(&(c as u32))
}

fn is_word(word: &str) -> bool {
    word.chars().any(char::is_alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(text: &str) -> Editor {
        let mut editor = Editor::default();
        editor.insert(text);
        editor
    }

    fn press(editor: &mut Editor, code: KeyCode, modifiers: KeyModifiers) -> Edit {
        editor.press(KeyEvent::new(code, modifiers))
    }

    fn control(editor: &mut Editor, letter: char) -> Edit {
        press(editor, KeyCode::Char(letter), KeyModifiers::CONTROL)
    }

    #[test]
    fn the_keys_of_a_shell_work() {
        let mut editor = typed("one two  three");
        control(&mut editor, 'w');
        assert_eq!(editor.text(), "one two  ");
        control(&mut editor, 'y');
        control(&mut editor, 'a');
        press(&mut editor, KeyCode::Char('f'), KeyModifiers::ALT);
        control(&mut editor, 'k');
        assert_eq!(editor.text(), "one");
        control(&mut editor, 'e');
        control(&mut editor, 'u');
        assert_eq!(editor.text(), "");
        let mut editor = typed("grüße 🙂");
        press(&mut editor, KeyCode::Backspace, KeyModifiers::NONE);
        press(&mut editor, KeyCode::Backspace, KeyModifiers::ALT);
        assert_eq!(editor.text(), "");
    }

    #[test]
    fn up_and_down_move_between_lines_and_report_the_edge() {
        let mut editor = typed("first\nx\nthird");
        assert_eq!(
            press(&mut editor, KeyCode::Up, KeyModifiers::NONE),
            Edit::Moved
        );
        assert_eq!(
            press(&mut editor, KeyCode::Up, KeyModifiers::NONE),
            Edit::Moved
        );
        editor.insert("|");
        assert_eq!(editor.text(), "f|irst\nx\nthird");
        assert_eq!(
            press(&mut editor, KeyCode::Up, KeyModifiers::NONE),
            Edit::Beyond
        );
        press(&mut editor, KeyCode::Down, KeyModifiers::NONE);
        press(&mut editor, KeyCode::Down, KeyModifiers::NONE);
        assert_eq!(
            press(&mut editor, KeyCode::Down, KeyModifiers::NONE),
            Edit::Beyond
        );
    }

    #[test]
    fn a_long_paste_is_shown_as_a_placeholder_and_kept_unchanged() {
        let long = "line\r\n".repeat(30) + "  end\t";
        let mut editor = typed("see ");
        editor.paste(&long);
        editor.insert(" please");
        assert_eq!(
            editor.lines(60, Look::Plain).0[0].to_string(),
            "see [31 lines pasted] please"
        );
        assert_eq!(
            editor.text(),
            format!("see {} please", long.replace("\r\n", "\n"))
        );
        for _ in 0..8 {
            press(&mut editor, KeyCode::Backspace, KeyModifiers::NONE);
        }
        assert_eq!(editor.text(), "see ");
        editor.paste("two\rlines");
        assert_eq!(editor.text(), "see two\nlines");
    }

    #[test]
    fn the_cursor_is_where_the_next_character_goes() {
        let mut editor = typed("abcdef");
        assert_eq!(editor.lines(4, Look::Plain).1, (1, 2));
        editor.insert("gh");
        assert_eq!(editor.lines(4, Look::Plain).1, (2, 0));
        control(&mut editor, 'a');
        assert_eq!(editor.lines(4, Look::Plain).1, (0, 0));
        assert_eq!(typed("a\n").lines(10, Look::Plain).1, (1, 0));
    }
}
