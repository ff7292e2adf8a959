//! Splits text into the terms of the index: words, case-folded and stemmed as by FTS5's
//! `porter unicode61`. Scripts without spaces are split into pairs of characters, which `unicode61`
//! would treat as one long word.

use std::sync::LazyLock;

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use selvedge_text::stem;

/// Calls `take` with each word of a text, folded and stemmed, in order.
pub(crate) fn for_each_term(text: &str, mut take: impl FnMut(&str)) {
    let mut term = String::new();
    for_each_word(text, |word| {
        term.clear();
        term.push_str(word);
        stem(&mut term);
        take(&term);
    });
}

/// Calls `take` with each word of a text, folded but not stemmed, in order.
pub(crate) fn for_each_word(text: &str, mut take: impl FnMut(&str)) {
    let mut word = String::new();
    // The length and the last character of the current run of characters without spaces.
    let mut run: (usize, Option<char>) = (0, None);
    let end_run = |run: &mut (usize, Option<char>), take: &mut dyn FnMut(&str)| {
        if let (1, Some(alone)) = *run {
            take(alone.encode_utf8(&mut [0; 4]));
        }
        *run = (0, None);
    };
    for c in text.chars() {
        if is_without_spaces(c) {
            if !word.is_empty() {
                take(&word);
                word.clear();
            }
            if let Some(before) = run.1 {
                take(&String::from_iter([before, c]));
            }
            run = (run.0 + 1, Some(c));
            continue;
        }
        end_run(&mut run, &mut take);
        if c.is_ascii_alphanumeric() {
            word.push(c.to_ascii_lowercase());
        } else if c.is_alphanumeric() {
            for plain in std::iter::once(c).nfd().filter(|c| !is_combining_mark(*c)) {
                word.extend(plain.to_lowercase());
            }
        } else if !is_combining_mark(c) && !word.is_empty() {
            take(&word);
            word.clear();
        }
    }
    end_run(&mut run, &mut take);
    if !word.is_empty() {
        take(&word);
    }
}

/// Returns whether a character belongs to a script without spaces: Han, Hiragana, Katakana, Thai,
/// Lao, Khmer.
fn is_without_spaces(c: char) -> bool {
    matches!(c, '\u{0e00}'..='\u{0eff}' | '\u{1780}'..='\u{17ff}' | '\u{3040}'..='\u{30ff}'
        | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3ffff}')
        && c.is_alphanumeric()
}

/// Returns the terms of a question, each once, in order. Stop words are omitted, unless there are
/// no others.
pub(crate) fn query_terms(text: &str) -> Vec<String> {
    let mut content_terms = Vec::new();
    let mut all = Vec::new();
    for_each_word(text, |word| {
        let mut term = word.to_owned();
        stem(&mut term);
        if !is_stop_word(word) && !content_terms.contains(&term) {
            content_terms.push(term.clone());
        }
        if !all.contains(&term) {
            all.push(term);
        }
    });
    if content_terms.is_empty() {
        all
    } else {
        content_terms
    }
}

/// Returns whether a text has a word that is not a stop word.
pub(crate) fn has_content_word(text: &str) -> bool {
    let mut found = false;
    for_each_word(text, |word| found |= !is_stop_word(word));
    found
}

/// Returns whether a folded word is a stop word.
pub(crate) fn is_stop_word(word: &str) -> bool {
    STOP_WORDS.binary_search(&word).is_ok()
}

/// English stop words, sorted. `s`, `t`, `ll` and the like are what apostrophes leave when a word
/// is split.
const STOP_WORD_LIST: &str = "\
    a about above after again against ain all also am an and any are aren as at be because \
    been before being below between both but by can could couldn d did didn do does doesn \
    doing don down during each few for from further had hadn has hasn have haven having he her \
    here hers herself him himself his how i if in into is isn it its itself just ll m ma me \
    might mightn more most must mustn my myself needn no nor not now o of off on once only or \
    other our ours ourselves out over own re s same shall shan she should shouldn so some such \
    t than that the their theirs them themselves then there these they this those through to \
    too under until up ve very was wasn we were weren what when where which while who whom \
    whose why will with won would wouldn y you your yours yourself yourselves";
static STOP_WORDS: LazyLock<Vec<&str>> = LazyLock::new(|| STOP_WORD_LIST.split(' ').collect());

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        for_each_word(text, |word| found.push(word.to_owned()));
        found
    }

    #[test]
    fn words_are_folded_and_scripts_without_spaces_are_paired() {
        assert_eq!(
            words("Café-Müller's 2nd naïve İdea"),
            ["cafe", "muller", "s", "2nd", "naive", "idea"]
        );
        assert_eq!(
            words("我喜欢茶 tea 茶"),
            ["我喜", "喜欢", "欢茶", "tea", "茶"]
        );
        assert_eq!(words("  … "), [] as [&str; 0]);
    }

    #[test]
    fn stop_words_are_removed_from_questions() {
        assert_eq!(
            query_terms("When did Caroline go to the adoption agencies?"),
            ["carolin", "go", "adopt", "agenc"]
        );
        assert_eq!(query_terms("who is it"), ["who", "is", "it"]);
        assert!(STOP_WORDS.is_sorted());
    }
}
