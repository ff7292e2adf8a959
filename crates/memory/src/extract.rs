//! Extracts the lower levels of a turn by rules, without a model and without I/O.
//!
//! A turn is split into units (sentences, calls with their output), and each unit gets a score.
//! Units are kept whole, the best first, until the target is reached; the first one that does not
//! fit is reduced to its best words. So a turn of any length meets its target, and the kept text
//! stays in its original order.

use std::collections::HashSet;

use crate::items::Piece;
use crate::smooth::{
    arguments, clean, lines_kept, one_line, sentences, shortened, stands_out, telling_line,
};
use crate::words::{each_word, is_stop_word};

/// Target sizes as shares of the raw tokens. The upper bounds are 75 %, 45 % and 8 %.
const SMOOTHED: f64 = 0.66;
const COMPRESSED: f64 = 0.36;
const TINY: f64 = 0.075;
/// Cleaned text up to this share of the raw tokens is used as the smoothed level unchanged.
const SMOOTH_ENOUGH: f64 = 0.74;

/// How texts are measured.
pub(crate) struct Language<'a> {
    /// Returns how rare a word is in its session; higher is rarer.
    pub(crate) rarity: &'a dyn Fn(&str) -> f64,
    /// Counts the tokens of a text.
    pub(crate) count: &'a dyn Fn(&str) -> u32,
}

/// The three lower levels of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lower {
    pub(crate) smoothed: String,
    pub(crate) compressed: String,
    pub(crate) tiny: String,
}

/// Extracts the lower levels of a turn. `raw_tokens` is the size of the raw turn.
pub(crate) fn lower(pieces: &[Piece], raw_tokens: u32, measures: &Language<'_>) -> Lower {
    let units = units(pieces, measures);
    let raw = f64::from(raw_tokens);
    let whole: u32 = units.iter().map(|unit| unit.tokens).sum();
    let target = |share: f64| ((raw * share) as u32).max(1);
    let smoothed = match f64::from(whole) <= raw * SMOOTH_ENOUGH {
        true => join(units.iter().map(|unit| (unit, unit.text.clone()))),
        false => fit(&units, target(SMOOTHED), measures),
    };
    let short_units: Vec<Unit> = units.iter().map(|unit| unit.shortened(measures)).collect();
    Lower {
        smoothed,
        compressed: fit(&short_units, target(COMPRESSED), measures),
        tiny: fit(&tellings(&short_units), target(TINY), measures),
    }
}

/// Returns the lines with the highest scores, within `target` tokens, joined to one line.
/// Repeated lines are used once.
pub(crate) fn best_lines(lines: &[String], target: u32, measures: &Language<'_>) -> String {
    let mut seen = HashSet::new();
    let lines = lines.iter().filter(|line| !line.is_empty());
    let lines = lines.map(|line| one_line(line));
    let unique = lines.filter(|line| seen.insert(line.to_lowercase()));
    let units: Vec<Unit> = unique
        .map(|line| Unit::new(line, (0, 0), 1.0, measures))
        .collect();
    fit(&units, target, measures)
}

/// A sentence, a call, or a line of a call's output.
#[derive(Debug, Clone)]
struct Unit {
    text: String,
    /// The short form of a call, for the compressed and tiny levels. `None` for other units.
    short: Option<String>,
    tokens: u32,
    worth: f64,
    /// Index of the piece, and of the line in it. Units of one line are joined by a space, others
    /// by a line break.
    place: (usize, usize),
}

impl Unit {
    fn new(text: String, place: (usize, usize), factor: f64, measures: &Language<'_>) -> Self {
        Self {
            short: None,
            tokens: (measures.count)(&text).max(1),
            worth: factor * worth(&text, measures),
            text,
            place,
        }
    }

    fn shortened(&self, measures: &Language<'_>) -> Self {
        match &self.short {
            Some(short) => Self {
                tokens: (measures.count)(short),
                text: short.clone(),
                ..self.clone()
            },
            None => self.clone(),
        }
    }
}

/// Factors by which the kind of a piece changes the score of its units.
const OF_THE_USER: f64 = 1.6;
const OF_THE_END: f64 = 1.4;
const OF_A_THOUGHT: f64 = 0.4;
const OF_A_CALL: f64 = 1.0;
const OF_A_FAILURE: f64 = 1.8;
const OF_THE_FIRST_SENTENCE: f64 = 1.25;
/// The score of a number. It is fixed, because a rare number hardly says what a text is about.
const OF_A_NUMBER: f64 = 1.5;
/// Of longer outputs, only the first and last lines and the notable ones are used.
const LINES_KEPT: usize = 400;

