//! Finds options and operands among the words of a command.

use super::words::ShellWord;

/// Returns the first of `flags` (separated by spaces) that occurs among the words, also after `--`:
/// that word may be the value of an option, as in `sort --random-source -- -o f`.
///
/// `--force` also matches `--forc` and `--force=yes`, and `-f` matches `-rf`. A longer option with
/// a single dash, such as `find -delete`, matches only itself, with or without `=`.
pub(super) fn find_flag<'a>(words: &[ShellWord], flags: &'a str) -> Option<&'a str> {
    let options = words.iter().map(|word| word.text.as_str());
    options
        .filter(|word| word.starts_with('-'))
        .find_map(|word| flags.split(' ').find(|flag| matches_flag(word, flag)))
}

/// Returns the words before `--`. Only for programs whose options take no values.
pub(super) fn before_end_of_options(words: &[ShellWord]) -> &[ShellWord] {
    let end = words.iter().position(|word| word.text == "--");
    &words[..end.unwrap_or(words.len())]
}

/// Returns the words that may be options: those before the first `--` that cannot be the value of
/// an option, because no option precedes it.
pub(super) fn possible_options(words: &[ShellWord]) -> &[ShellWord] {
    let is_end = |at: &usize| {
        let is_value = |before: usize| words[before].text.starts_with('-');
        words[*at].text == "--" && !at.checked_sub(1).is_some_and(is_value)
    };
    let end = (0..words.len()).find(is_end);
    &words[..end.unwrap_or(words.len())]
}

/// Returns whether one of `options` (separated by spaces) occurs among the words, in any spelling.
pub(crate) fn has_option(words: &[String], options: &str) -> bool {
    let words: Vec<ShellWord> = words.iter().map(ShellWord::literal).collect();
    find_flag(&words, options).is_some()
}

/// Returns the words that are not options. Options in `valued` (separated by spaces) take the next
/// word as their value.
pub(super) fn operands<'a>(words: &'a [ShellWord], valued: &str) -> Vec<&'a ShellWord> {
    let mut found = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        if word.text == "--" {
            found.extend(rest);
            break;
        } else if !word.text.starts_with('-') || word.text == "-" {
            found.push(word);
        } else if valued.split(' ').any(|flag| flag == word.text) {
            rest.next();
        }
    }
    found
}

fn matches_flag(word: &str, flag: &str) -> bool {
    let name = word.split('=').next().unwrap_or_default();
    match flag.as_bytes() {
        [b'-', b'-', ..] => name.len() > 2 && flag.starts_with(name),
        [b'-', letter] => !word.starts_with("--") && word.as_bytes()[1..].contains(letter),
        [] => false,
        _ => name == flag,
    }
}
