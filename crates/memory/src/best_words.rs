//! Selects the best words of a text that does not fit into its target.

use crate::extract::TextMeasures;
use crate::words::{for_each_word, is_stop_word};

/// The score of a number. It is fixed, because a rare number hardly says what a text is about.
pub(crate) const NUMBER_SCORE: f64 = 1.5;
/// With a target of at most this many tokens, only content words are kept.
const FEW_TOKENS: u32 = 8;
/// Words with a higher score are content words.
const CONTENT_WORD_SCORE: f64 = 1.0;
/// Words after this many are ignored.
const MAX_SCORED_WORDS: usize = 2000;

/// Returns the best words of a text within `target` tokens, in their original order; at least one
/// word.
pub(crate) fn keep_best_words(text: &str, target: u32, measures: &TextMeasures<'_>) -> String {
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

/// Returns whether a word is a number.
pub(crate) fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) && !word.contains(char::is_alphabetic)
}
