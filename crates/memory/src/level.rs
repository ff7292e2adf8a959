//! The levels of detail of a turn, and the tags around turns in a prompt: `<T-50-R>`.

use std::borrow::Cow;
use std::fmt::Write;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::MemoryError;

/// A level of detail of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Level {
    /// The exact text.
    #[serde(rename = "R", alias = "raw", alias = "r")]
    Raw,
    /// Cleaned: no filler, no repetition, short arguments of calls.
    #[serde(rename = "S", alias = "smoothed", alias = "s")]
    Smoothed,
    /// The most important sentences, and actions with their outcome: `exec npm test → 2 failed`.
    #[serde(rename = "C", alias = "compressed", alias = "c")]
    Compressed,
    /// The topic, in a few words: request, result, and the files and symbols at stake.
    #[serde(rename = "T", alias = "tiny", alias = "t")]
    Tiny,
}

impl Level {
    /// All levels, the most detailed first.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Smoothed, Self::Compressed, Self::Tiny];

    /// Returns the letter of the level in tags.
    pub fn letter(self) -> char {
        ['R', 'S', 'C', 'T'][self as usize]
    }

    /// Returns the name of the level, which is also its column in `memory_levels`.
    pub fn as_str(self) -> &'static str {
        ["raw", "smoothed", "compressed", "tiny"][self as usize]
    }
}

impl FromStr for Level {
    type Err = MemoryError;

    fn from_str(text: &str) -> Result<Self, MemoryError> {
        let found = Self::ALL.into_iter().find(|level| {
            text.eq_ignore_ascii_case(level.as_str())
                || text.eq_ignore_ascii_case(level.letter().encode_utf8(&mut [0; 4]))
        });
        found.ok_or_else(|| MemoryError::InvalidLevel(text.to_owned()))
    }
}

/// Parses the number of a turn from `T-50`, `50`, or a tag such as `<T-50-R>`.
pub fn parse_turn_number(name: &str) -> Option<u32> {
    let name = name.trim().trim_start_matches('<').trim_end_matches('>');
    let digits = strip_turn_prefix(name).unwrap_or(name);
    let digits = digits.split('-').next().unwrap_or(digits);
    digits.parse().ok().filter(|number| *number > 0)
}

fn strip_turn_prefix(name: &str) -> Option<&str> {
    name.strip_prefix("T-").or_else(|| name.strip_prefix("t-"))
}

/// The turns that a tag covers, and their level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TaggedSpan {
    /// The number of the first turn.
    pub first: u32,
    /// The number of the last turn, inclusive.
    pub last: u32,
    /// The level at which the turns are rendered.
    pub level: Level,
}

impl TaggedSpan {
    pub(crate) fn new(first: u32, last: u32, level: Level) -> Self {
        Self { first, last, level }
    }

    pub(crate) fn single(turn: u32, level: Level) -> Self {
        Self::new(turn, turn, level)
    }

    fn tag_name(self) -> String {
        let letter = self.level.letter();
        match self.first == self.last {
            true => format!("T-{}-{letter}", self.first),
            false => format!("T-{}-through-{}-{letter}", self.first, self.last),
        }
    }

    /// Appends the opening tag, the text and the closing tag to `out`, each on lines of its own.
    /// The caller has escaped the text.
    pub(crate) fn wrap(self, text: &str, out: &mut String) {
        let name = self.tag_name();
        // Writing to a string cannot fail.
        let _ = write!(out, "<{name}>\n{text}\n</{name}>\n");
    }

    /// Returns an upper bound of the tokens of the tags and of the line breaks around a text.
    pub(crate) fn tag_tokens(self) -> u32 {
        let number = |n: u32| n.max(1).ilog10() / 3 + 1;
        let through = match self.first == self.last {
            true => 0,
            false => 2 + number(self.last),
        };
        // `<T` `-` `12` `-R` `>\n` and `\n` `</` `T` `-` `12` `-R` `>\n`.
        11 + 2 * (number(self.first) - 1) + 2 + 2 * through
    }
}

/// Escapes everything in a text that looks like a tag of a turn.
pub(crate) fn escape_tags(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut from = 0;
    for (at, _) in text.match_indices('<') {
        if starts_turn_tag(&text[at + 1..]) {
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

/// Returns whether the text after a `<` is that of a turn's tag.
fn starts_turn_tag(rest: &str) -> bool {
    let rest = rest.strip_prefix('/').unwrap_or(rest);
    strip_turn_prefix(rest).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tags_of_turns_are_escaped() {
        let mut out = String::new();
        TaggedSpan::single(7, Level::Raw).wrap(
            &escape_tags("a <b> <T-7-R> </T-3-through-9-C> <T-x>"),
            &mut out,
        );
        assert_eq!(
            out,
            "<T-7-R>\na <b> &lt;T-7-R> &lt;/T-3-through-9-C> <T-x>\n</T-7-R>\n"
        );
        let span = TaggedSpan {
            first: 50,
            last: 100,
            level: Level::Compressed,
        };
        assert_eq!(span.tag_name(), "T-50-through-100-C");
    }

    #[test]
    fn turn_numbers_are_parsed_from_every_spelling() {
        for name in ["T-50", "50", "t-50", "<T-50-R>", "T-50-S"] {
            assert_eq!(parse_turn_number(name), Some(50), "{name}");
        }
        assert_eq!(
            (
                parse_turn_number("T-0"),
                parse_turn_number("fifty"),
                parse_turn_number("")
            ),
            (None, None, None)
        );
        assert_eq!("c".parse::<Level>().unwrap(), Level::Compressed);
        assert!("X".parse::<Level>().is_err());
    }
}
