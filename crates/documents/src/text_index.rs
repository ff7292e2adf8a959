//! Full-text search over documents: an inverted index in memory, ranked with BM25.
//!
//! A changed document gets a new slot, and its old slot stays in the lists until enough of them are
//! unused. So a change costs as much as the document has words.

use std::collections::HashMap;

use selvedge_text::{bm25, is_stop_word, stem};

use crate::WorkspaceDocument;
use crate::document::scalar_text;

/// Weight of a word in the title. A word of the text has weight 1.
const TITLE_WEIGHT: f32 = 3.0;
/// Longest word that is indexed, in bytes.
const MAX_WORD_BYTES: usize = 64;
/// Maximum number of words of a query.
const MAX_QUERY_WORDS: usize = 32;
/// Maximum number of different words. Further ones are not found.
const MAX_TERMS: usize = 2_000_000;
/// Number of unused slots below which the index is not rebuilt.
const MIN_UNUSED_SLOTS: usize = 1_000;

/// A document that contains a word, and the word's weighted count.
#[derive(Debug, Clone, Copy)]
struct Posting {
    slot: u32,
    weight: f32,
}

/// The words of all documents. A slot is the number of a document in this index.
#[derive(Debug, Default)]
pub(crate) struct TextIndex {
    /// Numbers of the stems, by word as written in lower case.
    words: HashMap<Box<str>, u32>,
    /// Numbers of the stems.
    stems: HashMap<Box<str>, u32>,
    /// The documents that contain each stem.
    postings: Vec<Vec<Posting>>,
    /// Weighted number of words of each slot; `None` if the slot is not used any more.
    lengths: Vec<Option<f32>>,
    used_slots: usize,
    total_length: f64,
    /// While a document is added: the weighted count of each stem, and the stems that occur.
    counts: Vec<f32>,
    counted: Vec<u32>,
}

impl TextIndex {
    /// Adds a document and returns its slot.
    pub(crate) fn add(&mut self, document: &WorkspaceDocument) -> u32 {
        let slot = self.lengths.len() as u32;
        self.count(&document.title, TITLE_WEIGHT);
        self.count(&document.markdown, 1.0);
        let texts = [&document.kind, &document.status];
        for text in texts.into_iter().flatten() {
            self.count(text, 1.0);
        }
        for (_, value) in &document.fields {
            let list = value
                .as_array()
                .map_or(std::slice::from_ref(value), Vec::as_slice);
            for text in list.iter().filter_map(scalar_text) {
                self.count(&text, 1.0);
            }
        }
        let mut length = 0.0;
        for term in self.counted.drain(..) {
            let weight = std::mem::take(&mut self.counts[term as usize]);
            self.postings[term as usize].push(Posting { slot, weight });
            length += weight;
        }
        self.lengths.push(Some(length));
        self.used_slots += 1;
        self.total_length += f64::from(length);
        slot
    }

    /// Removes the document of a slot.
    pub(crate) fn remove(&mut self, slot: u32) {
        if let Some(length) = self.lengths.get_mut(slot as usize).and_then(Option::take) {
            self.used_slots -= 1;
            self.total_length -= f64::from(length);
        }
    }

    /// Whether so many slots are unused that building the index again saves memory.
    pub(crate) fn is_sparse(&self) -> bool {
        let unused = self.lengths.len() - self.used_slots;
        unused > MIN_UNUSED_SLOTS && unused > self.used_slots / 2
    }

    /// Returns the score of each slot whose document contains all words of a text; of the others,
    /// `None`. A text without words matches every document.
    pub(crate) fn search(&self, text: &str) -> Vec<Option<f64>> {
        let mut terms: Vec<Option<u32>> = Vec::new();
        for_each_word(text, |word| {
            let term = self.term_of(word);
            if !terms.contains(&term) && terms.len() < MAX_QUERY_WORDS {
                terms.push(term);
            }
        });
        let mut found: Vec<(usize, f64)> = vec![(0, 0.0); self.lengths.len()];
        let average = self.total_length / self.used_slots.max(1) as f64;
        for term in terms.iter().flatten() {
            let list = &self.postings[*term as usize];
            let idf = bm25::idf_lucene(self.used_slots.max(list.len()), list.len());
            for posting in list {
                let slot = posting.slot as usize;
                let Some(length) = self.lengths[slot] else {
                    continue;
                };
                let weight = f64::from(posting.weight);
                found[slot].0 += 1;
                found[slot].1 += idf * bm25::term_weight(weight, f64::from(length), average);
            }
        }
        let scores = found
            .into_iter()
            .map(|(words, score)| (words == terms.len()).then_some(score));
        scores.collect()
    }

