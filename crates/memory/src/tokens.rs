//! Counting tokens, in the vocabulary that budgets are told in.

use crate::level::escape;

/// Tokens of a text as a prompt has it.
pub(crate) fn count(text: &str) -> u32 {
    u32::try_from(selvedge_tokens::count(&escape(text))).unwrap_or(u32::MAX)
}
