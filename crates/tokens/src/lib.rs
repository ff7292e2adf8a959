//! Counts the tokens of a text in o200k, the vocabulary of OpenAI's newer models. For models of
//! other providers the count is an estimate.
//!
//! The vocabulary is loaded on first use, which takes about 100 ms and 20 MB. `o200k.bin` has its
//! tokens in the order of their ranks, each after a byte with its length: less than half of the
//! Base64 that tiktoken-rs has. A test compares both.
//!
//! ```
//! assert_eq!(selvedge_tokens::count("Hello, world"), 3);
//! ```
// Standard streams belong to the program that uses this crate.
#![deny(clippy::print_stderr, clippy::print_stdout)]

use std::sync::OnceLock;

use tiktoken_rs::{CoreBPE, O200K_BASE_PAT_STR, Rank};

/// The tokens of o200k.
const TOKENS: &[u8] = include_bytes!("o200k.bin");

/// Longest run of non-blank characters, or of blanks, that is encoded in one piece. Encoding time
/// grows with the square of a word's length, and a megabyte of base64 is one word.
const MAX_RUN_CHARS: usize = 4096;

/// Returns how many tokens a text has. Special tokens such as `<|endoftext|>` count as plain text.
pub fn count(text: &str) -> usize {
    let pieces = pieces(text);
    match vocabulary() {
        Some(vocabulary) => pieces.map(|piece| vocabulary.count_ordinary(piece)).sum(),
        // Cannot happen: the pattern is a constant that a test compiles.
        None => text.len() / 4,
    }
}

fn vocabulary() -> Option<&'static CoreBPE> {
    static VOCABULARY: OnceLock<Option<CoreBPE>> = OnceLock::new();
    let load = || {
        let ranked = (0..)
            .zip(tokens())
            .map(|(rank, token): (Rank, _)| (token.to_vec(), rank));
        CoreBPE::new(ranked.collect(), Default::default(), O200K_BASE_PAT_STR).ok()
    };
    VOCABULARY.get_or_init(load).as_ref()
}

/// Returns the tokens in the order of their ranks.
fn tokens() -> impl Iterator<Item = &'static [u8]> {
    let mut rest = TOKENS;
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first()?;
        let (token, after) = after.split_at_checked(usize::from(*length))?;
        rest = after;
        Some(token)
    })
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
        assert!(tokens().eq(theirs.iter().map(Vec::as_slice)));
        assert!(vocabulary().is_some());
    }

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

    /// A megabyte without spaces, or of spaces only, would take minutes in one piece.
    #[test]
    fn a_run_of_a_million_characters_is_counted() {
        for run in ["abcdefghij".repeat(100_000), " ".repeat(1_000_000)] {
            assert!((100..1_000_000).contains(&count(&run)));
            assert_eq!(pieces(&run).collect::<String>(), run);
        }
    }
}
