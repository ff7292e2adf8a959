//! About how many tokens a text has, without loading a vocabulary.

/// Rather more than fewer: for planning, not for keeping a promise.
pub(crate) fn estimate(text: &str) -> usize {
    text.len().div_ceil(3)
}

/// Whether a text has more tokens than this. Counts only where its length leaves that open.
pub(crate) fn exceeds(text: &str, tokens: usize) -> bool {
    // No token is shorter than a byte.
    text.len() > tokens && selvedge_tokens::count(text) > tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_tokens::count;

    #[test]
    fn estimates_are_on_the_safe_side_of_ordinary_text() {
        let code = include_str!("size.rs");
        assert!(estimate(code) >= count(code) && estimate(code) < 3 * count(code));
    }

    #[test]
    fn a_bound_is_kept_for_any_text() {
        for text in [
            "a".repeat(5000),
            "1".repeat(5000),
            "漢字".repeat(800),
            "{}[]()".repeat(500),
        ] {
            let tokens = count(&text);
            assert!(!exceeds(&text, tokens) && exceeds(&text, tokens - 1));
        }
    }
}
