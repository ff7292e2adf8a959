//! The four fidelities of a turn, its name, and the tags both are told by in a prompt.

use std::borrow::Cow;
use std::fmt::Write;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::MemoryError;

/// How much of a turn is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Level {
    /// Everything, byte for byte.
    #[serde(rename = "R", alias = "raw", alias = "r")]
    Raw,
    /// Cleaned: no filler, no repetition, calls with their arguments in short.
    #[serde(rename = "S", alias = "smoothed", alias = "s")]
    Smoothed,
    /// What was said and done, in a few words each.
    #[serde(rename = "C", alias = "compressed", alias = "c")]
    Compressed,
    /// What it was about.
    #[serde(rename = "T", alias = "tiny", alias = "t")]
    Tiny,
}

impl Level {
    /// All four, the fullest first.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Smoothed, Self::Compressed, Self::Tiny];

    /// Its letter in tags.
    pub fn letter(self) -> char {
        ['R', 'S', 'C', 'T'][self as usize]
    }

    /// Its name in words.
    pub fn word(self) -> &'static str {
        ["raw", "smoothed", "compressed", "tiny"][self as usize]
    }
}

impl FromStr for Level {
    type Err = MemoryError;

    fn from_str(text: &str) -> Result<Self, MemoryError> {
        let found = Self::ALL.into_iter().find(|level| {
            text.eq_ignore_ascii_case(level.word())
                || text.eq_ignore_ascii_case(level.letter().encode_utf8(&mut [0; 4]))
        });
        found.ok_or_else(|| MemoryError::NoLevel(text.to_owned()))
    }
}

/// The number of a turn from its name: `T-50`, `50`, or a whole tag such as `<T-50-R>`.
pub fn turn_number(name: &str) -> Option<u32> {
    let name = name.trim().trim_start_matches('<').trim_end_matches('>');
    let digits = after_prefix(name).unwrap_or(name);
    let digits = digits.split('-').next().unwrap_or(digits);
    digits.parse().ok().filter(|number| *number > 0)
}

fn after_prefix(name: &str) -> Option<&str> {
    name.strip_prefix("T-").or_else(|| name.strip_prefix("t-"))
}

/// The turns a tag covers, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Span {
    /// The first turn.
    pub first: u32,
    /// The last turn.
    pub last: u32,
    /// How they are told.
    pub level: Level,
}

impl Span {
    pub(crate) fn new(first: u32, last: u32, level: Level) -> Self {
        Self { first, last, level }
    }

    pub(crate) fn one(turn: u32, level: Level) -> Self {
        Self::new(turn, turn, level)
    }

    fn name(self) -> String {
        let letter = self.level.letter();
        match self.first == self.last {
            true => format!("T-{}-{letter}", self.first),
            false => format!("T-{}-through-{}-{letter}", self.first, self.last),
        }
    }

    /// The tag, the text and the closing tag, each on lines of their own. The text is escaped already.
    pub(crate) fn wrap(self, text: &str, out: &mut String) {
        let name = self.name();
        // Writing to a string cannot fail.
        let _ = write!(out, "<{name}>\n{text}\n</{name}>\n");
    }

    /// Tokens of the tags and the line breaks around a text. What they and the text merge into is never more.
    pub(crate) fn tokens(self) -> u32 {
        let number = |n: u32| n.max(1).ilog10() / 3 + 1;
        let through = match self.first == self.last {
            true => 0,
            false => 2 + number(self.last),
        };
        // `<T` `-` `12` `-R` `>\n` and `\n` `</` `T` `-` `12` `-R` `>\n`.
        11 + 2 * (number(self.first) - 1) + 2 + 2 * through
    }
}

/// The text with everything that looks like a turn's tag made harmless.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut from = 0;
    for (at, _) in text.match_indices('<') {
        if is_tag(&text[at + 1..]) {
            out.push_str(&text[from..at]);
            out.push_str("&lt;");
            from = at + 1;
        }
    }
    if from == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[from..]);
    Cow::Owned(out)
}

fn is_tag(rest: &str) -> bool {
    let rest = rest.strip_prefix('/').unwrap_or(rest);
    after_prefix(rest).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_in_a_text_are_escaped_and_nothing_else_is() {
        let mut out = String::new();
        Span::one(7, Level::Raw).wrap(&escape("a <b> <T-7-R> </T-3-through-9-C> <T-x>"), &mut out);
        assert_eq!(
            out,
            "<T-7-R>\na <b> &lt;T-7-R> &lt;/T-3-through-9-C> <T-x>\n</T-7-R>\n"
        );
        let span = Span {
            first: 50,
            last: 100,
            level: Level::Compressed,
        };
        assert_eq!(span.name(), "T-50-through-100-C");
    }

    #[test]
    fn turns_are_found_by_every_name() {
        for name in ["T-50", "50", "t-50", "<T-50-R>", "T-50-S"] {
            assert_eq!(turn_number(name), Some(50), "{name}");
        }
        assert_eq!(
            (turn_number("T-0"), turn_number("fifty"), turn_number("")),
            (None, None, None)
        );
        assert_eq!("c".parse::<Level>().unwrap(), Level::Compressed);
        assert!("X".parse::<Level>().is_err());
    }
}
