//! A multi-line text editor with the keys of a shell. A long paste is shown as a placeholder and
//! kept unchanged.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_core::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use super::rows::sanitize;
use super::theme::Theme;

/// A paste with more lines than this is shown as a placeholder.
const MAX_INLINE_PASTE_LINES: usize = 6;
/// A paste with more characters than this is shown as a placeholder.
const MAX_INLINE_PASTE_CHARS: usize = 600;
/// First and last placeholder character. The text holds one character of this private-use range
/// for each long paste; its offset in the range is the index of the paste.
const FIRST_PASTE_PLACEHOLDER: u32 = 0xF_0000;
const LAST_PASTE_PLACEHOLDER: u32 = 0xF_FFFD;

/// The text being edited and its cursor.
#[derive(Debug, Default)]
pub(crate) struct Editor {
    /// The text, with a placeholder character for each long paste.
    text: String,
    /// Byte offset of the cursor in `text`.
    cursor: usize,
    /// The long pastes, in the order of their placeholders.
    pastes: Vec<String>,
    /// The text that Ctrl-Y inserts: the last one cut with Ctrl-W, -U, -K or Alt-D.
    kill_buffer: String,
    /// Whether a part of the text was pasted.
    has_paste: bool,
    kill_buffer_has_paste: bool,
}

/// The input that is put aside while the editor shows another text.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Draft {
    pub text: String,
    /// Whether a part of the text was pasted.
    pub has_paste: bool,
}

/// What a key did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EditResult {
    Changed,
    Moved,
    /// Up in the first line, or Down in the last. The text and cursor are unchanged.
    AtEdge,
    Ignored,
}

impl Editor {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the whole text, with every paste as it was pasted.
    pub(crate) fn text(&self) -> String {
        self.text.chars().fold(String::new(), |mut whole, c| {
            match self.paste_for(c) {
                Some(paste) => whole.push_str(paste),
                None => whole.push(c),
            }
            whole
        })
    }

    /// Returns the text with placeholders for long pastes, and the cursor as a byte offset in it.
    pub(crate) fn text_and_cursor(&self) -> (&str, usize) {
        (&self.text, self.cursor)
    }

    pub(crate) fn take(&mut self) -> String {
        let text = self.text();
        self.clear();
        text
    }

    pub(crate) fn clear(&mut self) {
        (self.text, self.cursor, self.pastes) = (String::new(), 0, Vec::new());
        self.has_paste = false;
    }

    /// Whether a part of the text was pasted.
    pub(crate) fn has_paste(&self) -> bool {
        self.has_paste
    }

    pub(crate) fn set(&mut self, text: &str) {
        self.clear();
        self.insert(text);
    }

    pub(crate) fn draft(&self) -> Draft {
        Draft {
            text: self.text(),
            has_paste: self.has_paste,
        }
    }

    pub(crate) fn restore(&mut self, draft: &Draft) {
        self.set(&draft.text);
        self.has_paste = draft.has_paste;
    }

    pub(crate) fn insert(&mut self, text: &str) {
        let text: String = text.chars().filter(|c| !is_paste_placeholder(*c)).collect();
        self.text.insert_str(self.cursor, &text);
        self.cursor += text.len();
    }

    /// Inserts a paste. Terminals send line breaks as `\r`; they become `\n`.
    pub(crate) fn paste(&mut self, text: &str) {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        self.has_paste = true;
        let long = text.lines().count() > MAX_INLINE_PASTE_LINES
            || text.chars().count() > MAX_INLINE_PASTE_CHARS;
        match char::from_u32(FIRST_PASTE_PLACEHOLDER + self.pastes.len() as u32)
            .filter(|placeholder| long && is_paste_placeholder(*placeholder))
        {
            None => self.insert(&text),
            Some(placeholder) => {
                self.pastes.push(text);
                self.text.insert(self.cursor, placeholder);
                self.cursor += placeholder.len_utf8();
            }
        }
    }

    /// Replaces the text from byte offset `from` up to the cursor.
    pub(crate) fn replace_from(&mut self, from: usize, with: &str) {
        if self.text.is_char_boundary(from) && from <= self.cursor {
            self.text.replace_range(from..self.cursor, with);
            self.cursor = from + with.len();
        }
    }