/// Splits pieces into scored units. A call and its output are combined.
fn units(pieces: &[Piece], measures: &Language<'_>) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let is_message = |piece: &Piece| matches!(piece, Piece::Said { .. });
    let last_message = pieces.iter().rposition(is_message);
    let mut at = 0;
    while at < pieces.len() {
        let before = units.len();
        match &pieces[at] {
            Piece::Said { role, text } => {
                let mut factor = if role == "user" { OF_THE_USER } else { 1.0 };
                if Some(at) == last_message && pieces.len() > 1 {
                    factor *= OF_THE_END;
                }
                say(text, factor, at, measures, &mut units);
            }
            Piece::Thought(text) => say(text, OF_A_THOUGHT, at, measures, &mut units),
            Piece::Called { name, args } => {
                let (piece, mut output) = (at, ("", false));
                if let Some(Piece::Came { text, failed }) = pieces.get(at + 1) {
                    output = (text, *failed);
                    at += 1;
                }
                call(name, args, output, piece, measures, &mut units);
            }
            Piece::Came { text, failed } => {
                call("result", "", (text, *failed), at, measures, &mut units);
            }
        }
        if let Some(first) = units.get_mut(before) {
            first.worth *= OF_THE_FIRST_SENTENCE;
        }
        at += 1;
    }
    units
}

/// Adds the sentences of a message or of reasoning. Repeated sentences are added once.
fn say(text: &str, factor: f64, piece: usize, measures: &Language<'_>, units: &mut Vec<Unit>) {
    let cleaned = clean(text);
    let mut seen = HashSet::new();
    for (line, text) in cleaned.lines().enumerate() {
        for sentence in sentences(text) {
            if seen.insert(sentence.to_lowercase()) {
                units.push(Unit::new(
                    sentence.to_owned(),
                    (piece, line),
                    factor,
                    measures,
                ));
            }
        }
    }
}

/// Adds a call with its short form, and the lines of its output.
fn call(
    name: &str,
    args: &str,
    (output, failed): (&str, bool),
    piece: usize,
    measures: &Language<'_>,
    units: &mut Vec<Unit>,
) {
    let arguments_text = arguments(args);
    let head = |characters| {
        format!("{name} {}", shortened(&arguments_text, characters))
            .trim_end()
            .to_owned()
    };
    let title = head(80);
    let key_line = telling_line(output);
    let short = match key_line.is_empty() {
        true => format!("{{{title}}}"),
        false => format!("{{{title}: {}}}", shortened(&key_line, 100)),
    };
    let factor = if failed { OF_A_FAILURE } else { OF_A_CALL };
    let text = head(400);
    units.push(Unit {
        worth: factor * worth(&short, measures),
        short: Some(short),
        tokens: (measures.count)(&text).max(1),
        text,
        place: (piece, 0),
    });
    let lines = lines_kept(output, LINES_KEPT).into_iter().map(clean);
    for (line, text) in (1..).zip(lines) {
        if !text.trim().is_empty() {
            // Output lines count half, because the short form of the call has the key line.
            let factor = if stands_out(&text) { OF_A_FAILURE } else { 0.5 };
            let unit = Unit::new(text, (piece, line), factor, measures);
            units.push(Unit {
                worth: unit.worth * 0.5,
                ..unit
            });
        }
    }
}

/// Scores a text by its rare words, names and numbers, in relation to its length.
fn worth(text: &str, measures: &Language<'_>) -> f64 {
    let (mut sum, mut words) = (0.0, 0.0);
    let mut seen = HashSet::new();
    each_word(text, |word| {
        words += 1.0;
        if !is_stop_word(word) && seen.insert(word.to_owned()) {
            sum += match is_number(word) {
                true => OF_A_NUMBER,
                false => (measures.rarity)(word),
            };
        }
    });
    let is_name = |word: &&str| word.starts_with(char::is_uppercase);
    let names = text.split_whitespace().skip(1).filter(is_name).count();
    (sum + names as f64) / (words + 3.0_f64).sqrt()
}

fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) && !word.contains(char::is_alphabetic)
}

/// Selects the units for the tiny level: messages without the calls, unless there is only one call
/// or there are only calls.
fn tellings(units: &[Unit]) -> Vec<Unit> {
    let calls = units.iter().filter(|unit| unit.short.is_some()).count();
    let all_calls = calls == units.len();
    let is_kept = |unit: &&Unit| unit.short.is_none() || calls == 1 || all_calls;
    units.iter().filter(is_kept).cloned().collect()
}

