//! Extracts the lower levels of a turn by rules, without a model and without I/O.
//!
//! A turn is split into units (sentences, calls with their output), and each unit gets a score.
//! Units are kept whole, the best first, until the target is reached; the first one that does not
//! fit is reduced to its best words. So a turn of any length meets its target, and the kept text
//! stays in its original order.

use std::collections::HashSet;

use crate::cleaning::{
    clean_text, collapse_whitespace, find_key_line, format_arguments, is_notable, select_lines,
    split_sentences, truncate_words,
};
use crate::turn_pieces::TurnPiece;
use crate::words::{for_each_word, is_stop_word};

/// Target sizes as shares of the raw tokens. The upper bounds are 75 %, 45 % and 8 %.
const SMOOTHED_SHARE: f64 = 0.66;
const COMPRESSED_SHARE: f64 = 0.36;
const TINY_SHARE: f64 = 0.075;
/// Cleaned text up to this share of the raw tokens is used as the smoothed level unchanged.
const CLEAN_ENOUGH_SHARE: f64 = 0.74;

/// How texts are measured.
pub(crate) struct TextMeasures<'a> {
    /// Returns how rare a word is in its session; higher is rarer.
    pub(crate) rarity: &'a dyn Fn(&str) -> f64,
    /// Counts the tokens of a text.
    pub(crate) count_tokens: &'a dyn Fn(&str) -> u32,
}

/// The three lower levels of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LowerLevels {
    pub(crate) smoothed: String,
    pub(crate) compressed: String,
    pub(crate) tiny: String,
}

/// Extracts the lower levels of a turn. `raw_tokens` is the size of the raw turn.
pub(crate) fn extract_lower_levels(
    pieces: &[TurnPiece],
    raw_tokens: u32,
    measures: &TextMeasures<'_>,
) -> LowerLevels {
    let units = split_units(pieces, measures);
    let raw = f64::from(raw_tokens);
    let whole: u32 = units.iter().map(|unit| unit.tokens).sum();
    let target = |share: f64| ((raw * share) as u32).max(1);
    let smoothed = match f64::from(whole) <= raw * CLEAN_ENOUGH_SHARE {
        true => join_units(units.iter().map(|unit| (unit, unit.text.clone()))),
        false => fit_units(&units, target(SMOOTHED_SHARE), measures),
    };
    let short_units: Vec<TextUnit> = units.iter().map(|unit| unit.to_short(measures)).collect();
    LowerLevels {
        smoothed,
        compressed: fit_units(&short_units, target(COMPRESSED_SHARE), measures),
        tiny: fit_units(&tiny_units(&short_units), target(TINY_SHARE), measures),
    }
}

/// Returns the lines with the highest scores, within `target` tokens, joined to one line.
/// Repeated lines are used once.
pub(crate) fn best_lines(lines: &[String], target: u32, measures: &TextMeasures<'_>) -> String {
    let mut seen = HashSet::new();
    let lines = lines.iter().filter(|line| !line.is_empty());
    let lines = lines.map(|line| collapse_whitespace(line));
    let unique = lines.filter(|line| seen.insert(line.to_lowercase()));
    let units: Vec<TextUnit> = unique
        .map(|line| TextUnit::new(line, (0, 0), 1.0, measures))
        .collect();
    fit_units(&units, target, measures)
}

/// A sentence, a call, or a line of a call's output.
#[derive(Debug, Clone)]
struct TextUnit {
    text: String,
    /// The short form of a call, for the compressed and tiny levels. `None` for other units.
    short: Option<String>,
    tokens: u32,
    score: f64,
    /// Index of the piece, and of the line in it. Units of one line are joined by a space, others
    /// by a line break.
    position: (usize, usize),
}

impl TextUnit {
    fn new(text: String, place: (usize, usize), factor: f64, measures: &TextMeasures<'_>) -> Self {
        Self {
            short: None,
            tokens: (measures.count_tokens)(&text).max(1),
            score: factor * score_text(&text, measures),
            text,
            position: place,
        }
    }

    fn to_short(&self, measures: &TextMeasures<'_>) -> Self {
        match &self.short {
            Some(short) => Self {
                tokens: (measures.count_tokens)(short),
                text: short.clone(),
                ..self.clone()
            },
            None => self.clone(),
        }
    }
}

/// Factors by which the kind of a piece changes the score of its units.
const USER_FACTOR: f64 = 1.6;
const LAST_MESSAGE_FACTOR: f64 = 1.4;
const REASONING_FACTOR: f64 = 0.4;
const CALL_FACTOR: f64 = 1.0;
const FAILURE_FACTOR: f64 = 1.8;
const FIRST_SENTENCE_FACTOR: f64 = 1.25;
/// The score of a number. It is fixed, because a rare number hardly says what a text is about.
const NUMBER_SCORE: f64 = 1.5;
/// Of longer outputs, only the first and last lines and the notable ones are used.
const MAX_OUTPUT_LINES: usize = 400;

