//! Finding options among words, in the ways programs accept them.

use super::words::Word;

/// The first of `flags` (parted by blanks) that stands among the words, before a `--`.
///
/// `--force` is also found as `--forc` and `--force=yes`, `-f` also in `-rf`; a longer one with a single dash, as
/// `find -delete`, only as it is or with `=`.
pub(super) fn flagged<'a>(words: &[Word], flags: &'a str) -> Option<&'a str> {
    let options = words
        .iter()
        .map(|word| word.text.as_str())
        .take_while(|word| *word != "--");
    options
        .filter(|word| word.starts_with('-'))
        .find_map(|word| flags.split(' ').find(|flag| is(word, flag)))
}

/// The words that are no options. Those named in `valued` (parted by blanks) take the word after them along.
pub(super) fn operands<'a>(words: &'a [Word], valued: &str) -> Vec<&'a Word> {
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

fn is(word: &str, flag: &str) -> bool {
    let name = word.split('=').next().unwrap_or_default();
    match flag.as_bytes() {
        [b'-', b'-', ..] => name.len() > 2 && flag.starts_with(name),
        [b'-', letter] => !word.starts_with("--") && word.as_bytes()[1..].contains(letter),
        [] => false,
        _ => name == flag,
    }
}
