//! Counts the tokens of words by byte pair encoding.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::Hasher;
use std::sync::LazyLock;

use hashbrown::HashTable;
use regex::Regex;
use rustc_hash::FxHasher;

/// The tokens of o200k, each after a byte with its length.
const TOKENS: &[u8] = include_bytes!("o200k.bin");

/// How many tokens there are.
const TOKEN_COUNT: usize = 199_998;

/// The words of a text, which are encoded one by one. The pattern of o200k also has
/// `\s+(?!\S)` before the last alternative; [`word_end`] does the same without looking ahead.
const WORD: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"|\s*[\r\n]+",
    r"|\s+",
);

/// Rank of a token: the tokens with the lowest ranks are merged first.
type Rank = u32;

/// An entry of the index.
struct Token {
    /// Where its length is in [`TOKENS`].
    at: u32,
    rank: Rank,
}

/// The index of the tokens.
pub(crate) struct Vocabulary {
    tokens: HashTable<Token>,
    word: Regex,
}

impl Vocabulary {
    /// The vocabulary of this process, indexed at the first call.
    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<Vocabulary> = LazyLock::new(Vocabulary::new);
        &SHARED
    }

    #[allow(clippy::expect_used)] // The pattern is a constant, which the tests compile.
    fn new() -> Self {
        let mut tokens = HashTable::with_capacity(TOKEN_COUNT);
        let mut at = 0;
        while at < TOKENS.len() {
            let token = token_at(at);
            let rank = tokens.len() as Rank;
            let entry = Token {
                at: at as u32,
                rank,
            };
            tokens.insert_unique(hash(token), entry, |entry| hash(entry.bytes()));
            at += 1 + token.len();
        }
        Self {
            tokens,
            word: Regex::new(WORD).expect("a valid pattern"),
        }
    }

    /// Returns how many tokens a text has.
    pub fn count(&self, text: &str) -> usize {
        let (mut at, mut tokens) = (0, 0);
        while let Some(found) = self.word.find_at(text, at) {
            at = word_end(text, found.range());
            tokens += self.count_word(&text.as_bytes()[found.start()..at]);
        }
        tokens
    }

    fn count_word(&self, word: &[u8]) -> usize {
        match self.rank(word) {
            Some(_) => 1,
            None => self.count_merged(word),
        }
    }

    /// Merges the two neighbouring parts whose token has the lowest rank, the leftmost ones first,
    /// until no two neighbours are a token. Each byte is a token.
    fn count_merged(&self, word: &[u8]) -> usize {
        /// The end of a part that was merged into the part before it.
        const MERGED: usize = 0;
        // By the start of each part: where it ends, and where the part before it starts.
        let mut ends: Vec<usize> = (1..=word.len()).collect();
        let mut before: Vec<usize> = (0..word.len()).map(|at| at.saturating_sub(1)).collect();
        let mut pairs = BinaryHeap::with_capacity(word.len());
        let pair = |ends: &[usize], start: usize| {
            let end = *ends.get(ends[start])?;
            Some(Reverse((self.rank(&word[start..end])?, start, end)))
        };
        pairs.extend((0..word.len()).filter_map(|start| pair(&ends, start)));
        let mut parts = word.len();
        while let Some(Reverse((_, start, end))) = pairs.pop() {
            let middle = ends[start];
            // One of the two parts has been merged with another since.
            if middle == MERGED || ends.get(middle) != Some(&end) {
                continue;
            }
            (ends[start], ends[middle]) = (end, MERGED);
            if let Some(before) = before.get_mut(end) {
                *before = start;
            }
            parts -= 1;
            pairs.extend(pair(&ends, start));
            if start > 0 {
                pairs.extend(pair(&ends, before[start]));
            }
        }
        parts
    }

    fn rank(&self, token: &[u8]) -> Option<Rank> {
        let found = self
            .tokens
            .find(hash(token), |entry| entry.bytes() == token);
        found.map(|entry| entry.rank)
    }
}

impl Token {
    fn bytes(&self) -> &'static [u8] {
        token_at(self.at as usize)
    }
}

/// Returns the token whose length is at this place.
fn token_at(at: usize) -> &'static [u8] {
    &TOKENS[at + 1..][..usize::from(TOKENS[at])]
}

fn hash(token: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(token);
    hasher.finish()
}

/// Returns the end of a word that was found: the last of several blanks belongs to the word after
/// them. Only the last alternative of [`WORD`] ends with a blank that is no line break.
fn word_end(text: &str, found: std::ops::Range<usize>) -> usize {
    let last = text[found.clone()].char_indices().next_back();
    match last {
        Some((at, last))
            if at > 0
                && found.end < text.len()
                && last.is_whitespace()
                && !matches!(last, '\r' | '\n') =>
        {
            found.start + at
        }
        _ => found.end,
    }
}

#[cfg(test)]
mod tests {
    use tiktoken_rs::o200k_base_singleton;

    use super::*;

    /// `UPDATE_VOCABULARY=1` writes the file.
    #[test]
    fn the_vocabulary_is_that_of_tiktoken() {
        let theirs = o200k_base_singleton();
        let theirs = (0..).map_while(|rank| theirs.decode_bytes(&[rank]).ok());
        let theirs: Vec<Vec<u8>> = theirs.collect();
        if std::env::var_os("UPDATE_VOCABULARY").is_some() {
            let with_length = |token: &Vec<u8>| [&[token.len() as u8][..], token].concat();
            let bytes: Vec<u8> = theirs.iter().flat_map(with_length).collect();
            let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/o200k.bin");
            std::fs::write(file, bytes).unwrap();
        }
        assert_eq!(theirs.len(), TOKEN_COUNT);
        let vocabulary = Vocabulary::shared();
        for (rank, token) in (0..).zip(&theirs) {
            assert_eq!(vocabulary.rank(token), Some(rank), "{token:?}");
        }
        assert_eq!(vocabulary.tokens.len(), TOKEN_COUNT);
    }
}
