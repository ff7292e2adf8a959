//! Finds by rules which stored statement a newer one takes back: "never use tabs" after "always use
//! tabs", or "use spaces instead of tabs".

use std::collections::BTreeSet;

use selvedge_text::stem;

use crate::words::{for_each_word, is_stop_word};

/// Words that state a wish and do not say what it is about.
const FILLERS: &str = "always avoid cannot convention don ensure ever every from going instead \
    keep like longer make need never no not now please prefer project rather remember shouldn \
    stop sure team use used uses using want whenever without";
/// Words that turn a statement into its opposite.
const NEGATIONS: &str = "avoid cannot don doesn mustn never no not shouldn stop without";
/// Phrases after which a statement names what it replaces.
const REPLACED: [&str; 4] = ["instead of ", "rather than ", "no longer ", "not any more "];
/// Words after such a phrase that name what is replaced.
const MAX_REPLACED_WORDS: usize = 4;
/// Two statements are about the same if they share this part of the words of the shorter one.
const MIN_SHARED_WORDS: f64 = 0.67;

/// A statement in the form in which it is compared with others.
#[derive(Debug)]
pub(crate) struct StatementTerms {
    /// The words that say what it is about, stemmed.
    terms: BTreeSet<String>,
    /// The words after each phrase that says what it replaces.
    replaced: Vec<BTreeSet<String>>,
    is_negated: bool,
}

impl StatementTerms {
    pub(crate) fn new(statement: &str) -> Self {
        let lower = statement.to_lowercase();
        let replaced = REPLACED.iter().filter_map(|phrase| {
            let at = lower.find(phrase)?;
            let words = lower[at + phrase.len()..].split_whitespace();
            let replaced: Vec<&str> = words.take(MAX_REPLACED_WORDS).collect();
            // The clause ends at a comma or a full stop.
            let end = replaced
                .iter()
                .position(|word| word.ends_with([',', '.', ';', ':']));
            let replaced = &replaced[..end.map_or(replaced.len(), |end| end + 1)];
            Some(content_terms(&replaced.join(" ")))
        });
        Self {
            terms: content_terms(statement),
            replaced: replaced.collect(),
            is_negated: is_negated(statement),
        }
    }

    /// Returns whether this newer statement takes back an older one.
    pub(crate) fn contradicts(&self, older: &Self) -> bool {
        let shared = self.terms.intersection(&older.terms).count();
        if shared == 0 {
            return false;
        }
        for replaced in &self.replaced {
            let shared = replaced.intersection(&older.terms).count();
            if shared > 0 && shared * 2 >= older.terms.len() && !older.is_negated {
                return true;
            }
        }
        let shorter = self.terms.len().min(older.terms.len());
        self.is_negated != older.is_negated && shared as f64 / shorter as f64 >= MIN_SHARED_WORDS
    }
}

/// Returns whether a newer statement takes back an older one.
pub(crate) fn contradicts(newer: &str, older: &str) -> bool {
    StatementTerms::new(newer).contradicts(&StatementTerms::new(older))
}

/// Returns the stemmed words of a statement that say what it is about.
fn content_terms(text: &str) -> BTreeSet<String> {
    let mut terms = BTreeSet::new();
    for_each_word(text, |word| {
        let is_filler = FILLERS.split_whitespace().any(|filler| filler == word);
        if !is_filler && !is_stop_word(word) {
            let mut term = word.to_owned();
            stem(&mut term);
            terms.insert(term);
        }
    });
    terms
}

fn is_negated(text: &str) -> bool {
    let mut found = false;
    for_each_word(text, |word| {
        found |= NEGATIONS
            .split_whitespace()
            .any(|negation| negation == word);
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_takes_back_its_opposite_and_what_it_replaces() {
        for (newer, older) in [
            ("Never use tabs.", "Always use tabs."),
            (
                "From now on use spaces instead of tabs.",
                "We always use tabs.",
            ),
            ("Please don't run the linter.", "Always run the linter."),
            (
                "We no longer use yarn, pnpm does it.",
                "We use yarn in this project.",
            ),
        ] {
            assert!(contradicts(newer, older), "{newer} / {older}");
        }
        for (newer, older) in [
            ("Always use tabs.", "Always use tabs."),
            ("Never commit to main.", "Always run the linter."),
            (
                "Use spaces instead of tabs.",
                "Makefiles need tabs, which the linter checks.",
            ),
            ("Never use tabs.", "Never use tabs in Makefiles."),
        ] {
            assert!(!contradicts(newer, older), "{newer} / {older}");
        }
    }
}
