//! Counts tokens, with the vocabulary of `selvedge-tokens`.

use crate::level::escape_tags;

/// Counts the tokens of a text as it appears in a prompt, with its tags escaped.
pub(crate) fn count(text: &str) -> u32 {
    u32::try_from(selvedge_tokens::count(&escape_tags(text))).unwrap_or(u32::MAX)
}