/// Splits pieces into scored units. A call and its output are combined.
fn split_units(pieces: &[TurnPiece], measures: &TextMeasures<'_>) -> Vec<TextUnit> {
    let mut units: Vec<TextUnit> = Vec::new();
    let is_message = |piece: &TurnPiece| matches!(piece, TurnPiece::Message { .. });
    let last_message = pieces.iter().rposition(is_message);
    let mut at = 0;
    while at < pieces.len() {
        let before = units.len();
        match &pieces[at] {
            TurnPiece::Message { role, text } => {
                let mut factor = if role == "user" { USER_FACTOR } else { 1.0 };
                if Some(at) == last_message && pieces.len() > 1 {
                    factor *= LAST_MESSAGE_FACTOR;
                }
                add_sentences(text, factor, at, measures, &mut units);
            }
            TurnPiece::Reasoning(text) => {
                add_sentences(text, REASONING_FACTOR, at, measures, &mut units)
            }
            TurnPiece::Call { name, args } => {
                let (piece, mut output) = (at, ("", false));
                if let Some(TurnPiece::Output { text, failed }) = pieces.get(at + 1) {
                    output = (text, *failed);
                    at += 1;
                }
                add_call(name, args, output, piece, measures, &mut units);
            }
            TurnPiece::Output { text, failed } => {
                add_call("result", "", (text, *failed), at, measures, &mut units);
            }
        }
        if let Some(first) = units.get_mut(before) {
            first.score *= FIRST_SENTENCE_FACTOR;
        }
        at += 1;
    }
    units
}

