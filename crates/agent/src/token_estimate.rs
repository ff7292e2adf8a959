//! Token estimates without loading a vocabulary.

/// Returns an estimate of the number of tokens of a text, which is usually too high. For planning
/// only, not for enforcing a limit.
pub(crate) fn estimate_tokens(text: &str) -> usize {
    text.len().div_ceil(3)
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
