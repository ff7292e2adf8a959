//! What is offered while somebody types: commands, their words, and files behind an `@`.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui_core::text::Span;

use super::commands::{ALL, POLICIES, name_of};
use super::look::Look;
use super::rows::{Row, one_line, short};

const SHOWN: usize = 6;

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

/// What the letters before the cursor ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wish {
    Command(String),
    Model(String),
    Policy(String),
    Session(String),
    File(String),
}

/// What is offered, where it would go, and which of it is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offers {
    pub(crate) wish: Wish,
    /// Where in the text it goes.
    pub(crate) from: usize,
    pub(crate) list: Vec<Offer>,
    chosen: usize,
}

/// What the text up to the cursor asks for, and from where it would be replaced.
pub(crate) fn wish(text: &str, at: usize) -> Option<(Wish, usize)> {
    let before = text.get(..at)?;
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
    let letters = before[word..].strip_prefix('@')?;
    Some((Wish::File(letters.to_owned()), word))
}

pub(crate) fn commands(word: &str) -> Vec<Offer> {
    let all = ALL
        .iter()
        .map(|(usage, what)| Offer::new(name_of(usage), *what));
    all.filter(|offer| offer.text.starts_with(word)).collect()
}

pub(crate) fn policies(word: &str) -> Vec<Offer> {
    let all = POLICIES
        .iter()
        .map(|(name, what, _)| Offer::new(*name, *what));
    all.filter(|offer| offer.text.starts_with(word)).collect()
}

impl Offers {
    /// `None` where there is nothing to offer.
    pub(crate) fn new(wish: Wish, from: usize, list: Vec<Offer>) -> Option<Self> {
        let typed = wish.letters();
        // What is there already is not offered.
        let done = list.len() == 1 && list[0].text == typed;
        (!list.is_empty() && !done).then_some(Self {
            wish,
            from,
            list,
            chosen: 0,
        })
    }

    pub(crate) fn chosen(&self) -> Option<&Offer> {
        self.list.get(self.chosen)
    }

    /// Moves the choice; says whether the key was for it.
    pub(crate) fn press(&mut self, key: KeyEvent) -> bool {
        let step = match key.code {
            KeyCode::Up => self.list.len() - 1,
            KeyCode::Down => 1,
            _ => return false,
        };
        self.chosen = (self.chosen + step) % self.list.len();
        true
    }

    pub(crate) fn rows(&self, look: Look) -> Vec<Row> {
        let last = self.list.len().saturating_sub(SHOWN);
        let first = self.chosen.saturating_sub(SHOWN - 1).min(last);
        let lengths = self.list.iter().map(|offer| offer.text.chars().count());
        let width = lengths.max().unwrap_or(0).min(40);
        let shown = self.list.iter().enumerate().skip(first).take(SHOWN);
        let mut rows: Vec<Row> = shown
            .map(|(at, offer)| {
                let (mark, style) = match at == self.chosen {
                    true => ("▸ ", look.chosen()),
                    false => ("  ", Default::default()),
                };
                let mut body = vec![Span::styled(one_line(&offer.text), style)];
                if !offer.about.is_empty() {
                    let room = " ".repeat(width.saturating_sub(offer.text.chars().count()) + 2);
                    let about = short(&one_line(&offer.about), 80);
                    body.push(Span::styled(format!("{room}{about}"), look.quiet()));
                }
                Row::spans(body).cut().behind(Span::raw(mark))
            })
            .collect();
        if self.list.len() > SHOWN {
            let (at, all) = (self.chosen + 1, self.list.len());
            rows.push(Row::quiet(format!("  {at} of {all}")));
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
    fn what_is_typed_says_what_is_wished_for() {
        let wished = |text: &str| wish(text, text.len());
        assert_eq!(wished("/mo"), Some((Wish::Command("/mo".into()), 0)));
        assert_eq!(
            wished("/approvals on"),
            Some((Wish::Policy("on".into()), 11))
        );
        assert_eq!(
            wished("look at @src/ma"),
            Some((Wish::File("src/ma".into()), 8))
        );
        assert_eq!(wished("@"), Some((Wish::File(String::new()), 0)));
        for nothing in ["", "me@example.com", "/usr/bin", "/diff x", "plain"] {
            assert_eq!(wished(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn the_choice_goes_round_and_stays_in_sight() {
        let list = (0..9)
            .map(|n| Offer {
                text: format!("file{n}"),
                about: String::new(),
            })
            .collect();
        let mut offers = Offers::new(Wish::File(String::new()), 0, list).unwrap();
        assert!(offers.press(KeyEvent::from(KeyCode::Up)));
        let rows: Vec<String> = offers.rows(Look::Plain).iter().map(Row::plain).collect();
        assert_eq!(rows.last().unwrap(), "  9 of 9");
        assert!(rows.contains(&"▸ file8".to_owned()), "{rows:?}");
        assert!(offers.press(KeyEvent::from(KeyCode::Down)));
        assert_eq!(offers.chosen().unwrap().text, "file0");
        assert!(Offers::new(Wish::Command("/diff".into()), 0, commands("/diff")).is_none());
    }
}
