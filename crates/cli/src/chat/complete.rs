//! Completions while the user types: slash commands, their arguments, and files after an `@`.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui_core::text::Span;

use super::commands::{ALL, POLICIES, name_of};
use super::look::Look;
use super::rows::{Row, one_line, short};

/// Completions that are visible at once.
const SHOWN: usize = 6;

/// One completion: the text to insert, and a description that may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) text: String,
    pub(crate) about: String,
}

impl Offer {
    pub(crate) fn new(text: impl Into<String>, about: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            about: about.into(),
        }
    }
}

/// What is being completed, with the text typed so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wish {
    Command(String),
    Model(String),
    Policy(String),
    Session(String),
    File(String),
}

/// The menu of completions and its selected entry. The list is never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offers {
    pub(crate) wish: Wish,
    /// Byte offset from which the text up to the cursor is replaced.
    pub(crate) from: usize,
    pub(crate) list: Vec<Offer>,
    chosen: usize,
}

/// Returns what the text before the cursor can be completed to, and the byte offset from which it
/// is replaced. `cursor` is a byte offset.
pub(crate) fn wish(text: &str, cursor: usize) -> Option<(Wish, usize)> {
    let before = text.get(..cursor)?;
    if before.starts_with('/') && !before.contains('\n') {
        let Some((command, argument)) = before.split_once(' ') else {
            return (!before[1..].contains('/')).then(|| (Wish::Command(before.to_owned()), 0));
        };
        let from = before.len() - argument.len();
        let argument = argument.to_owned();
        return match command {
            _ if argument.contains(' ') => None,
            "/model" => Some((Wish::Model(argument), from)),
            "/approvals" => Some((Wish::Policy(argument), from)),
            "/resume" => Some((Wish::Session(argument), from)),
            _ => None,
        };
    }
    let word = before.rfind(char::is_whitespace).map_or(0, |space| {
        space + before[space..].chars().next().map_or(0, char::len_utf8)
    });
    let name = before[word..].strip_prefix('@')?;
    Some((Wish::File(name.to_owned()), word))
}

pub(crate) fn commands(typed: &str) -> Vec<Offer> {
    let all = ALL
        .iter()
        .map(|(usage, help)| Offer::new(name_of(usage), *help));
    all.filter(|completion| completion.text.starts_with(typed))
        .collect()
}

pub(crate) fn policies(typed: &str) -> Vec<Offer> {
    let all = POLICIES
        .iter()
        .map(|(name, help, _)| Offer::new(*name, *help));
    all.filter(|completion| completion.text.starts_with(typed))
        .collect()
}

impl Offers {
    /// Returns `None` if the list is empty, or if its only entry is already typed.
    pub(crate) fn new(wish: Wish, from: usize, list: Vec<Offer>) -> Option<Self> {
        let typed = wish.letters();
        let already_typed = list.len() == 1 && list[0].text == typed;
        (!list.is_empty() && !already_typed).then_some(Self {
            wish,
            from,
            list,
            chosen: 0,
        })
    }

    pub(crate) fn chosen(&self) -> Option<&Offer> {
        self.list.get(self.chosen)
    }

    /// Moves the selection. Returns whether the key was used.
    pub(crate) fn press(&mut self, key: KeyEvent) -> bool {
        let step = match key.code {
            KeyCode::Up => self.list.len() - 1,
            KeyCode::Down => 1,
            _ => return false,
        };
        self.chosen = (self.chosen + step) % self.list.len();
        true
    }

    pub(crate) fn rows(&self, theme: Look) -> Vec<Row> {
        let last = self.list.len().saturating_sub(SHOWN);
        let first = self.chosen.saturating_sub(SHOWN - 1).min(last);
        let lengths = self.list.iter().map(|entry| entry.text.chars().count());
        let width = lengths.max().unwrap_or(0).min(40);
        let shown = self.list.iter().enumerate().skip(first).take(SHOWN);
        let mut rows: Vec<Row> = shown
            .map(|(index, entry)| {
                let (mark, style) = match index == self.chosen {
                    true => ("▸ ", theme.chosen()),
                    false => ("  ", Default::default()),
                };
                let mut body = vec![Span::styled(one_line(&entry.text), style)];
                if !entry.about.is_empty() {
                    let padding = " ".repeat(width.saturating_sub(entry.text.chars().count()) + 2);
                    let about = short(&one_line(&entry.about), 80);
                    body.push(Span::styled(format!("{padding}{about}"), theme.quiet()));
                }
                Row::spans(body).cut().behind(Span::raw(mark))
            })
            .collect();
        if self.list.len() > SHOWN {
            let (position, total) = (self.chosen + 1, self.list.len());
            rows.push(Row::quiet(format!("  {position} of {total}")));
        }
        rows
    }
}

impl Wish {
    fn letters(&self) -> &str {
        match self {
            Self::Command(text)
            | Self::Model(text)
            | Self::Policy(text)
            | Self::Session(text)
            | Self::File(text) => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_before_the_cursor_decides_what_is_completed() {
        let target = |text: &str| wish(text, text.len());
        assert_eq!(target("/mo"), Some((Wish::Command("/mo".into()), 0)));
        assert_eq!(
            target("/approvals on"),
            Some((Wish::Policy("on".into()), 11))
        );
        assert_eq!(
            target("look at @src/ma"),
            Some((Wish::File("src/ma".into()), 8))
        );
        assert_eq!(target("@"), Some((Wish::File(String::new()), 0)));
        for text in ["", "me@example.com", "/usr/bin", "/diff x", "plain"] {
            assert_eq!(target(text), None, "{text}");
        }
    }

    #[test]
    fn the_selection_wraps_around_and_stays_visible() {
        let list = (0..9)
            .map(|n| Offer {
                text: format!("file{n}"),
                about: String::new(),
            })
            .collect();
        let mut menu = Offers::new(Wish::File(String::new()), 0, list).unwrap();
        assert!(menu.press(KeyEvent::from(KeyCode::Up)));
        let rows: Vec<String> = menu.rows(Look::Plain).iter().map(Row::plain).collect();
        assert_eq!(rows.last().unwrap(), "  9 of 9");
        assert!(rows.contains(&"▸ file8".to_owned()), "{rows:?}");
        assert!(menu.press(KeyEvent::from(KeyCode::Down)));
        assert_eq!(menu.chosen().unwrap().text, "file0");
        assert!(Offers::new(Wish::Command("/diff".into()), 0, commands("/diff")).is_none());
    }
}