    /// Applies an editing key.
    pub(crate) fn handle_key(&mut self, key: KeyEvent) -> EditResult {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let alt = key.modifiers.contains(KeyModifiers::ALT);
        match key.code {
            KeyCode::Enter => self.insert_raw("\n"),
            KeyCode::Char('j') if control => self.insert_raw("\n"),
            KeyCode::Char('a') if control => self.move_cursor(self.line_start()),
            KeyCode::Char('e') if control => self.move_cursor(self.line_end()),
            KeyCode::Char('b') if control => self.move_cursor(self.previous_grapheme()),
            KeyCode::Char('f') if control => self.move_cursor(self.next_grapheme()),
            KeyCode::Char('p') if control => self.cursor_up(),
            KeyCode::Char('n') if control => self.cursor_down(),
            KeyCode::Char('b') if alt => self.move_cursor(self.previous_word_start()),
            KeyCode::Char('f') if alt => self.move_cursor(self.next_word_end()),
            KeyCode::Char('d') if alt => self.kill(self.cursor, self.next_word_end()),
            KeyCode::Char('d') if control => self.remove(self.cursor, self.next_grapheme()),
            KeyCode::Char('h') if control => self.remove(self.previous_grapheme(), self.cursor),
            KeyCode::Char('w') if control => {
                self.kill(self.previous_blank_delimited_start(), self.cursor)
            }
            KeyCode::Char('u') if control => self.kill(self.line_start(), self.cursor),
            KeyCode::Char('k') if control => {
                let end = self.line_end();
                self.kill(
                    self.cursor,
                    if end == self.cursor {
                        self.next_grapheme()
                    } else {
                        end
                    },
                )
            }
            KeyCode::Char('y') if control => {
                let cut = self.kill_buffer.clone();
                self.has_paste |= self.kill_buffer_has_paste;
                self.insert_raw(&cut)
            }
            KeyCode::Char(c) if !control && !alt => self.insert_raw(c.encode_utf8(&mut [0; 4])),
            KeyCode::Backspace if alt || control => {
                self.kill(self.previous_word_start(), self.cursor)
            }
            KeyCode::Backspace => self.remove(self.previous_grapheme(), self.cursor),
            KeyCode::Delete => self.remove(self.cursor, self.next_grapheme()),
            KeyCode::Left if control || alt => self.move_cursor(self.previous_word_start()),
            KeyCode::Right if control || alt => self.move_cursor(self.next_word_end()),
            KeyCode::Left => self.move_cursor(self.previous_grapheme()),
            KeyCode::Right => self.move_cursor(self.next_grapheme()),
            KeyCode::Home => self.move_cursor(self.line_start()),
            KeyCode::End => self.move_cursor(self.line_end()),
            KeyCode::Up => self.cursor_up(),
            KeyCode::Down => self.cursor_down(),
            _ => EditResult::Ignored,
        }
    }

    /// Inserts text at the cursor. Unlike `insert` it keeps placeholders, which Ctrl-Y may bring
    /// back.
    fn insert_raw(&mut self, text: &str) -> EditResult {
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
        EditResult::Changed
    }

    fn move_cursor(&mut self, to: usize) -> EditResult {
        self.cursor = to;
        EditResult::Moved
    }

    fn remove(&mut self, from: usize, to: usize) -> EditResult {
        self.text.replace_range(from..to, "");
        self.cursor = from;
        self.has_paste &= !self.text.is_empty();
        EditResult::Changed
    }

    /// Removes text and keeps it for Ctrl-Y.
    fn kill(&mut self, from: usize, to: usize) -> EditResult {
        if from < to {
            self.kill_buffer = self.text[from..to].to_owned();
            self.kill_buffer_has_paste = self.has_paste;
        }
        self.remove(from, to)
    }

    fn cursor_up(&mut self) -> EditResult {
        let start = self.line_start();
        if start == 0 {
            return EditResult::AtEdge;
        }
        let column = self.text[start..self.cursor].graphemes(true).count();
        let above = self.text[..start - 1].rfind('\n').map_or(0, |end| end + 1);
        self.move_cursor(self.offset_in_line(above, column))
    }

    fn cursor_down(&mut self) -> EditResult {
        let end = self.line_end();
        if end == self.text.len() {
            return EditResult::AtEdge;
        }
        let before = &self.text[self.line_start()..self.cursor];
        self.move_cursor(self.offset_in_line(end + 1, before.graphemes(true).count()))
    }

    /// Returns the byte offset of a column in the line that begins at `start`, or of its end.
    fn offset_in_line(&self, start: usize, column: usize) -> usize {
        let line = self.text[start..].split('\n').next().unwrap_or_default();
        let graphemes = line.graphemes(true).take(column);
        start + graphemes.map(str::len).sum::<usize>()
    }

    fn line_start(&self) -> usize {
        self.text[..self.cursor]
            .rfind('\n')
            .map_or(0, |end| end + 1)
    }

    fn line_end(&self) -> usize {
        let end = self.text[self.cursor..].find('\n');
        end.map_or(self.text.len(), |end| self.cursor + end)
    }

    /// Returns the start of the grapheme before the cursor.
    fn previous_grapheme(&self) -> usize {
        let grapheme = self.text[..self.cursor].graphemes(true).next_back();
        grapheme.map_or(0, |grapheme| self.cursor - grapheme.len())
    }

    /// Returns the end of the grapheme after the cursor.
    fn next_grapheme(&self) -> usize {
        let grapheme = self.text[self.cursor..].graphemes(true).next();
        grapheme.map_or(self.cursor, |grapheme| self.cursor + grapheme.len())
    }