/// Joins the best units within `target` tokens, in their original order. A unit that does not fit
/// is reduced to its best words.
fn fit(units: &[Unit], target: u32, measures: &Language<'_>) -> String {
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by(|a, b| units[*b].worth.total_cmp(&units[*a].worth).then(a.cmp(b)));
    let mut kept: Vec<(usize, String)> = Vec::new();
    let mut left = target;
    for at in order {
        let unit = &units[at];
        // One token for the space or line break before the unit.
        let joined = unit.tokens + u32::from(!kept.is_empty());
        if joined <= left {
            left -= joined;
            kept.push((at, unit.text.clone()));
        } else if left > 0 {
            let squeezed = squeeze(&unit.text, left, measures);
            let tokens = (measures.count)(&squeezed);
            if !squeezed.is_empty() && (tokens < left || kept.is_empty()) {
                left = left.saturating_sub(tokens + 1);
                kept.push((at, squeezed));
            } else {
                break;
            }
        }
        if left < 2 {
            break;
        }
    }
    kept.sort_by_key(|(at, _)| *at);
    join(kept.into_iter().map(|(at, text)| (&units[at], text)))
}

fn join<'a>(kept: impl Iterator<Item = (&'a Unit, String)>) -> String {
    let mut text = String::new();
    let mut before = None;
    for (unit, part) in kept {
        if let Some(before) = before {
            text.push(if before == unit.place { ' ' } else { '\n' });
        }
        text.push_str(&part);
        before = Some(unit.place);
    }
    text
}

/// With a target of at most this many tokens, only content words are kept.
const FEW: u32 = 8;
/// Words with a higher score are content words.
const SAYS_SOMETHING: f64 = 1.0;
/// Words after this many are ignored.
const WORDS_WEIGHED: usize = 2000;

/// Returns the best words of a text within `target` tokens, in their original order; at least one
/// word.
fn squeeze(text: &str, target: u32, measures: &Language<'_>) -> String {
    struct Word<'a> {
        text: &'a str,
        worth: f64,
        tokens: u32,
    }
    let words = text.split_whitespace().take(WORDS_WEIGHED).enumerate();
    let mut words: Vec<Word<'_>> = words
        .map(|(at, text)| {
            let worth = worth_of_word(text, at, measures);
            // A few words need no punctuation.
            let bare = text.trim_matches(|c: char| !c.is_alphanumeric());
            let is_bare = target <= FEW && !bare.is_empty();
            let text = if is_bare { bare } else { text };
            let tokens = (measures.count)(&format!(" {text}")).max(1);
            Word {
                text,
                worth,
                tokens,
            }
        })
        .collect();
    if target <= FEW && words.iter().any(|word| word.worth > SAYS_SOMETHING) {
        words.retain(|word| word.worth > SAYS_SOMETHING);
    }
    let mut order: Vec<usize> = (0..words.len()).collect();
    let by = |at: usize| words[at].worth / f64::from(words[at].tokens).sqrt();
    order.sort_by(|a, b| by(*b).total_cmp(&by(*a)).then(a.cmp(b)));
    let mut kept = Vec::new();
    let mut left = target;
    for at in order {
        if words[at].tokens <= left {
            left -= words[at].tokens;
            kept.push(at);
        }
    }
    if kept.is_empty() {
        // No word fits: keep the shortest content word, or else the first word.
        let content = (0..words.len()).filter(|at| words[*at].worth > SAYS_SOMETHING);
        let shortest = content.min_by_key(|at| words[*at].tokens);
        kept.extend(shortest.or((!words.is_empty()).then_some(0)));
    }
    // The first word has no leading space and may take more tokens than counted: drop the worst
    // words until the text fits.
    loop {
        let mut in_order = kept.clone();
        in_order.sort_unstable();
        let in_order: Vec<&str> = in_order.into_iter().map(|at| words[at].text).collect();
        let text = in_order.join(" ");
        let text = text.trim_matches([',', ';', ':', '(', ')', '"']);
        if kept.len() <= 1 || (measures.count)(text) <= target {
            return text.to_owned();
        }
        kept.pop();
    }
}

/// Words that reverse the meaning of a sentence. They get the highest score.
const NEGATIONS: &[&str] = &[
    "not", "no", "never", "none", "without", "cannot", "can't", "don't", "didn't", "won't",
];
const ARTICLES: &[&str] = &["a", "an", "the"];

