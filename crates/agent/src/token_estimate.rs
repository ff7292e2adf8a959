//! Token estimates without loading a vocabulary.

/// Bytes per token in estimates. Ordinary text has more, so that estimates are usually too high.
const BYTES_PER_TOKEN: usize = 3;

/// Returns an estimate of the number of tokens of a text, which is usually too high. For planning
/// only, not for enforcing a limit.
pub(crate) fn estimate_tokens(text: &str) -> usize {
    tokens_of_bytes(text.len())
}

/// Returns an estimate of the number of tokens of a text with this many bytes.
pub(crate) fn tokens_of_bytes(bytes: usize) -> usize {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// Returns the number of bytes that a text of this many tokens has by the estimate.
pub(crate) fn bytes_of_tokens(tokens: usize) -> usize {
    tokens.saturating_mul(BYTES_PER_TOKEN)
}

/// Returns whether a text has more than `tokens` tokens. Counts them only if the length of the text
/// does not decide it.
pub(crate) fn exceeds_tokens(text: &str, tokens: usize) -> bool {
    // A token has at least one byte.
    text.len() > tokens && selvedge_tokens::count(text) > tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_tokens::count;

    #[test]
    fn estimates_of_ordinary_text_are_not_too_low() {
        let code = include_str!("token_estimate.rs");
        assert!(estimate_tokens(code) >= count(code) && estimate_tokens(code) < 3 * count(code));
    }

    #[test]
    fn exceeds_is_exact_for_any_text() {
        for text in [
            "a".repeat(5000),
            "1".repeat(5000),
            "漢字".repeat(800),
            "{}[]()".repeat(500),
        ] {
            let tokens = count(&text);
            assert!(!exceeds_tokens(&text, tokens) && exceeds_tokens(&text, tokens - 1));
        }
    }
}
