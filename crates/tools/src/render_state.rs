//! Limits of the TypeScript types that are generated for one tool.

use std::collections::BTreeSet;

/// Most parts of a tool's types that are rendered. Those beyond are `unknown`.
const MAX_TYPE_PARTS: usize = 4096;

/// Most levels of a type that are rendered. Deeper ones are `unknown`.
const MAX_TYPE_DEPTH: usize = 48;

/// Bytes of a tool's types, counted at every level, after which further parts are `unknown`.
const MAX_TYPE_BYTES: usize = 2 << 20;

/// What the types of one tool have used of the limits. References can repeat a part of a schema
/// any number of times, so the size of a schema does not limit that of its type.
#[derive(Default)]
pub(crate) struct RenderState {
    /// The references that are being rendered.
    pub(crate) open: BTreeSet<String>,
    /// Number of types around the current one.
    nesting: usize,
    /// Number of types that were rendered.
    parts: usize,
    /// Length of all rendered types, in bytes; a nested one counts at every level.
    bytes: usize,
}

impl RenderState {
    /// Enters a type; `false` if a limit is reached.
    pub(crate) fn enter(&mut self) -> bool {
        let fits = self.parts < MAX_TYPE_PARTS
            && self.nesting < MAX_TYPE_DEPTH
            && self.bytes < MAX_TYPE_BYTES;
        if fits {
            self.parts += 1;
            self.nesting += 1;
        }
        fits
    }

    /// Leaves a type that was entered.
    pub(crate) fn leave(&mut self, text: &str) {
        self.nesting -= 1;
        self.bytes += text.len();
    }
}