/// Scores a word. `at` is its index in the text: a capital letter marks a name except in the first
/// word.
fn worth_of_word(word: &str, at: usize, measures: &Language<'_>) -> f64 {
    let lower = word.to_lowercase();
    let bare = lower.trim_matches(|c: char| !c.is_alphanumeric());
    if bare.is_empty() {
        return 0.05;
    }
    if NEGATIONS.contains(&bare) || bare.ends_with("n't") {
        return 5.0;
    }
    if ARTICLES.contains(&bare) {
        return 0.1;
    }
    let mut worth: f64 = 0.0;
    each_word(bare, |part| {
        worth = worth.max(match is_stop_word(part) {
            true => 0.5,
            false => 1.0 + (measures.rarity)(part),
        });
    });
    if is_number(bare) {
        return 1.0 + OF_A_NUMBER;
    }
    if at > 0 && word.starts_with(char::is_uppercase) && bare.len() > 1 {
        worth += 1.5;
    }
    worth
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measures<'a>() -> Language<'a> {
        Language {
            rarity: &|word| word.len() as f64 / 2.0,
            count: &crate::tokens::count,
        }
    }

    fn message(text: &str) -> Vec<Piece> {
        vec![Piece::Said {
            role: "user".into(),
            text: text.into(),
        }]
    }

    #[test]
    fn prose_of_any_length_meets_the_targets() {
        let sentence = "Well, I really just wanted to tell you that Caroline went to the adoption \
                        agency in Boston on May 8, and she was not happy with the answer they gave \
                        her. ";
        let filler = "Anyway, how are you doing these days? I hope that everything is going well \
                      for you and the kids! ";
        for repeated in [1, 2, 5, 40] {
            let text: String = (0..repeated)
                .map(|n| format!("{n}: {sentence}{filler}"))
                .collect();
            let raw = crate::tokens::count(&text);
            let lower = lower(&message(&text), raw, &measures());
            let share = |text: &str| f64::from(crate::tokens::count(text)) / f64::from(raw);
            let shares = [&lower.smoothed, &lower.compressed, &lower.tiny].map(|text| share(text));
            assert!(
                (0.4..=0.75).contains(&shares[0]),
                "S {} of {repeated}: {}",
                shares[0],
                lower.smoothed
            );
            assert!(
                (0.25..=0.45).contains(&shares[1]),
                "C {} of {repeated}: {}",
                shares[1],
                lower.compressed
            );
            assert!(
                shares[2] <= 0.08,
                "T {} of {repeated}: {}",
                shares[2],
                lower.tiny
            );
            assert!(!lower.tiny.is_empty());
            assert!(
                lower.compressed.contains("adoption") && lower.compressed.contains("not"),
                "{}",
                lower.compressed
            );
        }
    }

    #[test]
    fn calls_are_compressed_to_arguments_and_key_line() {
        let output = "> npm test\n".to_owned()
            + &"  ✓ works\n".repeat(60)
            + "  ✗ login\nTests: 2 failed, 58 passed\n";
        let pieces = vec![
            Piece::Said {
                role: "user".into(),
                text: "Please run the tests and tell me what fails in the login module.".into(),
            },
            Piece::Called {
                name: "exec".into(),
                args: r#"{"command":["npm","test"]}"#.into(),
            },
            Piece::Came {
                text: output.clone(),
                failed: true,
            },
            Piece::Said {
                role: "assistant".into(),
                text: "Two tests of the login module fail: the token has expired.".into(),
            },
        ];
        let lower = lower(&pieces, 600, &measures());
        assert!(
            lower
                .compressed
                .contains("{exec npm test: Tests: 2 failed, 58 passed}"),
            "{}",
            lower.compressed
        );
        assert!(lower.tiny.contains("login"), "{}", lower.tiny);
        assert_eq!(
            lower.smoothed.matches("works").count(),
            1,
            "{}",
            lower.smoothed
        );
    }

    #[test]
    fn empty_and_one_word_turns_are_handled() {
        assert_eq!(
            lower(&[], 0, &measures()),
            Lower {
                smoothed: "".into(),
                compressed: "".into(),
                tiny: "".into()
            }
        );
        let ok = lower(&message("ok"), 1, &measures());
        assert_eq!((ok.smoothed.as_str(), ok.tiny.as_str()), ("ok", "ok"));
        assert!(lower(&message("… !!"), 2, &measures()).tiny.len() < 10);
    }
}
