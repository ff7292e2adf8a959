//! Finds the files and symbols that messages and search patterns name.

use crate::outcome_paths::{dedup, is_library_path, paths_in};

/// Words of search patterns that are no identifiers.
const PATTERN_WORDS: &[&str] = &[
    "class", "def", "trait", "fn", "const", "var", "let", "struct", "enum", "impl", "function",
    "func", "import", "from", "pub", "async", "static", "type", "return", "export", "self",
];

/// Returns the identifiers in a search pattern.
pub(crate) fn identifiers_in(pattern: &str) -> Vec<String> {
    let mut found: Vec<String> = pattern
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| word.len() > 2 && !PATTERN_WORDS.contains(word))
        .filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'))
        .map(str::to_owned)
        .collect();
    dedup(&mut found);
    // A pattern of many words is a sentence.
    if found.len() > 3 {
        found.retain(|word| is_identifier(word));
    }
    found.truncate(3);
    found
}

/// Returns whether a word is written as an identifier: `snake_case`, `camelCase`, `PascalCase`.
pub(crate) fn is_identifier(word: &str) -> bool {
    let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let starts = word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let inner_capital = word
        .chars()
        .zip(word.chars().skip(1))
        .any(|(a, b)| (a.is_ascii_lowercase() || a.is_ascii_digit()) && b.is_ascii_uppercase());
    plain && starts && word.len() > 2 && (word.trim_matches('_').contains('_') || inner_capital)
}

/// Returns the files and identifiers that a message names: paths, words in backticks, `f()`,
/// identifiers.
pub(crate) fn names_in_message(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (at, part) in text.split('`').enumerate() {
        let part = part.trim();
        let is_name = at % 2 == 1 && part.len() > 2 && part.len() < 60 && !part.contains(' ');
        let bare = part.trim_end_matches("()").trim_end_matches('(');
        let plain = |c: char| c.is_alphanumeric() || "_.:/-".contains(c);
        if is_name && bare.chars().all(plain) && bare.contains(char::is_alphabetic) {
            names.push(bare.to_owned());
        }
    }
    names.extend(paths_in(text));
    for word in text.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
        if is_identifier(word) {
            names.push(word.to_owned());
        }
    }
    dedup(&mut names);
    names.retain(|name| !is_library_path(name));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_messages_and_patterns() {
        assert_eq!(
            names_in_message("Explain `Signer` in signer.py, see make_keys_list and loadPayload."),
            ["Signer", "signer.py", "make_keys_list", "loadPayload"]
        );
        assert_eq!(
            identifiers_in("(class|def) base64_decode"),
            ["base64_decode"]
        );
        assert!(names_in_message("Please run the tests and tell me more.").is_empty());
    }
}
