//! A list of options of which one is chosen deliberately: with the arrows or a digit, confirmed
//! with Enter.
//!
//! Nothing is selected at first, and Enter without a selection does nothing. Any other key, and any
//! paste, clears the selection; after that, digits select nothing until an arrow key is pressed. So
//! typed words never choose an option, not even if they begin or end with a digit. Enter confirms
//! only an option that is drawn as selected.

use std::cell::Cell;
use std::ops::Range;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_core::text::{Line, Span};

use super::rows::{StyledRow, sanitize_line, wrap_rows};
use super::theme::Theme;

/// The options and the state of the choice.
#[derive(Debug)]
pub(crate) struct ChoiceList<T> {
    options: Vec<(String, T)>,
    selected: Option<usize>,
    /// The option that the last drawing showed as selected.
    drawn_selection: Cell<Option<usize>>,
    digit_keys: DigitKeys,
    /// The digit that made the selection. It belongs to the input if text follows it.
    typed_digit: Option<char>,
    /// What Esc does, as the end of a sentence such as `Esc denies`.
    escape_label: &'static str,
}

/// Whether a digit selects an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DigitKeys {
    Select,
    /// Text was typed. An arrow key ends this.
    AreText,
}

/// What the list did with a key.
#[derive(Debug, PartialEq)]
pub(crate) enum ChoiceKeyResult<T> {
    /// The key changed the selection, or did nothing.
    Consumed,
    /// Enter confirmed the selected option.
    Chosen(T),
    /// Esc was pressed.
    Escaped,
    /// The key is not for the list. It cleared the selection.
    NotForList,
}

impl<T: Clone> ChoiceList<T> {
    /// Creates a list of up to nine options, with their labels.
    pub(crate) fn new(options: Vec<(String, T)>, escape_label: &'static str) -> Self {
        Self {
            options,
            selected: None,
            drawn_selection: Cell::new(None),
            digit_keys: DigitKeys::Select,
            typed_digit: None,
            escape_label,
        }
    }

    /// Creates a list that follows an input of text. Digits select nothing until an arrow key is
    /// pressed, because they may belong to that text.
    pub(crate) fn after_text(options: Vec<(String, T)>, escape_label: &'static str) -> Self {
        Self {
            digit_keys: DigitKeys::AreText,
            ..Self::new(options, escape_label)
        }
    }

    pub(crate) fn handle_key(&mut self, key: KeyEvent) -> ChoiceKeyResult<T> {
        // Shift alone does not change what an arrow or a digit means.
        if key.modifiers.difference(KeyModifiers::SHIFT).is_empty() {
            match key.code {
                KeyCode::Up | KeyCode::Down => {
                    self.move_selection(key.code);
                    return ChoiceKeyResult::Consumed;
                }
                // A second digit makes both a part of a text.
                KeyCode::Char(digit @ '1'..='9')
                    if self.digit_keys == DigitKeys::Select && self.typed_digit.is_none() =>
                {
                    let index = digit as usize - '1' as usize;
                    if index < self.options.len() {
                        (self.selected, self.typed_digit) = (Some(index), Some(digit));
                        return ChoiceKeyResult::Consumed;
                    }
                }
                KeyCode::Enter if key.modifiers.is_empty() => {
                    let drawn = self
                        .selected
                        .filter(|_| self.selected == self.drawn_selection.get());
                    return match drawn.and_then(|index| self.options.get(index)) {
                        Some((_, option)) => ChoiceKeyResult::Chosen(option.clone()),
                        None => ChoiceKeyResult::Consumed,
                    };
                }
                KeyCode::Esc => return ChoiceKeyResult::Escaped,
                KeyCode::Char(_) => {
                    self.clear_selection();
                    return ChoiceKeyResult::NotForList;
                }
                _ => {}
            }
        }
        self.clear_selection();
        self.typed_digit = None;
        ChoiceKeyResult::NotForList
    }

    /// Clears the selection after other input, such as a paste.
    pub(crate) fn clear_selection(&mut self) {
        self.selected = None;
        self.digit_keys = DigitKeys::AreText;
    }

