//! What is being typed: several lines, with the keys of a shell. A long paste is one piece, kept as it came.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_core::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use super::look::Look;
use super::rows::clean;

/// A paste of more lines or letters is shown as one piece.
const LONG_LINES: usize = 6;
const LONG_LETTERS: usize = 600;
/// In the text a long paste is one letter of a private range.
const FIRST_PIECE: u32 = 0xF_0000;
const LAST_PIECE: u32 = 0xF_FFFD;

#[derive(Debug, Default)]
pub(crate) struct Editor {
    text: String,
    /// Where the cursor is, in bytes.
    at: usize,
    pieces: Vec<String>,
    cut: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edit {
    Changed,
    Moved,
    /// Up in the first line, or down in the last.
    Beyond,
    Ignored,
}

impl Editor {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The text as it was typed and pasted.
    pub(crate) fn text(&self) -> String {
        self.text.chars().fold(String::new(), |mut whole, letter| {
            match self.piece(letter) {
                Some(piece) => whole.push_str(piece),
                None => whole.push(letter),
            }
            whole
        })
    }

    /// The text with long pastes as single letters, and the place in it.
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
        let text: String = text.chars().filter(|letter| !is_piece(*letter)).collect();
        self.text.insert_str(self.at, &text);
        self.at += text.len();
    }

    /// Takes a paste as it is; line ends as a terminal sends them become line ends.
    pub(crate) fn paste(&mut self, text: &str) {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let long = text.lines().count() > LONG_LINES || text.chars().count() > LONG_LETTERS;
        match char::from_u32(FIRST_PIECE + self.pieces.len() as u32)
            .filter(|letter| long && is_piece(*letter))
        {
            None => self.insert(&text),
            Some(letter) => {
                self.pieces.push(text);
                self.text.insert(self.at, letter);
                self.at += letter.len_utf8();
            }
        }
    }

    /// Replaces what stands between here and the cursor.
    pub(crate) fn replace_from(&mut self, from: usize, with: &str) {
        if self.text.is_char_boundary(from) && from <= self.at {
            self.text.replace_range(from..self.at, with);
            self.at = from + with.len();
        }
    }

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
            KeyCode::Char(letter) if !control && !alt => self.add(letter.encode_utf8(&mut [0; 4])),
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

    fn add(&mut self, text: &str) -> Edit {
        // A cut piece may come back: its letter is still known.
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

    fn in_line(&self, start: usize, column: usize) -> usize {
        let line = self.text[start..].split('\n').next().unwrap_or_default();
        let letters = line.graphemes(true).take(column);
        start + letters.map(str::len).sum::<usize>()
    }

    fn line_start(&self) -> usize {
        self.text[..self.at].rfind('\n').map_or(0, |end| end + 1)
    }

    fn line_end(&self) -> usize {
        let end = self.text[self.at..].find('\n');
        end.map_or(self.text.len(), |end| self.at + end)
    }

    fn before(&self) -> usize {
        let letter = self.text[..self.at].graphemes(true).next_back();
        letter.map_or(0, |letter| self.at - letter.len())
    }

    fn after(&self) -> usize {
        let letter = self.text[self.at..].graphemes(true).next();
        letter.map_or(self.at, |letter| self.at + letter.len())
    }

    /// Where the word before the cursor begins.
    fn word_before(&self) -> usize {
        let mut words = self.text[..self.at].split_word_bound_indices();
        let word = words.rfind(|(_, word)| is_word(word));
        word.map_or(0, |(at, _)| at)
    }

    fn word_after(&self) -> usize {
        let mut words = self.text[self.at..].split_word_bound_indices();
        let word = words.find(|(_, word)| is_word(word));
        word.map_or(self.text.len(), |(at, word)| self.at + at + word.len())
    }

    /// Where what stands between blanks begins.
    fn blank_before(&self) -> usize {
        let before = self.text[..self.at].trim_end();
        before.rfind(char::is_whitespace).map_or(0, |at| {
            at + before[at..].chars().next().map_or(0, char::len_utf8)
        })
    }

    fn piece(&self, letter: char) -> Option<&str> {
        let number = (letter as u32).checked_sub(FIRST_PIECE)?;
        let piece = self
            .pieces
            .get(number as usize)
            .filter(|_| is_piece(letter));
        piece.map(String::as_str)
    }

    /// The text in lines of at most this width, and where the cursor is: line and column.
    pub(crate) fn lines(&self, width: usize, look: Look) -> (Vec<Line<'static>>, (usize, usize)) {
        let width = width.max(2);
        let mut lines: Vec<Vec<Span<'static>>> = vec![Vec::new()];
        let mut used = 0;
        let mut cursor = (0, 0);
        let mut at = 0;
        for letter in self.text.graphemes(true) {
            let piece = letter.chars().next().and_then(|letter| self.piece(letter));
            let shown = match piece {
                Some(piece) => Span::styled(told(piece), look.code()),
                None => Span::raw(clean(letter).into_owned()),
            };
            let wide = if letter == "\n" {
                0
            } else {
                shown.content.width()
            };
            if used + wide > width && used > 0 {
                lines.push(Vec::new());
                used = 0;
            }
            if at == self.at {
                cursor = (lines.len() - 1, used);
            }
            at += letter.len();
            if letter == "\n" {
                lines.push(Vec::new());
                used = 0;
            } else if let Some(line) = lines.last_mut() {
                line.push(shown);
                used += wide;
            }
        }
        if self.at >= at {
            if used >= width {
                lines.push(Vec::new());
                used = 0;
            }
            cursor = (lines.len() - 1, used);
        }
        (lines.into_iter().map(Line::from).collect(), cursor)
    }
}

/// What stands for a long paste.
fn told(piece: &str) -> String {
    match piece.lines().count() {
        0 | 1 => format!("[{} letters pasted]", piece.chars().count()),
        lines => format!("[{lines} lines pasted]"),
    }
}

fn is_piece(letter: char) -> bool {
    (FIRST_PIECE..=LAST_PIECE).contains(&(letter as u32))
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
    fn up_and_down_move_between_lines_and_say_when_there_is_none() {
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
    fn a_long_paste_is_one_piece_and_comes_out_as_it_went_in() {
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
    fn the_cursor_is_where_the_next_letter_goes() {
        let mut editor = typed("abcdef");
        assert_eq!(editor.lines(4, Look::Plain).1, (1, 2));
        editor.insert("gh");
        assert_eq!(editor.lines(4, Look::Plain).1, (2, 0));
        control(&mut editor, 'a');
        assert_eq!(editor.lines(4, Look::Plain).1, (0, 0));
        assert_eq!(typed("a\n").lines(10, Look::Plain).1, (1, 0));
    }
}