    /// Returns the start of the word before the cursor.
    fn previous_word_start(&self) -> usize {
        let mut words = self.text[..self.cursor].split_word_bound_indices();
        let word = words.rfind(|(_, word)| has_word_char(word));
        word.map_or(0, |(start, _)| start)
    }

    /// Returns the end of the word after the cursor.
    fn next_word_end(&self) -> usize {
        let mut words = self.text[self.cursor..].split_word_bound_indices();
        let word = words.find(|(_, word)| has_word_char(word));
        word.map_or(self.text.len(), |(start, word)| {
            self.cursor + start + word.len()
        })
    }

    /// Returns the start of the whitespace-delimited word before the cursor.
    fn previous_blank_delimited_start(&self) -> usize {
        let before = self.text[..self.cursor].trim_end();
        before.rfind(char::is_whitespace).map_or(0, |space| {
            space + before[space..].chars().next().map_or(0, char::len_utf8)
        })
    }

    /// Returns the paste for a placeholder.
    fn paste_for(&self, placeholder: char) -> Option<&str> {
        let index = (placeholder as u32).checked_sub(FIRST_PASTE_PLACEHOLDER)?;
        let paste = self
            .pastes
            .get(index as usize)
            .filter(|_| is_paste_placeholder(placeholder));
        paste.map(String::as_str)
    }

    /// Returns the text wrapped to `width`, and the cursor as line and column.
    pub(crate) fn lines(&self, width: usize, theme: Theme) -> (Vec<Line<'static>>, (usize, usize)) {
        let width = width.max(2);
        let mut lines: Vec<Vec<Span<'static>>> = vec![Vec::new()];
        let mut used = 0;
        let mut cursor = (0, 0);
        let mut offset = 0;
        for grapheme in self.text.graphemes(true) {
            let paste = grapheme.chars().next().and_then(|c| self.paste_for(c));
            let shown = match paste {
                Some(paste) => Span::styled(paste_label(paste), theme.code()),
                None => Span::raw(sanitize(grapheme).into_owned()),
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
            if offset == self.cursor {
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
        if self.cursor >= offset {
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
fn paste_label(paste: &str) -> String {
    match paste.lines().count() {
        0 | 1 => {
            let characters = selvedge_text::count_noun(paste.chars().count(), "character");
            format!("[{characters} pasted]")
        }
        lines => format!("[{lines} lines pasted]"),
    }
}

fn is_paste_placeholder(c: char) -> bool {
    (FIRST_PASTE_PLACEHOLDER..=LAST_PASTE_PLACEHOLDER).contains(&(c as u32))
}

fn has_word_char(word: &str) -> bool {
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

    fn press(editor: &mut Editor, code: KeyCode, modifiers: KeyModifiers) -> EditResult {
        editor.handle_key(KeyEvent::new(code, modifiers))
    }

    fn control(editor: &mut Editor, letter: char) -> EditResult {
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
            EditResult::Moved
        );
        assert_eq!(
            press(&mut editor, KeyCode::Up, KeyModifiers::NONE),
            EditResult::Moved
        );
        editor.insert("|");
        assert_eq!(editor.text(), "f|irst\nx\nthird");
        assert_eq!(
            press(&mut editor, KeyCode::Up, KeyModifiers::NONE),
            EditResult::AtEdge
        );
        press(&mut editor, KeyCode::Down, KeyModifiers::NONE);
        press(&mut editor, KeyCode::Down, KeyModifiers::NONE);
        assert_eq!(
            press(&mut editor, KeyCode::Down, KeyModifiers::NONE),
            EditResult::AtEdge
        );
    }

    #[test]
    fn a_long_paste_is_shown_as_a_placeholder_and_kept_unchanged() {
        let long = "line\r\n".repeat(30) + "  end\t";
        let mut editor = typed("see ");
        editor.paste(&long);
        editor.insert(" please");
        assert_eq!(
            editor.lines(60, Theme::Plain).0[0].to_string(),
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
    fn a_paste_is_remembered_until_it_is_gone() {
        let mut editor = typed("!");
        assert!(!editor.has_paste());
        editor.paste("ls");
        assert!(editor.has_paste());
        control(&mut editor, 'u');
        assert!(!editor.has_paste(), "the text is gone");
        control(&mut editor, 'y');
        assert!(editor.has_paste(), "the text is back");
        let draft = editor.draft();
        editor.set("!ls");
        assert!(!editor.has_paste());
        editor.restore(&draft);
        assert!(editor.has_paste(), "the draft is back");
    }

    #[test]
    fn the_cursor_is_where_the_next_character_goes() {
        let mut editor = typed("abcdef");
        assert_eq!(editor.lines(4, Theme::Plain).1, (1, 2));
        editor.insert("gh");
        assert_eq!(editor.lines(4, Theme::Plain).1, (2, 0));
        control(&mut editor, 'a');
        assert_eq!(editor.lines(4, Theme::Plain).1, (0, 0));
        assert_eq!(typed("a\n").lines(10, Theme::Plain).1, (1, 0));
    }
}
