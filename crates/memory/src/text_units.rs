//! Sentences, actions and lines of output with scores, and how they are fitted into a number of
//! tokens. Pure functions, without I/O.

use std::collections::HashSet;

use crate::best_words::{NUMBER_SCORE, is_number, keep_best_words};
use crate::extract::TextMeasures;
use crate::words::{for_each_word, is_stop_word};

/// A sentence, a call, or a line of a call's output.
#[derive(Debug, Clone)]
pub(crate) struct TextUnit {
    pub(crate) text: String,
    pub(crate) kind: UnitKind,
    pub(crate) tokens: u32,
    pub(crate) score: f64,
    /// Index of the piece, and of the line in it. Units of one line are joined by a space, others
    /// by a line break.
    pub(crate) position: (usize, usize),
}

/// What a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnitKind {
    Sentence,
    Action,
    OutputLine,
}

impl TextUnit {
    pub(crate) fn new(
        text: String,
        place: (usize, usize),
        factor: f64,
        measures: &TextMeasures<'_>,
    ) -> Self {
        Self {
            kind: UnitKind::Sentence,
            tokens: (measures.count_tokens)(&text).max(1),
            score: factor * score_text(&text, measures),
            text,
            position: place,
        }
    }
}

/// Scores a text by its rare words, names and numbers, in relation to its length.
pub(crate) fn score_text(text: &str, measures: &TextMeasures<'_>) -> f64 {
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

/// Tokens of one line in a summary of many.
const MAX_SUMMARY_LINE_TOKENS: u32 = 14;

/// Summarises many lines: the ones with the highest scores, each shortened at its end, within
/// `target` tokens, in their order. Repeated lines are used once.
pub(crate) fn best_lines(lines: &[String], target: u32, measures: &TextMeasures<'_>) -> String {
    let mut seen = HashSet::new();
    let mut units: Vec<TextUnit> = Vec::new();
    for line in lines {
        // A line of a shorter summary has several parts.
        for part in line.split("; ") {
            let part = shorten_to_tokens(part, MAX_SUMMARY_LINE_TOKENS.min(target), measures);
            if !part.is_empty() && seen.insert(part.to_lowercase()) {
                units.push(TextUnit::new(part, (units.len(), 0), 1.0, measures));
            }
        }
    }
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by(|a, b| units[*b].score.total_cmp(&units[*a].score).then(a.cmp(b)));
    let (mut kept, mut left) = (Vec::new(), target);
    for at in order {
        // One token for the separator.
        let cost = units[at].tokens + 1;
        if cost <= left {
            left -= cost;
            kept.push(at);
        }
    }
    kept.sort_unstable();
    let kept: Vec<&str> = kept.into_iter().map(|at| units[at].text.as_str()).collect();
    kept.join("; ")
}

/// Cuts a line after the last word that fits, and marks the cut. White space is collapsed.
fn shorten_to_tokens(line: &str, target: u32, measures: &TextMeasures<'_>) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    for count in (1..=words.len()).rev() {
        let mut text = words[..count].join(" ");
        if count < words.len() {
            text = format!("{}…", text.trim_end_matches([',', ';', ':', '.', '(']));
        }
        if (measures.count_tokens)(&text) <= target {
            return text;
        }
    }
    String::new()
}

/// How a unit is shortened that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortening {
    /// To its best words: for a text that is one unit or few.
    BestWords,
    /// A sentence to its beginning, if that is long enough to be read. Other units are left out.
    CutEnd,
}

/// Fewest words of the beginning of a sentence.
const MIN_CUT_WORDS: usize = 5;

/// Joins the best units within `target` tokens, in their original order. A unit that does not fit
/// is shortened. If no unit fits, the best one is reduced to its best words.
pub(crate) fn fit_units(
    units: &[TextUnit],
    target: u32,
    shortening: Shortening,
    measures: &TextMeasures<'_>,
) -> String {
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by(|a, b| units[*b].score.total_cmp(&units[*a].score).then(a.cmp(b)));
    let mut kept: Vec<(usize, String)> = Vec::new();
    let mut left = target;
    for at in &order {
        let unit = &units[*at];
        // One token for the space or line break before the unit.
        let joined = unit.tokens + u32::from(!kept.is_empty());
        if joined <= left {
            left -= joined;
            kept.push((*at, unit.text.clone()));
        } else if left > 0 {
            let shortened = match (shortening, unit.kind) {
                (Shortening::BestWords, _) => keep_best_words(&unit.text, left, measures),
                (Shortening::CutEnd, UnitKind::Sentence) => cut_end(&unit.text, left, measures),
                (Shortening::CutEnd, UnitKind::Action | UnitKind::OutputLine) => String::new(),
            };
            let tokens = (measures.count_tokens)(&shortened);
            if !shortened.is_empty() && (tokens < left || kept.is_empty()) {
                left = left.saturating_sub(tokens + 1);
                kept.push((*at, shortened));
            } else if shortening == Shortening::BestWords {
                break;
            }
        }
        if left < 2 {
            break;
        }
    }
    if let (true, Some(best)) = (kept.is_empty(), order.first()) {
        let words = keep_best_words(&units[*best].text, target, measures);
        kept.push((*best, words));
    }
    kept.sort_by_key(|(at, _)| *at);
    join_units(kept.into_iter().map(|(at, text)| (&units[at], text)))
}

/// Returns the beginning of a sentence within `target` tokens, with a mark; empty if it is too
/// short to be read.
fn cut_end(sentence: &str, target: u32, measures: &TextMeasures<'_>) -> String {
    // A word has one token at least.
    let words: Vec<&str> = sentence.split_whitespace().take(target as usize).collect();
    let cut = |count: usize| {
        let text = words[..count].join(" ");
        format!("{}…", text.trim_end_matches([',', ';', ':', '.', '(']))
    };
    let (mut low, mut high) = (0, words.len());
    while low < high {
        let middle = (low + high).div_ceil(2);
        match (measures.count_tokens)(&cut(middle)) <= target {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    match low >= MIN_CUT_WORDS {
        true => cut(low),
        false => String::new(),
    }
}

pub(crate) fn join_units<'a>(kept: impl Iterator<Item = (&'a TextUnit, String)>) -> String {
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