    fn count(&mut self, text: &str, weight: f32) {
        for_each_word(text, |word| {
            if let Some(term) = self.term_for(word) {
                let count = &mut self.counts[term as usize];
                if *count == 0.0 {
                    self.counted.push(term);
                }
                *count += weight;
            }
        });
    }

    /// Returns the number of a word's stem, if a document contains it.
    fn term_of(&self, word: &str) -> Option<u32> {
        let known = self.words.get(word).copied();
        known.or_else(|| self.stems.get(stemmed(word).as_str()).copied())
    }

    /// Returns the number of a word's stem, and adds it if it is new.
    fn term_for(&mut self, word: &str) -> Option<u32> {
        if let Some(term) = self.words.get(word) {
            return Some(*term);
        }
        if self.words.len() >= MAX_TERMS {
            return None;
        }
        let next = self.postings.len() as u32;
        let term = *self.stems.entry(stemmed(word).into()).or_insert(next);
        if term == next {
            self.postings.push(Vec::new());
            self.counts.push(0.0);
        }
        self.words.insert(word.into(), term);
        Some(term)
    }
}

fn stemmed(word: &str) -> String {
    let mut word = word.to_owned();
    stem(&mut word);
    word
}

/// Passes the words of a text on, in lower case and without stop words. Each character of a script
/// without spaces is a word.
fn for_each_word(text: &str, mut found: impl FnMut(&str)) {
    let mut word = String::new();
    let mut pass = |word: &mut String| {
        if (1..=MAX_WORD_BYTES).contains(&word.len()) && !is_stop_word(word) {
            found(word);
        }
        word.clear();
    };
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            word.push(c.to_ascii_lowercase());
        } else if c.is_ascii() {
            pass(&mut word);
        } else if is_ideograph(c) {
            pass(&mut word);
            word.push(c);
            pass(&mut word);
        } else if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        } else {
            pass(&mut word);
        }
    }
    pass(&mut word);
}

/// Whether a character belongs to a script without spaces: Chinese, Japanese, Korean, Thai.
fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{e7f}' | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7a3}' | '\u{20000}'..='\u{3ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(texts: &[&str]) -> TextIndex {
        let mut index = TextIndex::default();
        for text in texts {
            index.add(&WorkspaceDocument::from_text("a.md", text));
        }
        index
    }

    fn best_first(index: &TextIndex, text: &str) -> Vec<usize> {
        let scores = index.search(text).into_iter().enumerate();
        let mut found: Vec<_> = scores
            .filter_map(|(slot, score)| Some((slot, score?)))
            .collect();
        found.sort_by(|a, b| b.1.total_cmp(&a.1));
        found.into_iter().map(|(slot, _)| slot).collect()
    }

    #[test]
    fn all_words_have_to_occur_and_titles_count_more() {
        let index = index(&[
            "---\ntitle: Sessions\n---\nThe login page crashes when a user is logged in twice.",
            "---\ntitle: Login crash\n---\nText.",
            "---\ntitle: Other\nlabels: [crashing, login]\n---\nLong text about many other things.",
            "Login only",
            "登录页面崩溃",
        ]);
        assert_eq!(best_first(&index, "login crashes")[0], 1);
        assert_eq!(best_first(&index, "login crashes").len(), 3);
        assert_eq!(best_first(&index, "LOGIN, twice!"), [0]);
        assert_eq!(
            best_first(&index, "the login of a"),
            best_first(&index, "login")
        );
        assert_eq!(best_first(&index, "崩溃"), [4]);
        assert!(best_first(&index, "login unknownword").is_empty());
        assert_eq!(best_first(&index, "…").len(), 5);
    }

    #[test]
    fn removed_documents_are_not_found_and_the_index_becomes_sparse() {
        let mut index = index(&["apple", "apple pie"]);
        index.remove(0);
        index.remove(0);
        assert_eq!(best_first(&index, "apple"), [1]);
        assert!(!index.is_sparse());
        for _ in 0..1_100 {
            let slot = index.add(&WorkspaceDocument::from_text("a.md", "apple"));
            index.remove(slot);
        }
        assert!(index.is_sparse());
    }
}
