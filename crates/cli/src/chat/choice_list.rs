//! A list of options of which one is chosen deliberately: with the arrows or a digit, confirmed
//! with Enter.
//!
//! Nothing is selected at first, and Enter without a selection does nothing. Any other key, and any
//! paste, clears the selection; after that, digits select nothing until an arrow key is pressed. So
//! typed words never choose an option, not even if they begin or end with a digit.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_core::text::Span;

use super::rows::{StyledRow, sanitize_line};
use super::theme::Theme;

/// The options and the state of the choice.
#[derive(Debug)]
pub(crate) struct ChoiceList<T> {
    options: Vec<(String, T)>,
    selected: Option<usize>,
    digit_keys: DigitKeys,
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
            digit_keys: DigitKeys::Select,
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
                KeyCode::Char(digit @ '1'..='9') if self.digit_keys == DigitKeys::Select => {
                    let index = digit as usize - '1' as usize;
                    if index < self.options.len() {
                        self.selected = Some(index);
                        return ChoiceKeyResult::Consumed;
                    }
                }
                KeyCode::Enter if key.modifiers.is_empty() => {
                    return match self.selected.and_then(|index| self.options.get(index)) {
                        Some((_, option)) => ChoiceKeyResult::Chosen(option.clone()),
                        None => ChoiceKeyResult::Consumed,
                    };
                }
                KeyCode::Esc => return ChoiceKeyResult::Escaped,
                _ => {}
            }
        }
        self.clear_selection();
        ChoiceKeyResult::NotForList
    }

    /// Clears the selection after other input, such as a paste.
    pub(crate) fn clear_selection(&mut self) {
        self.selected = None;
        self.digit_keys = DigitKeys::AreText;
    }

    /// From no selection, Down selects the first option and Up the last.
    fn move_selection(&mut self, arrow: KeyCode) {
        self.digit_keys = DigitKeys::Select;
        let last = self.options.len().saturating_sub(1);
        self.selected = Some(match (self.selected, arrow) {
            (None, KeyCode::Down) => 0,
            (None, _) => last,
            (Some(index), KeyCode::Down) => (index + 1).min(last),
            (Some(index), _) => index.saturating_sub(1),
        });
    }

    /// Returns one row per option, and a row about the keys.
    pub(crate) fn rows(&self, theme: Theme) -> Vec<StyledRow> {
        let mut rows: Vec<StyledRow> = Vec::new();
        for (index, (label, _)) in self.options.iter().enumerate() {
            let is_selected = self.selected == Some(index);
            let mark = if is_selected { "❯ " } else { "  " };
            let number = format!("{}. ", index + 1);
            let label = sanitize_line(label);
            let row = match is_selected {
                true => StyledRow::styled(label, theme.selected()),
                false => StyledRow::text(label),
            };
            rows.push(
                row.with_prefix(Span::styled(number, theme.question()))
                    .with_prefix(Span::styled(mark, theme.question())),
            );
        }
        let choose = match self.digit_keys {
            DigitKeys::Select => "↑ ↓ or a digit chooses",
            DigitKeys::AreText => "↑ ↓ chooses",
        };
        let keys = format!("{choose} · Enter confirms · Esc {}", self.escape_label);
        rows.push(StyledRow::dim(keys).indented(2));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> ChoiceList<&'static str> {
        let options = ["yes", "always", "no"].map(|name| (name.to_owned(), name));
        ChoiceList::new(options.to_vec(), "denies")
    }

    fn press(list: &mut ChoiceList<&'static str>, code: KeyCode) -> ChoiceKeyResult<&'static str> {
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
            "stop it", "yes", "1 more", "2nd", "use 2", "7", "0", "line 1",
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
}
