//! Measures the parser's work, so that tests can compare it with the predicted cost.

use oxc_allocator::Allocator;

use crate::compile::{parse, stack_bytes};
use crate::parse_cost::bound_parse_cost;

/// The work of parsing one text.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct ParseWork {
    /// Upper bound of the work, as predicted from the tokens.
    pub predicted_cost: u64,
    /// Memory that the parser used. What it reads several times uses memory each time.
    pub arena_bytes: usize,
}

impl ParseWork {
    /// Parses a text. Returns `None` if the compiler would reject it before.
    pub fn measure(source: &str) -> Option<Self> {
        let predicted_cost = bound_parse_cost(source).ok()?;
        let arena_bytes = stacker::grow(stack_bytes(source), || {
            let allocator = Allocator::default();
            parse(&allocator, source);
            allocator.used_bytes()
        });
        Some(Self {
            predicted_cost,
            arena_bytes,
        })
    }
}
