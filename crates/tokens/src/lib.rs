//! Counts tokens. A vocabulary is loaded on first use, which takes some 100 ms and some 20 MB; a process that counts
//! nothing pays nothing.
//!
//! Only OpenAI publishes how its models count. For all others the count is an estimate, and says so.
//!
//! ```
//! let exact = selvedge_tokens::count_for("gpt-4o", "Hello, world");
//! let rough = selvedge_tokens::count_for("claude-sonnet-5", "Hello, world");
//! assert_eq!((exact.tokens, exact.estimated), (3, false));
//! assert!(rough.estimated);
//! ```
// Standard streams belong to whoever runs this.
#![deny(clippy::print_stderr, clippy::print_stdout)]

use tiktoken_rs::tokenizer::{Tokenizer, get_tokenizer};
use tiktoken_rs::{CoreBPE, bpe_for_tokenizer};

/// How many tokens a text has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// The number.
    pub tokens: usize,
    /// Whether the model itself would count differently.
    pub estimated: bool,
}

/// The longest run of letters, or of blanks, that is encoded at once. Encoding takes time that grows with the square of
/// a word's length, and a megabyte of base64 is one word.
const LONGEST_RUN: usize = 4096;

/// How many tokens a text has in o200k, the vocabulary of OpenAI's newer models.
pub fn count(text: &str) -> usize {
    count_in(Tokenizer::O200kBase, text).tokens
}

/// How many tokens a text has for this model.
pub fn count_for(model: &str, text: &str) -> Count {
    // Gateways put the maker in front.
    let bare = model.rsplit('/').next().unwrap_or(model);
    match get_tokenizer(bare) {
        Some(tokenizer) => count_in(tokenizer, text),
        None => Count {
            estimated: true,
            ..count_in(Tokenizer::O200kBase, text)
        },
    }
}

fn count_in(tokenizer: Tokenizer, text: &str) -> Count {
    match bpe_for_tokenizer(tokenizer) {
        Ok(vocabulary) => Count {
            tokens: stretches(text)
                .map(|stretch| ordinary(vocabulary, stretch))
                .sum(),
            estimated: false,
        },
        // The vocabularies are part of the program; without them, four bytes a token is a fair guess.
        Err(_) => Count {
            tokens: text.len().div_ceil(4),
            estimated: true,
        },
    }
}

/// Text is only text: what looks like a special token in it is none.
fn ordinary(vocabulary: &CoreBPE, text: &str) -> usize {
    vocabulary.count_ordinary(text)
}

/// The text, cut only inside runs that are too long: everything else is counted exactly.
fn stretches(mut rest: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (mut run, mut blank) = (0, false);
        let cut = rest.char_indices().find_map(|(at, c)| {
            run = if c.is_whitespace() == blank {
                run + 1
            } else {
                1
            };
            blank = c.is_whitespace();
            (run > LONGEST_RUN).then_some(at)
        });
        let (stretch, more) = rest.split_at(cut.unwrap_or(rest.len()));
        rest = more;
        (!stretch.is_empty()).then_some(stretch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_counts() {
        assert_eq!(count(""), 0);
        assert_eq!(count("hello world"), 2);
        assert_eq!(
            count("<|endoftext|>"),
            count("<|") + count("endoftext") + count("|>")
        );
        assert_eq!(
            count_for("gpt-3.5-turbo", "hello world"),
            Count {
                tokens: 2,
                estimated: false
            }
        );
        assert!(!count_for("openai/gpt-5.5", "x").estimated);
        for other in ["claude-opus-5", "qwen3:8b", "no-such-model"] {
            assert!(count_for(other, "x").estimated, "{other}");
        }
    }

    #[test]
    fn long_texts_count_as_whole_ones() {
        let text =
            "The quick brown fox jumps over the lazy dog, again;\n\n  größer, 速い. \n".repeat(500);
        let whole = bpe_for_tokenizer(Tokenizer::O200kBase)
            .unwrap()
            .count_ordinary(&text);
        assert_eq!(count(&text), whole);
    }

    /// A megabyte without a space, or of nothing else, would take minutes in one piece.
    #[test]
    fn runs_without_end_are_counted() {
        for run in ["abcdefghij".repeat(100_000), " ".repeat(1_000_000)] {
            assert!((100..1_000_000).contains(&count(&run)));
            assert_eq!(stretches(&run).collect::<String>(), run);
        }
    }
}
