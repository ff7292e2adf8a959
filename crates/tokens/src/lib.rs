//! Counts the tokens of a text in o200k, the vocabulary of OpenAI's newer models. For models of
//! other providers the count is an estimate.
//!
//! The vocabulary is indexed on first use. `o200k.bin` has its tokens in the order of their ranks,
//! each after a byte with its length; the index refers to them. The crate tiktoken-rs counts the
//! same, which a test compares, but it copies every token: loading took 100 ms and 20 MB, which
//! each short `selvedge exec` paid before its first request.
//!
//! ```
//! assert_eq!(selvedge_tokens::count("Hello, world"), 3);
//! ```
// Standard streams belong to the program that uses this crate.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod vocabulary;

use vocabulary::Vocabulary;

/// Longest run of non-blank characters, or of blanks, that is encoded in one piece. A megabyte of
/// base64 is one word, and would need memory many times its size.
const MAX_RUN_CHARS: usize = 4096;

/// Returns how many tokens a text has. Special tokens such as `<|endoftext|>` count as plain text.
pub fn count(text: &str) -> usize {
    let vocabulary = Vocabulary::shared();
    pieces(text).map(|piece| vocabulary.count(piece)).sum()
}

/// Splits the text inside runs longer than [`MAX_RUN_CHARS`], and nowhere else.
fn pieces(mut rest: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (mut run, mut blank) = (0, false);
        let cut = rest.char_indices().find_map(|(at, c)| {
            run = if c.is_whitespace() == blank {
                run + 1
            } else {
                1
            };
            blank = c.is_whitespace();
            (run > MAX_RUN_CHARS).then_some(at)
        });
        let (piece, more) = rest.split_at(cut.unwrap_or(rest.len()));
        rest = more;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use tiktoken_rs::o200k_base_singleton;

    use super::*;

    #[test]
    fn known_texts_have_known_counts() {
        assert_eq!(count(""), 0);
        assert_eq!(count("hello world"), 2);
        assert_eq!(
            count("<|endoftext|>"),
            count("<|") + count("endoftext") + count("|>")
        );
    }

    #[test]
    fn a_long_text_counts_as_if_encoded_in_one_piece() {
        let text =
            "The quick brown fox jumps over the lazy dog, again;\n\n  größer, 速い. \n".repeat(500);
        assert_eq!(count(&text), o200k_base_singleton().count_ordinary(&text));
    }

    #[test]
    fn texts_of_any_characters_count_as_with_tiktoken() {
        let parts: Vec<&str> = concat!(
            " | |  |\t|\n|\r\n|\u{a0}|\u{3000}|a|th|ing|E|X|'s|'LL|ß|é|e\u{301}|1|23|½|.|/|//",
            "|{}|\"|…|漢|語|ا|ไทย|🦀|👩\u{200d}👩\u{200d}👧|\u{0}|\u{200d}|ǅ|ʰ|_",
        )
        .split('|')
        .collect();
        let theirs = o200k_base_singleton();
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let length = random.usize(..60);
            let text: String = (0..length)
                .filter_map(|_| random.choice(&parts).copied())
                .collect();
            assert_eq!(count(&text), theirs.count_ordinary(&text), "{text:?}");
        }
        let code = include_str!("vocabulary.rs");
        assert_eq!(count(code), theirs.count_ordinary(code));
        let word = "Donaudampfschifffahrtsgesellschaft".repeat(20);
        assert_eq!(count(&word), theirs.count_ordinary(&word));
    }

    /// A megabyte without spaces, or of spaces only, would take minutes in one piece.
    #[test]
    fn a_run_of_a_million_characters_is_counted() {
        for run in ["abcdefghij".repeat(100_000), " ".repeat(1_000_000)] {
            assert!((100..1_000_000).contains(&count(&run)));
            assert_eq!(pieces(&run).collect::<String>(), run);
        }
    }
}
