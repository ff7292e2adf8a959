//! Counting tokens, in the vocabulary that budgets are told in.

use crate::level::escape;

/// Tokens of a text as a prompt has it.
pub(crate) fn count(text: &str) -> u32 {
    count_plain(&escape(text))
}

fn count_plain(text: &str) -> u32 {
    tiktoken_rs::o200k_base_singleton().count_ordinary(text) as u32
}