/// Adds the sentences of a message or of reasoning. Repeated sentences are added once.
fn add_sentences(
    text: &str,
    factor: f64,
    piece: usize,
    measures: &TextMeasures<'_>,
    units: &mut Vec<TextUnit>,
) {
    let cleaned = clean_text(text);
    let mut seen = HashSet::new();
    for (line, text) in cleaned.lines().enumerate() {
        for sentence in split_sentences(text) {
            if seen.insert(sentence.to_lowercase()) {
                units.push(TextUnit::new(
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
fn add_call(
    name: &str,
    args: &str,
    (output, failed): (&str, bool),
    piece: usize,
    measures: &TextMeasures<'_>,
    units: &mut Vec<TextUnit>,
) {
    let arguments_text = format_arguments(args);
    let head = |characters| {
        format!("{name} {}", truncate_words(&arguments_text, characters))
            .trim_end()
            .to_owned()
    };
    let title = head(80);
    let key_line = find_key_line(output);
    let short = match key_line.is_empty() {
        true => format!("{{{title}}}"),
        false => format!("{{{title}: {}}}", truncate_words(&key_line, 100)),
    };
    let factor = if failed { FAILURE_FACTOR } else { CALL_FACTOR };
    let text = head(400);
    units.push(TextUnit {
        score: factor * score_text(&short, measures),
        short: Some(short),
        tokens: (measures.count_tokens)(&text).max(1),
        text,
        position: (piece, 0),
    });
    let lines = select_lines(output, MAX_OUTPUT_LINES)
        .into_iter()
        .map(clean_text);
    for (line, text) in (1..).zip(lines) {
        if !text.trim().is_empty() {
            // Output lines count half, because the short form of the call has the key line.
            let factor = if is_notable(&text) {
                FAILURE_FACTOR
            } else {
                0.5
            };
            let unit = TextUnit::new(text, (piece, line), factor, measures);
            units.push(TextUnit {
                score: unit.score * 0.5,
                ..unit
            });
        }
    }
}

/// Scores a text by its rare words, names and numbers, in relation to its length.
fn score_text(text: &str, measures: &TextMeasures<'_>) -> f64 {
    let (mut sum, mut words) = (0.0, 0.0);
    let mut seen = HashSet::new();
    for_each_word(text, |word| {
        words += 1.0;
        if !is_stop_word(word) && seen.insert(word.to_owned()) {
            sum += match is_number(word) {
                true => NUMBER_SCORE,
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
fn tiny_units(units: &[TextUnit]) -> Vec<TextUnit> {
    let calls = units.iter().filter(|unit| unit.short.is_some()).count();
    let all_calls = calls == units.len();
    let is_kept = |unit: &&TextUnit| unit.short.is_none() || calls == 1 || all_calls;
    units.iter().filter(is_kept).cloned().collect()
}

/// Joins the best units within `target` tokens, in their original order. A unit that does not fit
/// is reduced to its best words.
fn fit_units(units: &[TextUnit], target: u32, measures: &TextMeasures<'_>) -> String {
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by(|a, b| units[*b].score.total_cmp(&units[*a].score).then(a.cmp(b)));
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
            let squeezed = keep_best_words(&unit.text, left, measures);
            let tokens = (measures.count_tokens)(&squeezed);
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
    join_units(kept.into_iter().map(|(at, text)| (&units[at], text)))
}

fn join_units<'a>(kept: impl Iterator<Item = (&'a TextUnit, String)>) -> String {
    let mut text = String::new();
    let mut before = None;
    for (unit, part) in kept {
        if let Some(before) = before {
            text.push(if before == unit.position { ' ' } else { '\n' });
        }
        text.push_str(&part);
        before = Some(unit.position);
    }
    text
}

/// With a target of at most this many tokens, only content words are kept.
const FEW_TOKENS: u32 = 8;
/// Words with a higher score are content words.
const CONTENT_WORD_SCORE: f64 = 1.0;
/// Words after this many are ignored.
const MAX_SCORED_WORDS: usize = 2000;

/// Returns the best words of a text within `target` tokens, in their original order; at least one
/// word.
fn keep_best_words(text: &str, target: u32, measures: &TextMeasures<'_>) -> String {
    struct ScoredWord<'a> {
        text: &'a str,
        score: f64,
        tokens: u32,
    }
    let words = text.split_whitespace().take(MAX_SCORED_WORDS).enumerate();
    let mut words: Vec<ScoredWord<'_>> = words
        .map(|(at, text)| {
            let worth = score_word(text, at, measures);
            // A few words need no punctuation.
            let bare = text.trim_matches(|c: char| !c.is_alphanumeric());
            let is_bare = target <= FEW_TOKENS && !bare.is_empty();
            let text = if is_bare { bare } else { text };
            let tokens = (measures.count_tokens)(&format!(" {text}")).max(1);
            ScoredWord {
                text,
                score: worth,
                tokens,
            }
        })
        .collect();
    if target <= FEW_TOKENS && words.iter().any(|word| word.score > CONTENT_WORD_SCORE) {
        words.retain(|word| word.score > CONTENT_WORD_SCORE);
    }
    let mut order: Vec<usize> = (0..words.len()).collect();
    let by = |at: usize| words[at].score / f64::from(words[at].tokens).sqrt();
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
        let content = (0..words.len()).filter(|at| words[*at].score > CONTENT_WORD_SCORE);
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
        if kept.len() <= 1 || (measures.count_tokens)(text) <= target {
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
fn score_word(word: &str, at: usize, measures: &TextMeasures<'_>) -> f64 {
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
    for_each_word(bare, |part| {
        worth = worth.max(match is_stop_word(part) {
            true => 0.5,
            false => 1.0 + (measures.rarity)(part),
        });
    });
    if is_number(bare) {
        return 1.0 + NUMBER_SCORE;
    }
    if at > 0 && word.starts_with(char::is_uppercase) && bare.len() > 1 {
        worth += 1.5;
    }
    worth
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measures<'a>() -> TextMeasures<'a> {
        TextMeasures {
            rarity: &|word| word.len() as f64 / 2.0,
            count_tokens: &crate::tokens::count,
        }
    }

    fn message(text: &str) -> Vec<TurnPiece> {
        vec![TurnPiece::Message {
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
            let lower = extract_lower_levels(&message(&text), raw, &measures());
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
            TurnPiece::Message {
                role: "user".into(),
                text: "Please run the tests and tell me what fails in the login module.".into(),
            },
            TurnPiece::Call {
                name: "exec".into(),
                args: r#"{"command":["npm","test"]}"#.into(),
            },
            TurnPiece::Output {
                text: output.clone(),
                failed: true,
            },
            TurnPiece::Message {
                role: "assistant".into(),
                text: "Two tests of the login module fail: the token has expired.".into(),
            },
        ];
        let lower = extract_lower_levels(&pieces, 600, &measures());
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
            extract_lower_levels(&[], 0, &measures()),
            LowerLevels {
                smoothed: "".into(),
                compressed: "".into(),
                tiny: "".into()
            }
        );
        let ok = extract_lower_levels(&message("ok"), 1, &measures());
        assert_eq!((ok.smoothed.as_str(), ok.tiny.as_str()), ("ok", "ok"));
        assert!(
            extract_lower_levels(&message("… !!"), 2, &measures())
                .tiny
                .len()
                < 10
        );
    }
}