    /// Returns the digit that selected an option before text was typed or pasted. It is the
    /// beginning of that text.
    pub(crate) fn take_typed_digit(&mut self) -> Option<char> {
        match self.digit_keys {
            DigitKeys::Select => None,
            DigitKeys::AreText => self.typed_digit.take(),
        }
    }

    /// From no selection, Down selects the first option and Up the last.
    fn move_selection(&mut self, arrow: KeyCode) {
        (self.digit_keys, self.typed_digit) = (DigitKeys::Select, None);
        let last = self.options.len().saturating_sub(1);
        self.selected = Some(match (self.selected, arrow) {
            (None, KeyCode::Down) => 0,
            (None, _) => last,
            (Some(index), KeyCode::Down) => (index + 1).min(last),
            (Some(index), _) => index.saturating_sub(1),
        });
    }

    /// Returns the options and a line about the keys, in at most `height` lines. If they do not
    /// fit, the options around the selected one are shown, and a line that says which these are.
    pub(crate) fn lines(&self, theme: Theme, width: usize, height: usize) -> Vec<Line<'static>> {
        let options: Vec<Vec<Line<'static>>> = (0..self.options.len())
            .map(|index| self.option_row(index, theme).wrapped(width))
            .collect();
        let keys = wrap_rows(&[self.key_row()], width);
        let all: usize = options.iter().map(Vec::len).sum();
        let (shown, below) = match all + keys.len() <= height {
            true => (0..options.len(), keys),
            false => {
                let shown = self.range_that_fits(&options, height.saturating_sub(1));
                let (first, last, all) = (shown.start + 1, shown.end, options.len());
                let position = match shown.is_empty() {
                    true => "the terminal is too small to choose".to_owned(),
                    false => format!("options {first} to {last} of {all} · ↑ ↓ shows more"),
                };
                let position = StyledRow::dim(position).truncated().indented(2);
                (shown, position.wrapped(width))
            }
        };
        let drawn = self.selected.filter(|index| shown.contains(index));
        self.drawn_selection.set(drawn);
        let mut lines: Vec<Line<'static>> = options[shown].concat();
        lines.extend(below);
        lines.truncate(height);
        lines
    }

    /// Returns the options that are shown in `height` lines: whole ones up to the selected one, and
    /// those after it. None if not even the selected one fits.
    fn range_that_fits(&self, options: &[Vec<Line<'static>>], height: usize) -> Range<usize> {
        let fits = |range: Range<usize>| {
            let lines = options
                .get(range)
                .map(|range| range.iter().map(Vec::len).sum());
            lines.is_some_and(|lines: usize| lines <= height)
        };
        let selected = self.selected.unwrap_or(0);
        let Some(first) = (0..=selected).find(|first| fits(*first..selected + 1)) else {
            return 0..0;
        };
        let ends = selected + 1..=options.len();
        let end = ends.take_while(|end| fits(first..*end)).last();
        first..end.unwrap_or(first)
    }

    fn option_row(&self, index: usize, theme: Theme) -> StyledRow {
        let is_selected = self.selected == Some(index);
        let mark = if is_selected { "❯ " } else { "  " };
        let number = format!("{}. ", index + 1);
        let label = sanitize_line(&self.options[index].0);
        let row = match is_selected {
            true => StyledRow::styled(label, theme.selected()),
            false => StyledRow::text(label),
        };
        row.with_prefix(Span::styled(number, theme.question()))
            .with_prefix(Span::styled(mark, theme.question()))
    }

    fn key_row(&self) -> StyledRow {
        let choose = match self.digit_keys {
            DigitKeys::Select => "↑ ↓ or a digit chooses",
            DigitKeys::AreText => "↑ ↓ chooses",
        };
        let keys = format!("{choose} · Enter confirms · Esc {}", self.escape_label);
        StyledRow::dim(keys).indented(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> ChoiceList<&'static str> {
        let options = ["yes", "always", "no"].map(|name| (name.to_owned(), name));
        ChoiceList::new(options.to_vec(), "denies")
    }

    fn shown(list: &ChoiceList<&'static str>, height: usize) -> Vec<String> {
        let lines = list.lines(Theme::Plain, 40, height);
        lines.iter().map(ToString::to_string).collect()
    }

    /// Presses a key after the list was drawn.
    fn press(list: &mut ChoiceList<&'static str>, code: KeyCode) -> ChoiceKeyResult<&'static str> {
        shown(list, 20);
        list.handle_key(code.into())
    }

    #[test]
    fn a_digit_or_an_arrow_selects_and_enter_confirms() {
        let mut list = list();
        assert_eq!(
            press(&mut list, KeyCode::Enter),
            ChoiceKeyResult::Consumed,
            "nothing is selected"
        );
        press(&mut list, KeyCode::Char('2'));
        assert_eq!(
            press(&mut list, KeyCode::Enter),
            ChoiceKeyResult::Chosen("always")
        );
        press(&mut list, KeyCode::Down);
        assert_eq!(
            press(&mut list, KeyCode::Enter),
            ChoiceKeyResult::Chosen("no")
        );
        assert_eq!(press(&mut list, KeyCode::Esc), ChoiceKeyResult::Escaped);
    }

    #[test]
    fn text_and_pastes_clear_the_selection_until_an_arrow() {
        let mut list = list();
        for text in [
            "stop it", "yes", "1 more", "2nd", "use 2", "7", "0", "line 1", "12", "11", "3 2 1",
        ] {
            for c in text.chars() {
                press(&mut list, KeyCode::Char(c));
            }
            assert_eq!(
                press(&mut list, KeyCode::Enter),
                ChoiceKeyResult::Consumed,
                "{text}"
            );
        }
        press(&mut list, KeyCode::Up);
        assert_eq!(
            press(&mut list, KeyCode::Enter),
            ChoiceKeyResult::Chosen("no")
        );
        list.clear_selection();
        press(&mut list, KeyCode::Char('1'));
        assert_eq!(press(&mut list, KeyCode::Enter), ChoiceKeyResult::Consumed);
        press(&mut list, KeyCode::Down);
        press(&mut list, KeyCode::Char('2'));
        let alt_enter = KeyEvent::new(KeyCode::Enter, KeyModifiers::ALT);
        assert_eq!(list.handle_key(alt_enter), ChoiceKeyResult::NotForList);
        assert_eq!(press(&mut list, KeyCode::Enter), ChoiceKeyResult::Consumed);
    }

    #[test]
    fn a_second_digit_clears_the_selection_of_a_new_list() {
        let mut list = list();
        press(&mut list, KeyCode::Char('1'));
        assert_eq!(
            press(&mut list, KeyCode::Char('2')),
            ChoiceKeyResult::NotForList
        );
        assert_eq!(list.take_typed_digit(), Some('1'));
        assert_eq!(list.take_typed_digit(), None);
        assert_eq!(press(&mut list, KeyCode::Enter), ChoiceKeyResult::Consumed);
    }

    #[test]
    fn a_short_list_shows_whole_options_and_enter_confirms_only_a_drawn_one() {
        let options = (1..=7).map(|n| (format!("option {n} {}", "x".repeat(30)), "yes"));
        let mut list = ChoiceList::new(options.collect(), "denies");
        let first = |n: usize| format!("{n}. option {n}");
        let lines = shown(&list, 6);
        assert_eq!(lines.len(), 5, "two options of two lines, and the position");
        assert!(lines[0].contains(&first(1)) && lines[2].contains(&first(2)));
        assert_eq!(lines[4], "  options 1 to 2 of 7 · ↑ ↓ shows more");
        list.handle_key(KeyCode::Up.into());
        assert_eq!(
            list.handle_key(KeyCode::Enter.into()),
            ChoiceKeyResult::Consumed,
            "the last option was not drawn yet"
        );
        let lines = shown(&list, 6);
        assert_eq!(lines[4], "  options 6 to 7 of 7 · ↑ ↓ shows more");
        assert!(lines[2].starts_with("❯ 7. "), "{lines:?}");
        assert_eq!(shown(&list, 2).len(), 1, "no option fits");
        assert_eq!(
            list.handle_key(KeyCode::Enter.into()),
            ChoiceKeyResult::Consumed
        );
        shown(&list, 6);
        assert_eq!(
            list.handle_key(KeyCode::Enter.into()),
            ChoiceKeyResult::Chosen("yes")
        );
    }
}
