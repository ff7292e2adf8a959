//! The Porter stemmer, with its rules in the order that SQLite's FTS5 uses.
//!
//! It is hand-written so that rankings can be compared with those of FTS5: the test
//! `fts5_comparison.rs` of `memory` checks that both give the same stems.

/// Words longer than this, in bytes, are usually identifiers and are not stemmed.
const MAX_WORD_BYTES: usize = 64;

type Condition = fn(&[u8]) -> bool;

/// Reduces a lower-case word to its stem, in place.
pub fn stem(word: &mut String) {
    if !(3..=MAX_WORD_BYTES).contains(&word.len()) {
        return;
    }
    let mut bytes = std::mem::take(word).into_bytes();
    strip_plural(&mut bytes);
    if strip_past_or_progressive(&mut bytes) && !restore_e(&mut bytes) {
        let last = bytes[bytes.len() - 1];
        let doubled = bytes.len() > 1 && last == bytes[bytes.len() - 2];
        if doubled
            && last.is_ascii()
            && !is_vowel(last, false)
            && !matches!(last, b'l' | b's' | b'z')
        {
            bytes.pop();
        } else if measure(&bytes) == 1 && ends_with_short_syllable(&bytes) {
            bytes.push(b'e');
        }
    }
    if let Some((b'y', rest)) = bytes.split_last()
        && has_vowel(rest)
    {
        let last = bytes.len() - 1;
        bytes[last] = b'i';
    }
    replace_ending(&mut bytes, STEP_2, |stem| measure(stem) > 0);
    replace_ending(&mut bytes, STEP_3, |stem| measure(stem) > 0);
    step_4(&mut bytes);
    if let Some((b'e', rest)) = bytes.split_last()
        && (measure(rest) > 1 || (measure(rest) == 1 && !ends_with_short_syllable(rest)))
    {
        bytes.pop();
    }
    if bytes.ends_with(b"ll") && measure(&bytes[..bytes.len() - 1]) > 1 {
        bytes.pop();
    }
    // Still UTF-8: only ASCII letters were removed or added.
    *word = String::from_utf8(bytes).unwrap_or_default();
}

const STEP_2: &[(&str, &str)] = &[
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("logi", "log"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
];

const STEP_3: &[(&str, &str)] = &[
    ("ical", "ic"),
    ("ness", ""),
    ("icate", "ic"),
    ("iciti", "ic"),
    ("ful", ""),
    ("ative", ""),
    ("alize", "al"),
];

const STEP_4: &[&str] = &[
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou",
    "ism", "ate", "iti", "ous", "ive", "ize",
];

fn strip_plural(word: &mut Vec<u8>) {
    let cut = match word.as_slice() {
        [.., b's', b's', b'e', b's'] if word.len() > 4 => 2,
        [.., b'i', b'e', b's'] if word.len() > 3 => 2,
        [.., b's', b's'] => 0,
        [.., b's'] => 1,
        _ => 0,
    };
    word.truncate(word.len() - cut);
}

fn strip_past_or_progressive(word: &mut Vec<u8>) -> bool {
    if let Some(stem) = stem_before(word, "eed") {
        if measure(stem) > 0 {
            word.pop();
        }
        return false;
    }
    for ending in ["ed", "ing"] {
        if let Some(stem) = stem_before(word, ending) {
            let cut = has_vowel(stem);
            if cut {
                word.truncate(word.len() - ending.len());
            }
            return cut;
        }
    }
    false
}

fn restore_e(word: &mut Vec<u8>) -> bool {
    let found = ["at", "bl", "iz"]
        .iter()
        .any(|ending| stem_before(word, ending).is_some());
    if found {
        word.push(b'e');
    }
    found
}

fn step_4(word: &mut Vec<u8>) {
    let Some(ending) = STEP_4
        .iter()
        .find(|ending| stem_before(word, ending).is_some())
    else {
        return;
    };
    let stem = &word[..word.len() - ending.len()];
    let before_ion = |stem: &[u8]| *ending != "ion" || matches!(stem.last(), Some(b's' | b't'));
    if before_ion(stem) && measure(stem) > 1 {
        word.truncate(word.len() - ending.len());
    }
}

/// Replaces the first ending in `rules` that the word has, if `condition` holds for the stem before
/// it. Later rules are not tried.
fn replace_ending(word: &mut Vec<u8>, rules: &[(&str, &str)], condition: Condition) {
    let Some((ending, replacement)) = rules
        .iter()
        .find(|(ending, _)| stem_before(word, ending).is_some())
    else {
        return;
    };
    if condition(&word[..word.len() - ending.len()]) {
        word.truncate(word.len() - ending.len());
        word.extend_from_slice(replacement.as_bytes());
    }
}

/// Returns the part of the word before the ending, or `None` if the word does not have the ending
/// or consists of it.
fn stem_before<'a>(word: &'a [u8], ending: &str) -> Option<&'a [u8]> {
    word.strip_suffix(ending.as_bytes())
        .filter(|stem| !stem.is_empty())
}

/// Returns whether a letter is a vowel. `y` is a vowel after a consonant.
fn is_vowel(letter: u8, after_consonant: bool) -> bool {
    matches!(letter, b'a' | b'e' | b'i' | b'o' | b'u') || (after_consonant && letter == b'y')
}

/// Returns Porter's measure: how many times a vowel is followed by a consonant.
fn measure(stem: &[u8]) -> usize {
    let mut count = 0;
    let mut consonant = false;
    let mut vowel_before = false;
    for letter in stem {
        consonant = !is_vowel(*letter, consonant);
        count += usize::from(consonant && vowel_before);
        vowel_before = !consonant;
    }
    count
}

fn has_vowel(stem: &[u8]) -> bool {
    stem.iter()
        .enumerate()
        .any(|(index, letter)| is_vowel(*letter, index > 0))
}

/// Returns whether the stem ends with consonant, vowel, consonant, and the last is not w, x or y.
fn ends_with_short_syllable(stem: &[u8]) -> bool {
    if matches!(stem.last(), None | Some(b'w' | b'x' | b'y')) {
        return false;
    }
    let mut kinds = 0_u8;
    let mut consonant = false;
    for letter in stem {
        consonant = !is_vowel(*letter, consonant);
        kinds = kinds << 1 | u8::from(consonant);
    }
    kinds & 0b111 == 0b101
}

#[cfg(test)]
mod tests {
    use super::stem;

    #[test]
    fn words_of_one_family_have_one_stem() {
        for (word, expected) in [
            ("running", "run"),
            ("relational", "relat"),
            ("hopping", "hop"),
            ("hoping", "hope"),
            ("conferences", "confer"),
            ("agreed", "agre"),
            ("sky", "sky"),
            ("ties", "ti"),
            ("adoption", "adopt"),
            ("controll", "control"),
            ("at", "at"),
            ("straße", "straß"),
        ] {
            let mut stemmed = word.to_owned();
            stem(&mut stemmed);
            assert_eq!(stemmed, expected, "{word}");
        }
    }
}
